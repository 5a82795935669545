from inferway.api.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReleaseOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELEASE_OUTCOME_UNSPECIFIED: _ClassVar[ReleaseOutcome]
    RELEASE_OUTCOME_OK: _ClassVar[ReleaseOutcome]
    RELEASE_OUTCOME_REFUSED: _ClassVar[ReleaseOutcome]
    RELEASE_OUTCOME_FAILED: _ClassVar[ReleaseOutcome]
    RELEASE_OUTCOME_CANCELLED: _ClassVar[ReleaseOutcome]

class WorkerStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATUS_UNSPECIFIED: _ClassVar[WorkerStatus]
    WORKER_STATUS_CONNECTING: _ClassVar[WorkerStatus]
    WORKER_STATUS_READY: _ClassVar[WorkerStatus]
    WORKER_STATUS_DRAINING: _ClassVar[WorkerStatus]
    WORKER_STATUS_LOST: _ClassVar[WorkerStatus]

class BreakerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BREAKER_STATE_UNSPECIFIED: _ClassVar[BreakerState]
    BREAKER_STATE_CLOSED: _ClassVar[BreakerState]
    BREAKER_STATE_OPEN: _ClassVar[BreakerState]
    BREAKER_STATE_HALF_OPEN: _ClassVar[BreakerState]

class DecisionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_STATE_UNSPECIFIED: _ClassVar[DecisionState]
    DECISION_STATE_WAITING: _ClassVar[DecisionState]
    DECISION_STATE_DISPATCHED: _ClassVar[DecisionState]
    DECISION_STATE_ENDED: _ClassVar[DecisionState]
    DECISION_STATE_REJECTED: _ClassVar[DecisionState]
    DECISION_STATE_CANCELLED: _ClassVar[DecisionState]

class DrainOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_ORDER_UNSPECIFIED: _ClassVar[DrainOrder]
    DRAIN_ORDER_DRAIN: _ClassVar[DrainOrder]
    DRAIN_ORDER_UNDO: _ClassVar[DrainOrder]
RELEASE_OUTCOME_UNSPECIFIED: ReleaseOutcome
RELEASE_OUTCOME_OK: ReleaseOutcome
RELEASE_OUTCOME_REFUSED: ReleaseOutcome
RELEASE_OUTCOME_FAILED: ReleaseOutcome
RELEASE_OUTCOME_CANCELLED: ReleaseOutcome
WORKER_STATUS_UNSPECIFIED: WorkerStatus
WORKER_STATUS_CONNECTING: WorkerStatus
WORKER_STATUS_READY: WorkerStatus
WORKER_STATUS_DRAINING: WorkerStatus
WORKER_STATUS_LOST: WorkerStatus
BREAKER_STATE_UNSPECIFIED: BreakerState
BREAKER_STATE_CLOSED: BreakerState
BREAKER_STATE_OPEN: BreakerState
BREAKER_STATE_HALF_OPEN: BreakerState
DECISION_STATE_UNSPECIFIED: DecisionState
DECISION_STATE_WAITING: DecisionState
DECISION_STATE_DISPATCHED: DecisionState
DECISION_STATE_ENDED: DecisionState
DECISION_STATE_REJECTED: DecisionState
DECISION_STATE_CANCELLED: DecisionState
DRAIN_ORDER_UNSPECIFIED: DrainOrder
DRAIN_ORDER_DRAIN: DrainOrder
DRAIN_ORDER_UNDO: DrainOrder

