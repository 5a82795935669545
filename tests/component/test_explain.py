"""`python -m inferway explain` and `status` against a real router, gateway and workers; the decision log they leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from inferway.api.v1 import router_pb2, router_pb2_grpc
from inferway.cli.local_file import LocalMesh, written
from router.simulate.trace import read_trace
from tests.support.client import Answer, send
from tests.support.command import inferway
from tests.support.probes import http_json, metric
from tests.support.processes import Mesh, Process
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

CHAT = "POST /v1/chat/completions"
PROMPT = "the same long words again and again " * 40
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "hold": [{"sleep_ms": 60_000}, {"text": "x"}, {"finish": "stop"}],
    "failing": [
        {"worker": "a", "grpc_error": {"code": "UNAVAILABLE", "details": "gone"}},
        {"worker": "b", "text": "x"},
        {"worker": "b", "finish": "stop"},
    ],
}


def router_of(mesh: Mesh) -> Process:
    assert mesh.router is not None
    return mesh.router


async def ask(mesh: Mesh, request_id: str, content: str = "hi", **body: Any) -> Answer:
    body = {"model": "m-text", "messages": [{"role": "user", "content": content}], "max_tokens": 4, **body}
    return await send(mesh.gateway.address, CHAT, body=body, request_id=request_id)


async def explained(mesh: Mesh, request_id: str) -> list[Any]:
    """The decisions of a request, as the command prints them in JSON."""
    done = await inferway("explain", request_id, "--json", "--routers", router_of(mesh).address)
    return [decision for router in done.json["routers"] for decision in router["decisions"]]


async def until_ended(mesh: Mesh, request_id: str) -> list[Any]:
    """Its decisions once the last of them is over: the gateway's release may come after the answer."""
    async with asyncio.timeout(60):
        while True:
            decisions = await explained(mesh, request_id)
            if decisions and decisions[-1]["state"] not in ("waiting", "dispatched"):
                return decisions


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scripts") / "scripts.json"
    path.write_text(json.dumps(SCRIPTS))
    return str(path)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "decisions.jsonl"


@pytest.fixture(scope="module")
def pair(scripts: str, log: Path) -> Iterator[Mesh]:
    """Two workers, with a file of routing and a decision log."""
    routing = log.parent / "routing.yaml"
    routing.write_text("default: {policy: default}\n")
    workers = [["--engine", "scripted", "--scripts", scripts, "--name", name] for name in "ab"]
    flags = ["--routing", str(routing), "--decision-log", str(log), "--slow-start-s", "0"]
    with Mesh(workers=workers, router_args=flags) as mesh:
        yield mesh


