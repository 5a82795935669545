"""The table that decisions read: whatever comes, changes and goes, columns show each worker as it is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet import Columns, Fleet, Reading, neighbours


class Numbered:
    """A worker whose every reading is one number."""

    def __init__(self) -> None:
        self.row = -1
        self.number = 0.0

    def reading(self) -> Reading[float]:
        return Reading(*[self.number] * len(Reading._fields))


# Workers that come at once, workers that go, and numbers that are told of those that are there.
steps = st.lists(
    st.tuples(st.integers(0, 20), st.lists(st.integers(0, 40), max_size=3), st.lists(st.integers(0, 40), max_size=5)),
    max_size=6,
)


@given(steps)
def test_columns_show_workers_as_they_are(history: list[tuple[int, list[int], list[int]]]) -> None:
    """Also those that were made when the table was smaller, and rows that do not lie side by side."""
    fleet, there, number = Fleet(), list[Numbered](), 0.0
    for coming, going, told in history:
        old = list(there)
        before = Columns(fleet, [worker.row for worker in old])
        for _ in range(coming):
            there.append(Numbered())
            fleet.add(there[-1])
        for place in told:
            if place < len(there):
                number += 1.0
                there[place].number = number
                fleet.touch(there[place])
        before.read()
        assert before.now.load.tolist() == [worker.number for worker in old]
        for place in going:
            if place < len(there):
                fleet.remove(there.pop(place))
        now = Columns(fleet, [worker.row for worker in there])
        now.read()
        now.read()
        for column in now.now:
            assert column.tolist() == [worker.number for worker in there]
        assert now.table.shape == (len(Reading._fields), len(there))


@given(st.lists(st.integers(0, 8), unique=True))
def test_neighbours_are_the_places_themselves(numbers: list[int]) -> None:
    """Where each follows the one before, they are taken in place."""
    whole = np.arange(9)
    found = whole[neighbours(numbers)]
    assert found.tolist() == numbers
    assert np.shares_memory(found, whole) == (numbers != [] and numbers == list(range(numbers[0], numbers[-1] + 1)))
