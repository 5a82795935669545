"""`python -m gateway` as a process: refusals, and the secret that its children share."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gateway.config import Config
from gateway.parent import Parent
from inferway.config import load
from inferway.service import CannotStart
from tests.support.client import send
from tests.support.probes import http_json, metric
from tests.support.processes import ROOT, Process, start_worker
from tests.support.waiting import wait_until

LIMIT_S = 20.0
ROUTER = ("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--workers", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--listen", "127.0.0.1:99999"), "--listen: must be host:port with a port from 0 to 65535"),
        (("--listen", "192.0.2.1:1", "--insecure"), "cannot listen on 192.0.2.1:1: "),
        (("--listen", "0.0.0.0:0", "--internal-token", "secret"), "refusing to listen on 0.0.0.0:0"),
        (("--routers", "nowhere"), "--routers: must be host:port with a port from 1 to 65535, got 'nowhere'"),
        (("--internal-token-file", "/nowhere"), "the internal token file is missing, unreadable or empty: /nowhere"),
        (("--cache-secret-file", "/nowhere"), "--cache-secret-file: the file cannot be read"),
        (("--processes", "2", "--cache-secret-file", "/nowhere"), "--cache-secret-file: the file cannot be read"),
    ],
)
def test_a_wrong_configuration_is_refused_in_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    """No traceback, exit status 2, and the sentence as the last line on standard error."""
    command = [sys.executable, "-m", "gateway", "--listen", "127.0.0.1:0", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert sentence in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


@contextmanager
def two_processes(*flags: str) -> Iterator[tuple[Process, psutil.Process, str]]:
    """A gateway of two that serve: its parent's process, how that looks to the system, and its URL."""
    with Process("gateway", "--listen", "127.0.0.1:0", "--processes", "2", "--drain-delay-s", "0", *flags) as gateway:
        parent, url = psutil.Process(gateway.pid), f"http://{gateway.address}"
        assert http_json(f"{url}/health", timeout_s=LIMIT_S) == (200, {"status": "ok"})
        wait_until(lambda: _ignore_ctrl_c(parent.children()), LIMIT_S, "children that serve")
        yield gateway, parent, url


def test_children_have_the_secret_of_their_parent(tmp_path: Path) -> None:
    """A child that starts after the token was rotated derives the same cache domains as its siblings."""
    tokens = tmp_path / "tokens"
    tokens.write_text("before\n")
    flags = ("--listen", "127.0.0.1:0", "--processes", "2", "--drain-delay-s", "0")
    with Process("gateway", *flags, "--internal-token-file", str(tokens)) as gateway:
        parent = psutil.Process(gateway.pid)
        wait_until(lambda: len(parent.children()) == 2, LIMIT_S, "children")
        tokens.write_text("after\nbefore\n")
        first = parent.children()[0]
        first.kill()
        wait_until(lambda: gateway.events("process_died"), LIMIT_S, "its end is noticed")
        wait_until(lambda: len({*parent.children()} - {first}) == 2, LIMIT_S, "another one")

        def secrets() -> list[str | None]:
            """Of the children; a process that is just being started has no environment of its own yet."""
            return [child.environ().get("INFERWAY_GATEWAY_CACHE_SECRET") for child in parent.children()]

        wait_until(lambda: secrets() == ["before"] * 2, LIMIT_S, "both have the parent's secret")
        assert len(gateway.events("cache_secret_from_token_file")) == 1
        assert "before" not in gateway.log_text()
        assert gateway.stop() == 0


@pytest.mark.slow
def test_a_parent_ends_when_no_child_can_start(tmp_path: Path) -> None:
    """While one serves a broken file is waited out; with none left the status is 2, for its supervisor to see."""
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text("tenants: {}\n")
    with two_processes("--tenants", str(tenants)) as (gateway, parent, url):
        tenants.write_text("tenants: 1\n")
        first, second = parent.children()
        first.kill()
        wait_until(lambda: {2} <= {event["exit_status"] for event in gateway.events("process_died")}, LIMIT_S, "a try")
        assert http_json(f"{url}/health", timeout_s=LIMIT_S) == (200, {"status": "ok"})
        second.kill()
        assert gateway.popen.wait(LIMIT_S) == 2
        assert not any(map(psutil.Process.is_running, (first, second)))


