"""SmolLM2 behind gateway, router and worker: the text is SGLang's own, and what a client sees when SGLang breaks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from inferway.service import FAILED
from tests.sglang.driver import MODELS, PATIENCE_S
from tests.support.client import Answer, send
from tests.support.probes import http_json
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream
from tests.support.waiting import until

# Two starts of SGLang on a busy machine.
pytestmark = pytest.mark.timeout(600)

MODEL = str(MODELS / "smollm2")
START_TIMEOUT_S = 300.0
TOKENS = 32
# What the seam gives an engine to notice that it has failed.
FAILURE_LIMIT_S = 2.0

SHIP = (
    "The ship left the harbour at dawn and the wind came from the west, and with it came rain, and the captain said "
    "that nobody should go on deck without a rope. In the evening they saw the light of an island, and a bird sat down "
    "on the mast; it was the first that they had seen for nine days. They cast the anchor in a bay behind the island, "
    "where the water was calm, and slept until noon. Then they mended the sails and filled the barrels with water."
)
COUNT = {"role": "user", "content": "Count from one to ten."}
# Conversations by what is in them, each with the stop strings of its request.
CASES: dict[str, tuple[list[dict[str, str]], list[str]]] = {
    "one message": ([{"role": "user", "content": "What is the capital of France?"}], []),
    "a system message": (
        [{"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "Say hello."}],
        [],
    ),
    "several turns": (
        [
            {"role": "user", "content": "My name is Ada."},
            {"role": "assistant", "content": "Hello Ada! How can I help you?"},
            {"role": "user", "content": "What is my name?"},
        ],
        [],
    ),
    "other scripts": ([{"role": "user", "content": "Übersetze ins Englische: 海は広い。\tМоре 🙂\n"}], []),
    "code": ([{"role": "user", "content": "Write a Python function.\n\n```python\ndef add(a, b):\n```"}], []),
    # Longer than the part of a prompt that a step computes.
    "a long message": ([{"role": "user", "content": f"Summarize: {SHIP}"}], []),
    "no stop string": ([COUNT], []),
    "stop strings": ([COUNT], ["never to be seen", "\n5."]),
}

# SGLang as one calls it without this product, on the ids that the model's own tokenizer makes of the conversations.
DIRECT = """
import json, os, sys
from worker.engines.sglang import cpu
if __name__ == "__main__":
    if cpu.is_needed(()):
        cpu.prepare()
    import sglang
    from transformers import AutoTokenizer
    model, cases, tokens = json.loads(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = [
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) for messages, _ in cases
    ]
    engine = sglang.Engine(
        model_path=model, device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        disable_cuda_graph=True, disable_overlap_schedule=True, dtype="float32", max_total_tokens=8192,
        context_length=2048, sleep_on_idle=True, random_seed=1,
    )
    sampling = [{"temperature": 0, "max_new_tokens": tokens, "stop": stop} for _, stop in cases]
    answers = engine.generate(input_ids=ids, sampling_params=sampling)
    told = [
        (answer["text"], answer["meta_info"]["finish_reason"]["type"], len(prompt),
         answer["meta_info"]["completion_tokens"])
        for prompt, answer in zip(ids, answers, strict=True)
    ]
    print("ANSWERS" + json.dumps(told), flush=True)
    engine.shutdown()
    from sglang.srt.managers.load_snapshot import shm_path_for
    os.unlink(shm_path_for(engine.port_args.instance_id))  # which it leaves behind
"""


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer says, whoever gave it."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


@pytest.fixture(scope="module")
def expected() -> dict[str, Told]:
    """SGLang's own answers, by case; its process is gone again."""
    task = json.dumps([MODEL, list(CASES.values()), TOKENS])
    direct = subprocess.run([sys.executable, "-c", DIRECT, task], capture_output=True, text=True, timeout=400)
    line = next((line for line in direct.stdout.splitlines() if line.startswith("ANSWERS")), None)
    assert line is not None, direct.stderr[-4000:]
    answers = json.loads(line.removeprefix("ANSWERS"))
    return {name: Told(*answer) for name, answer in zip(CASES, answers, strict=True)}


@pytest.fixture(scope="module")
def mesh(expected: dict[str, Told]) -> Iterator[Mesh]:
    """Started after SGLang's own answers: two models at once would take twice the memory."""
    worker = ["--engine=sglang", f"--model-path={MODEL}", "--context-length=2048", "--max-running=8"]
    with Mesh(workers=[[*worker, "--", "--max-total-tokens=8192"]], start_timeout_s=START_TIMEOUT_S) as mesh:
        yield mesh


def body(name: str, **fields: Any) -> dict[str, Any]:
    messages, stop = CASES[name]
    sampling: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS}
    if stop:
        sampling["stop"] = stop
    return {"model": "smollm2", "messages": messages, **sampling, **fields}


async def ask(mesh: Mesh, name: str, **fields: Any) -> Told:
    answer = await send(
        mesh.gateway.address, "POST /v1/chat/completions", body=body(name, **fields), timeout_s=PATIENCE_S
    )
    assert answer.status == 200, answer.body
    return told(answer)


