"""The predicted-TTFT policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from router.core.books import Lease
from router.core.messages import Report, Request, Ticket, WorkerInfo
from router.core.policy import PredictedTtft
from router.core.worker import Worker


def worker(name: str, *, rate: float | None = 1000.0, max_running: int = 8) -> Worker:
    return Worker(WorkerInfo(name, f"{name}-1", "127.0.0.1:1", {"m": 10}, max_running, 8, prefill_tokens_per_s=rate))


def request(prompt_tokens: int = 100) -> Request:
    return Request(Ticket(1, 1), "r", "m", "t", 5, prompt_tokens, 1, (), 0.0, 10.0)


def load(target: Worker, *, uncached: int = 0, running: int = 1) -> None:
    for number in range(running):
        lease_id = 1_000 + number
        target.books.open(Lease(lease_id, target.worker_id, Ticket(1, lease_id), "m", 1, uncached, 0, 1, 0.0))


def test_the_least_predicted_time_wins() -> None:
    """Prompts in flight, this prompt's uncached tokens and the prefill rate decide together."""
    cases: list[tuple[str, Callable[[Worker, Worker], None], dict[str, int], str]] = [
        ("the one that has the prefix cached", lambda a, b: None, {"b": 5}, "b"),
        ("the idle one beside one with a prompt in flight", lambda a, b: load(a, uncached=50), {}, "b"),
        ("the warm one while its queue is shorter than the saving", lambda a, b: load(a, uncached=20), {"a": 9}, "a"),
        ("the cold one when the warm one is too far behind", lambda a, b: load(a, uncached=500), {"a": 9}, "b"),
        ("the one with fewer decoding requests", lambda a, b: load(a, running=4), {}, "b"),
    ]
    for sentence, prepare, matched, expected in cases:
        a, b = worker("a"), worker("b")
        prepare(a, b)
        assert PredictedTtft().pick(request(), [a, b], matched, Random(1)).worker.worker_id == expected, sentence


def test_a_faster_worker_is_preferred() -> None:
    """Twice the prefill rate halves the prediction."""
    slow, fast = worker("slow", rate=1000.0), worker("fast", rate=2000.0)
    pick = PredictedTtft().pick(request(), [slow, fast], {}, Random(1))
    assert (pick.worker.worker_id, pick.ttft_s) == ("fast", 0.05)


def test_a_measured_rate_replaces_the_described_one() -> None:
    """The report's rate counts before Describe's, and a default stands in for both."""
    measured = worker("w", rate=1000.0)
    measured.take_report(Report("w-1", prefill_tokens_per_s=500.0))
    assert measured.prefill_rate == 500.0
    assert worker("u", rate=None).prefill_rate > 0


def test_the_last_prompt_token_is_never_cached() -> None:
    """A prompt that is cached as a whole still costs one token."""
    assert PredictedTtft().pick(request(20), [worker("a")], {"a": 2}, Random(1)).cached_tokens == 19


def test_a_full_batch_adds_the_wait_for_a_slot() -> None:
    """Beyond the batch the mean time of a lease, shared by the slots, is added."""
    full = worker("full", max_running=2)
    full.note_finished(4.0, completion_tokens=1, expected_tokens=1)
    load(full, running=2)
    pick = PredictedTtft().pick(request(), [full], {}, Random(1))
    assert pick.ttft_s == 0.1 * 1.5 + 2.0


def test_ties_are_even() -> None:
    """Equal workers get equal shares whatever their order."""
    rng, workers = Random(7), [worker(name) for name in "abcd"]
    counts = Counter(PredictedTtft().pick(request(), workers, {}, rng).worker.worker_id for _ in range(4000))
    assert set(counts) == set("abcd")
    assert all(850 < count < 1150 for count in counts.values())