class DispatchRequest(_message.Message):
    __slots__ = ("gateway_id", "submits", "first_tokens", "releases", "cancels")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMITS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    submits: _containers.RepeatedCompositeFieldContainer[Submit]
    first_tokens: _containers.RepeatedCompositeFieldContainer[FirstToken]
    releases: _containers.RepeatedCompositeFieldContainer[Release]
    cancels: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, gateway_id: _Optional[str] = ..., submits: _Optional[_Iterable[_Union[Submit, _Mapping]]] = ..., first_tokens: _Optional[_Iterable[_Union[FirstToken, _Mapping]]] = ..., releases: _Optional[_Iterable[_Union[Release, _Mapping]]] = ..., cancels: _Optional[_Iterable[int]] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("ticket", "request_id", "model", "tenant_id", "priority", "prompt_tokens", "expected_tokens", "block_hashes", "queue_timeout_ms", "excluded_workers", "num_choices", "pinned_worker", "prompt_hash", "tenant_weight", "session", "traceparent")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    PINNED_WORKER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_HASH_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    request_id: str
    model: str
    tenant_id: str
    priority: int
    prompt_tokens: int
    expected_tokens: int
    block_hashes: _containers.RepeatedScalarFieldContainer[int]
    queue_timeout_ms: int
    excluded_workers: _containers.RepeatedScalarFieldContainer[str]
    num_choices: int
    pinned_worker: str
    prompt_hash: int
    tenant_weight: float
    session: int
    traceparent: str
    def __init__(self, ticket: _Optional[int] = ..., request_id: _Optional[str] = ..., model: _Optional[str] = ..., tenant_id: _Optional[str] = ..., priority: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., expected_tokens: _Optional[int] = ..., block_hashes: _Optional[_Iterable[int]] = ..., queue_timeout_ms: _Optional[int] = ..., excluded_workers: _Optional[_Iterable[str]] = ..., num_choices: _Optional[int] = ..., pinned_worker: _Optional[str] = ..., prompt_hash: _Optional[int] = ..., tenant_weight: _Optional[float] = ..., session: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("lease_id", "cached_tokens")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    cached_tokens: int
    def __init__(self, lease_id: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("lease_id", "outcome", "completion_tokens", "died")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    outcome: ReleaseOutcome
    completion_tokens: int
    died: bool
    def __init__(self, lease_id: _Optional[int] = ..., outcome: _Optional[_Union[ReleaseOutcome, str]] = ..., completion_tokens: _Optional[int] = ..., died: _Optional[bool] = ...) -> None: ...

class DispatchReply(_message.Message):
    __slots__ = ("leases", "rejections")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    rejections: _containers.RepeatedCompositeFieldContainer[Rejected]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., rejections: _Optional[_Iterable[_Union[Rejected, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("ticket", "lease_id", "worker_id", "worker_address", "predicted_cached_tokens", "predicted_ttft_ms")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    lease_id: int
    worker_id: str
    worker_address: str
    predicted_cached_tokens: int
    predicted_ttft_ms: int
    def __init__(self, ticket: _Optional[int] = ..., lease_id: _Optional[int] = ..., worker_id: _Optional[str] = ..., worker_address: _Optional[str] = ..., predicted_cached_tokens: _Optional[int] = ..., predicted_ttft_ms: _Optional[int] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("ticket", "error")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    error: _types_pb2.Error
    def __init__(self, ticket: _Optional[int] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("interval_ms", "detailed")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    DETAILED_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    detailed: bool
    def __init__(self, interval_ms: _Optional[int] = ..., detailed: _Optional[bool] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("router_id", "workers", "queues", "models", "routing_version")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    queues: _containers.RepeatedCompositeFieldContainer[QueueState]
    models: _containers.RepeatedCompositeFieldContainer[ModelState]
    routing_version: str
    def __init__(self, router_id: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueState, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[ModelState, _Mapping]]] = ..., routing_version: _Optional[str] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("worker_id", "address", "status", "models", "requests_in_flight", "uncached_tokens_in_flight", "num_requests_running", "num_requests_waiting", "kv_used_tokens", "kv_total_tokens", "indexed_blocks", "max_running", "breaker", "slots", "trust")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_TOKENS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INDEXED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    BREAKER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    status: WorkerStatus
    models: _containers.RepeatedScalarFieldContainer[str]
    requests_in_flight: int
    uncached_tokens_in_flight: int
    num_requests_running: int
    num_requests_waiting: int
    kv_used_tokens: int
    kv_total_tokens: int
    indexed_blocks: int
    max_running: int
    breaker: BreakerState
    slots: int
    trust: float
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., status: _Optional[_Union[WorkerStatus, str]] = ..., models: _Optional[_Iterable[str]] = ..., requests_in_flight: _Optional[int] = ..., uncached_tokens_in_flight: _Optional[int] = ..., num_requests_running: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., kv_used_tokens: _Optional[int] = ..., kv_total_tokens: _Optional[int] = ..., indexed_blocks: _Optional[int] = ..., max_running: _Optional[int] = ..., breaker: _Optional[_Union[BreakerState, str]] = ..., slots: _Optional[int] = ..., trust: _Optional[float] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("model", "requests", "tokens", "oldest_ms", "bands", "tenants", "more_tenants")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    BANDS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    MORE_TENANTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    requests: int
    tokens: int
    oldest_ms: int
    bands: _containers.RepeatedCompositeFieldContainer[BandState]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantState]
    more_tenants: int
    def __init__(self, model: _Optional[str] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ..., oldest_ms: _Optional[int] = ..., bands: _Optional[_Iterable[_Union[BandState, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantState, _Mapping]]] = ..., more_tenants: _Optional[int] = ...) -> None: ...

class BandState(_message.Message):
    __slots__ = ("priority", "requests", "tokens")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    priority: int
    requests: int
    tokens: int
    def __init__(self, priority: _Optional[int] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class TenantState(_message.Message):
    __slots__ = ("tenant_id", "requests", "expected_tokens")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    requests: int
    expected_tokens: int
    def __init__(self, tenant_id: _Optional[str] = ..., requests: _Optional[int] = ..., expected_tokens: _Optional[int] = ...) -> None: ...

class ModelState(_message.Message):
    __slots__ = ("model", "policy", "prompt_tokens", "predicted_cached_tokens", "actual_cached_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    policy: str
    prompt_tokens: int
    predicted_cached_tokens: int
    actual_cached_tokens: int
    def __init__(self, model: _Optional[str] = ..., policy: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., predicted_cached_tokens: _Optional[int] = ..., actual_cached_tokens: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("router_id", "decisions", "remembered", "oldest_ms")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    REMEMBERED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    remembered: int
    oldest_ms: int
    def __init__(self, router_id: _Optional[str] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., remembered: _Optional[int] = ..., oldest_ms: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("state", "model", "tenant_id", "priority", "prompt_tokens", "expected_tokens", "num_choices", "excluded_workers", "pinned_worker", "queued_at_ms", "queue_ms", "queued_behind", "position", "expected_wait_ms", "placement", "error")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_WORKERS_FIELD_NUMBER: _ClassVar[int]
    PINNED_WORKER_FIELD_NUMBER: _ClassVar[int]
    QUEUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BEHIND_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    state: DecisionState
    model: str
    tenant_id: str
    priority: int
    prompt_tokens: int
    expected_tokens: int
    num_choices: int
    excluded_workers: _containers.RepeatedScalarFieldContainer[str]
    pinned_worker: str
    queued_at_ms: int
    queue_ms: float
    queued_behind: int
    position: int
    expected_wait_ms: float
    placement: Placement
    error: _types_pb2.Error
    def __init__(self, state: _Optional[_Union[DecisionState, str]] = ..., model: _Optional[str] = ..., tenant_id: _Optional[str] = ..., priority: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., expected_tokens: _Optional[int] = ..., num_choices: _Optional[int] = ..., excluded_workers: _Optional[_Iterable[str]] = ..., pinned_worker: _Optional[str] = ..., queued_at_ms: _Optional[int] = ..., queue_ms: _Optional[float] = ..., queued_behind: _Optional[int] = ..., position: _Optional[int] = ..., expected_wait_ms: _Optional[float] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("policy", "routing_version", "num_candidates", "removed", "scorers", "best", "worker_id", "lease_id", "margin", "runner_up", "predicted_cached_tokens", "predicted_ttft_ms", "cached_tokens", "ttft_ms", "outcome", "completion_tokens", "lease_ms")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SCORERS_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    RUNNER_UP_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    policy: str
    routing_version: str
    num_candidates: int
    removed: _containers.RepeatedCompositeFieldContainer[Removed]
    scorers: _containers.RepeatedScalarFieldContainer[str]
    best: _containers.RepeatedCompositeFieldContainer[Score]
    worker_id: str
    lease_id: int
    margin: float
    runner_up: str
    predicted_cached_tokens: int
    predicted_ttft_ms: float
    cached_tokens: int
    ttft_ms: float
    outcome: ReleaseOutcome
    completion_tokens: int
    lease_ms: float
    def __init__(self, policy: _Optional[str] = ..., routing_version: _Optional[str] = ..., num_candidates: _Optional[int] = ..., removed: _Optional[_Iterable[_Union[Removed, _Mapping]]] = ..., scorers: _Optional[_Iterable[str]] = ..., best: _Optional[_Iterable[_Union[Score, _Mapping]]] = ..., worker_id: _Optional[str] = ..., lease_id: _Optional[int] = ..., margin: _Optional[float] = ..., runner_up: _Optional[str] = ..., predicted_cached_tokens: _Optional[int] = ..., predicted_ttft_ms: _Optional[float] = ..., cached_tokens: _Optional[int] = ..., ttft_ms: _Optional[float] = ..., outcome: _Optional[_Union[ReleaseOutcome, str]] = ..., completion_tokens: _Optional[int] = ..., lease_ms: _Optional[float] = ...) -> None: ...

class Removed(_message.Message):
    __slots__ = ("filter", "workers")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    filter: str
    workers: int
    def __init__(self, filter: _Optional[str] = ..., workers: _Optional[int] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("worker_id", "cost", "terms", "cached_tokens")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    cost: float
    terms: _containers.RepeatedScalarFieldContainer[float]
    cached_tokens: int
    def __init__(self, worker_id: _Optional[str] = ..., cost: _Optional[float] = ..., terms: _Optional[_Iterable[float]] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("worker", "order")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    order: DrainOrder
    def __init__(self, worker: _Optional[str] = ..., order: _Optional[_Union[DrainOrder, str]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("router_id", "worker_id", "drained", "status", "requests_in_flight", "requests", "done")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    worker_id: str
    drained: bool
    status: WorkerStatus
    requests_in_flight: int
    requests: int
    done: bool
    def __init__(self, router_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., drained: _Optional[bool] = ..., status: _Optional[_Union[WorkerStatus, str]] = ..., requests_in_flight: _Optional[int] = ..., requests: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...
