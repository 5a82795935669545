"""Streams many answers at once, with little CPU: `python -m tests.support.many_streams HOST PORT COUNT MODEL ID`.

Each is asked for on a connection of its own with the X-Request-Id `ID.<number>`. At the end a JSON line on standard
output: {"whole": streams that came to [DONE] without an error, "ends": how the others did, "events": of all}.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
from collections import Counter
from dataclasses import dataclass

_TAIL_BYTES = 512


@dataclass(slots=True)
class _Stream:
    events: int = 0
    tail: bytes = b""
    head: bytes = b""

    def read(self, data: bytes) -> None:
        self.head = self.head or data[:64]
        self.events += data.count(b"data: {")
        self.tail = (self.tail + data)[-_TAIL_BYTES:]

    @property
    def end(self) -> str:
        """`whole`, or what an exam would want to read."""
        if self.head.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in self.tail and b'"error"' not in self.tail:
            return "whole"
        return (self.head + b"..." + self.tail).decode("latin-1")


def main(host: str, port: int, count: int, model: str, request_id: str) -> None:
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]})
    selector = selectors.DefaultSelector()
    for number in range(count):
        connection = socket.create_connection((host, port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nX-Request-Id: {request_id}.{number}\r\n"
        head += f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        selector.register(connection, selectors.EVENT_READ, _Stream())
    ends: Counter[str] = Counter()
    events = 0
    while selector.get_map():
        for key, _ in selector.select():
            connection, stream = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            try:
                data = connection.recv(1 << 16)
            except ConnectionError as error:
                stream.tail, data = stream.tail + repr(error).encode(), b""
            stream.read(data)
            if not data:
                selector.unregister(connection)
                connection.close()
                ends[stream.end] += 1
                events += stream.events
    print(json.dumps({"whole": ends.pop("whole", 0), "ends": dict(ends.most_common(5)), "events": events}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
