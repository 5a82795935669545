"""LoRA adapters through the mesh: loaded and unloaded on running workers, listed, routed by name."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Answer, send
from tests.support.processes import ROOT, Mesh, Process, start_worker
from tests.support.raw_client import EventStream
from tests.support.waiting import until

SLOW = {"slow": [{"text": " tick", "repeat": 40, "gap_ms": 50}, {"finish": "stop"}]}


@pytest.fixture
def mesh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """Two workers, A and B, that write down what they get; without a router where the parameter says so."""
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps(SLOW))
    workers = [
        ["--engine", "scripted", "--name", name, "--scripts", str(scripts), "--record", str(tmp_path / name)]
        for name in ("A", "B")
    ]
    with Mesh(workers=workers, with_router=getattr(request, "param", True)) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def worker() -> Iterator[Process]:
    with start_worker("--engine", "scripted") as worker:
        yield worker


async def adapters(worker: Process, *flags: str) -> tuple[int, list[str]]:
    """`python -m inferway adapters` on one worker: its exit status and the lines it prints."""
    command = ("-m", "inferway", "adapters", "--worker", worker.address, *flags)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    return process.returncode or 0, (out + errors).decode().splitlines()


async def listed(mesh: Mesh) -> dict[str, str | None]:
    answer = await send(mesh.gateway.address, "GET /v1/models")
    return {model["id"]: model["parent"] for model in answer.json["data"]}


async def until_listed(mesh: Mesh, name: str, *, is_there: bool = True) -> None:
    async def look() -> bool:
        return (name in await listed(mesh)) is is_there

    async with asyncio.timeout(10):
        while not await look():
            await asyncio.sleep(0.02)


async def ask(mesh: Mesh, model: str, **fields: Any) -> Answer:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}
    return await send(mesh.gateway.address, "POST /v1/chat/completions", body=body)


def recorded(folder: Path, worker: str) -> list[tuple[str, str]]:
    """What reached a worker's engine: model and adapter of each request."""
    path = folder / worker
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(line["model"], line["adapter"]) for line in lines if line["event"] == "generate"]


@pytest.mark.parametrize("mesh", [True, False], ids=["router", "no router"], indirect=True)
async def test_an_adapter_is_served_where_it_is_loaded(mesh: Mesh, tmp_path: Path) -> None:
    """Loaded on one of two workers it is listed with its parent, and every request for it goes to that one."""
    assert (await ask(mesh, "m-text:fr")).status == 404
    assert await adapters(mesh.workers[1], "--model", "m-text", "--load", "fr=/adapters/fr") == (
        0,
        [f"{mesh.workers[1].address} m-text:fr"],
    )
    await until_listed(mesh, "m-text:fr")
    assert (await listed(mesh))["m-text:fr"] == "m-text"

    for _ in range(3):
        answer = await ask(mesh, "m-text:fr")
        assert (answer.status, answer.json["model"]) == (200, "m-text:fr")
        answer = await ask(mesh, "m-text", lora_request={"lora_name": "fr"})
        assert (answer.status, answer.json["model"]) == (200, "m-text:fr")
    assert recorded(tmp_path, "A") == []
    assert recorded(tmp_path, "B") == [("m-text", "fr")] * 6
    assert (await ask(mesh, "m-text", lora_request="de")).status == 404


async def test_an_unloaded_adapter_ends_what_runs_and_is_forgotten(mesh: Mesh) -> None:
    """A stream that runs on it goes on to its end; after that the name is a 404, and the model itself still answers."""
    assert (await adapters(mesh.workers[0], "--model", "m-text", "--load", "fr=/adapters/fr"))[0] == 0
    await until_listed(mesh, "m-text:fr")
    body = {"model": "m-text:fr", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    stream = await EventStream.open(mesh.gateway.address, body, headers={"X-Request-Id": "slow.1"})
    await until(lambda: len(stream.events) > 3)
    assert await adapters(mesh.workers[0], "--model", "m-text", "--unload", "fr") == (0, [])
    await until_listed(mesh, "m-text:fr", is_there=False)
    await stream.done
    assert stream.payloads()[-1] == b"[DONE]"
    assert sum(b'"content":" tick"' in payload for payload in stream.payloads()) == 40

    answer = await ask(mesh, "m-text:fr")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert (await ask(mesh, "m-text")).status == 200


async def test_one_of_two_workers_unloads(mesh: Mesh, tmp_path: Path) -> None:
    """As long as one worker has the adapter, requests for it are served there."""
    for worker in mesh.workers:
        assert (await adapters(worker, "--model", "m-text", "--load", "fr=/adapters/fr"))[0] == 0
    await until_listed(mesh, "m-text:fr")
    assert (await adapters(mesh.workers[0], "--model", "m-text", "--unload", "fr"))[0] == 0
    for _ in range(4):
        assert (await ask(mesh, "m-text:fr")).status == 200
    assert "m-text:fr" in await listed(mesh)
    assert recorded(tmp_path, "B")[-1] == ("m-text", "fr")


@pytest.mark.parametrize(
    ("flags", "status", "sentence"),
    [
        (["--load", "fr=/x"], 1, "--model is needed"),
        (["--model", "nowhere", "--load", "fr=/x"], 1, "The model 'nowhere' is not served by this worker."),
        (["--model", "m-text", "--load", "a:b=/x"], 1, "adapter must be 1 to 128 of"),
        (["--model", "m-text", "--unload", "fr"], 1, "The model 'm-text:fr' is not served by this worker."),
        (["--load", "fr"], 2, "--load: must be NAME=FOLDER, got 'fr'"),
        (["--load", "fr=/x", "--unload", "fr"], 2, "--load and --unload cannot be given together"),
    ],
)
async def test_what_cannot_be_done_is_said_in_a_sentence(
    worker: Process, flags: list[str], status: int, sentence: str
) -> None:
    """The command ends with a status of its own, names what is wrong, and shows no traceback."""
    code, lines = await adapters(worker, *flags)
    assert code == status
    assert sentence in "\n".join(lines)
    assert "Traceback" not in "\n".join(lines)
