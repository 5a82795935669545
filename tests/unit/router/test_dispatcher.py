"""The dispatcher, case by case. test_dispatcher_model.py holds it against a brute-force model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from inferway.blocks import BlocksRemoved, BlocksStored, CacheCleared, KvEvent
from inferway.errors import Reason
from router.core.dispatcher import Dispatcher
from router.core.messages import (
    Action,
    Dispatch,
    Reject,
    ReleaseOutcome,
    Report,
    Request,
    Ticket,
    WorkerInfo,
    WorkerStatus,
)
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits
from tests.support.cost import measured

OK = ReleaseOutcome.OK


def dispatcher(limits: QueueLimits = QueueLimits(), *, holds_back: bool = False) -> Dispatcher:  # noqa: B008 - immutable
    return Dispatcher(
        routing=routing_of("default"), rng=Random(1), first_lease_id=1, limits=limits, holds_back=holds_back
    )


def info(
    worker_id: str = "a",
    *,
    instance: str = "1",
    models: tuple[str, ...] = ("m",),
    max_running: int = 1,
    max_waiting: int = 0,
    kv_total: int | None = None,
) -> WorkerInfo:
    return WorkerInfo(
        worker_id, instance, f"{worker_id}:1", dict.fromkeys(models, 4), max_running, max_waiting, kv_total, 1000.0
    )


def request(
    number: int,
    *,
    priority: int = 5,
    model: str = "m",
    at: float = 0.0,
    timeout: float = 10.0,
    tokens: int = 8,
    hashes: tuple[int, ...] = (),
    excluded: tuple[str, ...] = (),
    choices: int = 1,
    owner: int = 1,
) -> Request:
    return Request(
        ticket=Ticket(owner, number),
        request_id=f"r{number}",
        model=model,
        tenant_id="t",
        priority=priority,
        prompt_tokens=tokens,
        expected_tokens=4,
        block_hashes=hashes,
        queued_at=at,
        deadline=at + timeout,
        excluded=frozenset(excluded),
        num_choices=choices,
    )


def numbers(actions: list[Action]) -> list[int]:
    assert all(isinstance(action, Dispatch) for action in actions), actions
    return [action.request.ticket.number for action in actions]


def only_reject(actions: list[Action]) -> Reject:
    (action,) = actions
    assert isinstance(action, Reject)
    return action


def only_dispatch(actions: list[Action]) -> Dispatch:
    (action,) = actions
    assert isinstance(action, Dispatch)
    return action


def test_a_lease_names_worker_address_and_prediction() -> None:
    """A request meets an idle worker: it goes at once, with all that the gateway needs."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.submit(request(1, at=1.0), now=1.0)
    dispatch = only_dispatch(machine.tick(now=1.5))
    assert (dispatch.worker_id, dispatch.worker_address, dispatch.lease_id) == ("a", "a:1", 1)
    assert dispatch.predicted_ttft_s == 0.008
    assert dispatch.queue_time_s == 0.5


def test_nothing_is_decided_before_the_workers_are_met() -> None:
    """What waits till then goes to any of them, in order; who may have none of them is told so then, not before."""
    machine = dispatcher(holds_back=True)
    machine.submit(request(1, model="absent"), now=0.0)
    machine.submit(request(2, excluded=("a",), timeout=1.0), now=0.0)
    machine.worker_up(info("a", max_running=2))
    machine.submit(request(3, excluded=("a",)), now=0.0)
    machine.submit(request(4, excluded=("a", "b")), now=0.0)
    machine.submit(request(5, choices=3), now=0.0)
    machine.submit(request(6), now=0.0)
    machine.submit(request(7, priority=9), now=0.0)
    assert machine.tick(now=0.0) == []
    (expired,) = machine.tick(now=1.0)
    assert (expired.request.ticket.number, isinstance(expired, Reject)) == (2, True)
    machine.worker_up(info("b", max_running=2))
    assert machine.tick(now=1.0) == []
    machine.begin(now=1.0)
    actions = machine.tick(now=1.0)
    rejects = {one.request.ticket.number: one.error.reason for one in actions if isinstance(one, Reject)}
    assert rejects == {4: Reason.OVERLOADED, 5: Reason.UNSUPPORTED_VALUE}
    dispatched = {one.request.ticket.number: one.worker_id for one in actions if isinstance(one, Dispatch)}
    assert list(dispatched) == [7, 3, 6]
    assert dispatched[3] == "b"
    assert machine.num_waiting == 1
    machine.begin(now=2.0)
    assert machine.tick(now=2.0) == []


