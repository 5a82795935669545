"""Handed cases of structured output: schemas that are none, engines without grammars, answers that are cut off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import CASES_FILE, Installation
from tests.cases.support import CHAT, HI, STREAM, assert_well_formed, run, run_both_modes
from tests.support.processes import Mesh

pytestmark = pytest.mark.timeout(120)

VALID = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


@case("STR-01")
async def test_a_schema_that_is_none(case: Any, installation: Installation) -> None:
    """It is refused before the engine sees it, and harms nobody."""
    others = [installation.open(STREAM, f"STR-01-other.{number}") for number in range(4)]
    streams = await asyncio.gather(*others)
    answer = await run(case, installation)
    assert (answer.status, answer.error["code"]) == (400, "invalid_schema")
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"].startswith("response_format")
    assert "'items' at $.properties.a.items" in answer.error["message"]
    assert installation.engine_saw("STR-01.1") == []
    for stream in streams:
        await stream.wait_events(4)
        stream.close()
    valid = await installation.send(CHAT, body={"model": "m-text", "messages": HI, "response_format": VALID})
    assert valid.status == 200, valid.body


@case("STR-03")
async def test_an_engine_without_grammars(case: Any) -> None:
    """Refused by what the worker says of itself, which goes on serving."""
    worker = ["--engine", "scripted", "--scripts", str(CASES_FILE), "--capability", "grammar=false"]
    with Mesh(workers=[worker]) as mesh:
        installation = Installation(mesh)
        answer = await run(case, installation)
        assert (answer.status, answer.error["code"]) == (400, "unsupported_value")
        assert answer.error["param"] == "response_format"
        plain = await installation.send(CHAT, body={"model": "m-text", "messages": HI})
        assert plain.status == 200


@case("STR-05")
async def test_an_answer_that_is_cut_off(case: Any, installation: Installation) -> None:
    """As the model wrote it, and the reason says so."""
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == '{"a": "b'
        assert answer.finish_reasons() == ["length"]


@case("STR-06")
async def test_a_refusal_has_a_status_of_its_own(case: Any, installation: Installation) -> None:
    """A stream that cannot begin is a 400 with a body of JSON."""
    answer = await run(case, installation)
    assert answer.status == 400
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.error["code"] == "invalid_schema"


@case("STR-07")
async def test_no_schema_is_any_object(case: Any, installation: Installation) -> None:
    """A grammar of any value has no end; one of any object has."""
    streamed, whole = await run_both_modes(case, installation)
    assert_well_formed(streamed)
    assert streamed.joined("content") == whole.joined("content") == '{"k": 1}'
    for line in installation.engine_saw("STR-07.1"):
        assert line["constraint"] == {"kind": "json_schema", "text": '{"type":"object"}'}
