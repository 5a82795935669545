from inferway.api.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConstraintKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSTRAINT_KIND_UNSPECIFIED: _ClassVar[ConstraintKind]
    CONSTRAINT_KIND_JSON_SCHEMA: _ClassVar[ConstraintKind]
    CONSTRAINT_KIND_REGEX: _ClassVar[ConstraintKind]
    CONSTRAINT_KIND_EBNF: _ClassVar[ConstraintKind]
    CONSTRAINT_KIND_STRUCTURAL_TAG: _ClassVar[ConstraintKind]
CONSTRAINT_KIND_UNSPECIFIED: ConstraintKind
CONSTRAINT_KIND_JSON_SCHEMA: ConstraintKind
CONSTRAINT_KIND_REGEX: ConstraintKind
CONSTRAINT_KIND_EBNF: ConstraintKind
CONSTRAINT_KIND_STRUCTURAL_TAG: ConstraintKind

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("worker_id", "instance_id", "engine", "models", "max_running", "max_waiting", "kv_total_tokens", "prefill_tokens_per_s", "publishes_kv_events", "models_version", "cordoned")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    PUBLISHES_KV_EVENTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_VERSION_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    instance_id: str
    engine: str
    models: _containers.RepeatedCompositeFieldContainer[Model]
    max_running: int
    max_waiting: int
    kv_total_tokens: int
    prefill_tokens_per_s: float
    publishes_kv_events: bool
    models_version: int
    cordoned: bool
    def __init__(self, worker_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., engine: _Optional[str] = ..., models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., max_running: _Optional[int] = ..., max_waiting: _Optional[int] = ..., kv_total_tokens: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., publishes_kv_events: _Optional[bool] = ..., models_version: _Optional[int] = ..., cordoned: _Optional[bool] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "aliases", "context_length", "tokenizer_digest", "chat_template", "bos_token", "eos_token", "block_size", "vocab_size", "created", "tool_parser", "reasoning_parser", "structural_marks", "capabilities", "parent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    TOOL_PARSER_FIELD_NUMBER: _ClassVar[int]
    REASONING_PARSER_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_MARKS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    context_length: int
    tokenizer_digest: str
    chat_template: str
    bos_token: str
    eos_token: str
    block_size: int
    vocab_size: int
    created: int
    tool_parser: str
    reasoning_parser: str
    structural_marks: _containers.RepeatedScalarFieldContainer[str]
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    parent: str
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., context_length: _Optional[int] = ..., tokenizer_digest: _Optional[str] = ..., chat_template: _Optional[str] = ..., bos_token: _Optional[str] = ..., eos_token: _Optional[str] = ..., block_size: _Optional[int] = ..., vocab_size: _Optional[int] = ..., created: _Optional[int] = ..., tool_parser: _Optional[str] = ..., reasoning_parser: _Optional[str] = ..., structural_marks: _Optional[_Iterable[str]] = ..., capabilities: _Optional[_Iterable[str]] = ..., parent: _Optional[str] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("gateway_id", "generates", "aborts", "settled", "orphans_booked", "abort_reasons")
    class AbortReasonsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATES_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    ORPHANS_BOOKED_FIELD_NUMBER: _ClassVar[int]
    ABORT_REASONS_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    generates: _containers.RepeatedCompositeFieldContainer[Generate]
    aborts: _containers.RepeatedScalarFieldContainer[int]
    settled: _containers.RepeatedScalarFieldContainer[int]
    orphans_booked: _containers.RepeatedScalarFieldContainer[int]
    abort_reasons: _containers.ScalarMap[int, str]
    def __init__(self, gateway_id: _Optional[str] = ..., generates: _Optional[_Iterable[_Union[Generate, _Mapping]]] = ..., aborts: _Optional[_Iterable[int]] = ..., settled: _Optional[_Iterable[int]] = ..., orphans_booked: _Optional[_Iterable[int]] = ..., abort_reasons: _Optional[_Mapping[int, str]] = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ("key", "request_id", "model", "prompt_token_ids", "sampling", "priority", "cache_salt", "choice_index", "lease_id", "traceparent", "logprobs", "constraint", "settlement")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENT_FIELD_NUMBER: _ClassVar[int]
    key: int
    request_id: str
    model: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _types_pb2.Sampling
    priority: int
    cache_salt: bytes
    choice_index: int
    lease_id: int
    traceparent: str
    logprobs: LogprobsWanted
    constraint: Constraint
    settlement: bytes
    def __init__(self, key: _Optional[int] = ..., request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_types_pb2.Sampling, _Mapping]] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., choice_index: _Optional[int] = ..., lease_id: _Optional[int] = ..., traceparent: _Optional[str] = ..., logprobs: _Optional[_Union[LogprobsWanted, _Mapping]] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., settlement: _Optional[bytes] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: ConstraintKind
    text: str
    def __init__(self, kind: _Optional[_Union[ConstraintKind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class LogprobsWanted(_message.Message):
    __slots__ = ("top", "prompt")
    TOP_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    top: int
    prompt: bool
    def __init__(self, top: _Optional[int] = ..., prompt: _Optional[bool] = ...) -> None: ...

class StepBatch(_message.Message):
    __slots__ = ("deltas", "models_version", "orphans")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    MODELS_VERSION_FIELD_NUMBER: _ClassVar[int]
    ORPHANS_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[Delta]
    models_version: int
    orphans: _containers.RepeatedCompositeFieldContainer[Orphan]
    def __init__(self, deltas: _Optional[_Iterable[_Union[Delta, _Mapping]]] = ..., models_version: _Optional[int] = ..., orphans: _Optional[_Iterable[_Union[Orphan, _Mapping]]] = ...) -> None: ...

class Orphan(_message.Message):
    __slots__ = ("orphan_id", "settlement", "gateway_id", "usage", "age_ms", "outcome")
    ORPHAN_ID_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENT_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    orphan_id: int
    settlement: bytes
    gateway_id: str
    usage: _types_pb2.Usage
    age_ms: int
    outcome: str
    def __init__(self, orphan_id: _Optional[int] = ..., settlement: _Optional[bytes] = ..., gateway_id: _Optional[str] = ..., usage: _Optional[_Union[_types_pb2.Usage, _Mapping]] = ..., age_ms: _Optional[int] = ..., outcome: _Optional[str] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("key", "text", "completion_tokens", "finish_reason", "usage", "error", "logprobs", "prompt_logprobs")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    key: int
    text: str
    completion_tokens: int
    finish_reason: _types_pb2.FinishReason
    usage: _types_pb2.Usage
    error: _types_pb2.Error
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, key: _Optional[int] = ..., text: _Optional[str] = ..., completion_tokens: _Optional[int] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[_types_pb2.Usage, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "logprob", "top")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, token: _Optional[bytes] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("token", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    logprob: float
    def __init__(self, token: _Optional[bytes] = ..., logprob: _Optional[float] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("router_id",)
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    def __init__(self, router_id: _Optional[str] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("worker_id", "instance_id", "step", "num_requests_running", "num_requests_waiting", "uncached_tokens_in_flight", "kv_used_tokens", "kv_total_tokens", "prefill_tokens_per_s", "draining", "lease_ids", "kv_events", "kv_event_seq", "models_version")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_TOKENS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    KV_USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    KV_EVENTS_FIELD_NUMBER: _ClassVar[int]
    KV_EVENT_SEQ_FIELD_NUMBER: _ClassVar[int]
    MODELS_VERSION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    instance_id: str
    step: int
    num_requests_running: int
    num_requests_waiting: int
    uncached_tokens_in_flight: int
    kv_used_tokens: int
    kv_total_tokens: int
    prefill_tokens_per_s: float
    draining: bool
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    kv_events: _containers.RepeatedCompositeFieldContainer[KvEvent]
    kv_event_seq: int
    models_version: int
    def __init__(self, worker_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., step: _Optional[int] = ..., num_requests_running: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., uncached_tokens_in_flight: _Optional[int] = ..., kv_used_tokens: _Optional[int] = ..., kv_total_tokens: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., draining: _Optional[bool] = ..., lease_ids: _Optional[_Iterable[int]] = ..., kv_events: _Optional[_Iterable[_Union[KvEvent, _Mapping]]] = ..., kv_event_seq: _Optional[int] = ..., models_version: _Optional[int] = ...) -> None: ...

class KvEvent(_message.Message):
    __slots__ = ("model", "stored", "removed", "cleared")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    model: str
    stored: KvBlocks
    removed: KvBlocks
    cleared: KvCleared
    def __init__(self, model: _Optional[str] = ..., stored: _Optional[_Union[KvBlocks, _Mapping]] = ..., removed: _Optional[_Union[KvBlocks, _Mapping]] = ..., cleared: _Optional[_Union[KvCleared, _Mapping]] = ...) -> None: ...

class KvBlocks(_message.Message):
    __slots__ = ("block_hashes",)
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    block_hashes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, block_hashes: _Optional[_Iterable[int]] = ...) -> None: ...

class KvCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("request_id", "model", "inputs", "dimensions", "priority", "lease_id", "traceparent")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[TokenIds]
    dimensions: int
    priority: int
    lease_id: int
    traceparent: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., dimensions: _Optional[int] = ..., priority: _Optional[int] = ..., lease_id: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embeddings", "error")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    error: _types_pb2.Error
    def __init__(self, embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("model", "adapter", "path")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    model: str
    adapter: str
    path: str
    def __init__(self, model: _Optional[str] = ..., adapter: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("model", "adapter")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    model: str
    adapter: str
    def __init__(self, model: _Optional[str] = ..., adapter: _Optional[str] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CordonRequest(_message.Message):
    __slots__ = ("cordoned",)
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    cordoned: bool
    def __init__(self, cordoned: _Optional[bool] = ...) -> None: ...

class CordonResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