def test_a_speed_that_is_not_known_is_that_of_the_others() -> None:
    """Of the workers of the same model that have measured theirs, the mean; 4,000 tokens a second where none has."""
    machine = dispatcher()
    for name, models in {"a": ("m",), "b": ("m",), "c": ("m",), "d": ("other",)}.items():
        machine.worker_up(replace(info(name, models=models), prefill_tokens_per_s=None))

    def reckoned() -> dict[str, float]:
        return {worker.worker_id: worker.prefill_rate for worker in machine.workers()}

    def expected_s() -> float:
        """Until the first token of 8, at the third worker."""
        machine.submit(request(1, excluded=("a", "b")), now=0.0)
        dispatch = only_dispatch(machine.tick(now=0.0))
        machine.release(dispatch.lease_id, OK, now=0.0)
        return dispatch.predicted_ttft_s

    assert reckoned() == dict.fromkeys("abcd", 4000.0)
    assert expected_s() == 8 / 4000
    machine.worker_report("a", Report("1", prefill_tokens_per_s=1000.0), now=0.0)
    assert reckoned() == {"a": 1000.0, "b": 1000.0, "c": 1000.0, "d": 4000.0}
    machine.worker_report("b", Report("1", prefill_tokens_per_s=3000.0), now=0.0)
    assert reckoned() == {"a": 1000.0, "b": 3000.0, "c": 2000.0, "d": 4000.0}
    assert expected_s() == 8 / 2000
    machine.worker_up(replace(info("e", models=("m", "other")), prefill_tokens_per_s=None))
    assert reckoned() == {"a": 1000.0, "b": 3000.0, "c": 2000.0, "d": 4000.0, "e": 2000.0}
    machine.worker_up(replace(info("e", models=("other",)), prefill_tokens_per_s=None))
    assert reckoned()["e"] == 4000.0


def test_priority_decides_who_gets_the_next_slot() -> None:
    """Waiting requests leave by priority, equals in order of arrival, one for each slot that falls free."""
    machine = dispatcher()
    machine.worker_up(info())
    for number, priority in [(1, 0), (2, 9), (3, 4), (4, 9)]:
        machine.submit(request(number, priority=priority), now=0.0)
    order, lease_id = [], 0
    while dispatched := machine.tick(now=1.0):
        order += numbers(dispatched)
        lease_id = only_dispatch(dispatched).lease_id
        machine.release(lease_id, OK, now=1.0)
    assert order == [2, 4, 3, 1]


def test_a_batch_gets_a_small_allowance_on_top() -> None:
    """A worker is filled to its batch and an eighth (at least one) of it, never beyond what it lets wait."""
    cases = [
        ("no waiting room, no allowance", 4, 0, 4),
        ("at least one", 4, 10, 5),
        ("an eighth", 32, 100, 36),
        ("not above max_waiting", 32, 2, 34),
    ]
    for sentence, max_running, max_waiting, expected in cases:
        machine = dispatcher()
        machine.worker_up(info(max_running=max_running, max_waiting=max_waiting))
        for number in range(50):
            machine.submit(request(number), now=0.0)
        assert len(machine.tick(now=0.0)) == expected, sentence


