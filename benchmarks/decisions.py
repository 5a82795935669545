"""What a decision of the router costs: CPU time from a request to its lease, in the router's own core.

    python -m benchmarks.decisions [--decisions 400]

Fleets of 32 and of 1,000 workers whose index holds 1,000,000 blocks of 64 tokens, the default policy with every
plug-in, and what is told of the decision. Prompts have 32,768 tokens, 512 blocks: turns of conversations whose
beginning some worker has (8 new blocks), and prompts of which only the first 32 blocks are known. Between two
decisions a first token and a release come in, not timed. Each is a decision of a request that has just come to an
empty queue; then the same with 10 and with 10,000 others waiting for their turn in one slot.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from array import array
from collections.abc import Sequence

from benchmarks.report import write_report
from router.core.dispatcher import Dispatcher
from router.core.messages import Dispatch, ReleaseOutcome, Report, Request, Ticket, WorkerInfo
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits

MODEL = "m"
BLOCK = 64
BLOCKS = 512
KNOWN = 1_000_000
NEW_IN_A_TURN = 8
SHARED = 32


class Fleet:
    def __init__(self, workers: int, rng: random.Random) -> None:
        self.rng = rng
        self.now = 100.0
        self.number = 0
        self.dispatcher = Dispatcher(
            routing=routing_of("default"), rng=rng, first_lease_id=1, limits=QueueLimits(100_000, 1 << 50)
        )
        capacity = KNOWN // workers * BLOCK
        for number in range(workers):
            info = WorkerInfo(f"w{number}", "1", f"w{number}:1", {MODEL: BLOCK}, 64, 64, capacity, 20_000.0)
            self.dispatcher.worker_up(info)
        self.shared = self.blocks(SHARED)
        self.chains: list[Sequence[int]] = []
        self._fill(workers)

    def blocks(self, count: int) -> list[int]:
        return [self.rng.getrandbits(64) for _ in range(count)]

    def _fill(self, workers: int) -> None:
        """Until every worker's part of the index is full."""
        index = self.dispatcher._models[MODEL].index
        for number in range(workers):
            name, before = f"w{number}", -1
            while index.blocks(name) > before:
                before = index.blocks(name)
                chain = [*self.shared, *self.blocks(BLOCKS - SHARED - NEW_IN_A_TURN)]
                index.insert(name, chain)
                self.chains.append(chain)
        del self.chains[:-1_000]

    def request(self, hashes: Sequence[int], priority: int = 5) -> Request:
        self.number += 1
        tokens = len(hashes) * BLOCK
        return Request(
            Ticket(1, self.number), "r", MODEL, f"t{self.number % 16}", priority, tokens, 256, array("Q", hashes),
            self.now, self.now + 1e9,
        )  # fmt: skip

    def turn(self) -> list[int]:
        return [*self.rng.choice(self.chains), *self.blocks(NEW_IN_A_TURN)]

    def stranger(self) -> list[int]:
        return [*self.shared, *self.blocks(BLOCKS - SHARED)]

    def timed(self, request: Request) -> tuple[float, Dispatch]:
        """Microseconds of CPU, and what was decided."""
        before = time.thread_time_ns()
        self.dispatcher.submit(request, now=self.now)
        actions = self.dispatcher.tick(now=self.now)
        spent = (time.thread_time_ns() - before) / 1000
        (action,) = actions
        assert isinstance(action, Dispatch)
        return spent, action

    def end(self, lease_id: int) -> None:
        self.now += 0.01
        self.dispatcher.first_token(lease_id, 0, now=self.now)
        self.dispatcher.release(lease_id, ReleaseOutcome.OK, completion_tokens=100, now=self.now)


def placed(fleet: Fleet, kind: str, decisions: int) -> list[float]:
    costs, running = [], []
    for _ in range(decisions):
        spent, action = fleet.timed(fleet.request(fleet.turn() if kind == "a turn" else fleet.stranger()))
        costs.append(spent)
        running.append(action.lease_id)
        if len(running) > 40:
            fleet.end(running.pop(0))
    for lease_id in running:
        fleet.end(lease_id)
    return costs


def queued(waiting: int, decisions: int) -> list[float]:
    """CPU time of a decision when one slot falls free for so many that wait."""
    rng = random.Random(2)
    dispatcher = Dispatcher(
        routing=routing_of("default"), rng=rng, first_lease_id=1, limits=QueueLimits(100_000, 1 << 50)
    )
    dispatcher.worker_up(WorkerInfo("w", "1", "w:1", {MODEL: BLOCK}, 1, 0, None, 20_000.0))
    now, number, costs, lease = 100.0, 0, [], 0
    while len(costs) < decisions:
        while dispatcher.num_waiting < waiting:
            number += 1
            request = Request(
                Ticket(1, number), "r", MODEL, f"t{number % 16}", number % 10, 4_096, 64,
                array("Q", [rng.getrandbits(64) for _ in range(64)]), now, now + 1e9,
            )  # fmt: skip
            dispatcher.submit(request, now=now)
            for action in dispatcher.tick(now=now):
                assert isinstance(action, Dispatch)
                lease = action.lease_id
        now += 0.01
        dispatcher.worker_report("w", Report("1", lease_ids=[lease]), now=now)
        before = time.thread_time_ns()
        dispatcher.release(lease, ReleaseOutcome.OK, completion_tokens=10, now=now)
        (action,) = dispatcher.tick(now=now)
        costs.append((time.thread_time_ns() - before) / 1000)
        assert isinstance(action, Dispatch)
        lease = action.lease_id
    return costs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--decisions", type=int, default=400)
    options = parser.parse_args()
    rows = []
    for workers in (32, 1_000):
        fleet = Fleet(workers, random.Random(1))
        for kind in ("a turn", "a stranger"):
            costs = placed(fleet, kind, options.decisions)
            rows.append({"workers": workers, "prompt": kind, "waiting": 0, **_figures(costs)})
    few, many = queued(10, options.decisions), queued(10_000, options.decisions)
    rows.append({"workers": 1, "prompt": "64 blocks", "waiting": 10, **_figures(few)})
    rows.append({"workers": 1, "prompt": "64 blocks", "waiting": 10_000, **_figures(many)})
    write_report("decisions", rows)
    print(f"  10,000 waiting over 10: {statistics.median(many) / statistics.median(few):.2f} (limit 2)")


def _figures(costs: list[float]) -> dict[str, float]:
    ordered = sorted(costs)
    return {"median_us": round(statistics.median(costs)), "p90_us": round(ordered[len(ordered) * 9 // 10])}


if __name__ == "__main__":
    main()