def told(answer: Answer) -> Told:
    (finish_reason,) = answer.finish_reasons()
    usage = answer.usage
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return Told(answer.joined("content"), finish_reason, usage["prompt_tokens"], usage["completion_tokens"])


def test_cases(expected: dict[str, Told]) -> None:
    """The answers compared below are sense, and end in each of the three ways."""
    assert "Paris" in expected["one message"].text
    assert expected["one message"].finish_reason == "stop"
    assert expected["no stop string"].finish_reason == "length"
    assert expected["no stop string"].completion_tokens == TOKENS
    assert expected["no stop string"].text.startswith(expected["stop strings"].text + "\n5.")
    assert expected["stop strings"].finish_reason == "stop"


async def test_text_in_one_piece(mesh: Mesh, expected: dict[str, Told]) -> None:
    """One request after the other: text, finish reason and token counts are those of sglang.Engine called directly."""
    assert {name: await ask(mesh, name) for name in CASES} == expected


async def test_streamed_text(mesh: Mesh, expected: dict[str, Told]) -> None:
    """All requests at once, streamed: text, finish reason and token counts are those of sglang.Engine as well."""
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    answers = await asyncio.gather(*(ask(mesh, name, **fields) for name in CASES))
    assert dict(zip(CASES, answers, strict=True)) == expected


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs(mesh: Mesh, expected: dict[str, Told], stream: bool) -> None:
    """Each token of the text has its log-probability, and the greedy one is the best of those named beside it."""
    fields = body("one message", logprobs=True, top_logprobs=2, stream=stream)
    answer = await send(mesh.gateway.address, "POST /v1/chat/completions", body=fields, timeout_s=PATIENCE_S)
    assert answer.status == 200, answer.body
    choices = answer.choices if stream else answer.json["choices"]
    content = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == expected["one message"].text
    for entry in content:
        first, second = entry["top_logprobs"]
        assert (first["token"], first["bytes"]) == (entry["token"], entry["bytes"])
        assert 0 >= first["logprob"] >= second["logprob"]


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_an_echo_is_scored(mesh: Mesh, max_tokens: int) -> None:
    """A completion with echo scores the prompt: its first token has no number, all others have one."""
    fields = {
        "model": "smollm2",
        "prompt": "Paris is the capital of France.",
        "echo": True,
        "logprobs": 0,
        "max_tokens": max_tokens,
    }
    answer = await send(mesh.gateway.address, "POST /v1/completions", body=fields, timeout_s=PATIENCE_S)
    assert answer.status == 200, answer.body
    (choice,) = answer.json["choices"]
    given = choice["logprobs"]
    assert "".join(given["tokens"]) == choice["text"]
    assert given["token_logprobs"][0] is None
    assert all(value <= 0 for value in given["token_logprobs"][1:])
    assert answer.usage["completion_tokens"] == max_tokens
    assert answer.usage["prompt_tokens"] + max_tokens == len(given["tokens"])
    assert choice["finish_reason"] == "length"


async def test_killed_scheduler(mesh: Mesh, expected: dict[str, Told]) -> None:
    """A stream that loses SGLang's scheduler ends in an error event and [DONE]; nobody is ready; the worker exits as
    failed and leaves no process; and the one that follows it gives the same answers."""
    worker = mesh.workers[0]
    family = psutil.Process(worker.pid).children(recursive=True)
    (scheduler,) = [process for process in family if "scheduler" in " ".join(process.cmdline())]
    limits = {"max_tokens": 1000, "ignore_eos": True}
    stream = await EventStream.open(mesh.gateway.address, body("no stop string", **limits, stream=True))
    whole = asyncio.create_task(
        send(mesh.gateway.address, "POST /v1/chat/completions", body=body("code", **limits), timeout_s=PATIENCE_S)
    )
    await stream.wait_events(8, PATIENCE_S)
    assert not stream.done.done()
    scheduler.kill()
    await until(
        lambda: not is_ready(worker.ops_address) and not is_ready(mesh.gateway.address), FAILURE_LIMIT_S, "not ready"
    )

    await asyncio.wait_for(stream.done, PATIENCE_S)
    *chunks, failure = stream.chunks()
    assert stream.payloads()[-1] == b"[DONE]"
    assert failure["error"]["type"] == "server_error"
    assert failure["error"]["code"] == "worker_failed"
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    answer = await whole
    assert (answer.status, answer.error["code"]) == (500, "worker_failed")

    assert await asyncio.to_thread(worker.popen.wait, PATIENCE_S) == FAILED
    (failed,) = worker.events("engine_failed")
    assert "SGLang" in failed["error"]
    _, left = await asyncio.to_thread(psutil.wait_procs, family, PATIENCE_S)
    assert left == []

    await asyncio.to_thread(mesh.start_worker_again, 0)
    await asyncio.to_thread(mesh.wait_ready)
    assert await ask(mesh, "one message") == expected["one message"]


def is_ready(address: str) -> bool:
    """Whether a process says so; one that is gone does not."""
    try:
        return http_json(f"http://{address}/health/ready")[0] == 200
    except OSError:
        return False