def test_each_choice_takes_a_slot() -> None:
    """A request with n choices counts as n; it waits until n slots are free."""
    machine = dispatcher()
    machine.worker_up(info(max_running=4))
    machine.submit(request(1), now=0.0)
    machine.submit(request(2, choices=4), now=0.0)
    machine.submit(request(3), now=0.0)
    assert numbers(machine.tick(now=0.0)) == [1]
    machine.release(1, OK, now=1.0)
    assert numbers(machine.tick(now=1.0)) == [2]


def test_more_choices_than_any_worker_takes_is_an_error_at_once() -> None:
    """What no worker could take even when idle is refused with the bound and the observed value."""
    machine = dispatcher()
    machine.worker_up(info(max_running=4, max_waiting=2))
    machine.submit(request(1, choices=7), now=0.0)
    error = only_reject(machine.tick(now=0.0)).error
    assert error.reason is Reason.UNSUPPORTED_VALUE
    assert error.param == "n"
    assert "at most 6 choices at once, got 7" in error.message


def test_a_request_waits_for_kv_memory() -> None:
    """Slots alone are not room: prompts and half of the expected growth have to fit the KV cache."""
    machine = dispatcher()
    machine.worker_up(info(max_running=8, kv_total=25))
    for number in (1, 2, 3):
        machine.submit(request(number), now=0.0)
    assert numbers(machine.tick(now=0.0)) == [1, 2]
    machine.release(1, OK, now=1.0)
    assert numbers(machine.tick(now=1.0)) == [3]


def test_short_answers_make_room() -> None:
    """Where answers stay far below what gateways expect, more requests fit the KV cache."""
    machine = dispatcher()
    machine.worker_up(info(max_running=8, kv_total=80))

    def fitting(first: int) -> int:
        for number in range(first, first + 8):
            machine.submit(replace(request(number), expected_tokens=40), now=0.0)
        leases = [only_dispatch([action]).lease_id for action in machine.tick(now=0.0)]
        for number in range(first, first + 8):
            machine.cancel(Ticket(1, number))
        for lease_id in leases:
            machine.release(lease_id, OK, completion_tokens=1, now=1.0)
        return len(leases)

    before, *_, after = [fitting(10 * batch) for batch in range(1, 20)]
    assert (before, after) == (2, 8)


def test_an_idle_worker_takes_what_is_larger_than_its_kv_cache() -> None:
    """Waiting would not make such a request fit; the engine answers it."""
    machine = dispatcher()
    machine.worker_up(info(kv_total=4))
    machine.submit(request(1, tokens=100), now=0.0)
    assert numbers(machine.tick(now=0.0)) == [1]


def test_a_worker_that_is_draining_lost_or_withdrawn_gets_nothing() -> None:
    """Nothing new goes to such a worker, and it is served again when that ends."""
    draining, ready = Report("1", draining=True), Report("1")
    cases: list[tuple[str, Callable[[Dispatcher], None], Callable[[Dispatcher], None]]] = [
        (
            "draining by its own word",
            lambda m: m.worker_report("a", draining, now=0.0),
            lambda m: m.worker_report("a", ready, now=1.0),
        ),
        ("lost", lambda m: m.worker_lost("a"), lambda m: m.worker_up(info())),
        ("withdrawn", lambda m: m.withdraw("a", True), lambda m: m.withdraw("a", False)),
        ("drained", lambda m: m.drain("a", True), lambda m: m.drain("a", False)),
    ]
    for sentence, stop, resume in cases:
        machine = dispatcher()
        machine.worker_up(info())
        stop(machine)
        machine.submit(request(1), now=0.0)
        assert machine.tick(now=0.0) == [], sentence
        resume(machine)
        assert numbers(machine.tick(now=1.0)) == [1], sentence


