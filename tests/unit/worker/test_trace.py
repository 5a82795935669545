"""The spans of a choice."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from inferway.tracing import Span, TraceContext
from worker.core.trace import ChoiceEnd, choice_spans

CONTEXT = TraceContext(7, 1, True)
END = ChoiceEnd(
    request_id="r",
    model="m",
    engine="scripted",
    choice_index=0,
    lease_id=5,
    started=10.0,
    prefill=11.0,
    first_token=12.0,
    ended=15.0,
    outcome="ok",
    prompt_tokens=4,
    cached_tokens=2,
    completion_tokens=3,
)


def spans(end: ChoiceEnd) -> list[Span]:
    ids = count(2)
    return choice_spans(CONTEXT, end, lambda: next(ids))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (END, [("queue", 10, 11), ("prefill", 11, 12), ("decode", 12, 15)]),
        # The engine does not say when it began, or it never did.
        (replace(END, prefill=0.0), [("queue and prefill", 10, 12), ("decode", 12, 15)]),
        (replace(END, prefill=0.0, first_token=0.0), [("queue and prefill", 10, 15)]),
        # It ended within the prompt.
        (replace(END, first_token=0.0), [("queue", 10, 11), ("prefill", 11, 15)]),
        # An engine's clock may be coarser than ours.
        (replace(END, prefill=9.9), [("queue", 10, 10), ("prefill", 10, 12), ("decode", 12, 15)]),
        (replace(END, prefill=12.1), [("queue", 10, 12), ("prefill", 12, 12), ("decode", 12, 15)]),
        # Refused.
        (replace(END, prefill=0.0, first_token=0.0, ended=10.0), []),
        (replace(END, is_embedding=True), []),
    ],
)
def test_stages_fill_the_choice(end: ChoiceEnd, expected: list[tuple[str, float, float]]) -> None:
    """Each begins where the one before it ends, and all are below the choice, which is below the gateway's span."""
    choice, *stages = spans(end)
    assert [(stage.name, stage.start, stage.end) for stage in stages] == expected
    assert choice.parent_id == CONTEXT.span_id
    assert {stage.parent_id for stage in stages} <= {choice.span_id}
    assert len({span.span_id for span in (choice, *stages)}) == 1 + len(stages)
    assert all(span.attributes["inferway.request_id"] == "r" and span.trace_id == 7 for span in (choice, *stages))
    assert [event.at for event in choice.events] == ([end.first_token] if end.first_token else [])


def test_only_our_faults_are_errors() -> None:
    """A client that leaves and a refusal are told by the outcome alone."""
    errors = {outcome: spans(replace(END, outcome=outcome))[0].error for outcome in ("ok", "overloaded")}
    assert errors == {"ok": "", "overloaded": ""}
    assert spans(replace(END, outcome="client_closed_request"))[0].error == ""
    assert spans(replace(END, outcome="worker_failed"))[0].error == "worker_failed"
