"""What a worker says that it is busy with."""

from __future__ import annotations

from worker.occupancy import Occupancy


def test_idle_and_leases() -> None:
    """A lease is held until the last choice of it has ended; without any the worker is idle; lease 0 is none."""
    occupancy = Occupancy()
    assert occupancy.idle.is_set()
    for lease_id in (7, 7, 0, 8):
        occupancy.begin(lease_id)
    assert occupancy.lease_ids() == [7, 8]
    told = []
    for lease_id in (7, 8, 7, 0):
        assert not occupancy.idle.is_set()
        occupancy.end(lease_id)
        told.append(occupancy.lease_ids())
    assert told == [[7, 8], [7], [], []]
    assert occupancy.idle.is_set()
