"""Compiled grammars by the hash of their source, and the thread that compiles them.

One thread compiles, one source after the other: what takes long delays other new grammars, and neither tokens nor
grammars that are there. A source that does not compile is kept like one that does.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from ...engine import Constraint

T = TypeVar("T")

CAPACITY = 64


class Grammars(Generic[T]):
    """`ask` belongs to one thread; `close` may be called by another."""

    def __init__(self, compile: Callable[[Constraint], T], *, capacity: int = CAPACITY, stack_bytes: int = 0) -> None:
        """`stack_bytes` 0: that of any thread."""
        self._compile = compile
        self._capacity = capacity
        self._kept: OrderedDict[bytes, Future[T]] = OrderedDict()
        self._orders: queue.SimpleQueue[tuple[Constraint, Future[T]] | None] = queue.SimpleQueue()
        self._is_closing = False
        # How often a source was there, and how often not; one that is being compiled counts as there.
        self.hits = 0
        self.misses = 0
        self._thread = start_thread(self._run, "llamacpp-grammars", stack_bytes)

    def ask(self, constraint: Constraint) -> Future[T]:
        """The grammar, now or later; what `compile` raised is its exception. The one longest not asked for goes."""
        digest = hashlib.sha256(f"{constraint.kind}\0{constraint.text}".encode("utf-8", "surrogatepass")).digest()
        kept = self._kept.get(digest)
        if kept is not None:
            self.hits += 1
            self._kept.move_to_end(digest)
            return kept
        self.misses += 1
        order: Future[T] = Future()
        self._kept[digest] = order
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
        self._orders.put((constraint, order))
        return order

    def close(self) -> None:
        """Returns when the thread has ended; what it has not begun is never done."""
        self._is_closing = True
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (taken := self._orders.get()) is not None and not self._is_closing:
            constraint, order = taken
            try:
                grammar = self._compile(constraint)
            except BaseException as error:  # a panic inside llguidance is no Exception
                order.set_exception(error)
            else:
                order.set_result(grammar)


def start_thread(target: Callable[[], None], name: str, stack_bytes: int) -> threading.Thread:
    """A started thread with a stack of its own size; memory is taken as it is used."""
    before = threading.stack_size(stack_bytes)
    try:
        thread = threading.Thread(target=target, name=name)
        thread.start()
    finally:
        threading.stack_size(before)
    return thread
