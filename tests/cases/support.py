"""What tests of cases have in common: sending a case's own request, and what holds for every stream."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from tests.cases.installation import Installation
from tests.support.client import Answer
from tests.support.raw_client import EventStream
from tests.support.waiting import until

CHAT = "POST /v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
ASK = {"model": "m-text", "messages": HI}
STREAM = {**ASK, "stream": True}


async def run(case: Any, installation: Installation, **changes: Any) -> Answer:
    """The case's own request; `changes` replace fields of its body."""
    body = {**copy.deepcopy(case["input"]["body"]), **changes}
    headers = case["input"].get("headers")
    return await installation.send(case["input"]["http"], body=body, request_id=f"{case['id']}.1", headers=headers)


async def run_both_modes(case: Any, installation: Installation) -> tuple[Answer, Answer]:
    """Streamed and in one piece."""
    streamed, whole = await asyncio.gather(
        run(case, installation, stream=True), run(case, installation, stream=False, stream_options=None)
    )
    assert streamed.status == whole.status == 200, (streamed.body, whole.body)
    return streamed, whole


async def variants(case: Any, installation: Installation) -> list[Answer]:
    """The answers to a matrix, in its order."""
    answers = []
    for entry in case["input"]["matrix"]:
        answers.append(await installation.send(entry["http"], body=entry["body"], request_id=f"{case['id']}.1"))
    return answers


def assert_well_formed(answer: Answer) -> None:
    """What holds for every stream: order, one id, one finish a choice, one [DONE] at the very end."""
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.events.count("[DONE]") == 1
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in answer.chunks if "id" in chunk}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in answer.chunks if "id" in chunk)
    assert answer.chunks[0]["id"].startswith("chatcmpl-")
    for index in {choice["index"] for choice in answer.choices}:
        mine = [choice for choice in answer.choices if choice["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in mine[1:])
        assert [choice["finish_reason"] is not None for choice in mine].count(True) == 1
        assert mine[-1]["finish_reason"] is not None
        assert mine[-1]["delta"] == {}


async def log_line(installation: Installation, request_id: str) -> dict[str, Any]:
    """The one log line of a request."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in installation.request_lines() if line["request_id"] == request_id]

    await until(lines, 5, f"log line of {request_id}")
    (line,) = lines()
    return line


async def first_event(stream: EventStream) -> None:
    """Return once the first text has come, behind the chunk that names the role."""
    await stream.wait_events(2)
