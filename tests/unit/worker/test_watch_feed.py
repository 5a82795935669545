"""What a watcher learns about the cache: every change in order, or everything anew after a gap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferway.blocks import BlocksRemoved, BlocksStored, CacheCleared, KvEvent
from worker.core.watch import REPORT_BLOCKS, CacheContents, EventBatch, WatchFeed


class Reader:
    """A router's end: rebuilds the contents from events and notices gaps."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.expected = 1
        self.gaps = 0

    def read(self, batch: EventBatch) -> None:
        if not batch.events:
            return
        if batch.first != self.expected:
            self.gaps += 1
            assert isinstance(batch.events[0], CacheCleared), "after a gap everything begins anew"
        self.expected = batch.first + len(batch.events)
        for event in batch.events:
            match event:
                case BlocksStored():
                    self.blocks |= set(event.block_hashes)
                case BlocksRemoved():
                    self.blocks -= set(event.block_hashes)
                case CacheCleared():
                    self.blocks.clear()


def test_a_new_watcher_is_told_the_present_contents() -> None:
    """Cleared first, then what is there, parents before children."""
    contents = CacheContents()
    contents.apply([BlocksStored("m", [1, 2, 3]), BlocksRemoved("m", [3]), BlocksStored("m", [4])])
    assert WatchFeed(contents, ["m"]).take() == EventBatch(1, [CacheCleared("m"), BlocksStored("m", [1, 2, 4])])


def test_a_feed_without_models_tells_nothing() -> None:
    """An engine that publishes no events has no cleared either."""
    assert WatchFeed(CacheContents(), []).take() == EventBatch(0, ())


def test_large_contents_come_in_several_reports() -> None:
    """A report carries a bounded number of hashes, and numbers go on without a gap."""
    contents, reader = CacheContents(), Reader()
    contents.apply([BlocksStored("m", range(3 * REPORT_BLOCKS + 1))])
    feed, reports = WatchFeed(contents, ["m"], limit_blocks=10), 0
    while feed.has_more:
        batch = feed.take()
        assert sum(len(e.block_hashes) for e in batch.events if not isinstance(e, CacheCleared)) <= REPORT_BLOCKS
        reader.read(batch)
        reports += 1
    assert (reports, reader.gaps, len(reader.blocks)) == (5, 0, 3 * REPORT_BLOCKS + 1)


def test_a_watcher_that_falls_behind_sees_a_gap_and_starts_anew() -> None:
    """Dropped events leave a hole in the numbers; what follows rebuilds the truth."""
    contents, reader = CacheContents(), Reader()
    feed = WatchFeed(contents, ["m"], limit_blocks=4)
    reader.read(feed.take())
    for event in (BlocksStored("m", [1, 2, 3]), BlocksStored("m", [4, 5]), BlocksRemoved("m", [5])):
        contents.apply([event])
        feed.add([event])
    reader.read(feed.take())
    assert (reader.gaps, reader.blocks) == (1, {1, 2, 3, 4})


EVENTS = st.lists(
    st.one_of(
        st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True).map(lambda hashes: BlocksStored("m", hashes)),
        st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True).map(lambda hashes: BlocksRemoved("m", hashes)),
        st.just(CacheCleared("m")),
    ),
    max_size=20,
)


@given(EVENTS, st.lists(st.booleans(), min_size=20, max_size=20), st.integers(1, 12))
def test_a_reader_ends_with_the_engines_contents(events: list[KvEvent], reads: list[bool], limit: int) -> None:
    """However seldom it reads and however much is dropped, a reader that catches up knows what is cached."""
    contents, reader = CacheContents(), Reader()
    feed = WatchFeed(contents, ["m"], limit_blocks=limit)
    truth: set[int] = set()
    for event, read in zip(events, reads, strict=False):
        contents.apply([event])
        feed.add([event])
        match event:
            case BlocksStored():
                truth |= set(event.block_hashes)
            case BlocksRemoved():
                truth -= set(event.block_hashes)
            case CacheCleared():
                truth.clear()
        if read:
            reader.read(feed.take())
    while feed.has_more:
        reader.read(feed.take())
    assert reader.blocks == truth
