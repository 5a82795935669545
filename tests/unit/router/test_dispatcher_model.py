"""The dispatcher against a brute-force model that keeps everything in plain lists."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.core.dispatcher import Dispatcher
from router.core.messages import Dispatch, Reject, ReleaseOutcome, Report, Request, Ticket, WorkerInfo
from router.core.placement.routing import routing_of
from router.core.queue import Ageing, QueueLimits
from tests.support.brute_queue import BruteQueue, Charged

_MODELS = ("m", "n")
_NAMES = ("a", "b", "c")
_LIMITS = QueueLimits(requests=6)
_AGEING = Ageing(interval_s=1.0, share=0.5)


@dataclass
class _Running:
    lease_id: int
    request: Request
    charged: Charged
    uncached_tokens: int


@dataclass
class _Worker:
    info: WorkerInfo
    ready: bool = True
    foreign: int = 0
    running: list[_Running] = field(default_factory=list)

    def has_room(self, request: Request) -> bool:
        load = self.foreign + sum(lease.request.num_choices for lease in self.running)
        most = self.info.max_running + self.info.max_waiting
        allowed = self.info.max_running + min(self.info.max_waiting, max(1, self.info.max_running // 8))
        return self.ready and load + request.num_choices <= (allowed if load else most)


class DispatcherModel(RuleBasedStateMachine):
    """Each action of `tick` must be the next one that the model allows, and none may be missing."""

    @initialize(seed=st.integers(0, 1_000))
    def start(self, seed: int) -> None:
        self.machine = Dispatcher(
            routing=routing_of("default"), rng=Random(seed), first_lease_id=1, limits=_LIMITS, ageing=_AGEING
        )
        self.now = 0.0
        self.count = 0
        self.workers: dict[str, _Worker] = {}
        self.queues = {model: BruteQueue(_LIMITS, _AGEING) for model in _MODELS}
        self.answers: Counter[Ticket] = Counter()
        self.lease_ids: set[int] = set()

    @rule(
        model=st.sampled_from(_MODELS),
        priority=st.integers(0, 9) | st.sampled_from([4, 5]),
        excluded=st.sets(st.sampled_from(_NAMES), max_size=2),
        choices=st.sampled_from([1, 1, 1, 2, 3]),
        timeout=st.integers(1, 8),
        owner=st.integers(1, 2),
        tenant=st.sampled_from("tuv"),
    )
    def submit(
        self, model: str, priority: int, excluded: set[str], choices: int, timeout: int, owner: int, tenant: str
    ) -> None:
        self.count += 1
        request = Request(
            ticket=Ticket(owner, self.count),
            request_id="r",
            model=model,
            tenant_id=tenant,
            priority=priority,
            prompt_tokens=8,
            expected_tokens=1,
            block_hashes=(1, self.count % 3),
            queued_at=self.now,
            deadline=self.now + timeout,
            excluded=frozenset(excluded),
            num_choices=choices,
        )
        self.machine.submit(request, now=self.now)
        known = {name for name, worker in self.workers.items() if model in worker.info.models}
        if known and known <= excluded:
            self.tick(rejected=[request])
            return
        serving = [w for w in self.workers.values() if model in w.info.models and w.ready]
        if choices > 1 and serving and all(choices > w.info.max_running + w.info.max_waiting for w in serving):
            self.tick(rejected=[request])
            return
        self.tick(rejected=self.queues[model].push(request))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        self.queues[request.model].waiting.remove(request)
        assert self.machine.cancel(request.ticket) is request
        assert self.machine.cancel(request.ticket) is None
        self.tick()

    @precondition(lambda self: any(w.running for w in self.workers.values()))
    @rule(
        data=st.data(),
        outcome=st.sampled_from(ReleaseOutcome),
        has_first_token=st.booleans(),
        completion=st.integers(0, 20),
    )
    def release(self, data: st.DataObject, outcome: ReleaseOutcome, has_first_token: bool, completion: int) -> None:
        worker = data.draw(st.sampled_from([w for w in self.workers.values() if w.running]))
        lease = data.draw(st.sampled_from(worker.running))
        worker.running.remove(lease)
        if has_first_token:
            assert self.machine.first_token(lease.lease_id, 0, now=self.now) is not None
        is_prompt_paid = has_first_token or outcome in (ReleaseOutcome.OK, ReleaseOutcome.CANCELLED)
        self._settle(lease, (lease.uncached_tokens if is_prompt_paid else 0) + completion)
        assert self.machine.release(lease.lease_id, outcome, completion_tokens=completion, now=self.now) is not None
        assert self.machine.release(lease.lease_id, outcome, now=self.now) is None
        self.tick()

    @rule(owner=st.integers(1, 2))
    def drop_owner(self, owner: int) -> None:
        for queue in self.queues.values():
            queue.waiting = [request for request in queue.waiting if request.ticket.owner != owner]
        for worker in self.workers.values():
            for lease in worker.running:
                if lease.request.ticket.owner == owner:
                    self._settle(lease, 0)
            worker.running = [lease for lease in worker.running if lease.request.ticket.owner != owner]
        self.machine.drop_owner(owner, now=self.now)
        self.tick()

    @rule(
        name=st.sampled_from(_NAMES),
        models=st.sampled_from([("m",), ("n",), _MODELS]),
        max_running=st.integers(1, 3),
        max_waiting=st.integers(0, 2),
        instance=st.sampled_from("12"),
    )
    def worker_up(self, name: str, models: tuple[str, ...], max_running: int, max_waiting: int, instance: str) -> None:
        info = WorkerInfo(name, instance, f"{name}:1", dict.fromkeys(models, 4), max_running, max_waiting)
        known = self.workers.get(name)
        if known is not None and known.info.instance_id == instance:
            known.info, known.ready = info, True
        else:
            self._remove(name)
            self.workers[name] = _Worker(info)
        self.machine.worker_up(info)
        self.tick()

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), down=st.booleans())
    def worker_gone(self, data: st.DataObject, down: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        if down:
            self._remove(name)
            self.machine.worker_down(name)
        else:
            self.workers[name].ready = False
            self.machine.worker_lost(name)
        self.tick()

    @precondition(lambda self: any(w.ready for w in self.workers.values()))
    @rule(data=st.data(), foreign=st.integers(0, 2))
    def report(self, data: st.DataObject, foreign: int) -> None:
        worker = data.draw(st.sampled_from([w for w in self.workers.values() if w.ready]))
        worker.foreign = foreign
        held = sum(lease.request.num_choices for lease in worker.running)
        report = Report(
            worker.info.instance_id,
            num_requests_running=held + foreign,
            lease_ids=[lease.lease_id for lease in worker.running],
        )
        self.machine.worker_report(worker.info.worker_id, report, now=self.now)
        self.tick()

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        due = [request for request in self.waiting if request.deadline <= self.now]
        for queue in self.queues.values():
            queue.waiting = [request for request in queue.waiting if request.deadline > self.now]
        for name in self.workers:
            # Whom time has lifted goes when the next thing happens, at the latest a report.
            self.machine.withdraw(name, False)
        self.tick(rejected=due)

    def tick(self, rejected: list[Request] | None = None) -> None:
        actions = self.machine.tick(now=self.now)
        rejects = [action.request.ticket for action in actions if isinstance(action, Reject)]
        assert sorted(rejects) == sorted(request.ticket for request in rejected or [])
        self.answers.update(rejects)
        for action in actions:
            if isinstance(action, Dispatch):
                self._check_dispatch(action)
        for model in _MODELS:
            assert self._next(model) is None, "a request was left that could have gone"
        self._forget_unused_models()

    def _check_dispatch(self, action: Dispatch) -> None:
        expected = self._next(action.request.model)
        assert expected is not None
        assert expected[0] is action.request
        assert action.worker_id in expected[1]
        assert action.lease_id not in self.lease_ids
        self.lease_ids.add(action.lease_id)
        self.answers[action.request.ticket] += 1
        uncached_tokens = action.request.prompt_tokens - action.predicted_cached_tokens
        expected_tokens = uncached_tokens + action.request.expected_tokens * action.request.num_choices
        charged = self.queues[action.request.model].dispatch(action.request, expected_tokens, now=self.now)
        lease = _Running(action.lease_id, action.request, charged, uncached_tokens)
        self.workers[action.worker_id].running.append(lease)

    def _next(self, model: str) -> tuple[Request, set[str]] | None:
        """Who is next, and where it may go."""
        free = {name for name, worker in self.workers.items() if model in worker.info.models}
        for request in self.queues[model].ordered(now=self.now):
            allowed = {name for name in free - request.excluded if self.workers[name].has_room(request)}
            if allowed:
                return request, allowed
            free &= request.excluded
        return None

    @property
    def waiting(self) -> list[Request]:
        return [request for queue in self.queues.values() for request in queue.waiting]

    def _settle(self, lease: _Running, tokens: int) -> None:
        self.queues[lease.request.model].settle(lease.charged, tokens)

    def _remove(self, worker_id: str) -> None:
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            for lease in worker.running:
                self._settle(lease, 0)
            self._forget_unused_models()

    def _forget_unused_models(self) -> None:
        served = {model for worker in self.workers.values() for model in worker.info.models}
        for model, queue in self.queues.items():
            if model not in served and not queue.waiting:
                self.queues[model] = BruteQueue(_LIMITS, _AGEING)

    @invariant()
    def books_and_queues_agree(self) -> None:
        if not hasattr(self, "machine"):
            return
        assert all(answers == 1 for answers in self.answers.values())
        assert self.machine.num_waiting == len(self.waiting)
        assert self.machine.next_deadline() == min((request.deadline for request in self.waiting), default=None)
        books = {worker.worker_id: worker.books.requests_in_flight for worker in self.machine.workers()}
        assert books == {
            name: sum(lease.request.num_choices for lease in worker.running) for name, worker in self.workers.items()
        }

    @invariant()
    def decisions_read_the_present(self) -> None:
        """No change of a worker has been forgotten in the columns."""
        if not hasattr(self, "machine"):
            return
        for worker in self.machine.workers():
            table = self.machine._fleet.table()[:, [worker.row]]
            assert table[:, 0].tolist() == [float(value) for value in worker.reading()]


DispatcherModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# No request is stuck, dispatched twice or out of turn, and no worker is above its slots.
TestDispatcherModel = DispatcherModel.TestCase