@pytest.mark.slow
def test_a_child_that_hangs_is_replaced() -> None:
    """After its time, and not when the whole machine has stood still; it is counted, and so is one that dies."""
    with two_processes("--process-stall-s", "2") as (gateway, parent, url):
        children = parent.children()
        standing = [*children, parent]
        for process in standing:
            process.suspend()
        time.sleep(4)
        for process in reversed(standing):
            process.resume()
        time.sleep(2)
        assert parent.children() == children
        children[0].suspend()
        wait_until(lambda: gateway.events("process_stalled"), LIMIT_S, "it is noticed")
        assert [event["pid"] for event in gateway.events("process_stalled")] == [children[0].pid]
        children[1].kill()

        def ends(reason: str) -> float:
            return metric(f"{url}/metrics", f'inferway_gateway_process_ends_total{{reason="{reason}"}}')

        wait_until(lambda: len({*parent.children()} - {*children}) == 2, LIMIT_S, "others")
        wait_until(lambda: (ends("stalled"), ends("died")) == (1, 1), LIMIT_S, "they are counted")
        assert gateway.stop() == 0


@pytest.mark.slow
def test_a_child_that_hangs_is_killed() -> None:
    """The others serve while it hangs; told to stop, their parent ends them all, with 0."""
    with two_processes("--drain-limit-s", "0") as (gateway, parent, url):
        children = parent.children()
        children[0].suspend()
        assert {http_json(f"{url}/health")[0] for _ in range(20)} == {200}
        gateway.popen.send_signal(signal.SIGTERM)
        assert gateway.popen.wait(2 * LIMIT_S) == 0
        assert [event["pid"] for event in gateway.events("process_killed")] == [children[0].pid]
        assert not any(map(psutil.Process.is_running, children))


def test_several_processes_need_a_folder(tmp_path: Path) -> None:
    """Where nothing can be written it is said in a sentence, before anything listens."""
    with pytest.raises(CannotStart, match=r"--processes: .* name one with TMPDIR"):
        asyncio.run(_listen_without_a_folder(tmp_path / "nowhere"))


async def _listen_without_a_folder(missing: Path) -> None:
    parent = Parent(load(Config, "gateway", {}, ["--listen", "127.0.0.1:0", "--processes", "2"]), [])
    before, tempfile.tempdir = tempfile.tempdir, str(missing)
    try:
        await parent.listen()
    finally:
        tempfile.tempdir = before
        await parent.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which signals a process ignores")
def test_signals_are_told_to_children_once() -> None:
    """Ctrl-C reaches parent and children alike; the children drain all the same, and the status is 0."""
    flags = ("--listen", "127.0.0.1:0", "--processes", "2", "--drain-delay-s", "0.5")
    with Process("gateway", *flags) as gateway:
        parent = psutil.Process(gateway.pid)
        url = f"http://{gateway.address}"
        assert http_json(f"{url}/health", timeout_s=LIMIT_S) == (200, {"status": "ok"})
        wait_until(lambda: _ignore_ctrl_c(parent.children()), LIMIT_S, "children that serve")
        asked = time.monotonic()
        for process in (*parent.children(), parent):
            process.send_signal(signal.SIGINT)
        assert gateway.popen.wait(LIMIT_S) == 0
        assert time.monotonic() - asked >= 0.5
        assert [event["requests_in_flight"] for event in gateway.events("draining")] == [0, 0]
        assert not gateway.events("drain_limit_passed")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has gone")
