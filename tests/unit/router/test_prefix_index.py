"""The prefix index against a brute-force model, its bounds, and what goes first when they are reached."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from router.core.chains import Chains
from router.core.index import PrefixIndex


class Index(PrefixIndex):
    """One that answers by worker id, and leaves out who holds nothing."""

    def __init__(self, **capacities: int) -> None:
        super().__init__()
        for name, blocks in capacities.items():
            self.add_worker(name, capacity_blocks=blocks)
        self.numbers = {name: self.number(name) for name in capacities}

    def depths(self, hashes: Sequence[int]) -> dict[str, int]:
        found = self.match(hashes)
        return {name: int(found[number]) for name, number in self.numbers.items() if found[number]}


# A chain is named by its path: paths that share a start share hashes, as chained hashes do.
paths = st.lists(st.integers(0, 2), max_size=6)


def chain(path: list[int]) -> list[int]:
    hashes, value = [], 1
    for step in path:
        value = value * 3 + step
        hashes.append(value)
    return hashes


def held_from_the_start(held: set[int], hashes: list[int]) -> int:
    return next((depth for depth, block in enumerate(hashes) if block not in held), len(hashes))


steps = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "insert", "remove", "clear"]), st.sampled_from("abc"), paths),
    max_size=40,
)


@given(steps, paths)
def test_without_a_bound_the_index_answers_as_sets_of_blocks_do(
    history: list[tuple[str, str, list[int]]], asked: list[int]
) -> None:
    """Caches give up the ends of chains first, so what is removed is removed with all that follows it."""
    index = Index(a=10_000, b=10_000, c=10_000)
    brute: dict[str, set[int]] = {name: set() for name in "abc"}
    for what, worker, path in history:
        hashes = chain(path)
        held = brute[worker]
        if what == "insert":
            index.insert(worker, hashes)
            held |= set(hashes)
        elif what == "remove":
            # The last block of the path and its descendants.
            gone = [block for block in held if hashes and _descends(block, hashes[-1])]
            index.remove(worker, gone)
            held -= set(gone)
        else:
            index.clear(worker)
            held.clear()
        for path_asked in (chain(asked), hashes):
            expected = {name: held_from_the_start(held, path_asked) for name, held in brute.items()}
            assert index.depths(path_asked) == {name: depth for name, depth in expected.items() if depth}
        assert {name: index.blocks(name) for name in brute} == {name: len(held) for name, held in brute.items()}
    assert len(index) == len(set().union(*brute.values()))


told = st.tuples(paths, st.lists(paths, min_size=1, max_size=4), st.booleans())


@given(st.lists(told, max_size=12), st.integers(0, 8))
def test_what_a_worker_stores_may_be_of_several_chains(
    history: list[tuple[list[int], list[list[int]], bool]], small: int
) -> None:
    """Beside what was predicted of it all of that is held, told in full or where it is new; and bounds hold."""
    index = Index(a=10_000, b=small)
    held: set[int] = set()
    for predicted, stored, is_in_full in history:
        index.insert("a", chain(predicted))
        index.insert("b", chain(predicted))
        known = set() if is_in_full else set(held)
        held |= set(chain(predicted))
        blocks = [block for path in stored for block in chain(path) if block not in known]
        index.store("a", blocks)
        index.store("b", blocks)
        held |= set(blocks)
        assert index.blocks("a") == len(held)
        assert index.blocks("b") <= small
        for path in stored:
            assert index.depths(chain(path)).get("a", 0) == len(path)
    assert len(index) == len(held)


def _descends(block: int, ancestor: int) -> bool:
    while block > ancestor:
        block = (block - block % 3) // 3
    return block == ancestor


@given(st.lists(st.tuples(st.sampled_from("ab"), paths), max_size=60), st.integers(0, 8), st.integers(0, 30))
def test_bounds_hold_and_ends_go_first(history: list[tuple[str, list[int]]], small: int, large: int) -> None:
    """Whatever was inserted: no worker passes its bound, the last chain is there, and no block without its parent."""
    index = Index(a=small, b=large)
    capacities = {"a": small, "b": large}
    seen: set[tuple[int, ...]] = set()
    for worker, path in history:
        hashes = chain(path)
        seen |= {tuple(hashes[:depth]) for depth in range(1, len(hashes) + 1)}
        index.insert(worker, hashes)
        assert index.depths(hashes).get(worker, 0) == min(len(hashes), capacities[worker])
        for name, capacity in capacities.items():
            # Every block that is counted can be reached from the start of its chain.
            reachable = sum(index.depths(prefix).get(name, 0) == len(prefix) for prefix in seen)
            assert reachable == index.blocks(name) <= capacity


@given(st.lists(st.tuples(st.integers(0, 2), paths), max_size=60), st.integers(0, 8), st.integers(0, 12))
def test_what_was_used_longest_ago_goes_first(history: list[tuple[int, list[int]]], small: int, large: int) -> None:
    """Where short nodes stay by themselves each worker holds what it would hold alone: of its blocks the last used,
    and of one chain the first.
    """
    capacities = [small, large, 40]
    chains = Chains(short=0)
    for number, capacity in enumerate(capacities):
        chains.add(number, capacity)
    used: list[dict[int, tuple[int, int]]] = [{}, {}, {}]
    seen: set[tuple[int, ...]] = set()
    for now, (worker, path) in enumerate(history):
        hashes = chain(path)
        seen |= {tuple(hashes[:depth]) for depth in range(1, len(hashes) + 1)}
        chains.insert(worker, hashes)
        blocks = used[worker]
        blocks |= {block: (now, -depth) for depth, block in enumerate(hashes)}
        for block in sorted(blocks, key=blocks.__getitem__)[: max(0, len(blocks) - capacities[worker])]:
            del blocks[block]
        assert [chains.blocks(number) for number in range(3)] == [len(held) for held in used]
    for prefix in seen:
        whole = sum(bits for bits, depth in chains.match(prefix) if depth == len(prefix))
        assert whole == sum((prefix[-1] in held) << number for number, held in enumerate(used))


def test_the_least_recently_used_end_goes_first() -> None:
    """A chain that is used again outlives one that was used later once; what both share goes with neither."""
    index = Index(a=7)
    index.insert("a", [1, 2, 3])
    index.insert("a", [1, 20, 30])
    index.insert("a", [1, 2, 3])
    index.insert("a", [100, 101, 102])
    assert [index.depths(hashes).get("a") for hashes in ([1, 2, 3], [1, 20, 30], [100, 101, 102])] == [3, 2, 3]
    index.insert("a", [100, 101, 102, 103])
    assert [index.depths(hashes).get("a") for hashes in ([1, 2, 3], [1, 20, 30], [100, 101, 102, 103])] == [3, 1, 4]


def test_a_conversation_that_grows_keeps_its_beginning() -> None:
    """Each turn uses the whole of it again."""
    index = Index(a=8)
    index.insert("a", [1, 2])
    index.insert("a", [50, 51, 52])
    index.insert("a", [1, 2, 3, 4])
    index.insert("a", [1, 2, 3, 4, 5, 6])
    assert index.depths([1, 2, 3, 4, 5, 6]) == {"a": 6}
    assert index.depths([50, 51, 52]) == {"a": 2}


def test_the_end_of_a_chain_is_evicted_before_its_start() -> None:
    """A bounded worker keeps the start of a prompt, which is what later prompts can share."""
    index = Index(a=4)
    index.insert("a", [1, 2, 3])
    index.insert("a", [1, 20, 30])
    assert index.depths([1, 20, 30]) == {"a": 3}
    assert index.depths([1, 2, 3]) == {"a": 2}


def test_a_chain_above_the_bound_keeps_its_start() -> None:
    """Of a prompt larger than the cache the first blocks stay."""
    index = Index(a=2)
    index.insert("a", [1, 2, 3, 4])
    assert index.depths([1, 2, 3, 4]) == {"a": 2}


def test_a_forgotten_worker_is_matched_no_more_and_its_number_is_used_again() -> None:
    """Forgetting drops exactly one worker's blocks, and a later worker starts empty."""
    index = Index(a=10, b=10)
    for worker in "ab":
        index.insert(worker, [1, 2])
    index.forget("a")
    index.forget("never known")
    index.add_worker("c", capacity_blocks=10)
    assert index.number("c") == 0
    assert list(index.match([1, 2])) == [0, 2]
    index.forget("b")
    assert len(index) == 0
    assert list(index.match([1, 2])) == [0]


