"""What a choice is told of the last delta that its worker sends."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.worker_sessions import _finish
from inferway.api.v1 import types_pb2, worker_pb2


class Heard:
    """A listener that keeps what it is told, in order."""

    wants_scores = False

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_more: self.events.append(name)


FAILED = types_pb2.Error(reason="worker_failed", message="broken inside")
USAGE = types_pb2.Usage(prompt_tokens=3, completion_tokens=1)


@pytest.mark.parametrize(
    ("delta", "events"),
    [
        (worker_pb2.Delta(text="t", finish_reason=types_pb2.FINISH_REASON_STOP, usage=USAGE), ["on_finish"]),
        # A request that has said nothing may still move to another worker.
        (worker_pb2.Delta(error=FAILED), ["on_error"]),
        (worker_pb2.Delta(error=FAILED, text="t", completion_tokens=2), ["on_text", "on_error"]),
        # Begun and broken in one message: it must be known to have begun, or another worker would begin it anew.
        (
            worker_pb2.Delta(error=FAILED, text="t", completion_tokens=1, usage=USAGE),
            ["on_first", "on_text", "on_error"],
        ),
    ],
)
def test_order(delta: worker_pb2.Delta, events: list[str]) -> None:
    heard = Heard()
    _finish(heard, delta, 0.0)
    assert heard.events == events
