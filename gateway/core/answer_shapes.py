"""The shapes of answers, as /openapi.json describes them.

Answers are encoded without these (core/sse.py and its neighbours), for speed; tests hold real answers against them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from .generation_fields import ServiceTier

_Unix = Annotated[int, Meta(description="Seconds since 1970.")]
_Reason = Literal["stop", "length", "tool_calls", "function_call"]


class PromptTokens(Struct):
    cached_tokens: Annotated[int, Meta(description="Found in a worker's prefix cache.")]


class CompletionTokens(Struct):
    reasoning_tokens: int


class Usage(Struct):
    """Counted in the model's own tokens: the prompt once, completions summed over the choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens


class TokenLogprob(Struct):
    token: Annotated[str, Meta(description="Its text; what is no whole character is replaced.")]
    logprob: float
    bytes: Annotated[list[int], Meta(description="Its UTF-8.")]


class ScoredToken(TokenLogprob):
    top_logprobs: Annotated[list[TokenLogprob], Meta(description="The likeliest tokens in its place, best first.")]


class ChatLogprobs(Struct):
    content: list[ScoredToken]
    refusal: None


class AnswerFunction(Struct):
    name: str
    arguments: Annotated[str, Meta(description="JSON, as the model wrote it.")]


class CallMark(Struct):
    arguments_error: Annotated[str, Meta(description="What is wrong with the arguments, which are as the model wrote.")]


class AnswerToolCall(Struct):
    id: str
    type: Literal["function"]
    function: AnswerFunction
    inferway: CallMark | UnsetType = UNSET


class AnswerMessage(Struct, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: Annotated[str, Meta(description="What the model thought before its answer.")] | UnsetType = UNSET
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET
    function_call: Annotated[AnswerFunction, Meta(description="For requests with functions.")] | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: _Reason


class _ChatHead(Struct, kw_only=True):
    id: str
    created: _Unix
    model: Annotated[str, Meta(description="The name that was asked for.")]
    system_fingerprint: Annotated[str, Meta(description="Changes with the model's tokenizer or template.")]
    service_tier: ServiceTier | UnsetType = UNSET


class ChatCompletion(_ChatHead, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class DeltaFunction(Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: Annotated[str, Meta(description="The next part of the JSON.")] | UnsetType = UNSET


class DeltaToolCall(Struct, kw_only=True):
    """The first part of a call has id, type and name."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: DeltaFunction | UnsetType = UNSET
    inferway: CallMark | UnsetType = UNSET


class Delta(Struct, kw_only=True):
    """What this chunk adds to the message; nothing in the last one of a choice."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[DeltaToolCall] | UnsetType = UNSET
    function_call: Annotated[DeltaFunction, Meta(description="For requests with functions.")] | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: _Reason | None


class ChatCompletionChunk(_ChatHead, kw_only=True):
    """One event of a streamed answer; `data: [DONE]` follows the last."""

    object: Literal["chat.completion.chunk"]
    choices: Annotated[list[ChunkChoice], Meta(description="Empty in the chunk that brings the usage.")]
    usage: Usage | UnsetType | None = UNSET


class CompletionLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct):
    index: Annotated[int, Meta(description="Prompt by prompt: choice i answers prompt i // n.")]
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: _Reason | None


class Completion(Struct, kw_only=True):
    """An answer, or one event of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: _Unix
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Embedding(Struct):
    object: Literal["embedding"]
    index: int
    embedding: Annotated[list[float] | str, Meta(description="Numbers, or their base64.")]


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Model(Struct):
    id: str
    object: Literal["model"]
    created: _Unix
    owned_by: str
    shutdown_date: Annotated[str | None, Meta(description="The announced day of its end, YYYY-MM-DD.")]
    parent: Annotated[str | None, Meta(description="Of an adapter, its model.")]
    aliases: Annotated[list[str], Meta(description="Other names that workers serve it under.")]
    alias_of: Annotated[list[str], Meta(description="Of a configured alias, the models that it stands for.")]
    max_model_len: Annotated[int, Meta(description="Tokens of prompt and completion together.")]
    tokenizer_digest: Annotated[str | None, Meta(description="SHA-256 of its tokenizer.json.")]
    capabilities: Annotated[list[str], Meta(description="Request fields and features that it honours.")]


class ModelList(Struct):
    object: Literal["list"]
    data: list[Model]


class TokenIds(Struct):
    count: int
    max_model_len: int
    tokens: list[int]


class Text(Struct):
    prompt: str


class Health(Struct):
    status: Literal["ok"]


class Readiness(Struct):
    status: Annotated[str, Meta(description="ok, or why new requests should not come here.")]
    models: Annotated[list[str], Meta(description="Those that are served now.")]
    workers: Annotated[int, Meta(description="Connected ones.")]
    routers: Annotated[list[str], Meta(description="Addresses of the connected ones.")]
    fallback: Annotated[bool, Meta(description="No router is connected: priorities are not honoured.")]
    quota_store: Annotated[
        Literal["ok", "away", "memory"],
        Meta(description="Whether Redis answers; memory: this process keeps the books of quotas itself."),
    ]
    gateways: Annotated[int | None, Meta(description="Gateways that share Redis; null: not known yet.")]


class ErrorDetail(Struct):
    message: Annotated[str, Meta(description="A sentence for people.")]
    type: str
    param: Annotated[str | None, Meta(description="The field at fault.")]
    code: Annotated[str | None, Meta(description="For programs.")]


class Error(Struct):
    error: ErrorDetail
