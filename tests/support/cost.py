"""What pieces of computation cost, to be compared with each other."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Cost:
    """CPU seconds of this process; known when the block is over."""

    seconds = 0.0


@contextmanager
def measured() -> Iterator[Cost]:
    """Without the garbage collector, which goes through all that other tests have left behind, now and then."""
    cost = Cost()
    gc.disable()
    started = time.process_time()
    try:
        yield cost
    finally:
        cost.seconds = time.process_time() - started
        gc.enable()
