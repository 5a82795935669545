"""Workers that a real router finds by the EndpointSlices of a service, at a small API server."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inferway.config import ConfigError
from router.app import App
from router.config import Config
from tests.support.kubernetes import KubernetesStub, endpoint, endpoint_slice
from tests.support.router_harness import StubWorker, gateway, router, status
from tests.support.waiting import until

SERVICE = "k8s:mesh/workers:grpc"


@pytest.fixture
def api() -> Iterator[KubernetesStub]:
    with KubernetesStub() as stub:
        yield stub


@asynccontextmanager
async def finding(api: KubernetesStub, *workers: str, **options: Any) -> AsyncIterator[App]:
    defaults = {"kubernetes_api": api.url, "kubernetes_token_file": "", "kubernetes_ca_file": ""}
    async with router(*(workers or (SERVICE,)), **(defaults | options)) as app:
        yield app


def list_one(api: KubernetesStub, worker: StubWorker, *, uid: str = "", **conditions: Any) -> None:
    """Put the worker into a slice of its own, as a pod of this uid."""
    name = worker.description.worker_id
    pod = endpoint("127.0.0.1", uid or f"pod-{name}", **conditions)
    api.put(endpoint_slice(f"slice-{name}", [pod], port=worker.port))


def statuses(app: App, workers: str = "ab") -> list[str]:
    return [status(app, name) for name in workers]


async def test_the_endpoints_of_a_service_are_workers(api: KubernetesStub) -> None:
    """Those that are listed, those that come in an event, and none of another service."""
    async with StubWorker("a").serving() as a, StubWorker("b").serving() as b, StubWorker("c").serving() as c:
        list_one(api, a)
        api.put(endpoint_slice("other", [endpoint("127.0.0.1", "x")], port=c.port, service="others"))
        async with finding(api) as app:
            await until(lambda: statuses(app) == ["ready", "unknown"])
            list_one(api, b)
            await until(lambda: statuses(app, "abc") == ["ready", "ready", "unknown"])
        (listed,), watched = api.requests(watch=False), api.requests(watch=True)
        assert listed.path == "/apis/discovery.k8s.io/v1/namespaces/mesh/endpointslices"
        assert listed.params == {"labelSelector": "kubernetes.io/service-name=workers"}
        assert watched[0].params["allowWatchBookmarks"] == "true"
        assert watched[0].params["resourceVersion"] == "102"


async def test_a_pod_that_terminates_gets_nothing_new(api: KubernetesStub) -> None:
    """At once, though it says that it is ready; its lease stays, and it is dropped when it is gone and idle."""
    async with (
        StubWorker("a", max_running=8).serving() as a,
        StubWorker("b", max_running=8).serving() as b,
        finding(api) as app,
        gateway(app) as gw,
    ):
        list_one(api, a)
        await until(lambda: status(app, "a") == "ready")
        await gw.submit(1)
        lease = await gw.lease(1)
        list_one(api, b)
        list_one(api, a, ready=True, serving=True, terminating=True)
        await until(lambda: statuses(app) == ["draining", "ready"])
        for ticket in range(2, 8):
            await gw.submit(ticket)
            assert (await gw.lease(ticket)).worker_id == "b"
        api.delete("slice-a")
        list_one(api, b)
        await asyncio.sleep(0.2)  # some turns of the pool
        assert status(app, "a") == "draining"
        await gw.release(lease.lease_id)
        await until(lambda: statuses(app) == ["unknown", "ready"])


async def test_a_pod_comes_back_only_as_another(api: KubernetesStub) -> None:
    """Not though the termination is taken back, nor by another slice; as another pod it is used again."""
    async with StubWorker("a").serving() as a, StubWorker("b").serving() as b, finding(api) as app:
        list_one(api, a)
        await until(lambda: status(app) == "ready")
        list_one(api, a, terminating=True)
        await until(lambda: status(app) == "draining")
        list_one(api, a)
        list_one(api, b)
        await until(lambda: status(app, "b") == "ready")
        assert status(app) == "draining"
        api.delete("slice-a")
        await until(lambda: status(app) == "unknown")
        api.put(endpoint_slice("another", [endpoint("127.0.0.1", "pod-a")], port=a.port))
        api.delete("slice-b")
        await until(lambda: statuses(app) == ["unknown", "unknown"])
        a.description.instance_id = "2"
        list_one(api, a, uid="pod-a-2")
        await until(lambda: status(app) == "ready")


async def test_another_pod_at_the_same_address_is_another_worker(api: KubernetesStub) -> None:
    """The leases of the first are over: its process is."""
    first = StubWorker("a", max_running=2)
    async with finding(api) as app, gateway(app) as gw:
        async with first.serving():
            list_one(api, first)
            await gw.submit(1)
            await gw.lease(1)
            list_one(api, first, terminating=True)
            await until(lambda: status(app) == "draining")
        second = StubWorker("a", max_running=2, instance_id="2")
        second.port = first.port
        async with second.serving():
            list_one(api, second, uid="pod-a-2")
            await until(lambda: status(app) == "ready")
            worker = app.dispatcher.worker("a")
            assert worker is not None
            assert worker.books.requests_in_flight == 0


async def test_terminating_counts_whoever_else_names_the_address(api: KubernetesStub) -> None:
    """A worker that is also given as host:port is withdrawn all the same; one that is not ready is used."""
    async with (
        StubWorker("a").serving() as a,
        StubWorker("b").serving() as b,
        finding(api, SERVICE, a.address, b.address) as app,
    ):
        list_one(api, b, ready=False)
        await until(lambda: statuses(app) == ["ready", "ready"])
        list_one(api, a, terminating=True)
        await until(lambda: statuses(app) == ["draining", "ready"])
        api.delete("slice-a")
        await until(lambda: statuses(app) == ["ready", "ready"])


async def test_a_pod_that_is_not_ready_is_kept_and_not_used(api: KubernetesStub) -> None:
    """Before it is ready it is no worker; afterwards it is withdrawn and comes back as it was."""
    async with StubWorker("a").serving() as a, StubWorker("b").serving() as b, finding(api) as app:
        list_one(api, a)
        list_one(api, b, ready=False, serving=False)
        await until(lambda: statuses(app) == ["ready", "unknown"])
        before = app.dispatcher.worker("a")
        list_one(api, a, ready=False, serving=False)
        list_one(api, b)
        await until(lambda: statuses(app) == ["draining", "ready"])
        list_one(api, a)
        await until(lambda: statuses(app) == ["ready", "ready"])
        assert app.dispatcher.worker("a") is before


async def test_a_large_slice_is_one_event(api: KubernetesStub) -> None:
    """A thousand endpoints come in a line that is longer than what a connection hands over at one time."""
    async with StubWorker("a").serving() as a, StubWorker("b").serving() as b, finding(api) as app:
        list_one(api, a)
        await until(lambda: status(app, "a") == "ready")
        idle = [endpoint(f"10.0.{n // 250}.{n % 250}", f"{n:036}", ready=False, serving=False) for n in range(999)]
        api.put(endpoint_slice("large", [*idle, endpoint("127.0.0.1", "b")], port=b.port))
        assert len(json.dumps(idle)) > 100_000
        await until(lambda: statuses(app) == ["ready", "ready"])
        assert len(api.requests(watch=False)) == 1


async def test_a_watch_that_ends_goes_on_where_it_was(api: KubernetesStub) -> None:
    """By its time, or cut in the middle: no second list, and events of the gap are not lost."""
    async with StubWorker("a").serving() as a, StubWorker("b").serving() as b, finding(api) as app:
        list_one(api, a)
        await until(lambda: status(app) == "ready")
        api.end_watches(cleanly=True)
        list_one(api, b)
        await until(lambda: statuses(app) == ["ready", "ready"])
        api.end_watches(cleanly=False)
        list_one(api, a, terminating=True)
        await until(lambda: statuses(app) == ["draining", "ready"])
        assert len(api.requests(watch=False)) == 1
        assert len({seen.params["resourceVersion"] for seen in api.requests(watch=True)}) > 1


async def test_a_bookmark_is_gone_on_from(api: KubernetesStub) -> None:
    """A watch after it names its version, though nothing has changed."""
    async with StubWorker("a").serving() as a, finding(api) as app:
        list_one(api, a)
        await until(lambda: status(app) == "ready" and api.requests(watch=True))
        version = str(api.bookmark())
        api.end_watches(cleanly=True)
        await until(lambda: api.requests(watch=True)[-1].params["resourceVersion"] == version)


@pytest.mark.parametrize("as_event", [True, False])
async def test_a_version_that_is_gone_is_listed_anew(api: KubernetesStub, as_event: bool) -> None:
    """410, as an answer or within the stream: what has changed meanwhile is found in the list."""
    async with StubWorker("a").serving() as a, StubWorker("b").serving() as b, finding(api) as app:
        list_one(api, a)
        await until(lambda: status(app) == "ready")
        api.delete("slice-a")
        list_one(api, b)
        if as_event:
            api.send_line({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
        api.forget()
        await until(lambda: statuses(app) == ["unknown", "ready"])
        await until(lambda: len(api.requests(watch=False)) == 2)


@pytest.mark.parametrize(
    "failure", [(500, b"oops"), (200, b"<html>busy</html>"), (403, b'{"kind":"Status","code":403,"message":"may not"}')]
)
async def test_an_api_server_that_fails_takes_no_worker_away(
    api: KubernetesStub, failure: tuple[int, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """What is known stays, the trouble is told once, and it goes on when the server is well again."""
    caplog.set_level(logging.INFO, "router.kubernetes")
    async with StubWorker("a").serving() as a, StubWorker("b").serving() as b, finding(api) as app:
        list_one(api, a)
        await until(lambda: status(app) == "ready")
        asked = len(api.seen)
        api.failure = failure
        api.end_watches(cleanly=True)
        await until(lambda: len(api.seen) >= asked + 2)
        assert status(app) == "ready"
        assert sum("endpoints_trouble" in record.message for record in caplog.records) <= 2
        api.failure = None
        list_one(api, b)
        await until(lambda: statuses(app) == ["ready", "ready"])
        await until(lambda: "endpoints_followed" in caplog.text)


async def test_an_event_that_makes_no_sense_is_followed_by_a_list(api: KubernetesStub) -> None:
    """What came before it in the same breath counts."""
    async with StubWorker("a").serving() as a, finding(api) as app:
        list_one(api, a)
        await until(lambda: status(app) == "ready")
        list_one(api, a, terminating=True)
        api.send_line({"type": "DREAMED", "object": {}})
        await until(lambda: status(app) == "draining")
        await until(lambda: len(api.requests(watch=False)) >= 2)


async def test_the_router_starts_without_its_api_server() -> None:
    """Its other workers are served, readiness names what is missing, and the service is found when it answers."""
    with KubernetesStub() as api:
        api.failure = (503, b"")
        async with StubWorker("a").serving() as a, StubWorker("b").serving() as b:
            list_one(api, b)
            async with finding(api, a.address, SERVICE) as app, gateway(app) as gw:
                await gw.submit(1)
                assert (await gw.lease(1)).worker_id == "a"
                api.failure = None
                await until(lambda: status(app, "b") == "ready")


async def test_the_token_is_read_at_each_request(api: KubernetesStub, tmp_path: Path) -> None:
    """A pod's token is replaced while it runs."""
    token = tmp_path / "token"
    token.write_text("first\n")
    api.token = "first"
    async with StubWorker("a").serving() as a, StubWorker("b").serving() as b:
        list_one(api, a)
        async with finding(api, kubernetes_token_file=str(token)) as app:
            await until(lambda: status(app) == "ready")
            api.token = "second"
            api.end_watches(cleanly=False)
            await until(lambda: api.requests(watch=False)[1:])
            list_one(api, b)
            await until(lambda: api.requests(watch=False)[2:])
            assert statuses(app) == ["ready", "unknown"]
            token.write_text("second\n")
            await until(lambda: status(app, "b") == "ready")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the program openssl is missing")