def test_no_child_outlives_its_parent() -> None:
    """A parent that is killed leaves the port free for the next one."""
    flags = ("--processes", "2", "--drain-delay-s", "0")
    with Process("gateway", "--listen", "127.0.0.1:0", *flags) as gateway:
        parent = psutil.Process(gateway.pid)
        url = f"http://{gateway.address}"
        assert http_json(f"{url}/health", timeout_s=LIMIT_S) == (200, {"status": "ok"})
        wait_until(lambda: _ignore_ctrl_c(parent.children()), LIMIT_S, "children that serve")
        children = parent.children()
        gateway.kill()
        try:
            wait_until(lambda: not any(map(psutil.Process.is_running, children)), LIMIT_S, "the end of all children")
        finally:
            for child in children:
                if child.is_running():
                    child.kill()
        with Process("gateway", "--listen", gateway.address, *flags):
            assert http_json(f"{url}/health", timeout_s=LIMIT_S) == (200, {"status": "ok"})


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which signals a process handles")
@pytest.mark.parametrize("module", ["gateway", "router", "worker"])
def test_told_to_stop_while_it_starts(module: str) -> None:
    """It ends at once with 0: the first process of a container would else not hear of it, and be killed in the end."""
    with Process(module, wait=False) as process:
        wait_until(lambda: _signals(process.pid, "SigCgt") >> (signal.SIGTERM - 1) & 1, LIMIT_S, "Python has started")
        assert process.stop() == 0
        assert process.log_text() == ""


def test_told_to_stop_when_it_has() -> None:
    """A signal that comes after all is closed does not change the exit status."""
    with Process("router", *ROUTER) as router:
        router.popen.send_signal(signal.SIGTERM)
        router.wait_for_event("closed")
        while router.popen.poll() is None:
            router.popen.send_signal(signal.SIGTERM)
        assert router.popen.returncode == 0


def test_started_without_standard_files(tmp_path: Path) -> None:
    """With input, output and errors closed it serves, and ends with 0."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = f"127.0.0.1:{taken.getsockname()[1]}"
    flags = ("--listen", "127.0.0.1:0", "--ops-listen", page, "--workers", "127.0.0.1:1")
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "router", *flags]
    with subprocess.Popen(command, cwd=ROOT) as router:
        wait_until(lambda: _answers(f"http://{page}/health"), LIMIT_S, "it serves")
        router.send_signal(signal.SIGTERM)
        assert router.wait(LIMIT_S) == 0


def _answers(url: str) -> bool:
    try:
        return http_json(url)[0] == 200
    except OSError:
        return False


def test_the_end_of_a_terminal_is_a_request_to_stop() -> None:
    """SIGHUP, which some also send to have files read again, cuts nothing."""
    # A process that is started under nohup ignores it, and so would those that it starts.
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        router = Process("router", *ROUTER)
    finally:
        signal.signal(signal.SIGHUP, ours)
    with router:
        router.popen.send_signal(signal.SIGHUP)
        assert router.popen.wait(LIMIT_S) == 0
        assert router.events("draining")


def _signals(pid: int, kind: str) -> int:
    """The mask of signals that the system keeps of a process: those that it ignores (SigIgn) or handles (SigCgt)."""
    return int(Path(f"/proc/{pid}/status").read_text().split(f"{kind}:")[1].split()[0], 16)


def _ignore_ctrl_c(children: list[psutil.Process]) -> bool:
    """By the mask of ignored signals that the system keeps of a process."""
    masks = [_signals(child.pid, "SigIgn") for child in children]
    return len(masks) == 2 and all(mask >> (signal.SIGINT - 1) & 1 for mask in masks)


async def test_a_model_that_nobody_has_yet_may_come() -> None:
    """While a worker has not said what it serves, an unknown model is not ready; clients do not try a 404 again."""
    ask = {"model": "of-another-worker", "messages": [{"role": "user", "content": "hi"}]}
    with socket.create_server(("127.0.0.1", 0)) as silent, start_worker("--engine", "scripted") as worker:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        flags = ("--listen", "127.0.0.1:0", "--workers", f"{worker.address},{address}")
        with Process("gateway", *flags) as gateway:
            ready = f"http://{gateway.address}/health/ready"
            wait_until(lambda: http_json(ready)[0] == 200, LIMIT_S, "one worker is there")
            answer = await send(gateway.address, "POST /v1/chat/completions", body=ask)
            assert (answer.status, answer.error["code"]) == (503, "model_not_ready")
            assert int(answer.headers["Retry-After"]) >= 1
            silent.close()
            with start_worker("--engine", "scripted", listen=address):
                wait_until(lambda: http_json(ready)[1]["workers"] == 2, LIMIT_S, "the other one is there")
                answer = await send(gateway.address, "POST /v1/chat/completions", body=ask)
                assert (answer.status, answer.error["code"]) == (404, "model_not_found")
