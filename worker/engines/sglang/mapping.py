"""Requests of the seam as SGLang takes them, and what SGLang answers as outputs of the seam. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from inferway.errors import ApiError, Reason

from ...engine import FinishReason, GenerateRequest, Output, Sampling, TokenLogprob

# Names of the seam, and SGLang's.
_SAME = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_SEED_MASK = (1 << 63) - 1
# Keeps the seeds of the choices of one request apart: odd, with bits everywhere.
_SEED_STRIDE = 0x9E37_79B9_7F4A_7C15
_FULL_RETRY_S = 1.0
# Of a grammar; "unsupported type" is said of a name that is no type.
_NOT_SUPPORTED = re.compile(r"unsupported(?! type)|not (?:yet )?(?:supported|implemented)|unimplemented", re.IGNORECASE)


def salt_text(cache_salt: bytes) -> str | None:
    """SGLang's salt is text whose bytes enter the hashes: hex digits, as in inferway/blocks.py."""
    return cache_salt.hex() or None


def sampling_params(
    request: GenerateRequest, defaults: Mapping[str, Any], *, room: int, takes_seed: bool
) -> dict[str, Any]:
    """SGLang's sampling parameters. `defaults` are the model's own; `room` is what the context leaves."""
    sampling = request.sampling
    params = dict(defaults)
    given = {name: getattr(sampling, name) for name in _SAME}
    params.update({name: value for name, value in given.items() if value is not None})
    if sampling.top_k is not None:
        params["top_k"] = sampling.top_k or -1
    params["max_new_tokens"] = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    if sampling.min_tokens:
        params["min_new_tokens"] = min(sampling.min_tokens, params["max_new_tokens"])
    if sampling.ignore_eos:
        params["ignore_eos"] = True
    if sampling.logit_bias:
        params["logit_bias"] = {str(token): float(bias) for token, bias in sampling.logit_bias.items()}
    if takes_seed and sampling.seed is not None:
        params["sampling_seed"] = choice_seed(sampling, request.choice_index)
    if request.constraint is not None:
        params[request.constraint.kind] = request.constraint.text
    return params


def choice_seed(sampling: Sampling, choice_index: int) -> int:
    """The choices of one request differ although they have its seed."""
    return ((sampling.seed or 0) + choice_index * _SEED_STRIDE) & _SEED_MASK


def request_fields(
    request: GenerateRequest, request_id: str, params: Mapping[str, Any], *, trace: bool
) -> dict[str, Any]:
    """Arguments of SGLang's GenerateReqInput. `request_id`: SGLang aborts by prefix, so ids must all be as long."""
    fields: dict[str, Any] = {
        "rid": request_id,
        "input_ids": list(request.prompt_token_ids),
        "sampling_params": dict(params),
        "stream": True,
        "priority": request.priority,
        "cache_salt": salt_text(request.cache_salt),
    }
    if request.adapter:
        fields["lora_path"] = request.adapter
    if request.logprobs is not None or request.prompt_logprobs:
        fields["return_logprob"] = True
        fields["top_logprobs_num"] = request.logprobs or 0
        fields["logprob_start_len"] = 0 if request.prompt_logprobs else -1
    if trace and request.traceparent:
        fields["external_trace_header"] = {"traceparent": request.traceparent}
    return fields


def output(request: GenerateRequest, chunk: Mapping[str, Any], *, is_first: bool) -> Output:
    """What one chunk of SGLang's stream says about the choice `request`."""
    meta = chunk["meta_info"]
    finish = meta["finish_reason"]
    if finish is not None and finish["type"] == "abort":
        return _aborted(request, chunk, finish, is_first=is_first)
    token_ids: Sequence[int] = chunk["output_ids"]
    result = Output(request.key, token_ids)
    if is_first:
        result.cached_tokens = meta["cached_tokens"]
    if request.logprobs is not None:
        result.logprobs = _scores(meta, token_ids)
    if request.prompt_logprobs and is_first:
        result.prompt_logprobs = _logprobs(meta, "input")
    if finish is None:
        return result
    if finish["type"] == "length":
        result.finish_reason = FinishReason.LENGTH
    elif isinstance(finish["matched"], int):
        result.finish_reason = FinishReason.STOP
        result.ends_with_stop_token = bool(token_ids) and token_ids[-1] == finish["matched"]
    else:
        # No strings are given to stop at: SGLang says so of a token that is none, after a computation that failed.
        return Output(request.key, error=ApiError(Reason.WORKER_FAILED, "The engine computed no valid token."))
    return result


def _aborted(
    request: GenerateRequest, chunk: Mapping[str, Any], finish: Mapping[str, Any], *, is_first: bool
) -> Output:
    status = finish.get("status_code")
    if status is None:
        # Of a choice that was not running, SGLang repeats the last token instead of telling new ones.
        meta = chunk["meta_info"]
        tokens = chunk["output_ids"] if "prompt_tokens" in meta else ()
        result = Output(request.key, tokens, FinishReason.ABORTED)
        if is_first and tokens:
            result.cached_tokens = meta["cached_tokens"]
        if tokens and request.logprobs is not None:
            result.logprobs = _scores(meta, tokens)
        return result
    # Whatever tokens come with a status are none of the choice's.
    return Output(request.key, error=refusal(request, int(status), str(finish.get("message", ""))))


def refusal(request: GenerateRequest, status: int, said: str = "") -> ApiError:
    """Why SGLang did not take a request, in words for its caller; what it `said` itself may hold anything."""
    if status == 503:
        return ApiError(Reason.OVERLOADED, "The engine is full.", retry_after_s=_FULL_RETRY_S)
    if status == 400 and request.constraint is not None:
        kind = request.constraint.kind
        if _NOT_SUPPORTED.search(said):
            sentence = f"The {kind} of this request has what the engine cannot enforce."
            return ApiError(Reason.SCHEMA_NOT_SUPPORTED, sentence, "constraint")
        sentence = f"The {kind} of this request cannot be compiled into a grammar."
        return ApiError(Reason.INVALID_SCHEMA, sentence, "constraint")
    if status == 400:
        return ApiError(Reason.INVALID_REQUEST, "The engine does not take this request.")
    return ApiError(Reason.WORKER_FAILED, "The engine could not compute this request.")


def _scores(meta: Mapping[str, Any], token_ids: Sequence[int]) -> list[TokenLogprob]:
    """One for each token. For a choice of no tokens beside others SGLang samples one, and scores it all the same."""
    return _logprobs(meta, "output")[: len(token_ids)]


def _logprobs(meta: Mapping[str, Any], side: str) -> list[TokenLogprob]:
    """Of SGLang's (logprob, id, text) triples; `side` is "input" or "output"."""
    tops = meta.get(f"{side}_top_logprobs") or ()
    result = []
    for place, (logprob, token_id, _) in enumerate(meta[f"{side}_token_logprobs"]):
        top = tops[place] if place < len(tops) else None
        result.append(TokenLogprob(token_id, logprob, [(other, value) for value, other, _ in top or ()]))
    return result
