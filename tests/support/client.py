"""A client for whole answers, which gives tests what it got and when."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy


@dataclass(slots=True)
class Answer:
    """A whole HTTP answer; for a stream also when each event came (monotonic seconds)."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    arrivals: list[tuple[float, str]] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """Payloads of the data events, comments left out."""
        return [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line.startswith("data: ")]

    @property
    def chunks(self) -> list[Any]:
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def choices(self) -> list[Any]:
        """Of a stream: each choice of each chunk."""
        return [choice for chunk in self.chunks for choice in chunk.get("choices", ())]

    def joined(self, name: str, index: int = 0) -> str:
        """A delta field joined over the stream, or a message field of an answer in one piece."""
        if not self.events:
            message = self.json["choices"][index]["message"]
            return message.get(name) or ""
        deltas = [choice["delta"] for choice in self.choices if choice["index"] == index]
        return "".join(delta.get(name) or "" for delta in deltas)

    def finish_reasons(self, index: int = 0) -> list[str]:
        if not self.events:
            return [self.json["choices"][index]["finish_reason"]]
        reasons = [choice["finish_reason"] for choice in self.choices if choice["index"] == index]
        return [reason for reason in reasons if reason is not None]

    @property
    def usage(self) -> Any:
        if not self.events:
            return self.json["usage"]
        return next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), None)

    @property
    def error(self) -> Any:
        """The error object, whether it is the body or an event."""
        if not self.events:
            return self.json["error"]
        return next(chunk["error"] for chunk in self.chunks if "error" in chunk)


async def send(
    address: str,
    http: str,
    *,
    body: Any = None,
    raw: bytes | None = None,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    unpack: bool = True,
) -> Answer:
    """One request, "POST /path", on a connection of its own; `body` is sent as JSON, `raw` as it is.

    A CIMultiDict of `headers` may have one twice. Without `unpack` the answer's body stays compressed as it came.
    """
    method, path = http.split(" ", 1)
    data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
    sent = CIMultiDict(headers or {})
    sent.setdefault("Content-Type", "application/json")
    if request_id is not None:
        sent["X-Request-Id"] = request_id
    async with (
        aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout_s), max_field_size=65536, auto_decompress=unpack
        ) as session,
        session.request(
            method, f"http://{address}{path}", data=io.BytesIO(data) if data else None, headers=sent
        ) as response,
    ):
        arrivals: list[tuple[float, str]] = []
        received = b""
        async for piece in response.content.iter_any():
            arrivals.append((time.monotonic(), piece.decode("utf-8", "replace")))
            received += piece
        return Answer(response.status, response.headers, received, arrivals)
