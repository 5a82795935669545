"""The router's span of a decision, and which of them are kept whatever was sampled."""

from __future__ import annotations

import pytest

from inferway.errors import ApiError, Reason
from inferway.tracing import TraceContext
from router.core.messages import Reject, Request, Ticket
from router.core.trace import decision_span, has_failed

CONTEXT = TraceContext(7, 1, True)
REQUEST = Request(Ticket(1, 1), "r1", "m", "t", 5, 10, 10, (), 1.0, 1000.0)


@pytest.mark.parametrize(
    ("reason", "is_failure"),
    [
        (Reason.OVERLOADED, True),
        (Reason.MODEL_NOT_READY, True),
        (Reason.WORKER_FAILED, True),
        (Reason.UNSUPPORTED_VALUE, False),
        (Reason.MODEL_NOT_FOUND, False),
        (Reason.CONTEXT_LENGTH_EXCEEDED, False),
    ],
)
def test_what_the_caller_got_wrong_is_no_failure(reason: Reason, is_failure: bool) -> None:
    """Only what the mesh lacked is an error, and kept where it was not sampled; the reason is told of each."""
    refused = Reject(REQUEST, ApiError(reason, "no"))
    assert has_failed(refused) is is_failure
    span = decision_span(CONTEXT, 2, refused.request, refused, "", now=5.0)
    assert span.error == (reason.label if is_failure else "")
    assert span.attributes["inferway.outcome"] == reason.label


def test_what_was_taken_back_is_no_failure() -> None:
    """A client that leaves its place in the queue."""
    assert not has_failed(None)
    span = decision_span(CONTEXT, 2, REQUEST, None, "", now=5.0)
    assert span.error == ""
    assert span.attributes["inferway.outcome"] == "cancelled"
