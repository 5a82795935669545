"""What conversations that grow save in the tokenizer: its CPU time with and without the memory of earlier pieces.

    python -m benchmarks.tokenizing [--conversations 8] [--turns 24] [--tokens-a-turn 400] [--rounds 3]

The bundled model's tokenizer and template. Every turn of every conversation is a request, the conversations
interleaved, as a gateway sees them; the times are those of `encode` alone, all requests from the first turn to the
last. Each round has conversations of its own. `tokenizers` is the reference, and what serves where the fast
tokenizer differs from it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from fastokens import Tokenizer as FastTokenizer
from tokenizers import Tokenizer as ReferenceTokenizer

from benchmarks.conversations import turns
from benchmarks.report import write_report
from gateway.core.chat_template import ChatTemplate
from gateway.core.prompt import PromptBuilder
from gateway.core.tokenizer import SEGMENT_CACHE_BYTES, Tokenizer
from worker.engines.llamacpp.gguf import read_metadata
from worker.engines.llamacpp.model import describe, source

Encode = Callable[[str], list[int]]


def encoders(tokenizer_json: bytes) -> dict[str, Encode]:
    reference = ReferenceTokenizer.from_buffer(tokenizer_json)
    plain = FastTokenizer.from_json_str(tokenizer_json.decode())
    remembering = FastTokenizer.from_json_str(tokenizer_json.decode())
    remembering.enable_segment_cache(SEGMENT_CACHE_BYTES)
    return {
        "tokenizers": lambda text: reference.encode(text, add_special_tokens=False).ids,
        "fast": lambda text: plain.encode(text).ids,
        "fast, remembering": lambda text: remembering.encode(text).ids,
    }


def spent_us(encode: Encode, prompts: list[str]) -> float:
    """A prompt, on average."""
    before = time.thread_time_ns()
    for prompt in prompts:
        encode(prompt)
    return (time.thread_time_ns() - before) / 1000 / len(prompts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--tokens-a-turn", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    chosen = source(None, None)
    info = describe(chosen, read_metadata(chosen.path), context_length=1 << 20, vocab_size=49152)
    tokenizer = Tokenizer(info.tokenizer_json)
    builder = PromptBuilder(ChatTemplate(info.chat_template), tokenizer)
    ways = encoders(info.tokenizer_json)
    costs: dict[str, list[float]] = {name: [] for name in ways}
    lengths = []
    for number in range(options.rounds):
        rng = random.Random(number)
        half = options.tokens_a_turn // 2
        talks = [
            turns(rng, options.turns, half, lambda text: len(tokenizer.encode(text)))
            for _ in range(options.conversations)
        ]
        # A turn is a user's message behind the answer to the one before.
        prompts = [builder.render(talk[: 2 * turn + 1]).text for turn in range(options.turns) for talk in talks]
        lengths += [len(tokenizer.encode(prompt)) for prompt in prompts]
        for name, encode in ways.items():
            costs[name].append(spent_us(encode, prompts))
    rows = []
    for name, spent in costs.items():
        row = {"tokenizer": name, "tokens": round(statistics.mean(lengths)), "cpu_us": round(statistics.median(spent))}
        row |= {"least": round(min(spent)), "most": round(max(spent))}
        ratios = [one / own for one, own in zip(costs["fast, remembering"], spent, strict=True)]
        rows.append(row | {"remembering_to_this": round(statistics.median(ratios), 3)})
    write_report("tokenizing", rows)


if __name__ == "__main__":
    main()
