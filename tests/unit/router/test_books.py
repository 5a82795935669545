"""A worker's books: what raises and lowers them, and how reports correct them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.books import Books, Lease
from router.core.messages import Report, Ticket


def lease(lease_id: int, *, uncached: int = 10, choices: int = 1, at: float = 0.0) -> Lease:
    return Lease(
        lease_id=lease_id,
        worker_id="w",
        ticket=Ticket(1, lease_id),
        model="m",
        num_choices=choices,
        uncached_tokens=uncached,
        predicted_cached_tokens=0,
        expected_tokens=5 * choices,
        dispatched_at=at,
    )


def report(*lease_ids: int, running: int | None = None, uncached: int = 0) -> Report:
    held = len(lease_ids) if running is None else running
    return Report("i", num_requests_running=held, uncached_tokens_in_flight=uncached, lease_ids=lease_ids)


def numbers(books: Books) -> tuple[int, int, int]:
    return books.requests_in_flight, books.uncached_tokens, books.expected_completion_tokens


@given(st.lists(st.tuples(st.sampled_from(["open", "first", "close"]), st.integers(1, 6)), max_size=40))
def test_each_lease_leaves_exactly_once(steps: list[tuple[str, int]]) -> None:
    """Whatever is said twice or too late, the books equal the sums over the leases that are open."""
    books, opened = Books(), dict[int, bool]()
    for what, lease_id in steps:
        if what == "open" and lease_id not in opened:
            books.open(lease(lease_id, uncached=lease_id, choices=1 + lease_id % 3))
            opened[lease_id] = False
        elif what == "first":
            assert (books.first_token(lease_id) is not None) == (opened.get(lease_id) is False)
            if lease_id in opened:
                opened[lease_id] = True
        elif what == "close":
            assert (books.close(lease_id, now=0.0) is not None) == (lease_id in opened)
            opened.pop(lease_id, None)
        choices = sum(1 + open_id % 3 for open_id in opened)
        uncached = sum(open_id for open_id, has_first in opened.items() if not has_first)
        assert numbers(books) == (choices, uncached, 5 * choices)


def test_a_lease_that_two_reports_do_not_know_is_released() -> None:
    """Well after dispatch, two reports in a row without the lease end it."""
    books = Books()
    books.open(lease(1))
    assert books.reconcile(report(), now=10.0) == []
    assert [ended.lease_id for ended in books.reconcile(report(), now=10.1)] == [1]
    assert numbers(books) == (0, 0, 0)
    assert books.close(1, now=11.0) is None


def test_a_fresh_lease_is_not_missed() -> None:
    """Reports that left before the request arrived do not end its lease."""
    books = Books()
    books.open(lease(1, at=10.0))
    for _ in range(5):
        assert books.reconcile(report(), now=10.5) == []
    assert books.requests_in_flight == 1


def test_a_lease_that_is_seen_again_starts_anew() -> None:
    """The two reports without the lease must follow each other."""
    books = Books()
    books.open(lease(1))
    for now, known in [(10.0, ()), (10.1, (1,)), (10.2, ())]:
        assert books.reconcile(report(*known), now=now) == []


def test_requests_of_others_count_as_load() -> None:
    """What the worker holds beyond our leases (another router, a fallback) takes room too."""
    books = Books()
    books.open(lease(1, choices=2))
    books.reconcile(report(1, 99, running=5), now=1.0)
    assert books.load == 5
    books.reconcile(report(running=0), now=1.0)
    assert books.load == 2


def test_a_late_report_does_not_bring_a_released_lease_back() -> None:
    """A report that crossed a release counts the lease for a moment at most: not at all."""
    books = Books()
    books.open(lease(1))
    books.close(1, now=1.0)
    books.reconcile(report(1), now=1.01)
    assert books.load == 0
    books.reconcile(report(1), now=9.0)
    assert books.load == 1


def test_leases_of_a_vanished_gateway_count_while_the_worker_shows_them() -> None:
    """The gateway's stream is gone but its requests may run on: they are load, though no longer ours."""
    books = Books()
    books.open(lease(1))
    books.close(1, now=1.0, finished=False)
    assert books.load == 0
    books.reconcile(report(1), now=1.01)
    assert books.load == 1


def test_prefill_progress_comes_from_reports() -> None:
    """Tokens left to prefill are the report's, plus those of leases that it does not know yet."""
    books = Books()
    books.open(lease(1, uncached=100))
    assert books.pending_tokens == 100
    books.reconcile(report(1, uncached=40), now=1.0)
    books.open(lease(2, uncached=7))
    assert books.pending_tokens == 47
    books.first_token(1)
    books.reconcile(report(1, 2, uncached=7), now=1.1)
    assert books.pending_tokens == 7


def test_an_engine_that_counts_no_uncached_tokens_leaves_the_books_in_charge() -> None:
    """Zero in every report is no statement."""
    books = Books()
    books.open(lease(1, uncached=100))
    books.reconcile(report(1), now=1.0)
    assert books.pending_tokens == 100
