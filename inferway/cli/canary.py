"""`python -m inferway probe URL`: asks for one token as a caller would, through whatever stands in front."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from inferway.cli.routers import subject_first
from inferway.config import Secret, load_or_exit, option

_PROG = "python -m inferway probe URL"
_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """Stream one token through the front door at URL, and print how that went as one line of JSON."""

    model: str = option("", "model to ask for", default_text="the first of /v1/models that takes chats")
    key: Secret = option(Secret(""), "API key; better in the variable than in the flag")
    timeout_s: float = option(30.0, "time for all of it", unit="s", minimum=0.1)
    ca_file: str = option("", "CA certificates to check an https URL against", default_text="the system's")
    certificate: str = option(
        "", "the only certificate to accept from an https URL, whatever name it is for; without one --ca-file counts"
    )


@dataclass(slots=True)
class Result:
    """The line of JSON. `reason` is empty when it is `ok`."""

    url: str
    model: str
    ok: bool = False
    reason: str = ""
    status: int | None = None
    request_id: str = ""
    ttft_ms: float | None = None
    total_ms: float | None = None


class _Failed(Exception):
    """What was not as it should be."""


class _TakesNoChats(_Failed):
    """The request was refused as such: a model for embeddings does so."""


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns 0 when a token and the stream's regular end came in time, 1 when not, 2 for a wrong command line."""
    url, rest = subject_first(argv)
    config = load_or_exit(ProbeConfig, "probe", environ, rest, prog=_PROG)
    parts = _url(url)
    if parts is None:
        print(f"probe: a URL http://HOST:PORT or https:// is needed, before all flags: {_PROG}", file=sys.stderr)
        return 2
    result = Result(url, config.model)
    began = time.monotonic()
    try:
        _Probe(parts, config, result, began).run()
        result.ok = True
    except _Failed as failure:
        result.reason = str(failure)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        result.reason = f"{type(error).__name__}: {error}"
    if not result.ok and time.monotonic() - began >= config.timeout_s:
        result.reason = f"not done after {config.timeout_s:g} s"
    result.total_ms = _ms_since(began)
    print(json.dumps(asdict(result)))
    return 0 if result.ok else 1


@dataclass(slots=True)
class _Probe:
    parts: SplitResult
    config: ProbeConfig
    result: Result
    began: float
    _open: list[http.client.HTTPConnection] = field(default_factory=list)
    # A connection forgets its socket when an answer lasts to its end.
    _sockets: list[socket.socket] = field(default_factory=list)

    def run(self) -> None:
        """Fills in the result. Raises _Failed, OSError, HTTPException and UnicodeError."""
        # A timeout of a socket begins anew with each byte that comes.
        limit = threading.Timer(self.config.timeout_s, self._break_off)
        limit.daemon = True
        limit.start()
        try:
            self._stream_of_first([self.config.model] if self.config.model else self._models())
        finally:
            limit.cancel()
            for connection in self._open:
                connection.close()

    def _break_off(self) -> None:
        for open_socket in (*self._sockets, *(connection.sock for connection in self._open)):
            if open_socket is not None:
                with suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)

    def _stream_of_first(self, models: Sequence[str]) -> None:
        """Of those that take chats."""
        for model in models:
            self.result.model = model
            try:
                self._stream()
            except _TakesNoChats:
                if model == models[-1]:
                    raise
            else:
                return
        raise _Failed("no model can be asked for")

    def _models(self) -> list[str]:
        response = self._ask("GET", "/v1/models")
        body = _parsed(response.read(_MAX_LINE_BYTES))
        if response.status != 200:
            raise _Failed(_refusal(response.status, body))
        return [str(model.get("id")) for model in _mappings(body.get("data"))]

    def _stream(self) -> None:
        ask = {
            "model": self.result.model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        response = self._ask("POST", "/v1/chat/completions", ask)
        self.result.status = response.status
        self.result.request_id = response.headers.get("x-request-id", "")
        if response.status != 200:
            failure = _TakesNoChats if response.status == 400 else _Failed
            raise failure(_refusal(response.status, _parsed(response.read(_MAX_LINE_BYTES))))
        tokens = 0
        for data in self._events(response):
            if data == b"[DONE]":
                if not tokens:
                    raise _Failed("the stream ended without a token")
                return
            event = _parsed(data)
            if "error" in event:
                raise _Failed(_refusal(200, event))
            (usage,) = _mappings([event.get("usage")]) or [{}]
            if self.result.ttft_ms is None and (_has_text(event) or usage):
                self.result.ttft_ms = _ms_since(self.began)
            counted = usage.get("completion_tokens")
            tokens = max(tokens, int(_has_text(event)), counted if isinstance(counted, int) else 0)
        raise _Failed("the stream broke off")

    def _events(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        while line := response.readline(_MAX_LINE_BYTES):
            self._left_s()
            name, _, value = line.strip().partition(b":")
            if name == b"data":
                yield value.strip()

    def _ask(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "User-Agent": "inferway-probe"}
        key = str(self.config.key).strip()
        if not (key.isascii() and key.isprintable()):
            raise _Failed("the key is no text for a header")  # the error of http.client would show it
        if key:
            headers["Authorization"] = f"Bearer {key}"
        connection = self._connection()
        self._open.append(connection)
        connection.request(
            method, self.parts.path.rstrip("/") + path, json.dumps(body) if body is not None else None, headers
        )
        self._sockets.append(connection.sock)
        return connection.getresponse()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.parts.hostname or "", self.parts.port
        if self.parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._left_s())
        context = ssl.create_default_context(cafile=self.config.certificate or self.config.ca_file or None)
        if self.config.certificate:
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return http.client.HTTPSConnection(host, port, timeout=self._left_s(), context=context)

    def _left_s(self) -> float:
        left_s = self.began + self.config.timeout_s - time.monotonic()
        if left_s <= 0.0:
            raise _Failed(f"not done after {self.config.timeout_s:g} s")
        return left_s


def _url(text: str) -> SplitResult | None:
    """None for what is no URL that can be asked."""
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_one else None


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list, whatever the server has sent instead of one."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _has_text(event: Mapping[str, Any]) -> bool:
    deltas = _mappings([choice.get("delta") for choice in _mappings(event.get("choices"))])
    return any(delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls") for delta in deltas)


def _refusal(status: int, body: Mapping[str, Any]) -> str:
    error = body.get("error")
    said = f"{error.get('code')}: {error.get('message')}" if isinstance(error, dict) else "no word on why"
    return f"{status} {said}"


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _ms_since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
