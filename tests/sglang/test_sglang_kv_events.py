"""What the KV events say of the cache, against hashes computed from token ids and SGLang's own cached_tokens."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from inferway.blocks import block_hashes
from tests.sglang.driver import MODELS, Driver
from worker.engines.sglang import SglangEngine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CONVERSATIONS, TURNS = 20, 5
BLOCK = 64
# Longer than the publisher takes, who looks at its sockets ten times a second.
EVENT_LIMIT_S = 1.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> AsyncIterator[Driver]:
    engine = SglangEngine(
        model_path=str(MODELS / "tiny"), max_running=8, context_length=2048, flags=("--max-total-tokens=65536",)
    )
    driver = Driver(engine)
    await driver.start()
    yield driver
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def driver(started: Driver) -> AsyncIterator[Driver]:
    yield started
    await started.idle()


def held_blocks(driver: Driver, hashes: list[int]) -> int:
    held = driver.held
    return next((count for count, one in enumerate(hashes) if one not in held), len(hashes))


async def test_conversations(driver: Driver) -> None:
    """Growing conversations leave just the blocks of their tokens, and these predict cached_tokens of each turn."""
    rng = random.Random(7)
    assert driver.info.publishes_kv_events
    assert driver.info.models[0].block_size == BLOCK
    # Some share a cache domain, and with it their beginnings; some have one of their own, some none.
    salts = [b"", os.urandom(16), b"\xff\x00text"]
    system = [rng.randrange(49_000) for _ in range(150)]
    talks = [(salts[n % len(salts)], list(system)) for n in range(CONVERSATIONS)]
    expected: set[int] = set()
    close = 0
    for _ in range(TURNS):
        for salt, tokens in talks:
            tokens += [rng.randrange(49_000) for _ in range(rng.randrange(20, 120))]
            predicted = held_blocks(driver, block_hashes(tokens[:-1], BLOCK, salt)) * BLOCK
            key = await driver.run(list(tokens), cache_salt=salt, max_tokens=rng.randrange(1, 50))
            close += abs(driver.cached[key] - predicted) <= BLOCK
            tokens += driver.tokens[key]
            # The last token is never computed.
            mine = set(block_hashes(tokens[:-1], BLOCK, salt))
            expected |= mine
            await driver.until(lambda mine=mine: mine <= driver.held, "the blocks of a turn", EVENT_LIMIT_S)
    assert driver.held == expected
    print(f"{close} of {CONVERSATIONS * TURNS} turns within a block")
    assert close >= 0.95 * CONVERSATIONS * TURNS


async def test_flush(driver: Driver) -> None:
    """An emptied cache is reported within a second."""
    await driver.run(list(range(200)), max_tokens=1)
    await driver.until(lambda: bool(driver.held), "some blocks", EVENT_LIMIT_S)
    assert await driver.engine.flush_cache()
    seconds = await driver.until(lambda: not driver.held, "an empty cache", EVENT_LIMIT_S)
    print(f"told after {seconds * 1000:.0f} ms")


async def test_eviction(driver: Driver) -> None:
    """Blocks that a full cache drops are reported, so that what is held is never more than fits."""
    rng = random.Random(8)
    keys = []
    for _ in range(40):
        keys.append(await driver.run([rng.randrange(49_000) for _ in range(1990)], max_tokens=1))
    await driver.until(lambda: len(driver.held) <= 65_536 // BLOCK, "an eviction", EVENT_LIMIT_S)
    assert len(driver.held) > 65_536 // BLOCK * 0.8
    again = [rng.randrange(49_000) for _ in range(640)]
    await driver.run(again, max_tokens=1)
    await driver.until(lambda: set(block_hashes(again, BLOCK)) <= driver.held, "a new prompt", EVENT_LIMIT_S)


async def test_missed_batches_come_again(driver: Driver) -> None:
    """When events did not arrive, they are asked for: nothing is lost."""
    feed = driver.engine._feed
    feed._events.unsubscribe(b"")
    missed = [random.Random(9).randrange(49_000) for _ in range(300)]
    await driver.run(missed, max_tokens=1)
    await driver.engine.flush_cache()
    await driver.run(missed, max_tokens=1)
    feed._events.subscribe(b"")
    later = list(range(500, 700))
    await driver.run(later, max_tokens=1)
    wanted = set(block_hashes(missed, BLOCK)) | set(block_hashes(later, BLOCK))
    await driver.until(lambda: driver.held == wanted, "all that was missed", 5)
