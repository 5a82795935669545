"""The little of a Kubernetes API server that Helm asks while it renders: the kinds there are, and what Secrets hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml


@contextmanager
def api_server(folder: Path, kinds: Sequence[tuple[str, str]], objects: Sequence[Mapping[str, Any]]) -> Iterator[Path]:
    """A kubeconfig for a server that knows these (apiVersion, kind) and has these Secrets."""
    answers = _discovery(kinds)
    for one in objects:
        meta = one["metadata"]
        answers[f"/api/v1/namespaces/{meta['namespace']}/secrets/{meta['name']}"] = one

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(found or missing).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{server.server_port}")))
        yield kubeconfig
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


def _discovery(kinds: Sequence[tuple[str, str]]) -> dict[str, Any]:
    resources: dict[str, list[dict[str, Any]]] = {}
    for version, kind in kinds:
        name = kind.lower() + "s"
        entry = {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
        resources.setdefault(version, []).append(entry)
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    groups = []
    for version, entries in resources.items():
        path = "/api/v1" if version == "v1" else f"/apis/{version}"
        answers[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": entries}
        if version != "v1":
            one = {"groupVersion": version, "version": version.partition("/")[2]}
            groups.append({"name": version.partition("/")[0], "versions": [one], "preferredVersion": one})
    answers["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return answers
