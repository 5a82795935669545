"""Ten thousand damaged bodies: each gets its answer, no process is hurt, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.core.fields import CHAT, COMPLETION, DETOKENIZE, EMBEDDING, TOKENIZE, FieldTable
from tests.support.mutations import Mutant, Mutator, Path
from tests.support.probes import metric
from tests.support.processes import Mesh, engine_load
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)

SEED = 20261130
REQUESTS = 10_000
CONNECTIONS = 16
# An answer that takes longer counts as none.
ANSWER_S = 30.0

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
CONVERSATION = [
    {"role": "developer", "content": "Be short."},
    {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "Sunny"},
    {"role": "assistant", "content": "It is sunny.", "reasoning_content": "hm"},
    {"role": "user", "content": "And tomorrow?"},
]
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "frequency_penalty": 0.1,
    "presence_penalty": -0.1,
    "repetition_penalty": 1.1,
    "seed": 7,
    "stop": ["END", "\n\n"],
    "logit_bias": {"5": -3, "7": 2.5},
    "max_tokens": 9,
    "min_tokens": 1,
    "ignore_eos": False,
    "n": 2,
    "priority": 4,
    "user": "u",
}
CHAT_OPTIONS = {
    "logprobs": True,
    "top_logprobs": 2,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "metadata": {"a": "b"},
    "chat_template_kwargs": {"enable_thinking": True},
}
STREAMED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}

GOOD: list[tuple[str, FieldTable, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT, {"model": "m-text", "messages": CONVERSATION, **SAMPLING, **CHAT_OPTIONS}),
    (
        "/v1/chat/completions",
        CHAT,
        {"model": "m-hermes", "messages": CONVERSATION, "tools": [WEATHER], "max_tokens": 20},
    ),
    ("/v1/chat/completions", CHAT, {"model": "m-think", "messages": CONVERSATION[-1:], "max_tokens": 9, **STREAMED}),
    ("/v1/chat/completions", CHAT, {"model": "m-text", "messages": CONVERSATION, **SAMPLING, **STREAMED}),
    ("/v1/completions", COMPLETION, {"model": "m-text", "prompt": "Once", "echo": True, "logprobs": 2, **SAMPLING}),
    ("/v1/completions", COMPLETION, {"model": "m-text", "prompt": [[5, 6, 7], [8, 9]], "echo": True, "max_tokens": 3}),
    (
        "/v1/completions",
        COMPLETION,
        {"model": "m-text", "prompt": ["a", "b"], "best_of": 1, "max_tokens": 3, **STREAMED},
    ),
    ("/v1/embeddings", EMBEDDING, {"model": "m-embed", "input": ["hi", "you"], "dimensions": 4, "user": "u"}),
    ("/v1/embeddings", EMBEDDING, {"model": "m-embed", "input": [[5, 6], [7]], "encoding_format": "base64"}),
    ("/tokenize", TOKENIZE, {"model": "m-text", "prompt": "Once upon", "add_special_tokens": True}),
    ("/v1/tokenize", TOKENIZE, {"model": "m-hermes", "messages": CONVERSATION, "tools": [WEATHER]}),
    ("/detokenize", DETOKENIZE, {"model": "m-text", "tokens": [5, 6, 7]}),
    ("/v1/detokenize", DETOKENIZE, {"model": "m-hermes", "tokens": [5]}),
]


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(workers=[["--engine", "scripted", "--capability", "max_model_len=2000"]]) as mesh:
        yield mesh


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """A kept HTTP/1.1 connection; a new one follows when the server has closed it."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> Answer:
        """Raises TimeoutError when the whole answer does not come in time."""
        async with asyncio.timeout(ANSWER_S):
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
            reader, writer = self._streams
            head = (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            )
            writer.write(head.encode() + b"\r\n" + body)
            status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if "content-length" in headers:
                content = await reader.readexactly(int(headers["content-length"]))
            else:
                assert headers["transfer-encoding"] == "chunked"
                content = await _chunks(reader)
            if headers.get("connection") == "close":
                self.close()
            return Answer(int(status_line.split(" ")[1]), headers, content)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    content = b""
    while size := int(await reader.readline(), 16):
        content += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return content


