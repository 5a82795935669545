"""The tests and the case file agree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.handed import CASES
from tests.cases.installation import Installation
from tests.support.processes import Mesh


def test_every_case_has_its_test() -> None:
    """Each id of the file has a test that is tied to it, and no test is tied to an id that does not exist."""
    tied = {name for path in Path(__file__).parent.glob("test_*.py") for name in _ids_tied_in(path)}
    assert tied == set(CASES)


def _ids_tied_in(path: Path) -> Iterator[str]:
    """The arguments of every `@case(...)` on a test, read from the source: so the answer is the same for any run."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "case":
                    yield from (ast.literal_eval(argument) for argument in mark.args)


def test_an_installation_without_a_record_says_so() -> None:
    """A case that asks what the engine saw is told that nobody wrote it down."""
    with pytest.raises(AssertionError, match="keeps no record"):
        Installation(Mesh()).engine_saw("x")
