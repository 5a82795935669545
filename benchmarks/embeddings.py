"""python -m benchmarks.embeddings: the bundled embedding model, alone and through gateway, router and worker.

Texts are words of one token each, all different from text to text. `alone` is one text after another, `together` 64
of them in one request; `engine` is the engine in this process, `mesh` a kept-alive HTTP connection to a gateway. CPU
time is that of the engine's process for a text alone: what a busy machine changes least.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

# As the worker does; numpy must not be loaded before.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import openai

from benchmarks.report import write_report
from tests.support.processes import Mesh
from worker.engine import EmbedRequest
from worker.engines.minilm import MiniLmEngine

MODEL = "all-minilm-l6-v2"
LENGTHS = (8, 32, 128, 256)
ALONE, TOGETHER = 30, 64
# Ids of whole words.
FIRST_ID, LAST_ID = 2000, 20_000


def texts(count: int, length: int) -> list[list[int]]:
    """With [CLS] and [SEP]."""
    words = range(FIRST_ID, LAST_ID)
    places = range(length - 2)
    return [[101, *(words[(n * 101 + place * 7) % len(words)] for place in places), 102] for n in range(count)]


async def seconds(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def measure(where: str, embed: Callable[[list[list[int]]], Awaitable[Any]]) -> list[dict[str, Any]]:
    rows = []
    for length in LENGTHS:
        await embed(texts(2, length))
        cpu_began = time.process_time()
        alone = [await seconds(embed([text])) for text in texts(ALONE, length)]
        cpu = (time.process_time() - cpu_began) / ALONE
        together = min([await seconds(embed(texts(TOGETHER, length))) for _ in range(3)])
        rows.append(
            {
                "where": where,
                "tokens a text": length,
                "alone, ms (median)": f"{statistics.median(alone) * 1000:.1f}",
                "alone, ms (least)": f"{min(alone) * 1000:.1f}",
                "CPU, ms": f"{cpu * 1000:.1f}" if where == "engine" else "",
                "together, ms a text (best of 3)": f"{together / TOGETHER * 1000:.1f}",
            }
        )
    return rows


async def measure_engine() -> list[dict[str, Any]]:
    began = time.perf_counter()
    engine = MiniLmEngine()
    await engine.start(lambda step: None)
    print(f"engine: started in {time.perf_counter() - began:.2f} s")

    async def embed(given: list[list[int]]) -> None:
        await asyncio.gather(*(engine.embed(EmbedRequest("r", MODEL, ids)) for ids in given))

    try:
        return await measure("engine", embed)
    finally:
        await engine.close()


async def measure_mesh() -> list[dict[str, Any]]:
    with Mesh(workers=[["--engine", "minilm"]]) as mesh:
        ready = mesh.workers[0].wait_for_event("ready")
        print(f"worker: its model was loaded in {ready['seconds']:.2f} s")
        async with openai.AsyncOpenAI(base_url=mesh.url("/v1"), api_key="any", max_retries=0) as client:

            async def embed(given: list[list[int]]) -> None:
                await client.embeddings.create(model=MODEL, input=given)

            return await measure("mesh", embed)


def main() -> None:
    write_report("embeddings", asyncio.run(measure_engine()) + asyncio.run(measure_mesh()))


if __name__ == "__main__":
    main()
