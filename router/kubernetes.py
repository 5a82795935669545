"""Follows the EndpointSlices of a service: lists them, then watches from the version of the list.

    LIST --version--> WATCH --ended, cut--> WATCH from the last version
      ^                 |
      '-- 410 Gone, an answer that makes no sense ---'

Whatever fails is tried again after a pause that doubles, and what is known stays meanwhile: an API server that is away
takes no worker away. The rules are those of `core/endpoints.py`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from inferway import logs, net

from .core.endpoints import BadAnswer, Departed, Endpoints, Slices, VersionGone, said
from .sources import KubernetesService

log = logging.getLogger(__name__)

# The first is long enough that a server which ends each watch at once is not kept busy.
_PAUSE_S = (0.2, 10.0)
# A watch is renewed after this time, so that a connection which died without a word is noticed.
_WATCH_S = 60
_SILENCE_S = _WATCH_S + 15.0
_LIST_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
# A watch that has lasted this long has worked, though nothing may have happened.
_WORKED_S = 5.0
_OK, _GONE = 200, 410


@dataclass(frozen=True, slots=True)
class KubernetesApi:
    """How the API server is reached. Both files are read at each request, for they are rotated under a pod."""

    url: str
    token_file: str = ""
    ca_file: str = ""

    def request_options(self) -> dict[str, Any]:
        """What goes with a request. A file that is not there is left out. Raises OSError and ssl.SSLError."""
        options: dict[str, Any] = {"headers": {"Accept": "application/json"}, "allow_redirects": False}
        token = Path(self.token_file)
        if self.token_file and token.exists():
            options["headers"]["Authorization"] = f"Bearer {token.read_text().strip()}"
        if self.url.startswith("https:"):
            has_ca = self.ca_file and Path(self.ca_file).exists()
            options["ssl"] = ssl.create_default_context(cafile=self.ca_file if has_ca else None)
        return options


def api_url(url: str, environ: Mapping[str, str]) -> str:
    """The API server that was named, or that of the pod; empty when there is neither."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    if url or not host:
        return url.rstrip("/")
    return f"https://{f'[{host}]' if ':' in host else host}:{environ.get('KUBERNETES_SERVICE_PORT', '443')}"


def check_api_url(url: str) -> None:
    """Raises ValueError with what it must be: a token never travels in the clear."""
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and net.is_loopback(parts.netloc))
    if not (is_safe and parts.hostname):
        raise ValueError("must be https://HOST[:PORT], or http:// on loopback")


class EndpointWatch:
    """One service. `run` goes on until it is cancelled and calls `on_change` when `endpoints` has changed."""

    def __init__(
        self,
        service: KubernetesService,
        api: KubernetesApi,
        departed: Departed,
        rng: Random,
        *,
        pause_s: tuple[float, float] = _PAUSE_S,
    ) -> None:
        self.service = service
        # None until the first list.
        self.endpoints: Endpoints | None = None
        self._api = api
        self._rng = rng
        self._pause_s = pause_s
        self._slices = Slices(service.port_name, departed)
        self._on_change: Callable[[], None] = lambda: None
        self._trouble = ""
        # Whether the server has done, since the last pause, what it was asked to.
        self._works = False

    async def run(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        pause_s = self._pause_s[0]
        async with aiohttp.ClientSession() as session:
            while True:
                self._works = False
                try:
                    if not self._slices.version:
                        await self._list(session)
                    await self._watch(session)
                except VersionGone:
                    self._slices.version = ""
                except BadAnswer as error:
                    self._slices.version = ""
                    self._note_trouble(f"the API server said: {error}")
                except (aiohttp.ClientError, OSError) as error:
                    self._note_trouble(f"the API server cannot be reached: {error or type(error).__name__}")
                pause_s = self._pause_s[0] if self._works else min(self._pause_s[1], pause_s * 2)
                await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))

    def current(self) -> Endpoints:
        """`endpoints` in the light of what other services have seen of departures; none before the first list."""
        return self._slices.endpoints()

    async def _list(self, session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=_LIST_TIMEOUT_S, sock_connect=_CONNECT_TIMEOUT_S)
        async with session.get(self._url, params=self._selector, timeout=timeout, **self._options()) as response:
            body = await response.read()
            _check(response, body)
        self._slices.feed_list(body)
        self._take()

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        """Follow events until the stream ends. Raises what `run` knows how to take."""
        params = {
            **self._selector,
            "watch": "1",
            "resourceVersion": self._slices.version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_SILENCE_S)
        loop = asyncio.get_running_loop()
        async with session.get(self._url, params=params, timeout=timeout, **self._options()) as response:
            if response.status != _OK:
                _check(response, await response.read())
            if self._trouble != self._slices.trouble:
                self._trouble = self._slices.trouble
                logs.event(log, "endpoints_followed", service=str(self.service))
            opened_at = loop.time()
            pending = b""
            try:
                async for chunk in response.content.iter_any():
                    *lines, pending = (pending + chunk).split(b"\n")
                    self._take_events(lines)
                self._take_events([pending])
            finally:
                self._works = self._works or loop.time() - opened_at >= _WORKED_S

    def _take_events(self, lines: Sequence[bytes]) -> None:
        try:
            for line in filter(None, map(bytes.strip, lines)):
                self._slices.feed_event(line)
                self._works = True
        finally:
            # Also of those before one that makes no sense.
            self._take()

    @property
    def _url(self) -> str:
        return f"{self._api.url}/apis/discovery.k8s.io/v1/namespaces/{self.service.namespace}/endpointslices"

    @property
    def _selector(self) -> dict[str, str]:
        return {"labelSelector": f"kubernetes.io/service-name={self.service.service}"}

    def _options(self) -> dict[str, Any]:
        try:
            return self._api.request_options()
        except (OSError, UnicodeDecodeError, ssl.SSLError) as error:
            raise BadAnswer(f"nothing, for its token or certificate file cannot be read: {error}") from None

    def _take(self) -> None:
        endpoints = self._slices.endpoints()
        if self._slices.trouble:
            self._note_trouble(self._slices.trouble)
        if endpoints == self.endpoints:
            return
        self.endpoints = endpoints
        logs.event(
            log,
            "endpoints_changed",
            service=str(self.service),
            usable=len(endpoints.usable),
            idle=len(endpoints.idle),
            leaving=len(endpoints.leaving),
        )
        self._on_change()

    def _note_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            logs.event(log, "endpoints_trouble", level=logging.WARNING, service=str(self.service), error=trouble)


def _check(response: aiohttp.ClientResponse, body: bytes) -> None:
    if response.status == _GONE:
        raise VersionGone
    if response.status != _OK:
        raise BadAnswer(said(response.status, body))