def test_a_drained_worker_stays_so_whatever_becomes_of_it() -> None:
    """Reports, a new incarnation, an address that is back and an absence do not undo what an operator has done."""
    ways: list[tuple[str, Callable[[Dispatcher], object]]] = [
        ("a report", lambda m: m.worker_report("a", Report("1"), now=0.0)),
        ("lost and back", lambda m: (m.worker_lost("a"), m.worker_up(info()))),
        ("started anew", lambda m: m.worker_up(info(instance="2"))),
        ("its address is back", lambda m: (m.withdraw("a", True), m.withdraw("a", False))),
        ("gone and back", lambda m: (m.worker_down("a"), m.worker_up(info()))),
    ]
    for sentence, change in ways:
        machine = dispatcher()
        machine.worker_up(info())
        machine.drain("a", True)
        change(machine)
        machine.submit(request(1), now=0.0)
        assert machine.tick(now=0.0) == [], sentence
        assert machine.is_drained("a"), sentence
        machine.drain("a", False)
        assert numbers(machine.tick(now=1.0)) == [1], sentence


def test_what_is_withdrawn_is_not_taken_back_with_a_drain() -> None:
    """The two have nothing to do with each other."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.withdraw("a", True)
    machine.drain("a", True)
    machine.drain("a", False)
    machine.submit(request(1), now=0.0)
    assert machine.tick(now=0.0) == []


def test_an_excluded_worker_is_not_chosen_and_does_not_hold_others_back() -> None:
    """A request that must not go to the free worker waits; those behind it that may, go."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.worker_up(info("b"))
    machine.worker_lost("b")
    machine.submit(request(1, priority=9, excluded=("a",)), now=0.0)
    machine.submit(request(2), now=0.0)
    assert numbers(machine.tick(now=0.0)) == [2]
    machine.worker_up(info("b"))
    assert numbers(machine.tick(now=0.0)) == [1]