async def test_a_finished_request(pair: Mesh) -> None:
    """Candidates, scores, the margin, and what was predicted beside what the engine says; as text and as JSON."""
    for number in (1, 2):
        answer = await ask(pair, f"same.{number}", PROMPT)
        assert answer.status == 200
        (decision,) = await until_ended(pair, f"same.{number}")
    usage, placement = answer.usage, decision["placement"]
    assert (decision["state"], decision["model"], decision["priority"]) == ("ended", "m-text", 5)
    assert decision["prompt_tokens"] == usage["prompt_tokens"]
    assert (placement["outcome"], placement["completion_tokens"]) == ("ok", usage["completion_tokens"])
    assert placement["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert placement["predicted_cached_tokens"] == placement["cached_tokens"]
    assert (placement["policy"], placement["num_candidates"], placement["scorers"]) == ("default", 2, ["wait", "work"])
    assert placement["routing_version"]
    chosen, other = placement["best"]
    assert (chosen["worker_id"], other["worker_id"]) == (placement["worker_id"], placement["runner_up"])
    assert chosen["cost"] == pytest.approx(sum(chosen["terms"]))
    assert placement["margin"] == pytest.approx(other["cost"] - chosen["cost"])
    assert placement["lease_ms"] >= placement["ttft_ms"] > 0

    shown = await inferway("explain", "same.2", "--routers", router_of(pair).address)
    assert (shown.status, shown.err) == (0, "")
    for text in (
        f"ran on {placement['worker_id']}, ended ok",
        f"{chosen['worker_id']} costs least",
        f"most of it is work ({placement['margin']:.4g}), with {placement['cached_tokens']:,} tokens more in its cache",
        f"routing.yaml {placement['routing_version']}",
    ):
        assert text in shown.out


async def test_a_request_that_was_tried_twice(pair: Mesh) -> None:
    """An attempt at the worker that failed it, and one that excludes this worker."""
    for number in range(50):
        # Nobody has these words, so either worker may be first.
        assert (await ask(pair, f"failing.{number}", f"{number} words of its own " * 40)).status == 200
        decisions = await until_ended(pair, f"failing.{number}")
        if len(decisions) > 1:
            break
    failed, again = decisions
    assert (failed["placement"]["worker_id"], failed["placement"]["outcome"]) == ("a", "failed")
    assert (again["placement"]["worker_id"], again["placement"]["outcome"]) == ("b", "ok")
    assert again["excluded_workers"] == ["a"]
    assert again["placement"]["num_candidates"] == 1


async def test_the_same_over_http(pair: Mesh) -> None:
    """A page of the ops address answers what the command prints for its router; 404 for an id that it does not know."""
    router = router_of(pair)
    assert (await ask(pair, "page.1")).status == 200
    await until_ended(pair, "page.1")
    printed = (await inferway("explain", "page.1", "--json", "--routers", router.address)).json
    page = f"http://{router.ops_address}/decisions"
    status, body = http_json(f"{page}/page.1")
    for answer in (body, printed):
        # Both are reckoned anew at each look, from two clocks.
        assert answer["routers"][0].pop("oldest_ms") > 0
        assert answer["routers"][0]["decisions"][0].pop("queued_at_ms") > 0
    assert (status, body) == (200, printed)
    assert http_json(f"{page}/nobody") == (404, {"request_id": "nobody", "routers": []})
    status, body = http_json(f"{page}/{'x' * 257}")
    assert (status, body) == (400, {"error": "a request id has at most 256 characters, got 257"})


async def test_nobody_knows_the_id(pair: Mesh) -> None:
    """Status 1 and a sentence that says how far back was looked, also beside a router that does not answer."""
    address = router_of(pair).address
    done = await inferway("explain", "nobody", "--routers", address)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("explain: no router knows a request 'nobody': ")
    assert "decisions" in done.err
    done = await inferway("explain", "nobody", "--routers", "127.0.0.1:1", "--json")
    assert (done.status, done.json) == (1, {"request_id": "nobody", "routers": []})
    assert "explain: no router answered" in done.err
    assert "127.0.0.1:1" in done.err


@pytest.mark.parametrize("arguments", [[], ["--json"], ["x", "--routers", "nowhere"]])
async def test_wrong_command_lines(arguments: list[str]) -> None:
    """Status 2 and what is wrong."""
    done = await inferway("explain", *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("explain: ")


async def test_status_as_table_and_as_json(pair: Mesh) -> None:
    """Both workers with what is known of them, and the hit rate of what ran; status 1 when a router is silent."""
    await ask(pair, "for-status", PROMPT)
    await until_ended(pair, "for-status")
    address = router_of(pair).address
    done = await inferway("status", "--json", "--routers", address)
    assert done.status == 0
    (router,) = done.json["routers"]
    assert (router["address"], {worker["worker_id"] for worker in router["workers"]}) == (address, {"a", "b"})
    for worker in router["workers"]:
        assert (worker["status"], worker["breaker"]) == ("ready", "closed")
        assert worker["slots"] > 0
        assert 0.0 <= worker["trust"] <= 1.0
    assert sum(worker["indexed_blocks"] for worker in router["workers"]) > 0
    text_model = next(model for model in router["models"] if model["model"] == "m-text")
    assert text_model["policy"] == "default"
    assert text_model["prompt_tokens"] >= text_model["actual_cached_tokens"] > 0
    assert text_model["prompt_tokens"] >= text_model["predicted_cached_tokens"] > 0
    table = await inferway("status", "--routers", f"{address},127.0.0.1:1")
    assert table.status == 1
    assert "status: 127.0.0.1:1: " in table.err
    lines = [line.split() for line in table.out.splitlines()]
    assert ["a", "ready", "closed"] in [line[:3] for line in lines]
    assert ["m-text", "default"] in [line[:2] for line in lines]
    assert "nobody waits" in table.out


async def test_the_mesh_of_this_machine_is_the_default(pair: Mesh, tmp_path: Path) -> None:
    """Without --routers the one that `make run` has announced is asked."""
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with written(environ, LocalMesh(router_of(pair).address, "")):
        done = await inferway("status", "--json", **environ)
    assert [router["address"] for router in done.json["routers"]] == [router_of(pair).address]


async def test_the_decision_log_is_a_trace(pair: Mesh, log: Path) -> None:
    """What ran is read back by the simulator with the tokens that the callers were told."""
    answers = [await ask(pair, f"logged.{number}", f"{number} " + PROMPT) for number in range(3)]

    def logged() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [line for line in lines if line["request_id"].startswith("logged.")]

    await until(lambda: len(logged()) == 3)
    assert [line["outcome"] for line in logged()] == ["ok"] * 3
    text = [json.dumps(line) for line in logged()]
    assert not any("again" in line for line in text)
    trace = read_trace(text, block_size=64, model="m-text")
    assert [(request.prompt_tokens, request.completion_tokens) for request in trace.requests] == [
        (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) for answer in answers
    ]
    assert all(request.block_hashes for request in trace.requests)
    page = f"http://{router_of(pair).ops_address}/metrics"
    assert metric(page, "inferway_router_decision_log_lines_total") >= 3


async def test_waiting_and_rejected_requests(scripts: str) -> None:
    """While one holds the slot, the next waits and another finds the queue full; of each is told what became of it."""
    worker = ["--engine", "scripted", "--scripts", scripts, "--max-running", "1", "--max-waiting", "0"]
    with Mesh(workers=[worker], router_args=["--queue-limit-requests", "1"]) as mesh:
        address = router_of(mesh).address

        def waiting() -> float:
            return metric(f"http://{router_of(mesh).ops_address}/metrics", "inferway_router_queue_requests")

        holder = asyncio.create_task(ask(mesh, "hold"))
        async with asyncio.timeout(60):
            while not await explained(mesh, "hold"):
                await asyncio.sleep(0.05)
        waiter = asyncio.create_task(ask(mesh, "waits"))
        await until(lambda: waiting() == 1)
        (running,) = await explained(mesh, "hold")
        assert (running["state"], running["placement"]["outcome"]) == ("dispatched", "unspecified")
        (waits,) = await explained(mesh, "waits")
        assert (waits["state"], waits["position"], waits["placement"]) == ("waiting", 0, None)
        assert waits["queue_ms"] > 0
        assert (await ask(mesh, "too-many")).status == 503
        (rejected,) = await explained(mesh, "too-many")
        assert (rejected["state"], rejected["error"]["reason"]) == ("rejected", "overloaded")
        assert "got no worker" in (await inferway("explain", "too-many", "--routers", address)).out

        status = await inferway("status", "--json", "--routers", address)
        queue = next(queue for queue in status.json["routers"][0]["queues"] if queue["requests"])
        assert [(band["priority"], band["requests"]) for band in queue["bands"]] == [(5, 1)]
        assert [(tenant["tenant_id"], tenant["requests"]) for tenant in queue["tenants"]] == [(waits["tenant_id"], 1)]
        table = await inferway("status", "--routers", address)
        assert [line.split()[:3] for line in table.out.splitlines() if line.startswith("m-text ")] == [
            ["m-text", "all", "1"],
            ["m-text", "5", "1"],
            ["m-text", waits["tenant_id"], "1"],
        ]

        waiter.cancel()
        holder.cancel()
        for task in (waiter, holder):
            with suppress(asyncio.CancelledError):
                await task
        (left,) = await until_ended(mesh, "waits")
        (ended,) = await until_ended(mesh, "hold")
        assert left["state"] == "cancelled"
        assert (ended["state"], ended["placement"]["outcome"]) == ("ended", "cancelled")


async def test_a_new_version_of_the_routing_file(pair: Mesh, log: Path) -> None:
    """Decisions name the policy and the version in force when they were taken; `status` those in force now."""
    routing, address = log.parent / "routing.yaml", router_of(pair).address
    before = routing.read_text()

    async def version() -> str:
        return (await inferway("status", "--json", "--routers", address)).json["routers"][0]["routing_version"]

    first = await version()
    try:
        routing.write_text("models: {m-text: {policy: round_robin}}\n")
        async with asyncio.timeout(60):
            while (second := await version()) == first:
                await asyncio.sleep(0.1)
        await ask(pair, "turned")
        (decision,) = await until_ended(pair, "turned")
        placement = decision["placement"]
        assert (placement["policy"], placement["routing_version"]) == ("round_robin", second)
        assert (placement["scorers"], placement["margin"]) == ([], None)
        shown = await inferway("explain", "turned", "--routers", address)
        assert f"the policy round_robin does not score: its picker took {placement['worker_id']}" in shown.out
    finally:
        routing.write_text(before)
    async with asyncio.timeout(60):
        while await version() != first:
            await asyncio.sleep(0.1)


async def test_an_id_out_of_range_is_refused(pair: Mesh) -> None:
    """The status names the field, the limits and the value."""
    async with grpc.aio.insecure_channel(router_of(pair).address) as channel:
        for request_id in ("", "x" * 257):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await router_pb2_grpc.RouterStub(channel).Explain(router_pb2.ExplainRequest(request_id=request_id))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            details = refused.value.details()
            assert details == f"request_id: must have 1 to 256 characters, got {len(request_id)}"


async def test_a_router_that_remembers_nothing() -> None:
    """With --explain-records 0 requests run, and nobody knows them afterwards."""
    with Mesh(router_args=["--explain-records", "0"]) as mesh:
        assert (await ask(mesh, "forgotten")).status == 200
        done = await inferway("explain", "forgotten", "--routers", router_of(mesh).address)
        assert (done.status, done.out) == (1, "")
        assert "remembers 0 decisions" in done.err
