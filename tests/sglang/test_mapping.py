"""Requests as SGLang takes them, and its answers as outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inferway.errors import Reason
from worker.engine import Constraint, FinishReason, GenerateRequest, Output, Sampling, TokenLogprob
from worker.engines.sglang.mapping import output, request_fields, sampling_params
from worker.engines.sglang.options import Options, arguments

REQUEST = GenerateRequest(7, "request", "m", [1, 2, 3], Sampling(max_tokens=10), priority=3)


def params(sampling: Sampling, *, takes_seed: bool = True, **request: Any) -> dict[str, Any]:
    asked = replace(REQUEST, sampling=sampling, **request)
    return sampling_params(asked, {"temperature": 0.6}, room=100, takes_seed=takes_seed)


def test_max_tokens_is_always_there() -> None:
    """Without it SGLang would stop after 128 tokens; it never exceeds what the context leaves."""
    assert params(Sampling()) == {"temperature": 0.6, "max_new_tokens": 100}
    assert params(Sampling(max_tokens=500))["max_new_tokens"] == 100
    assert params(Sampling(max_tokens=5))["max_new_tokens"] == 5
    assert params(Sampling(max_tokens=0))["max_new_tokens"] == 0


def test_every_field() -> None:
    """Each field has its place, zero is a value, and the request wins over the model's defaults."""
    given = Sampling(
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        min_p=0.1,
        frequency_penalty=-1.0,
        presence_penalty=0.0,
        repetition_penalty=1.5,
        seed=3,
        max_tokens=20,
        min_tokens=4,
        ignore_eos=True,
        logit_bias={5: 2},
    )
    assert params(given, constraint=Constraint("regex", "a+")) == {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "frequency_penalty": -1.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.5,
        "sampling_seed": 3,
        "max_new_tokens": 20,
        "min_new_tokens": 4,
        "ignore_eos": True,
        "logit_bias": {"5": 2.0},
        "regex": "a+",
    }


def test_seeds_of_choices() -> None:
    """Choices of one request have seeds of their own, in SGLang's range; without determinism there is none."""
    seeds = [
        params(Sampling(seed=seed), choice_index=n)["sampling_seed"] for seed in (0, -7, 2**63 - 1) for n in (0, 1)
    ]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert "sampling_seed" not in params(Sampling(seed=1), takes_seed=False)


def test_request_fields() -> None:
    """Salts become hex digits, priorities and adapters go through, and tracing is asked for where it is on."""
    request = replace(REQUEST, cache_salt=b"\xff\x00", adapter="a", traceparent="00-1-2-01")
    fields = request_fields(request, "id", {"max_new_tokens": 1}, trace=True)
    assert fields == {
        "rid": "id",
        "input_ids": [1, 2, 3],
        "sampling_params": {"max_new_tokens": 1},
        "stream": True,
        "priority": 3,
        "cache_salt": "ff00",
        "lora_path": "a",
        "external_trace_header": {"traceparent": "00-1-2-01"},
    }
    plain = request_fields(REQUEST, "id", {}, trace=False)
    assert plain["cache_salt"] is None
    assert "return_logprob" not in plain


@pytest.mark.parametrize(
    ("logprobs", "prompt", "top", "start"), [(0, False, 0, -1), (5, False, 5, -1), (None, True, 0, 0), (2, True, 2, 0)]
)
def test_logprobs_asked_for(logprobs: int | None, prompt: bool, top: int, start: int) -> None:
    """The prompt's are asked for by where they start."""
    fields = request_fields(replace(REQUEST, logprobs=logprobs, prompt_logprobs=prompt), "id", {}, trace=False)
    assert (fields["return_logprob"], fields["top_logprobs_num"], fields["logprob_start_len"]) == (True, top, start)


