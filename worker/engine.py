"""The seam between a worker and an engine: token ids in, token ids out, one batch of outputs a step.

Text is not an engine's business: worker/core turns ids into text, matches stop strings and aborts at the match.
The service calls every method on its event loop and expects none of them to block it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from inferway.blocks import KvEvent
from inferway.errors import ApiError, Reason


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; None is the engine's own default. Ranges are those of types.proto.

    Stop strings are absent on purpose: the worker matches them. An engine ends a choice by end-of-turn tokens
    (unless `ignore_eos`), by `max_tokens` and by the context length. With `max_tokens` 0 it computes the prompt only
    and ends by LENGTH in its first output, without a token.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)


# "unknown": from a peer that knows more kinds; no model has it.
ConstraintKind = Literal["json_schema", "regex", "ebnf", "structural_tag", "unknown"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a completion must match: the grammar's kind and its source."""

    kind: ConstraintKind
    text: str


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One choice. `key` is unique in the worker process and never reused in it.

    Fields that not every engine honours go by capabilities of the model: `constraint` by "constraint." and its kind,
    `logprobs` and `prompt_logprobs` by "logprobs", `adapter` by "adapter". An engine without the capability raises
    UNSUPPORTED_VALUE for the field, or is never given it.

    A constraint that does not compile ends its own choice before any token, in INVALID_SCHEMA or, where it is valid and
    the engine cannot enforce it, SCHEMA_NOT_SUPPORTED. It wins against `ignore_eos` and `min_tokens`: a text that
    nothing may follow ends.
    """

    key: int
    request_id: str
    model: str
    prompt_token_ids: Sequence[int]
    sampling: Sampling
    priority: int = 0
    # Any bytes. Hashes in KV events are those of inferway/blocks.py, which has the salt as hex digits.
    cache_salt: bytes = b""
    choice_index: int = 0
    constraint: Constraint | None = None
    # Log-probabilities of each new token, with this many of the most likely ones beside it; None: none. They are those
    # of the distribution behind logit bias, penalties and masks, before temperature, top-k, top-p and min-p.
    logprobs: int | None = None
    # Those of the prompt's tokens as well, the model's own; computes the whole prompt anew, whatever the cache holds.
    prompt_logprobs: bool = False
    # Name of a loaded LoRA adapter; "": the model as it is.
    adapter: str = ""
    # W3C trace context and the router's lease, for an engine that records or forwards them; "" and 0: none.
    traceparent: str = ""
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability; None for a prompt's first token. `top`: (id, logprob), best first.

    The token is reported whether or not it is among the best. -inf and NaN stand for nothing; the worker tells them as
    the least number.
    """

    token_id: int
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()


@dataclass(slots=True)
class Output:
    """What one choice gained in one step.

    Exactly one of the outputs of a key has `finish_reason` or `error`, and it is the last of that key; also an
    abort is answered by one (ABORTED), unless the choice had ended by itself.
    """

    key: int
    # New completion tokens, in order; may be empty. An end-of-turn token that ended the choice is among them.
    token_ids: Sequence[int] = ()
    finish_reason: FinishReason | None = None
    error: ApiError | None = None
    # Prompt tokens found in the cache; set on the first output of a key.
    cached_tokens: int | None = None
    # Seconds between `generate` and the beginning of the prompt pass; on the first output of a key, where it is known.
    queue_s: float | None = None
    # The last of token_ids is an end-of-turn or stop token: counted, never shown.
    ends_with_stop_token: bool = False
    # One for each of token_ids, where asked for.
    logprobs: Sequence[TokenLogprob] = ()
    # One for each token of the prompt, where asked for; set on the first output of a key.
    prompt_logprobs: Sequence[TokenLogprob] | None = None
    # Counts that the engine reports instead of those that the worker counts; only the scripted engine does.
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """One input of an embedding model. `dimensions` None: all of them."""

    request_id: str
    model: str
    prompt_token_ids: Sequence[int]
    dimensions: int | None = None
    priority: int = 0
    adapter: str = ""
    traceparent: str = ""


