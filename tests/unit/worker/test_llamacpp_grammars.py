"""The cache of compiled grammars: each source once, failures too, the least recently used one goes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from inferway.errors import ApiError, Reason
from inferway.metrics import Registry
from tests.support.waiting import wait_until
from worker.core.orphans import Orphans
from worker.engine import Constraint, Load
from worker.engines.llamacpp.grammars import Grammars, start_thread
from worker.metrics import WorkerMetrics

LIMIT_S = 20.0


class Compiling:
    """A compiler that notes what it is given; `gate` holds it back."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, constraint: Constraint) -> str:
        self.given.append(constraint.text)
        assert self.gate.wait(LIMIT_S)
        if constraint.text == "wrong":
            raise ApiError(Reason.INVALID_SCHEMA, "It is wrong.")
        return f"{constraint.kind} {constraint.text}"


@pytest.fixture
def compiling() -> Compiling:
    return Compiling()


@pytest.fixture
def grammars(compiling: Compiling) -> Iterator[Grammars[str]]:
    made = Grammars(compiling, capacity=2)
    yield made
    compiling.gate.set()
    made.close()


def ask(grammars: Grammars[str], text: str, kind: str = "regex") -> str:
    return grammars.ask(Constraint(kind, text)).result(LIMIT_S)  # type: ignore[arg-type]


def test_a_source_is_compiled_once(grammars: Grammars[str], compiling: Compiling) -> None:
    """The same text of another kind is another source."""
    assert [ask(grammars, "a"), ask(grammars, "a"), ask(grammars, "a", "ebnf")] == ["regex a", "regex a", "ebnf a"]
    assert compiling.given == ["a", "a"]
    assert (grammars.hits, grammars.misses) == (1, 2)


def test_who_asks_meanwhile_gets_the_same(grammars: Grammars[str], compiling: Compiling) -> None:
    compiling.gate.clear()
    first, second = (grammars.ask(Constraint("regex", "a")) for _ in range(2))
    assert not first.done()
    compiling.gate.set()
    assert first.result(LIMIT_S) == second.result(LIMIT_S) == "regex a"
    assert compiling.given == ["a"]


def test_the_least_recently_used_one_goes(grammars: Grammars[str], compiling: Compiling) -> None:
    for text in ("a", "b", "a", "c", "a", "b"):
        ask(grammars, text)
    assert compiling.given == ["a", "b", "c", "b"]
    assert (grammars.hits, grammars.misses) == (2, 4)


def test_a_failure_is_kept(grammars: Grammars[str], compiling: Compiling) -> None:
    """It is told again without compiling again, and the next source is compiled."""
    for _ in range(2):
        with pytest.raises(ApiError) as caught:
            ask(grammars, "wrong")
        assert caught.value.reason is Reason.INVALID_SCHEMA
    assert ask(grammars, "b") == "regex b"
    assert compiling.given == ["wrong", "b"]


def test_close_leaves_the_rest(compiling: Compiling) -> None:
    """What was begun is finished, what waits is never done, and the thread is gone."""
    grammars = Grammars(compiling)
    compiling.gate.clear()
    begun, waiting = (grammars.ask(Constraint("regex", text)) for text in "ab")
    wait_until(lambda: compiling.given == ["a"], LIMIT_S, "the first one begun")
    closer = threading.Thread(target=grammars.close)
    closer.start()
    wait_until(lambda: grammars._is_closing, LIMIT_S, "closing")
    compiling.gate.set()
    closer.join(LIMIT_S)
    assert begun.result(LIMIT_S) == "regex a"
    assert not waiting.done()
    assert not grammars._thread.is_alive()


def test_stacks_of_other_threads_stay_as_they_are() -> None:
    before = threading.stack_size()
    start_thread(lambda: None, "deep", 64 << 20).join(LIMIT_S)
    assert threading.stack_size() == before


def test_the_counters_of_a_worker() -> None:
    """They are the engine's totals, however often they are read."""
    registry = Registry("worker")
    metrics = WorkerMetrics(registry)
    for hits, misses in ((1, 2), (1, 2), (5, 3)):
        metrics.flush(Load(0, 0, grammar_hits=hits, grammar_misses=misses), Orphans())
    text = registry.render().decode()
    assert 'inferway_worker_grammar_cache_total{outcome="hit"} 5.0' in text
    assert 'inferway_worker_grammar_cache_total{outcome="miss"} 3.0' in text