def test_a_request_that_excludes_every_worker_is_refused_at_once() -> None:
    """Nobody is left to wait for: the caller hears it now, and a worker that is only lost counts as one that failed."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.worker_up(info("b"))
    machine.worker_lost("b")
    machine.submit(request(1, excluded=("a", "b")), now=0.0)
    (reject,) = machine.tick(now=0.0)
    assert isinstance(reject, Reject)
    assert reject.error.reason is Reason.OVERLOADED
    assert reject.error.retry_after_s is not None


def test_expiry_says_overloaded_with_the_time_that_draining_takes() -> None:
    """At its deadline a request is refused; Retry-After is what waits at its priority and above over the drain rate."""
    machine = dispatcher()
    machine.worker_up(info())
    for number in range(80):
        machine.submit(request(number, timeout=200.0), now=0.0)
    lease_id = only_dispatch(machine.tick(now=0.0)).lease_id
    for second in range(1, 60):
        machine.release(lease_id, OK, now=float(second))
        lease_id = only_dispatch(machine.tick(now=float(second))).lease_id
    for number in range(100, 150):
        machine.submit(request(number, priority=2, at=60.0, timeout=100.0), now=60.0)
    machine.submit(request(200, at=60.0, timeout=1.0), now=60.0)
    assert machine.tick(now=60.9) == []
    assert machine.next_deadline() == 61.0
    error = only_reject(machine.tick(now=61.0)).error
    assert error.reason is Reason.OVERLOADED
    assert error.message == (
        "no worker had room after 1.0 s in the queue, with about 20 requests before it (24 s at the present rate)"
    )
    assert error.retry_after_s == pytest.approx(21.0, rel=0.2)


def test_without_a_worker_a_request_waits_and_then_the_model_is_not_ready() -> None:
    """A rollout gap gives no instant errors; when it outlasts the queue timeout the reason says so."""
    machine = dispatcher()
    machine.submit(request(1), now=0.0)
    machine.submit(request(2, timeout=3.0), now=0.0)
    assert machine.tick(now=1.0) == []
    assert only_reject(machine.tick(now=3.0)).error.reason is Reason.MODEL_NOT_READY
    machine.worker_up(info())
    assert numbers(machine.tick(now=4.0)) == [1]


def test_a_full_queue_refuses_or_sheds_with_the_limit_in_the_message() -> None:
    """The newcomer is refused unless it outranks somebody, who then leaves instead."""
    machine = dispatcher(QueueLimits(requests=2))
    for number in (1, 2):
        machine.submit(request(number, priority=3, owner=1), now=0.0)
    machine.submit(request(3, priority=3, owner=2), now=0.0)
    refused = only_reject(machine.tick(now=0.0))
    assert refused.request.ticket == Ticket(2, 3)
    assert refused.error.reason is Reason.OVERLOADED
    assert "the limit is 2" in refused.error.message
    machine.submit(request(4, priority=4, owner=2), now=0.0)
    shed = only_reject(machine.tick(now=0.0))
    assert shed.request.ticket == Ticket(1, 2)
    assert "higher priority" in shed.error.message
    assert machine.cancel(Ticket(1, 2)) is None


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    """Cancel removes the waiting request; doing it twice or too late is ignored."""
    machine = dispatcher()
    machine.submit(request(1), now=0.0)
    assert machine.cancel(Ticket(1, 1)) is not None
    assert machine.cancel(Ticket(1, 1)) is None
    machine.worker_up(info())
    assert machine.tick(now=0.0) == []
    assert (machine.num_waiting, machine.next_deadline()) == (0, None)


def test_cancelling_the_head_lets_those_behind_it_go() -> None:
    """A head that found no room held smaller requests back; without it they go at once."""
    machine = dispatcher()
    machine.worker_up(info(max_running=2))
    machine.submit(request(1), now=0.0)
    machine.tick(now=0.0)
    machine.submit(request(2, choices=2), now=0.0)
    machine.submit(request(3), now=0.0)
    assert machine.tick(now=0.0) == []
    machine.cancel(Ticket(1, 2))
    assert numbers(machine.tick(now=0.0)) == [3]


def test_a_ticket_that_waits_already_is_refused() -> None:
    """Tickets are never reused; the first holder keeps its place."""
    machine = dispatcher()
    machine.submit(request(1), now=0.0)
    machine.submit(request(1), now=0.0)
    assert only_reject(machine.tick(now=0.0)).error.param == "ticket"
    assert machine.num_waiting == 1


def test_a_gateway_that_leaves_takes_its_requests_and_leases_along() -> None:
    """When an owner is dropped, its waiting requests vanish and its slots fall free."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.submit(request(1, owner=1), now=0.0)
    lease_id = only_dispatch(machine.tick(now=0.0)).lease_id
    machine.submit(request(2, owner=1), now=0.0)
    machine.submit(request(3, owner=2), now=0.0)
    assert machine.tick(now=0.0) == []
    assert machine.drop_owner(1, now=1.0) == {"m": 1}
    assert numbers(machine.tick(now=1.0)) == [3]
    assert machine.release(lease_id, OK, now=2.0) is None


def test_a_restarted_worker_starts_with_empty_books_and_index() -> None:
    """Another instance_id is another incarnation: neither leases nor cached blocks of the old one count."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.submit(request(1, hashes=(1, 2)), now=0.0)
    lease_id = only_dispatch(machine.tick(now=0.0)).lease_id
    machine.worker_lost("a")
    machine.worker_up(info(instance="2"))
    machine.submit(request(2, hashes=(1, 2)), now=1.0)
    assert only_dispatch(machine.tick(now=1.0)).predicted_cached_tokens == 0
    assert machine.release(lease_id, ReleaseOutcome.FAILED, now=1.0) is None


def test_a_resumed_worker_keeps_its_books_and_index() -> None:
    """The same instance after a broken connection still holds what it held."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.submit(request(1, hashes=(1, 2)), now=0.0)
    lease_id = only_dispatch(machine.tick(now=0.0)).lease_id
    machine.worker_lost("a")
    machine.worker_up(info())
    machine.submit(request(2, hashes=(1, 2), tokens=12), now=1.0)
    assert machine.tick(now=1.0) == []
    assert machine.release(lease_id, OK, now=1.0) is not None
    assert only_dispatch(machine.tick(now=1.0)).predicted_cached_tokens == 8


