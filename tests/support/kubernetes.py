"""A small API server of Kubernetes that knows EndpointSlices: it lists them and lets them be watched, in a thread."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

_POLL_S = 0.02


class Seen(NamedTuple):
    """A request that the server got."""

    path: str
    params: Mapping[str, str]
    authorization: str

    @property
    def is_watch(self) -> bool:
        return "watch" in self.params


def endpoint(
    host: str,
    uid: str = "",
    *,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
) -> dict[str, Any]:
    """An endpoint as the control plane writes it; conditions that are None are left out."""
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    found: dict[str, Any] = {
        "addresses": [host],
        "conditions": {name: value for name, value in conditions.items() if value is not None},
    }
    if uid:
        found["targetRef"] = {"kind": "Pod", "name": f"pod-{uid}", "uid": uid}
    return found


def endpoint_slice(
    name: str,
    endpoints: Sequence[Mapping[str, Any]],
    *,
    port: int | None = None,
    ports: Sequence[Mapping[str, Any]] | None = None,
    service: str = "workers",
    family: str = "IPv4",
) -> dict[str, Any]:
    """A slice of a service with one port named grpc, or with `ports`."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "mesh", "labels": {"kubernetes.io/service-name": service}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": list(ports) if ports is not None else [{"name": "grpc", "port": port, "protocol": "TCP"}],
    }


class KubernetesStub:
    """Used as a context manager. Every change has a version; watches go on from the one that they name."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self._changed = threading.Condition()
        self._slices: dict[str, dict[str, Any]] = {}
        # Version, service, and the event as it is sent.
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._version = 100
        self._oldest = 0
        # Watches that were opened before are to end, with or without a word.
        self._generation = 0
        self._ends_cleanly = True
        self._is_closed = False
        self.seen: list[Seen] = []
        # What is answered instead, to lists and to watches: a status and a body.
        self.failure: tuple[int, bytes] | None = None
        # The only token that is taken; empty: any or none.
        self.token = ""
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                stub._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": _POLL_S})

    def __enter__(self) -> KubernetesStub:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, item: Mapping[str, Any]) -> None:
        """Add a slice, or replace the one of its name."""
        name = item["metadata"]["name"]
        with self._changed:
            self._record("MODIFIED" if name in self._slices else "ADDED", dict(item))

    def delete(self, name: str) -> None:
        with self._changed:
            self._record("DELETED", self._slices[name])

    def bookmark(self) -> int:
        """Tell watches of a version without a change; returns it."""
        with self._changed:
            self._version += 1
            item = {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(self._version)}}
            self._events.append((self._version, "", {"type": "BOOKMARK", "object": item}))
            self._changed.notify_all()
            return self._version

    def send_line(self, line: Mapping[str, Any]) -> None:
        """Send open watches anything; it is not told to later ones."""
        with self._changed:
            self._events.append((self._version, "", dict(line)))
            self._changed.notify_all()

    def forget(self) -> None:
        """Versions up to now are too old for a watch to go on from; open ones end."""
        with self._changed:
            self._version += 1
            self._oldest = self._version
            self._events.clear()
            self._generation += 1
            self._changed.notify_all()

    def end_watches(self, *, cleanly: bool) -> None:
        """Those that are open: with all that has happened, as after the time that was asked for, or cut."""
        with self._changed:
            self._ends_cleanly = cleanly
            self._generation += 1
            self._changed.notify_all()

    def requests(self, *, watch: bool) -> list[Seen]:
        return [seen for seen in self.seen if seen.is_watch == watch]

    def _record(self, kind: str, item: dict[str, Any]) -> None:
        self._version += 1
        metadata = item["metadata"] | {"resourceVersion": str(self._version)}
        item = item | {"metadata": metadata}
        if kind == "DELETED":
            del self._slices[metadata["name"]]
        else:
            self._slices[metadata["name"]] = item
        service = metadata["labels"]["kubernetes.io/service-name"]
        self._events.append((self._version, service, {"type": kind, "object": item}))
        self._changed.notify_all()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        params = {name: values[0] for name, values in parse_qs(parts.query).items()}
        seen = Seen(parts.path, params, handler.headers.get("Authorization", ""))
        with self._changed:
            self.seen.append(seen)
            if self.failure is not None:
                return _send(handler, *self.failure)
            if self.token and seen.authorization != f"Bearer {self.token}":
                return _send(handler, 401, b'{"kind":"Status","code":401,"message":"Unauthorized"}')
            service = params.get("labelSelector", "").removeprefix("kubernetes.io/service-name=")
            if not seen.is_watch:
                items = [item for item in self._slices.values() if _service(item) == service]
                listed = {"metadata": {"resourceVersion": str(self._version)}, "items": items}
                return _send(handler, 200, json.dumps(listed).encode())
            version = int(params["resourceVersion"])
            if version < self._oldest:
                return _send(handler, 410, b'{"kind":"Status","code":410,"message":"too old resource version"}')
            generation = self._generation
            position = next((i for i, event in enumerate(self._events) if event[0] > version), len(self._events))
        self._watch(handler, service, generation, position)

    def _watch(self, handler: BaseHTTPRequestHandler, service: str, generation: int, position: int) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        is_over = False
        while not is_over:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_closed or generation != self._generation or len(self._events) > position  # noqa: B023
                )
                is_over = self._is_closed or generation != self._generation
                is_cut = is_over and (self._is_closed or not self._ends_cleanly)
                events, position = self._events[position:], len(self._events)
            if is_cut:
                break
            lines = [json.dumps(event).encode() + b"\n" for _, of, event in events if of in ("", service)]
            try:
                for line in lines:
                    # In two pieces: a line is whatever ends with a line feed.
                    for piece in (line[:20], line[20:]):
                        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                if is_over:
                    handler.wfile.write(b"0\r\n\r\n")
            except OSError:
                return
        handler.close_connection = True


def _service(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["labels"]["kubernetes.io/service-name"])


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
