"""SmolLM2 through the engine and through SGLang itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from tokenizers import Tokenizer

from tests.sglang.driver import MODELS, Driver
from worker.engines.sglang import SglangEngine

PROMPTS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Count from one to ten.",
    "Why is the sky blue? Answer in French. 🙂",
]
TOKENS = 32
FLAGS = ("--max-total-tokens=8192", "--random-seed=1")

# SGLang as one calls it without this product: text in, text out.
DIRECT = """
import json, os, sys
from worker.engines.sglang import cpu
if __name__ == "__main__":
    if cpu.is_needed(()):
        cpu.prepare()
    import sglang
    model, prompts, tokens = json.loads(sys.argv[1])
    engine = sglang.Engine(
        model_path=model, device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        disable_cuda_graph=True, disable_overlap_schedule=True, dtype="float32", max_total_tokens=8192,
        context_length=2048, sleep_on_idle=True, random_seed=1,
    )
    answers = engine.generate(prompts, {"temperature": 0, "max_new_tokens": tokens})
    print("ANSWERS" + json.dumps([answer["text"] for answer in answers]), flush=True)
    engine.shutdown()
    from sglang.srt.managers.load_snapshot import shm_path_for
    os.unlink(shm_path_for(engine.port_args.instance_id))  # which it leaves behind
"""


@pytest.mark.timeout(600)
async def test_greedy_text_is_that_of_sglang() -> None:
    """Greedy text through the engine equals that of sglang.Engine called directly with the same prompts."""
    tokenizer = Tokenizer.from_file(str(MODELS / "smollm2" / "tokenizer.json"))
    texts = [f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n" for prompt in PROMPTS]
    task = json.dumps([str(MODELS / "smollm2"), texts, TOKENS])
    direct = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", DIRECT, task], capture_output=True, text=True, timeout=400
    )
    line = next((line for line in direct.stdout.splitlines() if line.startswith("ANSWERS")), None)
    assert line is not None, direct.stderr[-4000:]
    expected = json.loads(line.removeprefix("ANSWERS"))

    driver = Driver(SglangEngine(model_path=str(MODELS / "smollm2"), max_running=8, context_length=2048, flags=FLAGS))
    await driver.start()
    try:
        keys = [
            driver.submit(tokenizer.encode(text, add_special_tokens=False).ids, max_tokens=TOKENS, ignore_eos=False)
            for text in texts
        ]
        await driver.until(lambda: all(key in driver.ends for key in keys), "all answers")
    finally:
        await driver.engine.close()
    given = [tokenizer.decode(driver.tokens[key], skip_special_tokens=True) for key in keys]
    assert given == expected
    assert "Paris" in given[0]
