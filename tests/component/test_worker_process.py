"""The worker as a process: how it starts, how it ends, and what it says when it cannot run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from inferway.api.v1 import worker_pb2, worker_pb2_grpc
from tests.support.probes import http_json, metric
from tests.support.processes import ROOT, start_worker
from tests.support.waiting import wait_until

LIMIT_S = 20.0


def scripts(tmp_path: Path, **named: object) -> tuple[str, ...]:
    path = tmp_path / "scripts.json"
    path.write_text(json.dumps(named))
    return ("--engine", "scripted", "--scripts", str(path))


def test_a_worker_starts_serves_and_ends_cleanly(tmp_path: Path) -> None:
    """It names its addresses, becomes ready, and SIGTERM without work is exit status 0."""
    with start_worker("--engine", "scripted", "--name", "A") as worker:
        wait_until(lambda: http_json(f"http://{worker.ops_address}/health/ready")[0] == 200, LIMIT_S, "ready")
        with grpc.insecure_channel(worker.address) as link:
            description = worker_pb2_grpc.WorkerStub(link).Describe(worker_pb2.DescribeRequest())
        assert description.worker_id == "A"
        assert worker.stop() == 0
        assert worker.events("closed")


def test_scripts_in_json_may_escape_what_is_no_ascii(tmp_path: Path) -> None:
    """JSON writes a character beyond the first 65,536 as two escapes, which YAML does not know."""
    with start_worker(*scripts(tmp_path, wave=[{"text": "👋"}])) as worker:
        assert r"\ud83d\udc4b" in (tmp_path / "scripts.json").read_text()
        worker.wait_for_event("ready")


def test_sigterm_lets_a_running_request_finish(tmp_path: Path) -> None:
    """The answer that has begun arrives whole before the process ends with 0."""
    arguments = scripts(tmp_path, slow=[{"text": "t", "repeat": 20, "gap_ms": 25}, {"finish": "stop"}])
    with start_worker(*arguments) as worker:
        worker.wait_for_event("ready")
        with grpc.insecure_channel(worker.address) as link:
            batches = worker_pb2_grpc.WorkerStub(link).Session(_one_request("slow", worker.popen))
            first = next(batch for batch in batches if batch.deltas)
            worker.popen.send_signal(signal.SIGTERM)
            text = "".join(delta.text for batch in (first, *batches) for delta in batch.deltas)
        assert text == "t" * 20
        assert worker.popen.wait(LIMIT_S) == 0


def _one_request(name: str, process: subprocess.Popen[bytes]) -> Iterator[worker_pb2.SessionRequest]:
    """A request, then an open stream for as long as the worker lives."""
    generate = worker_pb2.Generate(key=1, request_id=name, model="m-text", prompt_token_ids=[1])
    yield worker_pb2.SessionRequest(generates=[generate])
    process.wait(LIMIT_S)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """Nobody has to wait for a drain; the status is still 0."""
    with start_worker(*scripts(tmp_path, never=[{"sleep_ms": 600_000}])) as worker:
        worker.wait_for_event("ready")
        with grpc.insecure_channel(worker.address) as link:
            batches = worker_pb2_grpc.WorkerStub(link).Session(_one_request("never", worker.popen))
            wait_until(lambda: worker.events("ready"), LIMIT_S, "ready")
            _wait_running(worker.ops_address, 1)
            worker.popen.send_signal(signal.SIGTERM)
            worker.wait_for_event("draining")
            worker.popen.send_signal(signal.SIGTERM)
            assert worker.popen.wait(LIMIT_S) == 0
            batches.cancel()


_GATEWAY = """
import grpc, sys, time
from inferway.api.v1 import worker_pb2, worker_pb2_grpc
def requests():
    for key in range(1, 11):
        generate = worker_pb2.Generate(key=key, request_id="long", model="m-text", prompt_token_ids=[1])
        yield worker_pb2.SessionRequest(generates=[generate])
    time.sleep(60)
for batch in worker_pb2_grpc.WorkerStub(grpc.insecure_channel(sys.argv[1])).Session(requests()):
    pass
"""


def test_a_gateway_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its requests are aborted at once, and the worker's log holds no error: peers die."""
    with start_worker(*scripts(tmp_path, long=[{"text": "word " * 100, "repeat": 1_000_000}])) as worker:
        worker.wait_for_event("ready")
        gateway = subprocess.Popen([sys.executable, "-c", _GATEWAY, worker.address], cwd=ROOT)
        try:
            _wait_running(worker.ops_address, 10)
        finally:
            gateway.kill()
            gateway.wait()
        _wait_running(worker.ops_address, 0)
        assert worker.stop() == 0
        assert [line for line in worker.events() if line["level"] == "error"] == []
        assert "Traceback" not in worker.log_text()


def _wait_running(ops_address: str, count: int) -> None:
    page = f"http://{ops_address}/metrics"
    wait_until(lambda: metric(page, "inferway_worker_num_requests_running") == count, LIMIT_S, f"{count} running")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--engine", "none"), "--engine: must be one of llamacpp, minilm, scripted, sglang, got 'none'"),
        (
            ("--engine", "scripted", "--listen", "0.0.0.0:0"),
            "refusing to listen on 0.0.0.0:0 without authentication",
        ),
        (("--engine", "scripted", "--internal-token-file", "/nowhere"), "internal token file is missing"),
        (
            ("--engine", "scripted", "--ops-listen", "0.0.0.0:0"),
            "refusing to listen on 0.0.0.0:0 without authentication",
        ),
        (("--engine", "scripted", "--listen", "127.0.0.1:99999"), "--listen: must be host:port"),
        (("--engine", "scripted", "--ops-listen", "nonsense"), "--ops-listen: must be host:port"),
        # TEST-NET-1: no machine has it.
        (("--engine", "scripted", "--listen", "192.0.2.1:1", "--insecure"), "cannot listen on 192.0.2.1:1"),
        (("--engine", "scripted", "--scripts", "/nowhere.yaml"), "No such file or directory: '/nowhere.yaml'"),
        (("--engine", "scripted", "--capability", "max_model_len=x"), "max_model_len must be at least 2"),
    ],
)
def test_what_cannot_run_says_why_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    """No traceback, exit status 2, and the sentence as the last line on standard error."""
    free = ("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
    run = subprocess.run(
        [sys.executable, "-m", "worker", *free, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2
    assert sentence in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


def test_a_script_with_a_mistake_is_refused_by_name(tmp_path: Path) -> None:
    """The script, the item and the key are named before anything is served."""
    arguments = scripts(tmp_path, good=[{"text": "x"}], bad=[{"text": "x"}, {"txt": "y"}])
    run = subprocess.run(
        [sys.executable, "-m", "worker", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert "bad[1].txt: no such key" in run.stderr
    assert "Traceback" not in run.stderr
