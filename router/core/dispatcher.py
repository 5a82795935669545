"""The machine that decides which waiting request goes next and to which worker.

Inputs change its state; `tick` takes all decisions that this state allows and returns them with the rejections that
the inputs have caused. Whoever feeds it calls `tick` after each batch of inputs and at `next_deadline()`.

A request is in exactly one place: waiting in its model's queue, running under a lease in one worker's books, or gone.
The head of a queue that finds no room holds back everybody behind it (small requests would otherwise starve large
ones), except from workers that the head itself excludes. Times are monotonic seconds and never fall.

Cost: submit, cancel, first_token, release O(log waiting); a decision O(workers of the model + blocks of the prompt); a
report O(leases of the worker). Nothing walks the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from inferway.errors import ApiError, Reason, invalid

from .books import Lease
from .messages import (
    Action,
    Dispatch,
    QueueView,
    Reject,
    ReleaseOutcome,
    Report,
    Request,
    Ticket,
    WorkerInfo,
)
from .model import Model
from .policy import Policy, Rng
from .queue import QueueLimits
from .worker import Worker


@dataclass(slots=True)
class _Owner:
    """What one Dispatch stream has in the machine."""

    waiting: dict[Ticket, Model] = field(default_factory=dict)
    leases: set[int] = field(default_factory=set)


class Dispatcher:
    """`first_lease_id` > 0 starts the counter of lease ids; routers take ranges that do not meet."""

    def __init__(self, *, policy: Policy, rng: Rng, first_lease_id: int, limits: QueueLimits) -> None:
        self._policy = policy
        self._rng = rng
        self._lease_ids = count(first_lease_id)
        self._limits = limits
        self._workers: dict[str, Worker] = {}
        self._models: dict[str, Model] = {}
        self._owners: dict[int, _Owner] = {}
        self._leases: dict[int, Lease] = {}
        # Models for which a decision may have become possible.
        self._dirty: dict[str, Model] = {}
        self._rejects: list[Action] = []

    # What gateways say.

    def submit(self, request: Request, *, now: float) -> None:
        """Queue a request. It is answered by exactly one action of a later `tick`, unless it is cancelled first."""
        model = self._model(request.model)
        if request.ticket in model.queue:
            error = invalid("ticket", f"ticket {request.ticket.number} waits already; tickets are never reused")
            self._rejects.append(Reject(request, error))
            return
        error_or_none = self._impossible(request, model, now)
        if error_or_none is not None:
            self._rejects.append(Reject(request, error_or_none))
            self._drop_if_unused(model)
            return
        pushed = model.queue.push(request)
        is_queued = request not in pushed.refused
        if is_queued:
            self._owner(request.ticket.owner).waiting[request.ticket] = model
            self._dirty[model.name] = model
        for refused in pushed.refused:
            if refused is not request:
                self._forget_waiting(refused.ticket)
            message = f"the queue of this model is full: {pushed.limit}"
            if is_queued:
                message += "; a request of higher priority took this one's place"
            error = ApiError(Reason.OVERLOADED, message, retry_after_s=model.retry_after_s(now=now))
            self._rejects.append(Reject(refused, error))
        self._drop_if_unused(model)

    def cancel(self, ticket: Ticket) -> Request | None:
        """Nobody waits for the ticket any more; None when it does not wait here."""
        model = self._forget_waiting(ticket)
        if model is None:
            return None
        request = model.queue.remove(ticket)
        self._changed_queue(model)
        return request

    def first_token(self, lease_id: int) -> Lease | None:
        """The prompt of a lease is computed; None for leases that are unknown or over."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return None
        return self._workers[lease.worker_id].books.first_token(lease_id)

    def release(
        self, lease_id: int, outcome: ReleaseOutcome, *, completion_tokens: int = 0, now: float
    ) -> Lease | None:
        """A lease is over; None for leases that are unknown or were over before."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return None
        worker = self._workers[lease.worker_id]
        if outcome is ReleaseOutcome.OK:
            worker.note_finished(
                now - lease.dispatched_at,
                completion_tokens=completion_tokens,
                expected_tokens=lease.expected_tokens,
            )
        worker.books.close(lease_id, now=now)
        self._forget_lease(lease)
        self._touch(worker)
        return lease

    def drop_owner(self, owner: int, *, now: float) -> dict[str, int]:
        """A gateway is gone: its waiting requests leave and its leases end. Returns how many waited, by model."""
        state = self._owners.pop(owner, None)
        if state is None:
            return {}
        dropped: dict[str, int] = {}
        for ticket, model in state.waiting.items():
            model.queue.remove(ticket)
            dropped[model.name] = dropped.get(model.name, 0) + 1
            self._changed_queue(model)
        for lease_id in state.leases:
            worker = self._workers[self._leases.pop(lease_id).worker_id]
            worker.books.close(lease_id, now=now, finished=False)
            self._touch(worker)
        return dropped

    # What workers say, and what is said of them.

    def worker_up(self, info: WorkerInfo) -> None:
        """A worker is there: new, or (by its instance_id) started anew, or lost before, or with other models."""
        worker = self._workers.get(info.worker_id)
        if worker is not None and worker.info.instance_id != info.instance_id:
            self.worker_down(info.worker_id)
            worker = None
        if worker is None:
            before: set[str] = set()
            worker = self._workers[info.worker_id] = Worker(info)
        else:
            before = set(worker.info.models)
            worker.describe(info)
        for name in before - info.models.keys():
            self._remove_from(self._models[name], worker)
        for name in info.models.keys() - before:
            self._model(name).add_worker(worker)
        self._size_indexes(worker)
        self._touch(worker)

    def worker_report(self, worker_id: str, report: Report, *, now: float) -> None:
        """A reading of a worker that is up. Reports of another incarnation than the one described are ignored."""
        worker = self._workers.get(worker_id)
        if worker is None or report.instance_id != worker.info.instance_id:
            return
        capacity = worker.kv_total_tokens
        events_lost = worker.take_report(report)
        for lease in worker.books.reconcile(report, now=now):
            self._forget_lease(lease)
        if capacity != worker.kv_total_tokens:
            self._size_indexes(worker)
        if events_lost:
            for name in worker.info.models:
                self._models[name].index.clear(worker_id)
        for event in report.kv_events:
            if event.model in worker.info.models:
                self._models[event.model].take_kv_event(worker_id, event)
        self._touch(worker)

    def worker_lost(self, worker_id: str) -> None:
        """Contact is broken: nothing new for it. Its leases stay until gateways release them."""
        if (worker := self._workers.get(worker_id)) is not None:
            worker.lose()

    def withdraw(self, worker_id: str, withdrawn: bool) -> None:
        """Nothing new for a worker, whatever it says itself, until this is taken back."""
        if (worker := self._workers.get(worker_id)) is not None:
            worker.withdraw(withdrawn)
            self._touch(worker)

    def worker_down(self, worker_id: str) -> None:
        """A worker is gone for good, with its leases and its part of the index."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        for lease in worker.books.leases.values():
            self._forget_lease(lease)
        for name in worker.info.models:
            self._remove_from(self._models[name], worker)

    # What comes out.

    def tick(self, *, now: float) -> list[Action]:
        """Expire and decide; returns what has happened since the last call, in order."""
        actions, self._rejects = self._rejects, []
        for model in list(self._models.values()):
            deadline = model.queue.next_deadline()
            if deadline is not None and deadline <= now:
                actions.extend(self._expire(model, now))
        dirty, self._dirty = self._dirty, {}
        while dirty:
            name = next(iter(dirty)) if len(dirty) == 1 else max(dirty, key=lambda name: _urgency(dirty[name]))
            dispatched = self._dispatch_next(dirty[name], now)
            if dispatched is None:
                del dirty[name]
            else:
                actions.append(dispatched)
        return actions

    def next_deadline(self) -> float | None:
        """When `tick` has something to do though nothing comes in."""
        deadlines = (model.queue.next_deadline() for model in self._models.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # Views, for snapshots, metrics and readiness.

    def workers(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def worker(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def queues(self) -> Iterator[QueueView]:
        for model in self._models.values():
            yield QueueView(model.name, len(model.queue), model.queue.tokens, model.queue.oldest_at())

    def indexed_blocks(self, worker: Worker) -> int:
        return sum(self._models[name].index.blocks(worker.worker_id) for name in worker.info.models)

    def is_served(self, model: str) -> bool:
        """Whether a worker, ready or not, has the model."""
        state = self._models.get(model)
        return state is not None and bool(state.workers)

    @property
    def num_waiting(self) -> int:
        return sum(len(model.queue) for model in self._models.values())

    # Inside.

    def _dispatch_next(self, model: Model, now: float) -> Dispatch | None:
        workers = model.workers
        for request in model.queue.heads():
            excluded = request.excluded
            candidates = [worker for worker in workers if worker.has_room(request)]
            if excluded:
                candidates = [worker for worker in candidates if worker.worker_id not in excluded]
            if candidates:
                return self._dispatch(model, request, candidates, now)
            # This one keeps every worker that it may use for itself.
            workers = [worker for worker in workers if worker.worker_id in excluded] if excluded else []
            if not workers:
                return None
        return None

    def _dispatch(self, model: Model, request: Request, candidates: list[Worker], now: float) -> Dispatch:
        matched = model.index.match(request.block_hashes)
        worker, cached_tokens, ttft_s = self._policy.pick(request, candidates, matched, self._rng)
        model.queue.remove(request.ticket)
        model.index.insert(worker.worker_id, request.block_hashes)
        model.dispatch_rate.add(now=now)
        lease = Lease(
            lease_id=next(self._lease_ids),
            worker_id=worker.worker_id,
            ticket=request.ticket,
            model=model.name,
            num_choices=request.num_choices,
            uncached_tokens=request.prompt_tokens - cached_tokens,
            predicted_cached_tokens=cached_tokens,
            expected_tokens=request.expected_tokens * request.num_choices,
            dispatched_at=now,
        )
        worker.books.open(lease)
        self._leases[lease.lease_id] = lease
        owner = self._owner(request.ticket.owner)
        del owner.waiting[request.ticket]
        owner.leases.add(lease.lease_id)
        return Dispatch(
            request=request,
            lease_id=lease.lease_id,
            worker_id=worker.worker_id,
            worker_address=worker.info.address,
            predicted_cached_tokens=cached_tokens,
            predicted_ttft_s=ttft_s,
            queue_time_s=now - request.queued_at,
        )

    def _expire(self, model: Model, now: float) -> Iterator[Reject]:
        for request in model.queue.expire(now=now):
            self._forget_waiting(request.ticket)
            waited = f"after {now - request.queued_at:.1f} s in the queue"
            retry_after_s = model.retry_after_s(now=now)
            if model.is_ready():
                error = ApiError(Reason.OVERLOADED, f"no worker had room {waited}", retry_after_s=retry_after_s)
            else:
                error = ApiError(Reason.MODEL_NOT_READY, f"no worker was ready {waited}", retry_after_s=retry_after_s)
            yield Reject(request, error)
        self._changed_queue(model)

    def _impossible(self, request: Request, model: Model, now: float) -> ApiError | None:
        """The error of a request that no worker could take even if it were idle."""
        if request.excluded and model.workers and all(w.worker_id in request.excluded for w in model.workers):
            message = "every worker of this model has refused or failed this request"
            return ApiError(Reason.OVERLOADED, message, retry_after_s=model.retry_after_s(now=now))
        if request.num_choices == 1:
            return None
        ready = [worker for worker in model.workers if worker.is_ready]
        if not ready or any(worker.could_ever_take(request.num_choices) for worker in ready):
            return None
        most = max(worker.info.max_running + worker.info.max_waiting for worker in ready)
        message = f"a worker of this model takes at most {most} choices at once, got {request.num_choices}"
        return ApiError(Reason.UNSUPPORTED_VALUE, message, "n")

    def _owner(self, owner: int) -> _Owner:
        state = self._owners.get(owner)
        if state is None:
            state = self._owners[owner] = _Owner()
        return state

    def _forget_waiting(self, ticket: Ticket) -> Model | None:
        owner = self._owners.get(ticket.owner)
        return owner.waiting.pop(ticket, None) if owner is not None else None

    def _forget_lease(self, lease: Lease) -> None:
        del self._leases[lease.lease_id]
        self._owners[lease.ticket.owner].leases.discard(lease.lease_id)

    def _size_indexes(self, worker: Worker) -> None:
        for name in worker.info.models:
            self._models[name].size_index(worker)

    def _touch(self, worker: Worker) -> None:
        """A worker may have gained room."""
        for name in worker.info.models:
            model = self._models[name]
            if model.queue:
                self._dirty[name] = model

    def _changed_queue(self, model: Model) -> None:
        """Requests have left: whoever they held back may go now."""
        if model.queue:
            self._dirty[model.name] = model
        else:
            self._drop_if_unused(model)

    def _model(self, name: str) -> Model:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = Model(name, self._limits)
        return model

    def _remove_from(self, model: Model, worker: Worker) -> None:
        model.remove_worker(worker)
        self._drop_if_unused(model)

    def _drop_if_unused(self, model: Model) -> None:
        if model.is_unused:
            self._models.pop(model.name, None)
            self._dirty.pop(model.name, None)


def _urgency(model: Model) -> tuple[int, float]:
    """Larger goes first where several models share workers."""
    head = next(model.queue.heads(), None)
    return (head.priority, -head.queued_at) if head is not None else (-1, 0.0)
