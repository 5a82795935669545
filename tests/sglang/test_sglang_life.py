"""How the engine ends: with its processes, without them, and as a worker's process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from inferway.errors import ApiError, Reason
from tests.sglang.driver import MODELS, Driver, child, children
from worker.engines.sglang import SglangEngine

pytestmark = pytest.mark.timeout(300)
FLAGS = ("--max-total-tokens=16384",)
# What the seam gives an engine to notice that it has failed.
FAILURE_LIMIT_S = 2.0
TINY = str(MODELS / "tiny")


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[Driver]:
    driver = Driver(SglangEngine(model_path=TINY, max_running=4, context_length=2048, flags=FLAGS, **options))
    await driver.start()
    try:
        yield driver
    finally:
        await driver.engine.close()


@pytest.mark.parametrize("name", ["scheduler", "detokenizer"])
async def test_killed_child(name: str) -> None:
    """When a process of SGLang is killed, every choice ends in worker_failed, the engine says so, and nothing hangs."""
    async with started() as driver:
        failed = asyncio.create_task(driver.engine.wait_failed())
        keys = [driver.submit([n, 1, 2, 3], max_tokens=1800) for n in range(6)]
        await driver.until(lambda: sum(key in driver.tokens for key in keys) >= 4, "four streams")
        assert not failed.done()
        child(name).kill()
        await driver.until(lambda: all(key in driver.ends for key in keys), "six ends", FAILURE_LIMIT_S)
        for key in keys:
            error = driver.ends[key].error
            assert error is not None
            assert error.reason is Reason.WORKER_FAILED
        sentence = await asyncio.wait_for(failed, FAILURE_LIMIT_S)
        assert sentence is not None
        assert "SGLang" in sentence
        with pytest.raises(ApiError) as caught:
            driver.submit([1, 2, 3], max_tokens=5)
        assert caught.value.reason is Reason.WORKER_FAILED
        assert (driver.engine.load().num_requests_running, driver.engine.load().num_requests_waiting) == (0, 0)
    assert children() == []


async def test_a_frozen_scheduler_has_failed() -> None:
    """It has not ended, but neither outputs nor its own numbers move: after the limit nothing waits for it any more."""
    async with started(stall_s=3.0) as driver:
        failed = asyncio.create_task(driver.engine.wait_failed())
        await driver.run([1, 2, 3], max_tokens=100)
        await asyncio.sleep(4.0)
        assert not failed.done(), "an idle scheduler is not stuck"
        key = driver.submit([1, 2, 3], max_tokens=1800)
        await driver.until(lambda: key in driver.tokens, "a token")
        child("scheduler").suspend()
        await driver.until(lambda: key in driver.ends, "the end of the choice")
        error = driver.ends[key].error
        assert error is not None
        assert error.reason is Reason.WORKER_FAILED
        sentence = await failed
        assert sentence is not None
        assert "has not moved for" in sentence
    assert children() == []


async def test_leaves_nothing() -> None:
    """After a close in the middle of streams there are no processes, no shared memory and no sockets of the engine."""

    def traces() -> set[str]:
        folders = [Path("/dev/shm"), Path("/tmp")]
        names = {str(path) for folder in folders for path in folder.iterdir()}
        return {name for name in names if "sglang" in name or "inferway-kv" in name}

    before = traces()
    async with started() as driver:
        assert traces() > before
        failed = asyncio.create_task(driver.engine.wait_failed())
        key = driver.submit([1, 2, 3], max_tokens=1800)
        await driver.until(lambda: key in driver.tokens, "a token")
    assert driver.ends[key].finish_reason is not None
    assert await failed is None
    assert children() == []
    assert traces() == before


async def test_close_while_it_starts() -> None:
    """A close during the start ends it, and leaves no process behind."""
    engine = SglangEngine(model_path=TINY, max_running=4, flags=FLAGS)
    starting = asyncio.create_task(engine.start(lambda step: None))
    while len(children()) < 2:
        assert not starting.done()
        await asyncio.sleep(0.1)
    await engine.close()
    with pytest.raises((ApiError, OSError)):
        await starting
    assert children() == []


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--tp-size", "many"], "invalid int value: 'many'"),
        (["--skip-tokenizer-init"], "--skip-tokenizer-init must be False"),
    ],
)
async def test_flags_that_sglang_does_not_take(flags: list[str], sentence: str) -> None:
    """They are named in SGLang's own words, before anything is started."""
    engine = SglangEngine(model_path=TINY, flags=flags)
    with pytest.raises(ApiError) as caught:
        await engine.start(lambda step: None)
    await engine.close()
    assert sentence in caught.value.message
    assert children() == []


async def test_no_model() -> None:
    """A folder without a model is an error with a sentence, and leaves no process behind."""
    engine = SglangEngine(model_path="/nowhere/at/all", flags=FLAGS)
    with pytest.raises((ApiError, OSError)) as caught:
        await engine.start(lambda step: None)
    await engine.close()
    assert str(caught.value)
    assert children() == []


@contextmanager
def worker() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "worker", "--engine=sglang", "--listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0"]
    command += [f"--model-path={TINY}", "--context-length=2048", "--max-running=4", "--", *FLAGS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def until_event(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("{") and json.loads(line)["event"] == name:
            return dict(json.loads(line))
    pytest.fail(f"no event {name}: " + "".join(lines)[-4000:])


def test_worker_process_stops() -> None:
    """A worker's process stops at SIGTERM as it does with any engine: SGLang does not take the signal."""
    with worker() as process:
        until_event(process, "ready")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        until_event(process, "closed")
        assert process.wait(30) == 0
    psutil.wait_procs(family, timeout=10)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family)


def test_worker_process_fails() -> None:
    """Without its scheduler a worker's process says what happened and ends, so that a supervisor starts it again."""
    with worker() as process:
        until_event(process, "ready")
        family = psutil.Process(process.pid).children(recursive=True)
        (scheduler,) = [one for one in family if "scheduler" in " ".join(one.cmdline())]
        os.kill(scheduler.pid, signal.SIGKILL)
        failed = until_event(process, "engine_failed")
        assert "SGLang" in failed["error"]
        assert process.wait(30) not in (0, -signal.SIGKILL, -signal.SIGQUIT)
    psutil.wait_procs(family, timeout=10)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family)
