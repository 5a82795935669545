"""The marks that formats need to be seen."""

from __future__ import annotations

import pytest

from gateway.core.reasoning import SPLITTERS
from gateway.core.tools import PARSERS
from worker.core.formats import REASONING, TOOL_CALLS, marks_of


@pytest.mark.parametrize("name", [*PARSERS, *SPLITTERS])
def test_every_format_that_gateways_read_has_its_marks(name: str) -> None:
    """With the one that its calls begin with, where they begin with one."""
    marks = marks_of(name)
    assert marks
    opening = PARSERS[name].opening if name in PARSERS else "<think>"
    assert not opening or any(mark.startswith(opening) or opening.startswith(mark) for mark in marks)


def test_several_formats_and_unknown_ones() -> None:
    assert marks_of("think", "hermes", "think", "nope", "") == ("<think>", "</think>", "<tool_call>", "</tool_call>")


def test_the_names_of_options_are_those_that_gateways_know() -> None:
    assert set(TOOL_CALLS) == set(PARSERS)
    assert {*REASONING, "harmony"} == {*SPLITTERS, "harmony"}
