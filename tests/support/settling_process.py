"""A process that settles: `python -m tests.support.settling_process URL SPOOL_DIR NAME COUNT`.

Books COUNT settlements NAME-0, NAME-1, ... as fast as they are taken, prints the number of each once it can no longer
be lost, and goes on until SIGTERM; then it closes, and prints "lost N".
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from gateway.quota.settling import Settling, SettlingMetrics
from gateway.quota.spool import Spool
from inferway.metrics import Registry
from tests.support.settlements import StreamBooks, settlement

_IN_FLIGHT = 500


async def main(url: str, folder: str, name: str, count: int) -> None:
    books = StreamBooks(url)
    settling = Settling(books, Spool(Path(folder), name, 64 << 20), SettlingMetrics(Registry("gateway")))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    task = asyncio.create_task(settling.run())
    free = asyncio.Semaphore(_IN_FLIGHT)

    def booked(number: int) -> None:
        print(number, flush=True)
        free.release()

    async def book() -> None:
        for number in range(count):
            await free.acquire()
            settling.book("acme", settlement(f"{name}-{number}"), lambda number=number: booked(number))  # type: ignore[misc]

    booking = asyncio.create_task(book())
    await stop.wait()
    booking.cancel()
    print("lost", await settling.close(5.0), flush=True)
    await task
    await books.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))  # type: ignore[call-arg]
