"""A small HTTP GET on this machine, past any proxy that the environment names."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

from inferway.cli.core.local_mesh import LOOPBACK

_TIMEOUT_S = 5.0


class Answer(NamedTuple):
    status: int
    body: bytes

    def get(self, key: str) -> Any:
        """A member of the JSON object in the body; None when there is none, or no object."""
        try:
            body = json.loads(self.body)
        except ValueError:
            return None
        return body.get(key) if isinstance(body, dict) else None


async def get(port: int, path: str) -> Answer | None:
    """The answer, or None when there is none: refused, cut, late, or not HTTP."""
    request = f"GET {path} HTTP/1.0\r\nHost: {LOOPBACK}:{port}\r\nAuthorization: Bearer any\r\n\r\n"
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(request.encode())
                raw = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    head, _, body = raw.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        return None
    return Answer(int(words[1]), body)