def test_a_worker_gains_and_loses_models_while_it_works() -> None:
    """An adapter that is loaded gets requests; leases and what the index knows of the other models stay."""
    machine = dispatcher()
    machine.worker_up(info(max_running=8))
    machine.submit(request(1, hashes=(1, 2)), now=0.0)
    lease_id = only_dispatch(machine.tick(now=0.0)).lease_id
    machine.submit(request(2, model="m:fr"), now=0.0)
    assert machine.tick(now=0.0) == []
    machine.worker_up(info(max_running=8, models=("m", "m:fr")))
    assert numbers(machine.tick(now=1.0)) == [2]
    machine.worker_up(info(max_running=8))
    machine.submit(request(3, model="m:fr"), now=2.0)
    machine.submit(request(4, hashes=(1, 2), tokens=12), now=2.0)
    dispatch = only_dispatch(machine.tick(now=2.0))
    assert (dispatch.request.ticket.number, dispatch.predicted_cached_tokens) == (4, 8)
    assert machine.release(lease_id, OK, now=3.0) is not None


def test_a_removed_worker_is_forgotten_with_its_leases() -> None:
    """After worker_down a release of its leases is ignored and snapshots do not show it."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.submit(request(1), now=0.0)
    lease_id = only_dispatch(machine.tick(now=0.0)).lease_id
    machine.worker_down("a")
    assert machine.release(lease_id, OK, now=1.0) is None
    assert machine.first_token(lease_id, 0, now=0.0) is None
    assert list(machine.workers()) == []


def test_siblings_of_a_burst_see_each_others_prediction() -> None:
    """A prompt is predicted as cached where its sibling was sent, before that has run."""
    machine = dispatcher()
    for name in "ab":
        machine.worker_up(info(name, max_running=8))
    machine.submit(request(1, tokens=400, hashes=tuple(range(100))), now=0.0)
    first = only_dispatch(machine.tick(now=0.0))
    machine.first_token(first.lease_id, 0, now=0.0)
    machine.submit(request(2, tokens=404, hashes=tuple(range(101))), now=0.0)
    second = only_dispatch(machine.tick(now=0.0))
    assert (second.worker_id, second.predicted_cached_tokens) == (first.worker_id, 400)


def test_a_worker_whose_index_lies_is_trusted_less() -> None:
    """Of what is predicted at a worker whose engine finds nothing, less and less counts; the truth restores it."""
    machine = dispatcher()
    machine.worker_up(info(max_running=8))
    hashes = tuple(range(100))

    def predicted(number: int, found: int) -> int:
        machine.submit(request(number, tokens=401, hashes=hashes), now=0.0)
        dispatch = only_dispatch(machine.tick(now=0.0))
        machine.first_token(dispatch.lease_id, found, now=0.0)
        machine.release(dispatch.lease_id, OK, completion_tokens=4, now=0.0)
        return dispatch.predicted_cached_tokens

    assert predicted(0, 0) == 0
    assert [predicted(number, 0) for number in range(1, 5)] == [400, 360, 324, 291]
    for number in range(5, 80):
        predicted(number, 400)
    assert predicted(80, 400) >= 399


def test_a_worker_that_describes_itself_anew_may_have_other_blocks() -> None:
    """Predictions are in tokens of the blocks that it has now."""
    machine = dispatcher()
    before = info(max_running=8)
    for described, expected in ((before, 0), (before, 12), (replace(before, models={"m": 2}), 6)):
        machine.worker_up(described)
        machine.submit(request(expected, tokens=40, hashes=(1, 2, 3)), now=0.0)
        assert only_dispatch(machine.tick(now=0.0)).predicted_cached_tokens == expected


def test_kv_events_keep_the_index_true() -> None:
    """Stored, removed and cleared blocks of a report change what is predicted."""
    machine = dispatcher()
    machine.worker_up(info())
    predictions = []
    events: list[KvEvent] = [
        BlocksStored("m", [1, 2, 3]),
        BlocksRemoved("m", [3]),
        BlocksStored("unknown", [3]),
        CacheCleared("m"),
    ]
    for number, event in enumerate(events):
        machine.worker_report("a", Report("1", kv_events=[event], kv_event_seq=number + 1), now=0.0)
        predictions.append(int(machine._models["m"].index.match([1, 2, 3])[0]))
    assert predictions == [3, 2, 2, 0]


def test_a_gap_in_the_events_drops_the_workers_part_of_the_index() -> None:
    """After lost events the index holds only what later events tell."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.worker_report("a", Report("1", kv_events=[BlocksStored("m", [1, 2])], kv_event_seq=1), now=0.0)
    machine.worker_report("a", Report("1", kv_events=[BlocksStored("m", [9])], kv_event_seq=5), now=0.0)
    index = machine._models["m"].index
    assert [list(index.match(hashes)) for hashes in ([1, 2], [9])] == [[0], [1]]


