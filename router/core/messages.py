"""What goes into the dispatcher and what comes out of it, free of protobuf. Times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.blocks import KvEvent
from inferway.errors import ApiError

PRIORITIES = 10
# Candidates that are told of a decision.
MOST_EXPLAINED = 8


class Ticket(NamedTuple):
    """One waiting request: `number` is the gateway's, unique within the Dispatch stream `owner`."""

    owner: int
    number: int


@dataclass(frozen=True, slots=True)
class AllBut:
    """What a request for one worker excludes: everybody else, and that one too where it is in `also`."""

    worker_id: str
    also: frozenset[str] = frozenset()

    def __contains__(self, worker_id: str) -> bool:
        return worker_id != self.worker_id or worker_id in self.also


# Workers that a request must not go to. Empty is false.
Excluded = frozenset[str] | AllBut


@dataclass(slots=True)
class Request:
    """A request that asks for a worker."""

    ticket: Ticket
    request_id: str
    model: str
    tenant_id: str
    # 0 to 9, larger is sooner.
    priority: int
    # >= 1
    prompt_tokens: int
    # Completion tokens to reckon with for each choice, >= 1.
    expected_tokens: int
    # An array is looked through, and copied, the fastest.
    block_hashes: Sequence[int]
    queued_at: float
    # The request leaves the queue at this time.
    deadline: float
    # Workers that have refused or failed it already, or that its caller will not have.
    excluded: Excluded = frozenset()
    # Requests that will run beside each other on the worker, >= 1.
    num_choices: int = 1
    # The tenant's share of its band, in relation to other tenants', > 0.
    tenant_weight: float = 1.0
    # Of all tokens of the prompt, with its salt; 0: unknown.
    prompt_hash: int = 0
    # Requests of one session like to meet on one worker; 0: of none.
    session: int = 0
    # Requests of the model that waited at its priority and above when it came; the dispatcher says so.
    queued_behind: int = 0
    # The gateway's span that the decision belongs to (W3C trace context); empty: of no trace.
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says of itself when it is met."""

    worker_id: str
    # Random, new at every start of the worker's process.
    instance_id: str
    address: str
    # Block size in tokens, by model name.
    models: Mapping[str, int]
    # >= 1
    max_running: int
    max_waiting: int
    kv_total_tokens: int | None = None
    prefill_tokens_per_s: float | None = None
    publishes_kv_events: bool = False
    # Grows whenever `models` changes.
    models_version: int = 0
    # An operator has taken it out, as some router has told it.
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """A reading of a worker's load."""

    instance_id: str
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    uncached_tokens_in_flight: int = 0
    kv_used_tokens: int = 0
    kv_total_tokens: int | None = None
    prefill_tokens_per_s: float | None = None
    draining: bool = False
    # Every lease that the worker holds; a request of several choices may occur more than once.
    lease_ids: Sequence[int] = ()
    kv_events: Sequence[KvEvent] = ()
    # Number of the first of kv_events, counted from 1 within the instance.
    kv_event_seq: int = 0
    # WorkerInfo.models_version as it is now.
    models_version: int = 0


class ReleaseOutcome(Enum):
    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    # The caller left: says nothing of the worker, nor of how long an answer takes.
    CANCELLED = "cancelled"


class WorkerStatus(Enum):
    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"


class Scored(NamedTuple):
    """`terms` are the weighted costs in the order of the policy's scorers; `cost` is their sum."""

    worker_id: str
    cost: float
    terms: tuple[float, ...]
    cached_tokens: int


@dataclass(slots=True)
class Considered:
    """How a decision came about. `removed` counts the candidates that each filter took out."""

    policy: str
    scorers: tuple[str, ...]
    num_candidates: int
    removed: Mapping[str, int]
    # Ids of the model's workers. Of some, the best among them: where in `names` they stand, their costs by scorer and
    # cached tokens. They are put in order when somebody asks, and most are never looked at.
    names: Sequence[str]
    places: NDArray[np.intp]
    terms: Sequence[NDArray[np.float64]]
    cached_tokens: NDArray[np.float64]

    @property
    def best(self) -> list[Scored]:
        """The least costs, in order. The chosen one is among them, unless the picker took a worse one."""
        found = []
        for at, place in enumerate(self.places.tolist()):
            terms = tuple(float(term[at]) for term in self.terms)
            found.append(Scored(self.names[place], sum(terms), terms, int(self.cached_tokens[at])))
        return sorted(found, key=lambda scored: scored.cost)[:MOST_EXPLAINED]


@dataclass(slots=True)
class Dispatch:
    """The request goes to the worker, under the lease."""

    request: Request
    lease_id: int
    worker_id: str
    worker_address: str
    predicted_cached_tokens: int
    predicted_ttft_s: float
    queue_time_s: float
    considered: Considered


@dataclass(frozen=True, slots=True)
class Reject:
    """The request has left the queue without a worker."""

    request: Request
    error: ApiError


Action = Dispatch | Reject


class Place(NamedTuple):
    """Where a request stands that waits."""

    # About how many are dispatched before it.
    position: int
    # None while no rate of dispatches is known.
    expected_wait_s: float | None


class BandView(NamedTuple):
    """The waiting requests of one priority."""

    priority: int
    requests: int
    # Of their prompts.
    tokens: int


class TenantView(NamedTuple):
    """The waiting requests of one tenant."""

    tenant_id: str
    requests: int
    # Of prompts and expected completions.
    tokens: int


class QueueView(NamedTuple):
    """What a snapshot shows of one model's queue."""

    model: str
    requests: int
    tokens: int
    oldest_at: float | None
