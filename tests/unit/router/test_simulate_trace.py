"""Traces: Mooncake's blocks cut into the router's, the decision log, and what is wrong with a file."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from router.simulate.trace import Trace, TraceError, TraceRequest, read_trace

CONVERSATION = Path(__file__).resolve().parents[4] / "shared" / "data" / "mooncake" / "conversation_trace.jsonl"


def lines(*records: dict[str, Any]) -> list[str]:
    return [json.dumps(record) for record in records]


def mooncake(at: int, prompt: int, output: int, *ids: int) -> dict[str, Any]:
    return {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": list(ids)}


def decision(at: float, prompt: int, completion: int | None, *hashes: int, **more: Any) -> dict[str, Any]:
    fields = {"at_ms": at, "prompt_tokens": prompt, "completion_tokens": completion, "block_hashes": list(hashes)}
    return {"model": "m", "tenant_id": "t", "priority": 5, "cached_tokens": 0, **fields, **more}


def common(one: TraceRequest, other: TraceRequest) -> int:
    """How many leading blocks two prompts share."""
    pairs = zip(one.block_hashes, other.block_hashes, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(map(len, map(_hashes, (one, other)))))


def _hashes(request: TraceRequest) -> list[int]:
    return list(request.block_hashes)


@pytest.mark.parametrize(
    ("block_size", "blocks", "shared"),
    # 1,100 tokens; the first 512 are shared.
    [(64, 17, 8), (512, 2, 1), (16, 68, 32)],
)
def test_mooncake_blocks_are_cut(block_size: int, blocks: int, shared: int) -> None:
    """A block of 512 tokens becomes several; of the last one only the full blocks are there."""
    trace = read_trace(lines(mooncake(0, 1100, 5, 0, 1, 2), mooncake(40, 1536, 7, 0, 3, 4)), block_size=block_size)
    first, second = trace.requests
    assert (first.at_s, first.prompt_tokens, first.completion_tokens) == (0.0, 1100, 5)
    assert (second.at_s, second.prompt_tokens, second.completion_tokens) == (0.04, 1536, 7)
    assert (len(first.block_hashes), len(second.block_hashes)) == (blocks, 1536 // block_size)
    assert common(first, second) == shared
    assert len(set(first.block_hashes)) == blocks


def test_a_block_is_known_by_its_prefix() -> None:
    """The same id behind another block is another prefix."""
    trace = read_trace(lines(mooncake(0, 1024, 1, 1, 9), mooncake(0, 1024, 1, 2, 9)), block_size=64)
    one, other = (set(request.block_hashes) for request in trace.requests)
    assert one.isdisjoint(other)


def test_times_count_from_the_first_request() -> None:
    """Whatever the file's own origin and order are."""
    trace = read_trace(lines(mooncake(9500, 10, 1), mooncake(9000, 20, 1)), block_size=64)
    assert [(request.at_s, request.prompt_tokens) for request in trace.requests] == [(0.0, 20), (0.5, 10)]


def test_only_so_many_requests() -> None:
    """The limit counts requests from the start of the file."""
    trace = read_trace(lines(*(mooncake(at, 10, 1) for at in range(5))), block_size=64, limit=3)
    assert [request.at_s for request in trace.requests] == [0.0, 0.001, 0.002]


def test_a_decision_log() -> None:
    """Hashes are taken as they are; what never ran is left out; what was cached gives the recorded hit ratio."""
    log = lines(
        decision(1000.0, 130, 12, 7, 8, cached_tokens=64, tenant_id="a", priority=9),
        decision(1500.5, 70, 1, 7, cached_tokens=0, tenant_id="b", priority=0, outcome="ok"),
        decision(1600.0, 500, None),
    )
    assert read_trace(log, block_size=64) == Trace(
        [TraceRequest(0.0, 130, 12, [7, 8], "a", 9), TraceRequest(0.5005, 70, 1, [7], "b", 0)],
        skipped=1,
        recorded_hit_ratio=64 / 200,
    )


def test_a_decision_log_of_several_models() -> None:
    """One of them is named; without a name the second model is a mistake."""
    log = lines(decision(0, 10, 1, model="a"), decision(5, 20, 1, model="b"))
    assert [request.prompt_tokens for request in read_trace(log, block_size=64, model="b").requests] == [20]
    with pytest.raises(TraceError, match=r"line 2: the log has several models \(a, b\)"):
        read_trace(log, block_size=64)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the trace is empty"),
        ("{}", "line 1 has neither hash_ids"),
        ("\n[1]", "line 2 is no JSON object"),
        ("{", "line 1 is no JSON: "),
        (json.dumps(mooncake(0, 0, 1)), "line 1: input_length must be a number at least 1, got 0"),
        (json.dumps(mooncake(-1, 1, 1)), "line 1: timestamp must be a number at least 0, got -1"),
        (json.dumps(mooncake(0, 512, 1, 1, 2)), "line 1: hash_ids has 2 blocks; 512 tokens have 1 at most"),
        (json.dumps(decision(0, 130, 1, 1, 2, 3)), "line 1: block_hashes has 3 blocks; 130 tokens have 2 at most"),
        (json.dumps(decision(0, 10, 1, priority=10)), "line 1: priority must be a number from 0 to 9, got 10"),
        (json.dumps(decision(0, 10, 1.5)), "line 1: completion_tokens must be a whole number, got 1.5"),
        (json.dumps(decision(0, 10, 1, cached_tokens=11)), "line 1: cached_tokens must be a number from 0 to 10"),
        (json.dumps(decision(0, 10, 1, tenant_id=7)), "line 1: tenant_id must be text, got 7"),
        (json.dumps(decision(0, 10, 1) | {"block_hashes": ["1f"]}), "block_hashes must be a list of whole numbers"),
        (json.dumps(decision(0, 10, None)), "the trace has no request that ran"),
    ],
)
def test_mistakes_are_named(text: str, sentence: str) -> None:
    """With the line, the field and the value."""
    with pytest.raises(TraceError) as caught:
        read_trace(text.splitlines(), block_size=64)
    assert sentence in str(caught.value)


def test_blocks_that_do_not_fit_into_mooncakes() -> None:
    """A block size that 512 is no multiple of is a mistake."""
    with pytest.raises(TraceError, match="cannot be cut into blocks of 96"):
        read_trace(lines(mooncake(0, 1, 1)), block_size=96)


@pytest.mark.skipif(not CONVERSATION.exists(), reason="the trace ../shared/data/mooncake is not here")
def test_the_conversation_trace() -> None:
    """Its first requests are what its first lines say; they share one block of 512 tokens."""
    with CONVERSATION.open() as file:
        requests = read_trace(file, block_size=64, limit=200).requests
    assert len(requests) == 200
    first, second = requests[:2]
    assert (first.prompt_tokens, first.completion_tokens, len(first.block_hashes)) == (6758, 500, 105)
    assert (second.prompt_tokens, second.completion_tokens, len(second.block_hashes)) == (7322, 490, 114)
    assert common(first, second) == 8
    assert all(a.at_s <= b.at_s for a, b in pairwise(requests))
