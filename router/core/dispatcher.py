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

from collections.abc import Collection, Iterator
from itertools import count

from inferway.errors import ApiError, invalid

from . import refusals
from .books import Lease
from .fleet import Fleet
from .health import TRUSTING, BreakerState, HealthRules
from .messages import (
    Action,
    Dispatch,
    Place,
    QueueView,
    Reject,
    ReleaseOutcome,
    Report,
    Request,
    Ticket,
    WorkerInfo,
)
from .model import Model
from .owners import Owners
from .placement.candidates import Candidates
from .placement.pickers import Rng
from .placement.routing import Routing
from .quarantine import Quarantine
from .queue import Ageing, QueueLimits
from .recovery import BreakerTurned, Recovery
from .worker import Worker

# A caller that leaves has had its prompt computed all the same; who was refused or lost its worker pays for what came.
_CHARGED_FOR_THE_PROMPT = (ReleaseOutcome.OK, ReleaseOutcome.CANCELLED)


class Dispatcher:
    """`first_lease_id` > 0 starts the counter of lease ids; routers take ranges that do not meet.

    One that `holds_back` lets everything wait until `begin`: the first worker to be met would get it all, and others
    that may have a request would be taken not to be there.
    """

    def __init__(
        self,
        *,
        routing: Routing,
        rng: Rng,
        first_lease_id: int,
        limits: QueueLimits,
        ageing: Ageing = Ageing(),  # noqa: B008 - an immutable tuple
        health: HealthRules = TRUSTING,
        holds_back: bool = False,
    ) -> None:
        self._routing = routing
        self._rng = rng
        self._lease_ids = count(first_lease_id)
        self._limits = limits
        self._ageing = ageing
        self._fleet = Fleet()
        self._workers: dict[str, Worker] = {}
        # Names of workers that an operator has taken out, there or not.
        self._drained: set[str] = set()
        self._models: dict[str, Model] = {}
        self._owners = Owners()
        # Models for which a decision may have become possible.
        self._dirty: dict[str, Model] = {}
        self._rejects: list[Action] = []
        self._holds_back = holds_back
        self._health = health
        self._recovery = Recovery(health)
        # Leases that have ended without a release.
        self._abandoned: list[int] = []

    # What gateways say.

    def submit(self, request: Request, *, now: float) -> None:
        """Queue a request. It is answered by exactly one action of a later `tick`, unless it is cancelled first."""
        model = self._model(request.model)
        if request.ticket in model.queue:
            error = invalid("ticket", f"ticket {request.ticket.number} waits already; tickets are never reused")
            self._rejects.append(Reject(request, error))
            return
        if not self._holds_back and (refusal := self._refusal(request, model, now)) is not None:
            self._rejects.append(Reject(request, refusal))
            self._drop_if_unused(model)
            return
        if model.queue:
            request.queued_behind = model.queue.num_from(request.priority)
        pushed = model.queue.push(request)
        is_queued = request not in pushed.refused
        if is_queued:
            self._owners.waits(request.ticket, model)
            self._dirty[model.name] = model
        for refused in pushed.refused:
            if refused is not request:
                self._owners.waits_no_more(refused.ticket)
            rival = request if is_queued else None
            self._rejects.append(Reject(refused, refusals.queue_full(refused, model, pushed.limit, rival, now=now)))
        self._drop_if_unused(model)

    def cancel(self, ticket: Ticket) -> Request | None:
        """Nobody waits for the ticket any more; None when it does not wait here."""
        model = self._owners.waits_no_more(ticket)
        if model is None:
            return None
        request = model.queue.remove(ticket)
        self._changed_queue(model)
        return request

    def first_token(self, lease_id: int, cached_tokens: int, *, now: float) -> Lease | None:
        """The prompt of a lease is computed, but for what was cached; None for leases that are unknown or over."""
        lease = self._owners.lease(lease_id)
        if lease is None:
            return None
        worker = self._workers[lease.worker_id]
        if self._recovery.first_token(worker, lease, now=now):
            self._reassess(worker)
        elif worker.breaker.state is BreakerState.HALF_OPEN:
            self._touch(worker)
        computed = worker.books.first_token(lease_id)
        if computed is not None:
            predicted = lease.predicted_cached_tokens
            worker.note_cached(predicted=predicted, actual=cached_tokens)
            if (model := self._models.get(lease.model)) is not None:
                model.hits.add(prompt=lease.uncached_tokens + predicted, predicted=predicted, actual=cached_tokens)
        self._fleet.touch(worker)
        return computed

    def release(
        self, lease_id: int, outcome: ReleaseOutcome, *, completion_tokens: int = 0, died: bool = False, now: float
    ) -> Lease | None:
        """A lease is over; None for leases that are unknown or were over before.

        `died`, beside FAILED: the worker was lost, or stood still, while the request ran there.
        """
        lease = self._owners.lease(lease_id)
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
        is_computed = lease.has_first_token or outcome in _CHARGED_FOR_THE_PROMPT
        lease.settle(is_computed=is_computed, completion_tokens=completion_tokens)
        self._owners.ended(lease)
        if self._recovery.released(worker, lease, outcome, died=died, now=now):
            self._reassess(worker)
        self._touch(worker)
        return lease

    def drop_owner(self, owner: int, *, now: float) -> dict[str, int]:
        """A gateway is gone: its waiting requests leave and its leases end. Returns how many waited, by model."""
        gone = self._owners.drop(owner)
        waited: dict[str, int] = {}
        for ticket, model in gone.waiting.items():
            model.queue.remove(ticket)
            waited[model.name] = waited.get(model.name, 0) + 1
            self._changed_queue(model)
        for lease in gone.leases:
            self._abandoned.append(lease.lease_id)
            # Nobody said how it ended.
            lease.settle(is_computed=lease.has_first_token, completion_tokens=0)
            worker = self._workers[lease.worker_id]
            worker.books.close(lease.lease_id, now=now, finished=False)
            worker.breaker.abandoned(lease.lease_id)
            self._touch(worker)
        return waited

    def take_routing(self, routing: Routing) -> None:
        """Other policies from now on."""
        self._routing = routing
        for name, model in self._models.items():
            model.policy = routing.policy_for(name)

    # What workers say, and what is said of them.

    def worker_up(self, info: WorkerInfo) -> None:
        """A worker is there: new, or (by its instance_id) started anew, or lost before, or with other models."""
        worker = self._workers.get(info.worker_id)
        if worker is not None and worker.info.instance_id != info.instance_id:
            self.worker_down(info.worker_id)
            worker = None
        if worker is None:
            before: set[str] = set()
            worker = self._workers[info.worker_id] = Worker(info, self._health)
            worker.drain(info.worker_id in self._drained)
            self._fleet.add(worker)
        else:
            before = set(worker.info.models)
            worker.describe(info)
        for name in before - info.models.keys():
            self._remove_from(self._models[name], worker)
        for name in info.models.keys() - before:
            self._model(name).add_worker(worker)
        self._size_indexes(worker)
        self._reassess(worker)

    def worker_report(self, worker_id: str, report: Report, *, now: float) -> None:
        """A reading of a worker that is up. Reports of another incarnation than the one described are ignored."""
        worker = self._workers.get(worker_id)
        if worker is None or report.instance_id != worker.info.instance_id:
            return
        capacity, warmth, has_measured = worker.kv_total_tokens, worker.warmth, bool(worker.measured_rate)
        events_lost = worker.take_report(report)
        for lease in worker.books.reconcile(report, now=now):
            worker.breaker.abandoned(lease.lease_id)
            self._abandon(lease)
        if worker.warmth != warmth or bool(worker.measured_rate) != has_measured:
            self._reassess(worker)
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
            self._reassess(worker)

    def withdraw(self, worker_id: str, withdrawn: bool) -> None:
        """Nothing new for a worker, whatever it says itself, until this is taken back."""
        if (worker := self._workers.get(worker_id)) is not None:
            worker.withdraw(withdrawn)
            self._reassess(worker)

    def drain(self, worker_id: str, drained: bool) -> None:
        """Nothing new for the worker of this name, by an operator's will, until this is taken back.

        It holds for whoever has the name: also after it was lost, started anew, or gone for a while.
        """
        if drained:
            self._drained.add(worker_id)
        else:
            self._drained.discard(worker_id)
        if (worker := self._workers.get(worker_id)) is not None:
            worker.drain(drained)
            self._reassess(worker)

    def is_drained(self, worker_id: str) -> bool:
        """Whether an operator has taken out the worker of this name, there or not."""
        return worker_id in self._drained

    def worker_down(self, worker_id: str) -> None:
        """A worker is gone for good, with its leases and its part of the index."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        for lease in worker.books.leases.values():
            self._abandon(lease)
        self._recovery.forget(worker_id)
        for name in worker.info.models:
            self._remove_from(self._models[name], worker)
        self._reassess_models(worker)
        self._fleet.remove(worker)

    def begin(self, *, now: float) -> None:
        """The workers are met, as far as they can be: decide from now on. Once it has begun, nothing changes."""
        if not self._holds_back:
            return
        self._holds_back = False
        for model in list(self._models.values()):
            for request in model.queue.requests():
                if (error := self._refusal(request, model, now)) is not None:
                    self.cancel(request.ticket)
                    self._rejects.append(Reject(request, error))
            self._changed_queue(model)

    # What comes out.

    def tick(self, *, now: float) -> list[Action]:
        """Expire and decide; returns what has happened since the last call, in order."""
        actions, self._rejects = self._rejects, []
        for worker in self._recovery.advance(now=now):
            self._reassess(worker)
        for model in list(self._models.values()):
            deadline = model.queue.next_deadline()
            if deadline is not None and deadline <= now:
                actions.extend(self._expire(model, now))
        if self._holds_back:
            return actions
        dirty, self._dirty = self._dirty, {}
        while dirty:
            (model, *others) = dirty.values()
            if others:  # which may share workers with it
                model = max(dirty.values(), key=lambda model: model.queue.urgency(now=now))
            dispatched = self._dispatch_next(model, now)
            if dispatched is not None:
                actions.append(dispatched)
            if dispatched is None or not model.queue:
                del dirty[model.name]
        for model in self._models.values():
            model.drain_rate.waits(bool(model.queue), now=now)
        return actions

    def next_deadline(self) -> float | None:
        """When `tick` has something to do though nothing comes in."""
        deadlines = [model.queue.next_deadline() for model in self._models.values()]
        deadlines.append(self._recovery.next_deadline)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def take_turned(self) -> list[BreakerTurned]:
        """What has become of breakers since the last call, in order."""
        return self._recovery.take_turned()

    def take_abandoned(self) -> list[int]:
        """Leases that have ended since the last call without being released: their gateway or worker is gone."""
        abandoned, self._abandoned = self._abandoned, []
        return abandoned

    # Views, for snapshots, metrics and readiness.

    def workers(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def worker(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    @property
    def quarantine(self) -> Quarantine:
        return self._recovery.quarantine

    def queues(self) -> Iterator[QueueView]:
        for model in self._models.values():
            yield QueueView(model.name, len(model.queue), model.queue.tokens, model.queue.oldest_at())

    def models(self) -> Iterator[Model]:
        """Those that a worker serves, and those that somebody waits for."""
        return iter(self._models.values())

    def waiting(self, request_id: str) -> list[Request]:
        """The waiting requests of this id; O(waiting)."""
        return [request for model in self._models.values() for request in model.queue.find(request_id)]

    def indexed_blocks(self, worker: Worker) -> int:
        return sum(self._models[name].index.blocks(worker.worker_id) for name in worker.info.models)

    def is_served(self, model: str) -> bool:
        """Whether a worker, ready or not, has the model."""
        state = self._models.get(model)
        return state is not None and bool(state.workers)

    def place(self, ticket: Ticket, *, now: float) -> Place | None:
        """Where a request stands that waits; None for a ticket that does not."""
        model = self._owners.model(ticket)
        return model.place(ticket, now=now) if model is not None else None

    @property
    def num_waiting(self) -> int:
        return sum(len(model.queue) for model in self._models.values())

    # Inside.

    def _dispatch_next(self, model: Model, now: float) -> Action | None:
        allowed: Collection[str] | None = None
        for request in model.queue.heads(now=now):
            if (error := refusals.in_quarantine(request, self.quarantine, now=now)) is not None:
                self._owners.waits_no_more(request.ticket)
                model.queue.remove(request.ticket)
                self._changed_queue(model)
                return Reject(request, error)
            excluded = request.excluded
            left = model.names if allowed is None else allowed
            usable = {name for name in left if name not in excluded} if excluded else allowed
            candidates = model.candidates(request, usable, now=now)
            if candidates is not None:
                return self._dispatch(model, request, candidates, now)
            # This one keeps every worker that it may use for itself.
            if not excluded:
                return None
            allowed = {name for name in left if name in excluded}
            if not allowed:
                return None
        return None

    def _dispatch(self, model: Model, request: Request, candidates: Candidates, now: float) -> Dispatch:
        worker, cached_tokens, ttft_s, considered = model.policy.decide(candidates, self._rng)
        uncached_tokens = request.prompt_tokens - cached_tokens
        expected_tokens = request.expected_tokens * request.num_choices
        debit = model.queue.dispatch(request.ticket, uncached_tokens + expected_tokens, now=now)
        model.index.insert(worker.worker_id, request.block_hashes)
        model.drain_rate.dispatched(now=now)
        lease = Lease(
            lease_id=next(self._lease_ids),
            worker_id=worker.worker_id,
            ticket=request.ticket,
            model=model.name,
            num_choices=request.num_choices,
            uncached_tokens=uncached_tokens,
            predicted_cached_tokens=cached_tokens,
            expected_tokens=expected_tokens,
            dispatched_at=now,
            prompt_hash=request.prompt_hash,
            debit=debit,
        )
        worker.open_lease(lease)
        self._fleet.touch(worker)
        model.demand.add(uncached_tokens, now=now)
        self._owners.dispatched(lease)
        return Dispatch(
            request=request,
            lease_id=lease.lease_id,
            worker_id=worker.worker_id,
            worker_address=worker.info.address,
            predicted_cached_tokens=cached_tokens,
            predicted_ttft_s=ttft_s,
            queue_time_s=now - request.queued_at,
            considered=considered,
        )

    def _expire(self, model: Model, now: float) -> Iterator[Reject]:
        for request, position in model.queue.expire(now=now):
            self._owners.waits_no_more(request.ticket)
            yield Reject(request, refusals.waited_in_vain(request, position, model, now=now))
        self._changed_queue(model)

    def _refusal(self, request: Request, model: Model, now: float) -> ApiError | None:
        held = refusals.in_quarantine(request, self.quarantine, now=now)
        return held or refusals.impossible(request, model, now=now)

    def _reassess(self, worker: Worker) -> None:
        """How much a worker may be given has changed, and with it what others of its models must take."""
        self._fleet.touch(worker)
        self._recovery.note(worker)
        self._reassess_models(worker)

    def _reassess_models(self, worker: Worker) -> None:
        for name in worker.info.models:
            if (model := self._models.get(name)) is not None:
                for other in model.compare():
                    self._fleet.touch(other)
                if model.queue:
                    self._dirty[name] = model

    def _abandon(self, lease: Lease) -> None:
        self._abandoned.append(lease.lease_id)
        lease.settle(is_computed=lease.has_first_token, completion_tokens=0)
        self._owners.ended(lease)

    def _size_indexes(self, worker: Worker) -> None:
        for name in worker.info.models:
            self._models[name].size_index(worker)

    def _touch(self, worker: Worker) -> None:
        """A worker may have gained room."""
        self._fleet.touch(worker)
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
            model = self._models[name] = Model(
                name, self._fleet, self._routing.policy_for(name), self._limits, self._ageing
            )
        return model

    def _remove_from(self, model: Model, worker: Worker) -> None:
        model.remove_worker(worker)
        self._drop_if_unused(model)

    def _drop_if_unused(self, model: Model) -> None:
        if model.is_unused:
            self._models.pop(model.name, None)
            self._dirty.pop(model.name, None)
