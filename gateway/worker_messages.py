"""What gateway and worker say to each other, in the gateway's own terms, and its way into protobuf and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferway.api.v1 import types_pb2, worker_pb2
from inferway.sampling import RANGES

from .core.constraints import Constraint, Kind
from .core.generation_fields import Sampling
from .core.logprobs import ScoredToken
from .core.sse import Usage
from .core.tools import HARMONY

# Some 0.3 ms.
_IDS_A_PIECE = 8192

_SCALARS = (*RANGES, "ignore_eos")
_CONSTRAINTS: dict[Kind, worker_pb2.ConstraintKind] = {
    "structural_tag": worker_pb2.CONSTRAINT_KIND_STRUCTURAL_TAG,
    "json_schema": worker_pb2.CONSTRAINT_KIND_JSON_SCHEMA,
    "regex": worker_pb2.CONSTRAINT_KIND_REGEX,
    "ebnf": worker_pb2.CONSTRAINT_KIND_EBNF,
}


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """One model as a worker describes it (worker.proto, Model)."""

    name: str
    aliases: Sequence[str]
    context_length: int
    tokenizer_digest: str
    chat_template: str
    bos_token: str
    eos_token: str
    block_size: int
    vocab_size: int
    created: int = field(compare=False)
    tool_parser: str
    reasoning_parser: str
    structural_marks: Sequence[str]
    capabilities: frozenset[str]
    # Name of the model that this is an adapter of; empty: it is a model itself.
    parent: str = ""

    @property
    def call_format(self) -> str:
        """The format in which the model writes calls; harmony is one of thoughts and calls together."""
        return HARMONY if self.reasoning_parser == HARMONY else self.tool_parser


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What to generate (worker.proto, Generate), the same for every choice of a request."""

    request_id: str
    model: str
    prompt_token_ids: Sequence[int]
    sampling: Sampling
    priority: int
    cache_salt: bytes
    lease_id: int
    traceparent: str
    logprobs: int | None
    prompt_logprobs: bool
    # Of a long prompt: `prompt_wire` of its ids, made off the loop.
    prompt_wire: bytes = b""
    constraint: Constraint | None = None
    # What another gateway needs to know to settle it, at most 2 KiB; empty: nobody settles it.
    settlement: bytes = b""


@dataclass(frozen=True, slots=True)
class Orphan:
    """What a worker has produced for a gateway that broke off before it settled it (worker.proto, Orphan)."""

    orphan_id: int
    # Unique for ever, and the same however often and by whomever it is told.
    part: str
    settlement: bytes
    gateway_id: str
    usage: Usage
    age_ms: int
    outcome: str


@dataclass(frozen=True, slots=True)
class EmbedSpec:
    """What to embed (worker.proto, EmbedRequest), less its lease."""

    request_id: str
    model: str
    inputs: Sequence[Sequence[int]]
    dimensions: int | None
    priority: int
    traceparent: str


def scores_from_proto(delta: worker_pb2.Delta) -> list[ScoredToken]:
    """The prompt's first; they come before everything else."""
    return [
        ScoredToken(
            one.token,
            one.logprob if one.HasField("logprob") else None,
            [(other.token, other.logprob) for other in one.top],
        )
        for one in (*delta.prompt_logprobs, *delta.logprobs)
    ]


def usage_from_proto(usage: types_pb2.Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)


def model_from_proto(model: worker_pb2.Model) -> ModelDescription:
    return ModelDescription(
        name=model.name,
        aliases=tuple(model.aliases),
        context_length=model.context_length,
        tokenizer_digest=model.tokenizer_digest,
        chat_template=model.chat_template,
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        block_size=model.block_size,
        vocab_size=model.vocab_size,
        created=model.created,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
        structural_marks=tuple(model.structural_marks),
        capabilities=frozenset(model.capabilities),
        parent=model.parent,
    )


def prompt_wire(token_ids: Sequence[int]) -> bytes:
    """Token ids as they stand in a request to a worker, where they go in at 7 ns each instead of 25.

    Takes 40 ns each, in pieces: made in a thread, it lets others have their turn.
    """
    message = worker_pb2.Generate()
    for start in range(0, len(token_ids), _IDS_A_PIECE):
        message.prompt_token_ids.extend(token_ids[start : start + _IDS_A_PIECE])
    return message.SerializeToString()


def fill_generate(message: worker_pb2.Generate, spec: RequestSpec) -> None:
    """All but key and choice_index."""
    message.request_id, message.model = spec.request_id, spec.model
    if spec.prompt_wire:
        message.MergeFromString(spec.prompt_wire)
    else:
        message.prompt_token_ids.extend(spec.prompt_token_ids)
    message.priority, message.cache_salt = spec.priority, spec.cache_salt
    message.lease_id, message.traceparent = spec.lease_id, spec.traceparent
    if spec.logprobs is not None:
        message.logprobs.top, message.logprobs.prompt = spec.logprobs, spec.prompt_logprobs
    if spec.settlement:
        message.settlement = spec.settlement
    if spec.constraint is not None:
        message.constraint.kind = _CONSTRAINTS[spec.constraint.kind]
        message.constraint.text = spec.constraint.text
    sampling = message.sampling
    for name in _SCALARS:
        value = getattr(spec.sampling, name)
        if value is not None:
            setattr(sampling, name, value)
    sampling.stop.extend(spec.sampling.stop)
    for token_id, bias in spec.sampling.logit_bias.items():
        sampling.logit_bias[token_id] = bias


def embed_request(spec: EmbedSpec, lease_id: int) -> worker_pb2.EmbedRequest:
    return worker_pb2.EmbedRequest(
        request_id=spec.request_id,
        model=spec.model,
        inputs=[worker_pb2.TokenIds(ids=ids) for ids in spec.inputs],
        dimensions=spec.dimensions or 0,
        priority=spec.priority,
        lease_id=lease_id,
        traceparent=spec.traceparent,
    )


def orphan_from_proto(orphan: worker_pb2.Orphan, instance_id: str) -> Orphan:
    """`instance_id` is of the worker that tells it."""
    return Orphan(
        orphan_id=orphan.orphan_id,
        part=f"{instance_id}.{orphan.orphan_id}",
        settlement=orphan.settlement,
        gateway_id=orphan.gateway_id,
        usage=usage_from_proto(orphan.usage),
        age_ms=orphan.age_ms,
        outcome=orphan.outcome,
    )
