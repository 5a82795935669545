"""instructor over the official client: JSON in a block of Markdown, tool calls, and structured output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import instructor
import openai
import pytest
from instructor.core import IncompleteOutputException, InstructorRetryException
from pydantic import BaseModel, field_validator

from tests.cases.installation import Installation
from tests.clients.installation import FORBIDDEN, KEY, request_id
from tests.support.waiting import until

# Mode, and the script in which the model answers as the mode asks it to.
MODES = [
    (instructor.Mode.MD_JSON, "person"),
    (instructor.Mode.TOOLS, "object"),
    (instructor.Mode.JSON, "object"),
    (instructor.Mode.JSON_SCHEMA, "object"),
]

ASK: list[Any] = [{"role": "user", "content": "Who wrote the first program?"}]


class Person(BaseModel):
    name: str
    age: int


class Child(Person):
    @field_validator("age")
    @classmethod
    def is_young(cls, age: int) -> int:
        if age > 12:
            raise ValueError("a child is at most 12")
        return age


def play(script: str) -> dict[str, str]:
    return {"X-Request-Id": request_id(script)}


@pytest.fixture
def official(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def official_async(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.mark.parametrize(("mode", "script"), MODES)
def test_an_object_and_where_it_came_from(official: openai.OpenAI, mode: instructor.Mode, script: str) -> None:
    """The model's JSON as an instance, with the completion behind it: usage and request id."""
    client = instructor.from_openai(official, mode=mode)
    headers = play(script)
    person, completion = client.chat.completions.create_with_completion(
        model="m-text", messages=ASK, response_model=Person, extra_headers=headers
    )
    assert (person.name, person.age) == ("Ada", 36)
    assert completion.usage.total_tokens > 0
    assert completion._request_id == headers["X-Request-Id"]


@pytest.mark.parametrize(("mode", "script"), MODES)
def test_an_object_as_it_grows(official: openai.OpenAI, mode: instructor.Mode, script: str) -> None:
    """Streamed, partial objects end in the whole one."""
    client = instructor.from_openai(official, mode=mode)
    *_, last = client.chat.completions.create_partial(
        model="m-text", messages=ASK, response_model=Person, extra_headers=play(script)
    )
    assert (last.name, last.age) == ("Ada", 36)


@pytest.mark.parametrize(("mode", "script"), MODES)
def test_what_does_not_fit_is_asked_for_again(
    official: openai.OpenAI, installation: Installation, mode: instructor.Mode, script: str
) -> None:
    """A second request carries the model's answer and what is wrong with it; then instructor gives up."""
    client = instructor.from_openai(official, mode=mode)
    headers = play(script)
    with pytest.raises(InstructorRetryException):
        client.chat.completions.create(
            model="m-text", messages=ASK, response_model=Child, max_retries=1, extra_headers=headers
        )
    first, second = installation.engine_saw(headers["X-Request-Id"])
    assert len(second["prompt"]) > len(first["prompt"])
    assert "a child is at most 12" in second["prompt"]


def test_an_answer_that_was_cut_off_is_told(official: openai.OpenAI) -> None:
    """finish_reason length becomes instructor's own exception, not an object with holes."""
    client = instructor.from_openai(official, mode=instructor.Mode.MD_JSON)
    with pytest.raises((IncompleteOutputException, InstructorRetryException)) as raised:
        client.chat.completions.create(
            model="m-text",
            messages=[{"role": "user", "content": "one two three four"}],
            response_model=Person,
            max_tokens=1,
            max_retries=0,
            extra_headers=play("echo"),
        )
    assert "incomplete" in str(raised.value).lower()


@pytest.mark.parametrize(
    ("script", "fields", "expected"),
    [
        ("echo", {"temperature": 9}, openai.BadRequestError),
        ("echo", {"model": "nobody"}, openai.NotFoundError),
        ("echo", {"model": FORBIDDEN}, openai.PermissionDeniedError),
        ("fails", {}, openai.InternalServerError),
        ("full", {}, openai.InternalServerError),
    ],
)
def test_errors_keep_their_class(
    official: openai.OpenAI, script: str, fields: dict[str, Any], expected: type[openai.APIStatusError]
) -> None:
    """The official client's exception is raised, or is the cause of instructor's."""
    client = instructor.from_openai(official, mode=instructor.Mode.MD_JSON)
    asked = {"model": "m-text", "messages": ASK, "response_model": Person, **fields}
    with pytest.raises((expected, InstructorRetryException)) as raised:
        client.chat.completions.create(**asked, max_retries=0, extra_headers=play(script))
    causes = []
    cause: BaseException | None = raised.value
    while cause is not None:
        causes.append(type(cause))
        cause = cause.__cause__
    assert expected in causes


async def test_a_cancelled_task_stops_the_engine(
    official_async: openai.AsyncOpenAI, installation: Installation
) -> None:
    """Cancelling the task while it waits for the object reaches the engine."""
    client = instructor.from_openai(official_async, mode=instructor.Mode.MD_JSON)
    headers = play("slow")
    task = asyncio.create_task(
        client.chat.completions.create(model="m-text", messages=ASK, response_model=Person, extra_headers=headers)
    )
    await until(lambda: installation.engine_saw(headers["X-Request-Id"]), what="the engine has it")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: installation.engine_saw(headers["X-Request-Id"], "abort"), what="the engine is told")