def test_reports_of_another_incarnation_are_ignored() -> None:
    """A report that does not belong to the described instance changes nothing."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.worker_report("a", Report("2", draining=True), now=0.0)
    machine.worker_report("unknown", Report("1"), now=0.0)
    assert [worker.status for worker in machine.workers()] == [WorkerStatus.READY]


def test_a_lease_that_the_worker_does_not_know_frees_its_slot() -> None:
    """A lost release does not block a slot for ever: two reports without the lease end it."""
    machine = dispatcher()
    machine.worker_up(info())
    machine.submit(request(1), now=0.0)
    machine.tick(now=0.0)
    machine.submit(request(2, at=1.0, timeout=60.0), now=1.0)
    for now, expected in [(2.0, []), (8.0, []), (8.1, [2])]:
        machine.worker_report("a", Report("1"), now=now)
        assert numbers(machine.tick(now=now)) == expected


def test_models_that_share_a_worker_share_its_slots_by_priority() -> None:
    """A free slot goes to the most urgent head over all models of the worker."""
    machine = dispatcher()
    machine.worker_up(info(models=("m", "n")))
    machine.submit(request(1, model="m", priority=2), now=0.0)
    machine.submit(request(2, model="n", priority=7), now=0.0)
    assert numbers(machine.tick(now=0.0)) == [2]
    machine.release(1, OK, now=0.0)
    assert numbers(machine.tick(now=0.0)) == [1]


def test_names_that_nobody_serves_are_not_kept() -> None:
    """A model without workers and waiting requests leaves no state."""
    machine = dispatcher()
    for number in range(100):
        machine.submit(request(number, model=f"m{number}"), now=0.0)
    machine.tick(now=100.0)
    assert list(machine.queues()) == []


def test_ten_thousand_waiting_requests_do_not_slow_a_decision() -> None:
    """A decision with a full queue costs at most a few times one with a short queue."""

    def seconds_a_decision(waiting: int) -> float:
        machine = dispatcher(QueueLimits(requests=20_000))
        for name in "abcd":
            machine.worker_up(info(name))
        for number in range(waiting):
            machine.submit(request(number, priority=number % 10), now=0.0)
        leases = [action.lease_id for action in machine.tick(now=0.0) if isinstance(action, Dispatch)]
        best = float("inf")
        for _ in range(5):
            with measured() as cost:
                for _ in range(20):
                    machine.release(leases.pop(0), OK, now=1.0)
                    leases += [action.lease_id for action in machine.tick(now=1.0) if isinstance(action, Dispatch)]
            best = min(best, cost.seconds)
        return best / 20

    assert seconds_a_decision(10_000) < 5 * seconds_a_decision(150)