def check(answer: Answer, table: FieldTable, mutant: Mutant) -> None:
    """What holds for every answer, whatever was sent."""
    assert answer.status in (200, 400, 404), "a status that the body cannot be blamed for"
    assert answer.headers["x-request-id"]
    if answer.status == 200:
        return _check_success(answer)
    body = json.loads(answer.body)
    assert list(body) == ["error"]
    error = body["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["type"] == "invalid_request_error"
    assert isinstance(error["message"], str)
    assert error["message"].endswith((".", "…")), "a sentence"
    assert "Traceback" not in error["message"]
    assert len(error["message"]) < 2000
    if mutant.hit is not None:
        _check_param(error["param"], table, mutant.hit, mutant.what)
    return None


def _check_success(answer: Answer) -> None:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        assert isinstance(json.loads(answer.body), dict)
        return
    *events, done, end = answer.body.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    for event in events:
        assert "error" not in json.loads(event.removeprefix(b"data: ")), event


# Damage that may leave a body that is no JSON, in which no field can be named.
_NO_JSON = ("not JSON", "nested")
_NAME = re.compile(r"[^.\[]+")
# A field that is damaged may put another one in the wrong, or a limit that several share.
_BLAMED = {
    "echo": {"max_tokens"},
    "logprobs": {"top_logprobs"},
    "lora_request": {"model"},
    "max_completion_tokens": {"max_tokens", "min_tokens", "messages"},
    "max_tokens": {"min_tokens", "max_completion_tokens", "messages", "prompt"},
    "messages": {"prompt"},
    "n": {"best_of"},
    "priority": {"service_tier"},
    "prompt": {"messages"},
    "stream": {"stream_options", "best_of"},
    "tools": {"messages", "tool_choice"},
    "top_logprobs": {"logprobs"},
}


def _check_param(param: str | None, table: FieldTable, hit: Path, what: str) -> None:
    """The error names the damaged field, or one that depends on it, as the endpoint has it."""
    if param is None:
        assert what in _NO_JSON, "the damage hit one field and the error names none"
        return
    root = _NAME.match(param)
    assert root is not None
    if root.group() != hit[0]:
        assert root.group() in _BLAMED.get(str(hit[0]), ()), f"{param} is blamed for {hit[0]}"
        assert root.group() in table.fields


async def test_damaged_bodies_do_no_harm(mesh: Mesh) -> None:
    """Each of 10,000 is answered in time with 200, 400 or 404; then nothing runs, nothing failed, and all is served."""
    rng = random.Random(SEED)
    names = sorted({name for _, table, _ in GOOD for name in table.fields})
    mutator = Mutator(rng, names)
    jobs = iter([(path, table, mutator.mutant(good)) for path, table, good in rng.choices(GOOD, k=REQUESTS)])
    statuses: dict[int, int] = {}
    faults: list[str] = []

    async def send_from_queue() -> None:
        connection = Connection(mesh.gateway.address)
        for path, table, mutant in jobs:
            try:
                answer = await connection.post(path, mutant.body)
                statuses[answer.status] = statuses.get(answer.status, 0) + 1
                check(answer, table, mutant)
            except Exception as error:
                said = getattr(locals().get("answer"), "body", b"")[:300]
                faults.append(f"{error!r}: {path} {mutant.what} {mutant.hit} {mutant.body[:1500]!r} -> {said!r}")
                connection.close()
        connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(send_from_queue())
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:20])
    assert statuses[200] > REQUESTS / 10, "the damage is so great that little is tested"
    assert statuses[400] > REQUESTS / 10
    await until(lambda: engine_load(mesh.workers[0]) == 0, what="the engine is idle")
    assert metric(mesh.url("/metrics"), "inferway_gateway_requests_in_flight") == 0
    for process in mesh.processes():
        assert "Traceback" not in process.log_text()
        assert [line for line in process.events() if line.get("level") in ("error", "critical")] == []
    connection = Connection(mesh.gateway.address)
    for path, _, good in GOOD:
        answer = await connection.post(path, json.dumps(good).encode())
        assert answer.status == 200, (path, answer)
    connection.close()
