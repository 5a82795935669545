"""A mesh whose only model has no worker yet: a router that follows a Service without endpoints, and a gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.client import Answer, send
from tests.support.kubernetes import KubernetesStub, endpoint, endpoint_slice
from tests.support.probes import http_json, http_text
from tests.support.processes import Process, start_worker

CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}
WAITING = "inferway_gateway_requests_awaiting_worker"


class Asleep(NamedTuple):
    router: Process
    gateway: Process
    api: KubernetesStub

    def is_ready(self) -> bool:
        return http_json(f"http://{self.gateway.address}/health/ready")[0] == 200

    def metrics(self) -> str:
        return http_text(f"http://{self.gateway.address}/metrics")

    def waiting(self) -> int:
        """Requests that wait for the first worker of any model."""
        return sum(int(float(value)) for value in re.findall(rf"^{WAITING}{{.*}} (\S+)$", self.metrics(), re.M))

    @contextmanager
    def worker(self, *flags: str) -> Iterator[Process]:
        """A first pod of the pool, as a scaler starts it."""
        with start_worker("--engine", "scripted", *flags) as worker:
            self.api.put(endpoint_slice("pool", [endpoint("127.0.0.1", "pod-1")], port=worker.port))
            yield worker
        self.api.delete("pool")

    def start_router_again(self) -> Process:
        """Follow the router that was killed."""
        return _start_router(self.api, listen=self.router.address)

    async def ask(self, request_id: str = "r", **fields: object) -> Answer:
        return await send(self.gateway.address, CHAT, body={**ASK, **fields}, request_id=request_id)


@contextmanager
def asleep(folder: Path, *flags: str) -> Iterator[Asleep]:
    """Requests for m-text, or its alias chat, wait for a minute, those for `late` half a second, and for `away` not.

    `flags` are the gateway's.
    """
    waits = {"m-text": {"wait_for_workers_s": 60}, "late": {"wait_for_workers_s": 0.5}, "away": {}}
    models = {"models": waits, "aliases": {"chat": "m-text"}}
    file = folder / "models.yaml"
    file.write_text(json.dumps(models))
    flags = ("--models", str(file), *flags)
    with (
        KubernetesStub() as api,
        _start_router(api) as router,
        Process("gateway", "--listen", "127.0.0.1:0", "--routers", router.address, *flags) as gateway,
    ):
        yield Asleep(router, gateway, api)


def _start_router(api: KubernetesStub, listen: str = "127.0.0.1:0") -> Process:
    flags = ("--kubernetes-api", api.url, "--kubernetes-token-file", "", "--kubernetes-ca-file", "")
    workers = ("--workers", "k8s:mesh/workers:grpc")
    return Process("router", "--listen", listen, "--ops-listen", "127.0.0.1:0", *workers, *flags)
