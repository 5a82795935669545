"""The pages of metrics as scrapers get them: both formats, packed or not, from all services, and at what cost."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Iterable, Iterator
from random import Random

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from inferway.exposition import OPENMETRICS, TEXT, Readings, content_type_for, page
from inferway.metrics import Registry
from router.core.dispatcher import Dispatcher
from router.core.messages import WorkerInfo
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits
from router.metrics import RouterMetrics
from tests.support.client import send
from tests.support.probes import http_json
from tests.support.processes import Mesh
from tests.support.prometheus import needs_promtool, promtool_check

ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}], "stream": True}
# What Prometheus 2 sends.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(gateway_args=["--processes", "2"]) as found:
        yield found


def addresses(mesh: Mesh) -> list[str]:
    return [mesh.gateway.address, *(one.ops_address for one in (*mesh.routers, *mesh.workers))]


async def test_formats(mesh: Mesh) -> None:
    """OpenMetrics for whoever asks for it, packed where that is understood, with the same series as the plain text."""
    assert (await send(mesh.gateway.address, "POST /v1/chat/completions", body=ASK)).status == 200
    for address in addresses(mesh):
        plain = await send(address, "GET /metrics", headers={"Accept-Encoding": "identity"})
        assert plain.headers["Content-Type"] == TEXT
        assert "Content-Encoding" not in plain.headers
        asked = {"Accept": ACCEPT, "Accept-Encoding": "gzip"}
        packed = await send(address, "GET /metrics", headers=asked, unpack=False)
        assert (packed.headers["Content-Type"], packed.headers["Content-Encoding"]) == (OPENMETRICS, "gzip")
        text = gzip.decompress(packed.body).decode()
        assert text.endswith("\n# EOF\n")
        families = [list(read(body)) for read, body in ((read_text, plain.body.decode()), (read_openmetrics, text))]
        names = [{sample.name for family in one for sample in family.samples} for one in families]
        assert names[0] == names[1]
        assert all(family.documentation for one in families for family in one)


@pytest.mark.slow
@needs_promtool
async def test_pages_are_clean(mesh: Mesh) -> None:
    """promtool has nothing to say about names, units and types, of a gateway of one process and of several."""
    with Mesh() as other:
        for address in {*addresses(mesh), *addresses(other)}:
            answer = await send(address, "GET /metrics", headers={"Accept-Encoding": "identity"})
            done = promtool_check(answer.body)
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stderr == b""


@needs_promtool
@pytest.mark.slow
async def test_pages_of_engines_are_clean() -> None:
    """Of the engines on the CPU the same, with the same metrics as the scripted one, after each has served."""
    with Mesh(workers=[["--engine", engine] for engine in ("scripted", "llamacpp", "minilm")]) as mesh:
        (status, listed) = http_json(mesh.url("/v1/models"))
        assert status == 200
        for model in (one["id"] for one in listed["data"]):
            chat = await send(mesh.gateway.address, "POST /v1/chat/completions", body={**ASK, "model": model})
            if chat.status != 200:
                embed = {"model": model, "input": "hi"}
                assert (await send(mesh.gateway.address, "POST /v1/embeddings", body=embed)).status == 200, model
        names = []
        for worker in mesh.workers:
            body = (await send(worker.ops_address, "GET /metrics", headers={"Accept-Encoding": "identity"})).body
            done = promtool_check(body)
            assert (done.returncode, done.stderr) == (0, b""), done.stdout
            families = {family.name for family in read_text(body.decode())}
            names.append({name for name in families if name.startswith("inferway_")})
        assert names[0] == names[1] == names[2]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=1.0.0", TEXT),
        (ACCEPT, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=0.0.1", TEXT),
        ("application/openmetrics-text; version=1.0.0; q=0.0", TEXT),
        ("application/openmetrics-text; version=a; q", TEXT),
        (";,=;;application/", TEXT),
    ],
)
def test_negotiation(accept: str, expected: str) -> None:
    """What is no choice of ours, and what is no header at all, is answered with plain text."""
    assert content_type_for(accept) == expected


@pytest.mark.parametrize(("content_type", "read"), [(TEXT, read_text), (OPENMETRICS, read_openmetrics)])
def test_readings_are_escaped(content_type: str, read: Callable[[str], Iterable[Metric]]) -> None:
    """A worker's name of any kind stays one label, and a text of any kind one line."""
    name = 'a"\\\n{b}'
    readings = Readings("slots", 'Say \\ "slots"\nof it.', ["worker"])
    readings.add_metric([name], 2)
    families = {one.name: one for one in read(page(Registry("router").collectors, [readings], content_type).decode())}
    (sample,) = families["slots"].samples
    assert (sample.labels, sample.value, families["slots"].type) == ({"worker": name}, 2.0, "gauge")


async def test_a_scrape_holds_up_nobody() -> None:
    """A page of a thousand workers is read in a small part of the time that it takes; the loop goes on meanwhile."""
    dispatcher = Dispatcher(routing=routing_of("default"), rng=Random(0), first_lease_id=1, limits=QueueLimits())
    for number in range(1000):
        name = f"worker-{number}"
        dispatcher.worker_up(WorkerInfo(name, "1", f"{name}:1", {"m": 4}, 8, 8, 100_000, 1000.0))
    registry = Registry("router")
    metrics = RouterMetrics(registry, dispatcher)
    for number in range(1000):
        metrics.released(f"worker-{number}", "ok")
    shares = []
    for _ in range(5):
        scrape = asyncio.create_task(registry.scrape(OPENMETRICS))
        began = last = time.perf_counter()
        longest = 0.0
        while not scrape.done():
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        assert (await scrape).count(b"worker-999") >= 16
        shares.append(longest / (last - began))
    assert min(shares) < 0.35, shares
