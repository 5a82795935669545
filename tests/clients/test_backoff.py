"""docs/examples/backoff.py: what it decides, by tables, and that it gets its answers from a product short of room."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from docs.examples.backoff import MOST_SPREAD_S, SPREAD_S, UNKNOWN_S, Pace, PatientClient
from tests.cases.installation import Installation
from tests.clients.installation import KEY, REAL, product_python, request_id, write_scripts
from tests.support.processes import ROOT, Mesh
from tests.support.waiting import wait_until

HI: list[Any] = [{"role": "user", "content": "hi"}]
NOW = 1000.0


@pytest.mark.parametrize(
    ("status", "headers", "attempt", "waits"),
    [
        # Over the quota: exactly as long as it says, however often.
        (429, {"retry-after": "7"}, 0, 7.0),
        (429, {"retry-after": "7"}, 9, 7.0),
        (429, {"retry-after": "7", "retry-after-ms": "6250"}, 0, 6.25),
        (429, {}, 0, UNKNOWN_S),
        (429, {"retry-after": "soon"}, 0, UNKNOWN_S),
        # A budget that is spent.
        (429, {"x-should-retry": "false"}, 0, None),
        # Over capacity: at least what it says, and a share of a window that doubles up to a limit.
        (503, {"retry-after": "2"}, 0, 2.0 + SPREAD_S / 2),
        (503, {"retry-after": "2"}, 3, 2.0 + 4 * SPREAD_S),
        (503, {}, 1, SPREAD_S),
        (503, {}, 50, MOST_SPREAD_S / 2),
        (502, {}, 0, SPREAD_S / 2),
        (504, {}, 0, SPREAD_S / 2),
        (503, {"retry-after": "2", "x-should-retry": "false"}, 0, None),
        # Nothing that waiting would mend.
        (400, {}, 0, None),
        (404, {}, 0, None),
        (500, {}, 0, None),
    ],
)
def test_how_long_it_waits(status: int, headers: Mapping[str, str], attempt: int, waits: float | None) -> None:
    """By status and headers; chance stands in the middle."""
    again = Pace(rng=lambda: 0.5).again(status, headers, attempt, now=NOW)
    assert again == (None if waits is None else NOW + waits)


def test_a_quota_holds_back_everybody_and_capacity_only_one() -> None:
    """After a 429 nothing leaves before its time, and a shorter one does not bring that forward."""
    pace = Pace()
    pace.again(503, {"retry-after": "9"}, 0, now=NOW)
    assert pace.not_before == 0.0
    pace.again(429, {"retry-after": "9"}, 0, now=NOW)
    pace.again(429, {"retry-after": "1"}, 0, now=NOW)
    assert pace.not_before == NOW + 9


@contextmanager
def narrow(folder: Path) -> Iterator[Installation]:
    """A mesh with room for one request, where others wait half a second for it."""
    record = folder / "record.jsonl"
    worker = ["--engine", "scripted", "--scripts", write_scripts(folder), "--record", str(record)]
    worker += ["--max-running", "1", "--max-waiting", "0"]
    with Mesh(workers=[worker], gateway_args=["--queue-timeout-s", "0.5"], python=product_python()) as mesh:
        yield Installation(mesh, record)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with narrow(tmp_path_factory.mktemp("narrow")) as installation:
        yield installation


def outcomes(installation: Installation, name: str) -> list[str]:
    return [line["outcome"] for line in installation.request_lines() if line["request_id"] == name]


@pytest.mark.parametrize("stream", [False, True])
def test_it_waits_for_room(crowded: Installation, stream: bool) -> None:
    """Refused while another request has the only place, it gets its answer once that has gone."""
    mine = request_id("hello")
    with (
        openai.OpenAI(base_url=crowded.mesh.url("/v1"), api_key="any", max_retries=0) as client,
        ThreadPoolExecutor(1) as others,
    ):
        holder = client.chat.completions.create(
            model="m-text", messages=HI, stream=True, extra_headers={"X-Request-Id": request_id("slow")}
        )
        next(iter(holder))

        def ask() -> str:
            answer = PatientClient(client, Pace()).chat(
                model="m-text", messages=HI, stream=stream, extra_headers={"X-Request-Id": mine}
            )
            if stream:
                return "".join(chunk.choices[0].delta.content or "" for chunk in answer)
            return str(answer.choices[0].message.content)

        asked = others.submit(ask)
        wait_until(lambda: outcomes(crowded, mine), what="it is refused once")
        holder.close()
        assert asked.result(60) == "Hello"
    wait_until(lambda: outcomes(crowded, mine)[-1] == "ok", what="the answer is recorded")
    assert set(outcomes(crowded, mine)[:-1]) == {"overloaded"}


def test_many_share_the_place(crowded: Installation) -> None:
    """Eight that come at once, with room for one at a time, all get their answer."""
    pace = Pace()
    barrier = threading.Barrier(8)
    with openai.OpenAI(base_url=crowded.mesh.url("/v1"), api_key="any") as client, ThreadPoolExecutor(8) as pool:
        patient = PatientClient(client, pace)

        def ask(_number: int) -> str | None:
            barrier.wait(20)
            answer = patient.chat(model="m-text", messages=HI, extra_headers={"X-Request-Id": request_id("brief")})
            return str(answer.choices[0].message.content)

        assert list(pool.map(ask, range(8))) == ["word " * 10] * 8
    assert pace.not_before == 0.0


def test_its_patience_ends(crowded: Installation) -> None:
    """Then the client's own error is raised, with its code."""
    with openai.OpenAI(base_url=crowded.mesh.url("/v1"), api_key="any") as client:
        patient = PatientClient(client, Pace(), patience_s=0.0)
        with pytest.raises(openai.InternalServerError) as raised:
            patient.chat(model="m-text", messages=HI, extra_headers={"X-Request-Id": request_id("full")})
        assert raised.value.code == "overloaded"
        name = request_id("echo")
        with pytest.raises(openai.BadRequestError):
            patient.chat(model="m-text", messages=HI, temperature=9, extra_headers={"X-Request-Id": name})
    wait_until(lambda: outcomes(crowded, name), what="it is recorded")
    assert outcomes(crowded, name) == ["invalid_request"]


def test_it_waits_for_a_worker(tmp_path: Path) -> None:
    """While the model's only worker is away and until it is back."""
    mine = request_id("hello")
    with (
        narrow(tmp_path) as installation,
        openai.OpenAI(base_url=installation.mesh.url("/v1"), api_key="any") as client,
        ThreadPoolExecutor(1) as others,
    ):
        installation.mesh.workers[0].kill()
        asked = others.submit(
            lambda: PatientClient(client, Pace()).chat(
                model="m-text", messages=HI, extra_headers={"X-Request-Id": mine}
            )
        )
        wait_until(lambda: outcomes(installation, mine), what="it is refused once")
        installation.mesh.start_worker_again(0)
        assert asked.result(60).choices[0].message.content == "Hello"
        wait_until(lambda: outcomes(installation, mine)[-1] == "ok", what="the answer is recorded")
        # Or it was on its way to the worker that went.
        assert set(outcomes(installation, mine)[:-1]) <= {"model_not_ready", "overloaded"}


def test_it_runs_as_it_stands(installation: Installation) -> None:
    """The command line of its docstring, with the real model."""
    done = subprocess.run(
        [sys.executable, "docs/examples/backoff.py", installation.mesh.url("/v1"), REAL, "Give me three tips."],
        cwd=ROOT,
        env=os.environ | {"OPENAI_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
