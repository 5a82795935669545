"""A process that settles: `python -m tests.support.settling_process URL SPOOL_DIR NAME COUNT`.

Books COUNT settlements NAME-0, NAME-1, ... as fast as they are taken, prints the number of each once it can no longer
be lost, and goes on until SIGTERM; then it closes, and prints "lost N".
"""

from __future__ import annotations

import asyncio
import signal
import sys
from functools import partial
from pathlib import Path

from gateway.quota.settling import Settling, SettlingMetrics
from gateway.quota.spool import Spool
from inferway.metrics import Registry
from tests.support.settlements import redis_books, settlement

_IN_FLIGHT = 500


async def main(url: str, folder: str, name: str, count: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    free = asyncio.Semaphore(_IN_FLIGHT)

    def booked(number: int) -> None:
        print(number, flush=True)
        free.release()

    async with redis_books(url, name) as books:
        settling = Settling(books, Spool(Path(folder), name, 64 << 20), SettlingMetrics(Registry("gateway")))

        async def book() -> None:
            for number in range(count):
                await free.acquire()
                settling.book("acme", settlement(f"{name}-{number}"), partial(booked, number))

        task, booking = asyncio.create_task(settling.run()), asyncio.create_task(book())
        await stop.wait()
        booking.cancel()
        print("lost", await settling.close(5.0), flush=True)
        await task


if __name__ == "__main__":
    url, folder, name, count = sys.argv[1:]
    asyncio.run(main(url, folder, name, int(count)))