def chunk(ids: list[int], finish: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    base = {"id": "id", "prompt_tokens": 3, "cached_tokens": 2, "completion_tokens": 9}
    return {"text": "", "output_ids": ids, "meta_info": {**base, "finish_reason": finish, **meta}}


def test_outputs() -> None:
    """Tokens come as they are, the cached count with the first, the end with its reason."""
    assert output(REQUEST, chunk([4]), is_first=True) == Output(7, [4], cached_tokens=2)
    assert output(REQUEST, chunk([5]), is_first=False) == Output(7, [5])
    length = output(REQUEST, chunk([5, 6], {"type": "length", "length": 10}), is_first=False)
    assert length == Output(7, [5, 6], FinishReason.LENGTH)
    stop = output(REQUEST, chunk([5, 2], {"type": "stop", "matched": 2}), is_first=False)
    assert stop == Output(7, [5, 2], FinishReason.STOP, ends_with_stop_token=True)


def test_token_that_is_none() -> None:
    """A computation that failed is an error: no strings are given that could have matched."""
    broken = output(REQUEST, chunk([5], {"type": "stop", "matched": "NaN happened"}), is_first=False)
    assert broken.error is not None
    assert broken.error.reason is Reason.WORKER_FAILED


def test_aborts() -> None:
    """A running choice keeps its last tokens; of one that waited, SGLang repeats a token that is dropped."""
    running = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert output(REQUEST, chunk([5], running), is_first=False) == Output(7, [5], FinishReason.ABORTED)
    assert output(REQUEST, chunk([5], running), is_first=True).cached_tokens == 2
    waited = {"text": "", "output_ids": [5], "meta_info": {"finish_reason": {"type": "abort", "message": "Abort"}}}
    assert output(REQUEST, waited, is_first=True) == Output(7, (), FinishReason.ABORTED)


@pytest.mark.parametrize(
    ("status", "constraint", "reason", "param"),
    [
        (503, None, Reason.OVERLOADED, None),
        (400, None, Reason.INVALID_REQUEST, None),
        (400, Constraint("json_schema", "{"), Reason.INVALID_SCHEMA, "constraint"),
        (500, None, Reason.WORKER_FAILED, None),
    ],
)
def test_refusals(status: int, constraint: Constraint | None, reason: Reason, param: str | None) -> None:
    """Aborts with a status are errors in our own words, and whatever tokens come with them are dropped."""
    finish = {"type": "abort", "message": "/secret/path", "status_code": status}
    refused = output(replace(REQUEST, constraint=constraint), chunk([29], finish), is_first=True)
    assert refused.error is not None
    assert (refused.error.reason, refused.error.param) == (reason, param)
    assert "secret" not in refused.error.message
    assert not refused.token_ids
    assert (refused.error.retry_after_s is not None) == (status == 503)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Failed to compile json_schema grammar: keyword not supported: not", Reason.SCHEMA_NOT_SUPPORTED),
        ("Unsupported format: iri", Reason.SCHEMA_NOT_SUPPORTED),
        ('Unsupported type "no such type"', Reason.INVALID_SCHEMA),
        ("EBNF parser error at line 1, column 9", Reason.INVALID_SCHEMA),
    ],
)
def test_grammars_that_do_not_compile(said: str, reason: Reason) -> None:
    """What SGLang says tells what is wrong from what it cannot do; none of it reaches the caller."""
    finish = {"type": "abort", "message": f"/secret/path {said}", "status_code": 400}
    request = replace(REQUEST, constraint=Constraint("json_schema", "{}"))
    refused = output(request, chunk([29], finish), is_first=True)
    assert refused.error is not None
    assert (refused.error.reason, refused.error.param) == (reason, "constraint")
    assert "secret" not in refused.error.message
    assert not refused.token_ids


def test_logprobs_given() -> None:
    """SGLang's triples become records, those of the prompt with the first output."""
    meta = {
        "output_token_logprobs": [(-0.5, 4, None)],
        "output_top_logprobs": [[(-0.5, 4, None), (-1.5, 9, None)]],
        "input_token_logprobs": [(None, 1, None), (-2.0, 2, None)],
        "input_top_logprobs": [None, [(-1.0, 3, None)]],
    }
    request = replace(REQUEST, logprobs=2, prompt_logprobs=True)
    first = output(request, chunk([4], **meta), is_first=True)
    assert first.logprobs == [TokenLogprob(4, -0.5, [(4, -0.5), (9, -1.5)])]
    assert first.prompt_logprobs == [TokenLogprob(1, None, []), TokenLogprob(2, -2.0, [(3, -1.0)])]
    assert output(request, chunk([4], **meta), is_first=False).prompt_logprobs is None


def test_scores_of_tokens_that_are_none() -> None:
    """Of a prompt that is only scored SGLang may score a token that it samples and does not give."""
    scored = {"output_token_logprobs": [(-1.5, 19556, None)], "output_top_logprobs": [[]]}
    request = replace(REQUEST, logprobs=0)
    assert output(request, chunk([], **scored), is_first=True).logprobs == []
    assert output(request, chunk([19556], **scored), is_first=True).logprobs == [TokenLogprob(19556, -1.5, [])]


def test_flags_of_the_operator() -> None:
    """They come after the defaults and before what the engine relies on, for the last one wins."""
    options = Options("model", max_running=4, max_waiting=12, context_length=512, flags=("--page-size=32",))
    argv = arguments(options, cpu_flags=("--device=cpu",), max_total_tokens=None, events="")
    assert argv.index("--page-size=64") < argv.index("--page-size=32") < argv.index("--incremental-streaming-output")
    assert argv.index("--device=cpu") < argv.index("--page-size=32")
    assert "--max-queued-requests=16" in argv
    assert "--context-length=512" in argv
    assert "--kv-events-config" not in argv