@dataclass(slots=True)
class Step:
    """One engine step: the outputs of all choices that moved in it, and what happened to the cache."""

    outputs: list[Output]
    kv_events: list[KvEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Load:
    """A reading of the engine, taken between two steps. Units and ranges are those of WorkerReport."""

    num_requests_running: int
    num_requests_waiting: int
    uncached_tokens_in_flight: int = 0
    kv_used_tokens: int = 0
    kv_total_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    # Constraints since the start whose compiled grammar was in the engine's cache, and those that had to be compiled;
    # 0: none, or the engine does not say.
    grammar_hits: int = 0
    grammar_misses: int = 0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model, as DescribeResponse.Model has it. `tokenizer_json` is the whole file."""

    name: str
    context_length: int
    tokenizer_json: bytes
    vocab_size: int
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    block_size: int = 64
    # Unix seconds; the same from every worker of this model. 0: the engine does not know.
    created: int = 0
    aliases: Sequence[str] = ()
    tool_parser: str = ""
    reasoning_parser: str = ""
    structural_marks: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    # Name of the model that this is an adapter of; engines leave it empty.
    parent: str = ""
    # Text of each token id as bytes, for ids that tokenizer_json does not know (the scripted engine invents
    # tokens); None: the table is made from tokenizer_json.
    token_bytes: Callable[[int], bytes] | None = None


class Adapter(NamedTuple):
    """A LoRA adapter by the name of its model and its own."""

    model: str
    name: str


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine serves and how much of it."""

    name: str
    models: Sequence[ModelInfo]
    max_running: int
    max_waiting: int
    kv_total_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    publishes_kv_events: bool = False


class Engine(ABC):
    """Five calls, and a sixth for an engine that can break as a whole.

    An engine never raises for what one request did: that is an Output with an error.
    """

    @abstractmethod
    async def start(self, on_step: Callable[[Step], None]) -> EngineInfo:
        """Load the model and return when requests can be taken; may take minutes.

        `on_step` is called on the loop that runs `start`, after each engine step that moved a choice or the cache,
        with outputs of a key in order. It does not block and does not raise. Raises ApiError or OSError when the
        engine cannot be started.
        """

    @abstractmethod
    def generate(self, request: GenerateRequest) -> None:
        """Admit one choice; its outputs come by `on_step`, never before this returns.

        The worker has checked model, prompt, vocabulary, context length and its own bounds. Raises ApiError
        (OVERLOADED, UNSUPPORTED_VALUE, ...) when the engine does not take it; then no output follows.
        """

    @abstractmethod
    def abort(self, key: int) -> None:
        """Stop a choice; its slot and KV blocks are free at the engine's next step. Unknown keys are ignored.

        It ends by ABORTED, and its outputs up to there tell every token that was made, for whoever pays for them.
        """

    @abstractmethod
    def load(self) -> Load:
        """The present load; cheap enough to be read after every step."""

    async def wait_failed(self) -> str | None:
        """Called once after `start`; returns when the engine has failed for good, with a sentence for the operator.

        The worker then ends what still runs and leaves, so that a supervisor starts both again. None, at once, from
        an engine that cannot fail by itself.
        """
        return None

    async def embed(self, request: EmbedRequest) -> Sequence[float]:
        """The embedding of one input; calls run beside each other, and cancelling one frees what it holds.

        Needs the capability "embeddings". Raises ApiError, also for what this one request did.
        """
        raise _unsupported("embeddings")

    def adapters(self) -> Sequence[Adapter]:
        """The LoRA adapters that requests may ask for now."""
        return ()

    async def load_adapter(self, adapter: Adapter, path: str) -> None:
        """Load a LoRA adapter from a folder on the worker's machine; requests may ask for it afterwards.

        Needs the capability "adapter". Raises ApiError.
        """
        raise _unsupported("adapters")

    async def unload_adapter(self, adapter: Adapter) -> None:
        """Take nothing new for an adapter, and forget it when its last request has ended. Raises ApiError."""
        raise _unsupported("adapters")

    @abstractmethod
    async def close(self) -> None:
        """Stop everything and release threads, processes and memory; idempotent."""


def _unsupported(what: str) -> ApiError:
    return ApiError(Reason.UNSUPPORTED_VALUE, f"The engine of this worker has no {what}.")
