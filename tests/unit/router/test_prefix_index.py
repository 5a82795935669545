"""The prefix index against a brute-force model, and its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.index import PrefixIndex


class BruteIndex:
    """For each worker a list of blocks, least recently used first."""

    def __init__(self, capacities: dict[str, int]) -> None:
        self.capacities = capacities
        self.held: dict[str, list[int]] = {worker: [] for worker in capacities}

    def insert(self, worker: str, hashes: list[int]) -> None:
        held = self.held[worker]
        for block in reversed(hashes[: self.capacities[worker]]):
            if block in held:
                held.remove(block)
            held.append(block)
        del held[: max(0, len(held) - self.capacities[worker])]

    def match(self, hashes: list[int]) -> dict[str, int]:
        matched = {}
        for worker, held in self.held.items():
            depth = 0
            while depth < len(hashes) and hashes[depth] in held:
                depth += 1
            if depth:
                matched[worker] = depth
        return matched


# A chain is named by its path: paths that share a start share hashes, as chained hashes do.
paths = st.lists(st.integers(0, 2), max_size=6)


def chain(path: list[int]) -> list[int]:
    hashes, value = [], 1
    for step in path:
        value = value * 3 + step
        hashes.append(value)
    return hashes


steps = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "insert", "remove", "clear"]), st.sampled_from("abc"), paths),
    max_size=40,
)


@given(steps, st.lists(st.integers(0, 12), min_size=3, max_size=3), paths)
def test_the_index_answers_as_a_list_of_blocks_does(
    history: list[tuple[str, str, list[int]]], capacities: list[int], asked: list[int]
) -> None:
    """Matches equal those of a brute-force model after any history, and no worker passes its bound."""
    bounds = dict(zip("abc", capacities, strict=True))
    index, brute = PrefixIndex(), BruteIndex(bounds)
    for worker, capacity in bounds.items():
        index.add_worker(worker, capacity_blocks=capacity)
    for what, worker, path in history:
        hashes = chain(path)
        if what == "insert":
            index.insert(worker, hashes)
            brute.insert(worker, hashes)
        elif what == "remove":
            index.remove(worker, hashes)
            brute.held[worker] = [block for block in brute.held[worker] if block not in hashes]
        else:
            index.clear(worker)
            brute.held[worker] = []
        assert index.match(chain(asked)) == brute.match(chain(asked))
        assert index.match(hashes) == brute.match(hashes)
        for name, capacity in bounds.items():
            assert index.blocks(name) == len(brute.held[name]) <= capacity
    assert len(index) == len({block for held in brute.held.values() for block in held})


def test_the_end_of_a_chain_is_evicted_before_its_start() -> None:
    """A bounded worker keeps the start of a prompt, which is what later prompts can share."""
    index = PrefixIndex()
    index.add_worker("a", capacity_blocks=4)
    index.insert("a", [1, 2, 3])
    index.insert("a", [1, 20, 30])
    assert index.match([1, 20, 30]) == {"a": 3}
    assert index.match([1, 2, 3]) == {"a": 2}


def test_a_chain_above_the_bound_keeps_its_start() -> None:
    """Of a prompt larger than the cache the first blocks stay."""
    index = PrefixIndex()
    index.add_worker("a", capacity_blocks=2)
    index.insert("a", [1, 2, 3, 4])
    assert index.match([1, 2, 3, 4]) == {"a": 2}


def test_a_forgotten_worker_is_matched_no_more_and_its_place_is_used_again() -> None:
    """Forgetting drops exactly one worker's blocks, and a later worker starts empty."""
    index = PrefixIndex()
    for worker in "ab":
        index.add_worker(worker, capacity_blocks=10)
        index.insert(worker, [1, 2])
    index.forget("a")
    index.forget("never known")
    index.add_worker("c", capacity_blocks=10)
    assert index.match([1, 2]) == {"b": 2}
    index.forget("b")
    assert len(index) == 0


def test_a_smaller_bound_evicts_at_once() -> None:
    """When a worker turns out to be smaller, its part of the index shrinks."""
    index = PrefixIndex()
    index.add_worker("a", capacity_blocks=10)
    index.insert("a", [1, 2, 3])
    index.add_worker("a", capacity_blocks=1)
    assert index.match([1, 2, 3]) == {"a": 1}
