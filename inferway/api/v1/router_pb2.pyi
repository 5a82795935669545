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
    __slots__ = ("ticket", "request_id", "model", "tenant_id", "priority", "prompt_tokens", "expected_tokens", "block_hashes", "queue_timeout_ms", "excluded_workers", "num_choices")
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
    def __init__(self, ticket: _Optional[int] = ..., request_id: _Optional[str] = ..., model: _Optional[str] = ..., tenant_id: _Optional[str] = ..., priority: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., expected_tokens: _Optional[int] = ..., block_hashes: _Optional[_Iterable[int]] = ..., queue_timeout_ms: _Optional[int] = ..., excluded_workers: _Optional[_Iterable[str]] = ..., num_choices: _Optional[int] = ...) -> None: ...

class FirstToken(_message.Message):
    __slots__ = ("lease_id", "cached_tokens")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    cached_tokens: int
    def __init__(self, lease_id: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("lease_id", "outcome", "completion_tokens")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    outcome: ReleaseOutcome
    completion_tokens: int
    def __init__(self, lease_id: _Optional[int] = ..., outcome: _Optional[_Union[ReleaseOutcome, str]] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("router_id", "workers", "queues")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    queues: _containers.RepeatedCompositeFieldContainer[QueueState]
    def __init__(self, router_id: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueState, _Mapping]]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("worker_id", "address", "status", "models", "requests_in_flight", "uncached_tokens_in_flight", "num_requests_running", "num_requests_waiting", "kv_used_tokens", "kv_total_tokens", "indexed_blocks", "max_running")
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
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., status: _Optional[_Union[WorkerStatus, str]] = ..., models: _Optional[_Iterable[str]] = ..., requests_in_flight: _Optional[int] = ..., uncached_tokens_in_flight: _Optional[int] = ..., num_requests_running: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., kv_used_tokens: _Optional[int] = ..., kv_total_tokens: _Optional[int] = ..., indexed_blocks: _Optional[int] = ..., max_running: _Optional[int] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("model", "requests", "tokens", "oldest_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    requests: int
    tokens: int
    oldest_ms: int
    def __init__(self, model: _Optional[str] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ..., oldest_ms: _Optional[int] = ...) -> None: ...