async def test_the_api_server_must_be_whom_the_ca_file_says(tmp_path: Path) -> None:
    """With TLS, a server that the CA file does not vouch for is told nothing; the right file is read at once."""
    right, wrong = certificate(tmp_path / "right"), certificate(tmp_path / "wrong")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(right, right.with_suffix(".key"))
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(wrong.read_bytes())
    with KubernetesStub(tls=tls) as api:
        async with StubWorker("a").serving() as a:
            list_one(api, a)
            async with finding(api, kubernetes_ca_file=str(trusted)) as app:
                await asyncio.sleep(0.5)  # a few attempts
                assert api.seen == []
                trusted.write_bytes(right.read_bytes())
                await until(lambda: status(app) == "ready")


def certificate(path: Path) -> Path:
    """A certificate of its own for 127.0.0.1, its key beside it."""
    names = ["-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{path}.key"]
    command = ["openssl", "req", "-x509", *key, "-out", f"{path}.crt", "-days", "2", *names]
    subprocess.run(command, check=True, capture_output=True)
    return path.with_suffix(".crt")


def test_outside_of_a_pod_the_api_server_must_be_named() -> None:
    """Within one its environment says where it is."""
    config = Config(workers=(SERVICE,))
    with pytest.raises(ConfigError, match="k8s:mesh/workers:grpc needs --kubernetes-api outside of a pod"):
        App(config, environ={})
    App(config, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