def test_a_smaller_bound_evicts_at_once() -> None:
    """When a worker turns out to be smaller, its part of the index shrinks."""
    index = Index(a=10)
    index.insert("a", [1, 2, 3])
    index.add_worker("a", capacity_blocks=1)
    assert index.depths([1, 2, 3]) == {"a": 1}


def test_many_holders_of_different_depths() -> None:
    """Each of 70 workers holds one block more than the one before it."""
    index = Index(**{f"w{number}": 100 for number in range(70)})
    hashes = list(range(1, 101))
    for number in range(70):
        index.insert(f"w{number}", hashes[: number + 1])
    assert list(index.match(hashes)) == list(range(1, 71))
    assert list(index.match(hashes[:10])) == [*range(1, 11), *[10] * 60]


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 6), max_size=5, unique=True)), max_size=30))
def test_blocks_in_any_order_do_no_harm(history: list[tuple[int, list[int]]]) -> None:
    """A worker that tells nonsense of its cache is answered with nonsense, in time and within its bound."""
    index = Index(a=4)
    for what, hashes in history:
        (index.insert, index.store, index.remove)[what]("a", hashes)
        assert index.blocks("a") == len(index) <= 4
        assert index.depths(hashes).get("a", 0) <= len(hashes)
    index.clear("a")
    assert len(index) == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 6), max_size=5)), max_size=30))
def test_prompts_that_are_no_chains_do_no_harm(history: list[tuple[str, list[int]]]) -> None:
    """Hashes that contradict those before them are answered with nonsense, and nothing of them stays."""
    index = Index(a=4, b=6)
    for worker, hashes in history:
        index.insert(worker, hashes)
        assert all(depth <= len(hashes) for depth in index.depths(hashes).values())
        assert index.blocks("a") <= 4
        assert index.blocks("b") <= 6
        assert max(index.blocks("a"), index.blocks("b")) <= len(index) <= 10
    index.clear("a")
    assert len(index) == index.blocks("b")
    index.clear("b")
    assert len(index) == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), paths), max_size=20), st.integers(0, 12), paths)
def test_what_was_predicted_stays_when_a_worker_begins_to_tell(
    history: list[tuple[str, list[int]]], bound: int, more: list[int]
) -> None:
    """Its blocks, its number and its bound are what they were; and other workers' are."""
    index = Index(a=bound, b=20)
    for worker, path in history:
        index.insert(worker, chain(path))
    asked = [chain(path) for _, path in history]
    before, blocks, total = [index.depths(hashes) for hashes in asked], index.blocks("a"), len(index)
    index.store("a", [])
    assert [index.depths(hashes) for hashes in asked] == before
    assert (index.blocks("a"), len(index)) == (blocks, total)
    index.insert("a", chain(more))
    assert index.blocks("a") <= bound
    assert index.depths(chain(more)).get("a", 0) == min(len(more), bound)
