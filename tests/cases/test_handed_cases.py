"""The handed cases: each is an HTTP request (or a scenario) that some other system got wrong, with what must hold.

The requests, the engine's scripts and the ids come from the case file; what must hold is checked here, by id.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases.coverage import HERE, LATER
from tests.cases.installation import CASES_FILE, Answer, Installation
from tests.support.processes import Mesh, Process, http_json, start_worker, wait_until
from tests.support.raw_client import EventStream

pytestmark = [
    pytest.mark.skipif(not CASES_FILE.exists(), reason="the case file ../shared/cases/handed.yaml is not here"),
    pytest.mark.timeout(180),
]

CASES: dict[str, Any] = (
    {case["id"]: case for case in yaml.safe_load(CASES_FILE.read_text())} if CASES_FILE.exists() else {}
)
Check = Callable[[Any, Installation], Awaitable[None]]
CHECKS: dict[str, Check] = {}
CHAT = "POST /v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def case(*ids: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        for name in ids:
            CHECKS[name] = check
        return check

    return register


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    record = tmp_path_factory.mktemp("handed") / "record.jsonl"
    worker = ["--engine", "scripted", "--name", "A", "--scripts", str(CASES_FILE), "--record", str(record)]
    worker += ["--max-running", "600", "--max-waiting", "600"]
    with Mesh(workers=[worker], gateway_args=["--heartbeat-s", "1"]) as mesh:
        yield Installation(mesh, record)


def test_every_case_is_accounted_for() -> None:
    """Each id of the file is checked here or named with what it waits for, never both, never neither."""
    assert set(CASES) == HERE | LATER.keys()
    assert not HERE & LATER.keys()
    assert set(CHECKS) == HERE


@pytest.mark.parametrize("name", sorted(HERE))
async def test_case(name: str, installation: Installation) -> None:
    """The case's request gets what the case expects."""
    await CHECKS[name](CASES[name], installation)


async def run(case: Any, installation: Installation, **changes: Any) -> Answer:
    """The case's own request; `changes` replace fields of its body."""
    body = {**copy.deepcopy(case["input"]["body"]), **changes}
    headers = case["input"].get("headers")
    return await installation.send(case["input"]["http"], body=body, request_id=f"{case['id']}.1", headers=headers)


async def run_both_modes(case: Any, installation: Installation) -> tuple[Answer, Answer]:
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


@case("SSE-01", "SSE-10")
async def plain_stream(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.joined("content") == {"SSE-01": "Hello", "SSE-10": "I'm"}[case["id"]]
    assert answer.finish_reasons() == ["stop"]
    assert {choice["index"] for choice in answer.choices} == {0}


@case("SSE-03")
async def tools_declared_none_called(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.finish_reasons() == ["stop"]
    assert answer.joined("content") == "It is sunny."
    assert all("tool_calls" not in choice["delta"] for choice in answer.choices)


@case("SSE-05")
async def done_after_long_reasoning(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.joined("content") == "ok"
    assert len(answer.joined("reasoning_content")) == 200 * len(case["engine_script"][1]["text"])
    for changes in ({"n": 3}, {"stream_options": {"include_usage": True}}):
        assert_well_formed(await run(case, installation, **changes))


@case("SSE-06")
async def failure_after_tokens_is_told_in_band(case: Any, installation: Installation) -> None:
    answer = await run(case, installation, stream_options={"include_usage": True})
    assert answer.status == 200
    assert answer.joined("content") == "partial"
    assert answer.finish_reasons() == []
    assert answer.usage is None
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.error["type"] == "server_error"
    assert answer.error["param"] is None
    assert "cuda" not in json.dumps(answer.error)
    assert "layer" not in json.dumps(answer.error)
    assert answer.events[-1] == "[DONE]"
    assert "error" in json.loads(answer.events[-2])
    line = log_line(installation, "SSE-06.1")
    assert line["outcome"] == "worker_failed"


@case("SSE-08")
async def one_id_and_created_for_all_chunks(case: Any, installation: Installation) -> None:
    answer = await run(case, installation, stream_options={"include_usage": True})
    assert_well_formed(answer)
    assert answer.joined("content", 0) == "ac"
    assert answer.joined("content", 1) == "b"
    assert answer.chunks[-1]["choices"] == []
    assert answer.chunks[-1]["id"] == answer.chunks[0]["id"]


@case("SSE-11")
async def end_of_turn_is_never_shown(case: Any, installation: Installation) -> None:
    answer = await run(case, installation, stream_options={"include_usage": True})
    assert_well_formed(answer)
    assert answer.joined("content") == "Hi"
    assert answer.usage["completion_tokens"] == 2


@case("USG-02")
async def usage_once_at_the_end(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert all(chunk.get("usage") is None for chunk in answer.chunks[:-1])
    last = answer.chunks[-1]
    assert last["choices"] == []
    counts = {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert counts == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


@case("USG-04")
async def no_chunk_without_a_choice(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert all(len(chunk["choices"]) == 1 for chunk in answer.chunks)
    assert [choice["delta"] for choice in answer.choices] == [
        {"role": "assistant", "content": ""},
        {"content": "ok"},
        {},
    ]


@case("USG-05")
async def continuous_usage(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    contents = [chunk for chunk in answer.chunks if chunk["choices"] and chunk["choices"][0]["delta"].get("content")]
    assert len(contents) == 2
    counts = []
    for chunk in contents:
        assert chunk["usage"]["prompt_tokens"] == 30
        assert chunk["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
        counts.append(chunk["usage"]["completion_tokens"])
    assert counts == sorted(counts)
    assert counts[-1] == answer.chunks[-1]["usage"]["completion_tokens"] == 2


@case("USG-07")
async def reasoning_tokens(case: Any, installation: Installation) -> None:
    for answer in await run_both_modes(case, installation):
        if not answer.events or answer.usage:
            assert answer.usage["completion_tokens_details"]["reasoning_tokens"] == 3
            assert answer.usage["completion_tokens"] == 5
        assert answer.joined("reasoning_content") == "ab"
        assert answer.joined("content") == "c"


@case("UTF-01", "UTF-03")
async def whole_characters(case: Any, installation: Installation) -> None:
    streamed, whole = await run_both_modes(case, installation)
    assert_well_formed(streamed)
    expected = {"UTF-01": " šíp", "UTF-03": "ok 👋"}[case["id"]]
    for answer in (streamed, whole):
        assert answer.joined("content") == expected
        assert "\\ud83d" not in answer.body.decode()
    assert all("\ufffd" not in (choice["delta"].get("content") or "") for choice in streamed.choices)
    if case["id"] == "UTF-03":
        assert any("👋" in (choice["delta"].get("content") or "") for choice in streamed.choices)


@case("UTF-05")
async def invalid_bytes_never_stall(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.joined("content") == "\ufffdabcdef"
    early = [at for at, text in answer.arrivals if "abc" in text]
    late = [at for at, text in answer.arrivals if "def" in text]
    assert late[0] - early[0] > 0.2


@case("STP-03")
async def stop_over_several_tokens(case: Any, installation: Installation) -> None:
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == "a sil"
        assert answer.finish_reasons() == ["stop"]


@case("STP-05")
async def stop_aborts_the_engine(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.joined("content") == "a "
    assert answer.finish_reasons() == ["stop"]
    assert answer.usage["completion_tokens"] == 3
    (generate,) = installation.engine_saw("STP-05.1")
    wait_until(lambda: installation.engine_saw("STP-05.1", "abort"), 2, "abort after the match")
    (abort,) = installation.engine_saw("STP-05.1", "abort")
    assert abort["time"] - generate["time"] < 1.5, "the engine went on for its two seconds of sleep"


@case("STP-06")
async def stop_token_costs_no_text(case: Any, installation: Installation) -> None:
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == "abcdef"


@case("STP-07")
async def overlapping_stops(case: Any, installation: Installation) -> None:
    for answer in await variants(case, installation):
        assert answer.joined("content") == "xx"
        assert answer.finish_reasons() == ["stop"]


def load_at_engine(installation: Installation) -> int:
    """Requests at the engine, by its own report."""
    _, snapshot = http_json(f"http://{installation.mesh.workers[0].ops_address}/health/ready")
    assert isinstance(snapshot, dict)
    return engine_load(installation.mesh.workers[0])


def engine_load(worker: Process) -> int:
    import urllib.request

    with urllib.request.urlopen(f"http://{worker.ops_address}/metrics", timeout=5) as response:
        text = response.read().decode()
    values = re.findall(r"^inferway_worker_num_requests_(?:running|waiting)(?:\{[^}]*\})? (\S+)$", text, re.M)
    assert len(values) == 2, text
    return int(sum(map(float, values)))


def log_line(installation: Installation, request_id: str) -> dict[str, Any]:
    """The one log line of a request."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in installation.mesh.gateway.events("request") if line["request_id"] == request_id]

    wait_until(lines, 5, f"log line of {request_id}")
    (line,) = lines()
    return line


async def until(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    await asyncio.to_thread(wait_until, condition, timeout_s, what)


@case("DSC-01")
async def leaving_during_prefill(case: Any, installation: Installation) -> None:
    stream = await EventStream.open(
        installation.mesh.gateway.address, case["input"]["body"], headers={"X-Request-Id": "DSC-01.1"}
    )
    await until(lambda: installation.engine_saw("DSC-01.1"), 5, "the engine has it")
    stream.close()
    await until(lambda: installation.engine_saw("DSC-01.1", "abort"), 1, "abort within a second")
    await until(lambda: engine_load(installation.mesh.workers[0]) == 0, 1, "slot free within a second")
    line = log_line(installation, "DSC-01.1")
    assert line["status"] == 499
    assert line["outcome"] == "client_closed_request"


@case("DSC-04")
async def leaving_after_the_first_event(case: Any, installation: Installation) -> None:
    body = {"model": "m-text", "messages": HI, "stream": True}
    for attempt in range(5):
        stream = await EventStream.open(
            installation.mesh.gateway.address, body, headers={"X-Request-Id": f"DSC-04.{attempt}"}
        )
        await first_event(stream)
        stream.close()
    for attempt in range(5):
        await until(lambda: installation.engine_saw(f"DSC-04.{attempt}", "abort"), 1, "abort")  # noqa: B023
    after = await installation.send(CHAT, body=body, request_id="SSE-01.after")
    assert after.joined("content") == "Hello"


async def first_event(stream: EventStream) -> None:
    deadline = asyncio.get_running_loop().time() + 10
    while len(stream.events) < 2:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


@case("DSC-06")
async def a_hundred_leave_quietly(case: Any, installation: Installation) -> None:
    body = {"model": "m-text", "messages": HI, "stream": True}
    address = installation.mesh.gateway.address
    streams = [
        await EventStream.open(address, body, headers={"X-Request-Id": f"DSC-06.{index}"}) for index in range(100)
    ]
    await asyncio.gather(*(first_event(stream) for stream in streams))
    for stream in streams:
        stream.close()
    await until(lambda: engine_load(installation.mesh.workers[0]) == 0, 5, "all slots free")
    for index in range(100):
        assert log_line(installation, f"DSC-06.{index}")["outcome"] == "client_closed_request"
    assert "Traceback" not in installation.gateway_log
    assert "never retrieved" not in installation.gateway_log


@case("DSC-07")
async def five_hundred_give_up(case: Any, installation: Installation) -> None:
    import psutil

    gateway = psutil.Process(installation.mesh.gateway.pid)
    body = {"model": "m-text", "messages": HI}
    before = gateway.num_fds()
    address = installation.mesh.gateway.address

    async def impatient(index: int) -> None:
        stream = await EventStream.open(address, body, headers={"X-Request-Id": f"DSC-07.{index}"})
        await asyncio.sleep(0.2)
        stream.close()

    await asyncio.gather(*(impatient(index) for index in range(500)))
    await until(lambda: engine_load(installation.mesh.workers[0]) == 0, 5, "engine empty")
    await until(lambda: gateway.num_fds() <= before + 5, 5, "no descriptors left behind")


@case("DSC-08")
async def all_choices_are_cancelled(case: Any, installation: Installation) -> None:
    body = {"model": "m-text", "messages": HI, "stream": True, "n": 4}
    stream = await EventStream.open(installation.mesh.gateway.address, body, headers={"X-Request-Id": "DSC-08.1"})
    await first_event(stream)
    assert len(installation.engine_saw("DSC-08.1")) == 4
    stream.close()
    await until(lambda: len(installation.engine_saw("DSC-08.1", "abort")) == 4, 1, "four aborts")


@case("DSC-09")
async def slow_readers_are_bounded(case: Any, installation: Installation) -> None:
    import psutil

    gateway = psutil.Process(installation.mesh.gateway.pid)
    before = gateway.memory_info().rss
    address = installation.mesh.gateway.address
    body = {"model": "m-text", "messages": HI, "stream": True}
    host, port = address.split(":")
    request = json.dumps(body).encode()
    writers = []
    for index in range(50):
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: DSC-09.{index}\r\n"
        writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(request)}\r\n\r\n".encode() + request
        )
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writers.append(writer)
    peak = 0
    for _ in range(100):
        await asyncio.sleep(0.2)
        peak = max(peak, gateway.memory_info().rss)
        if (
            len(
                [
                    line
                    for line in installation.mesh.gateway.events("request")
                    if str(line["request_id"]).startswith("DSC-09")
                ]
            )
            == 50
        ):
            break
    outcomes = {
        line["outcome"]
        for line in installation.mesh.gateway.events("request")
        if str(line["request_id"]).startswith("DSC-09")
    }
    for writer in writers:
        writer.close()
    assert outcomes == {"client_too_slow"}
    # 4 MiB of client buffer each, and what Python keeps of it.
    assert peak - before < 50 * (8 << 20), f"{(peak - before) >> 20} MiB for 50 slow readers"


@case("ISO-01")
async def nonces_stay_with_their_request(case: Any, installation: Installation) -> None:
    async def one(index: int) -> None:
        nonce = f"nonce-{index:06d}"
        body = {"model": "m-text", "messages": [{"role": "user", "content": nonce}], "stream": True}
        headers = {"X-Request-Id": f"ISO-01.{index}", "Authorization": f"Bearer tenant-{index % 20}"}
        stream = await EventStream.open(installation.mesh.gateway.address, body, headers=headers)
        if index % 7 == 0:
            await first_event(stream)
            stream.close()
        await stream.done
        text = stream.text()
        assert set(re.findall(r"nonce-\d{6}", text)) <= {nonce}
        if index % 7:
            assert text.count(nonce) == 20
            assert f"x-request-id: ISO-01.{index}\r\n".encode() in stream.head.lower().replace(b"iso", b"ISO") + b"\r\n"

    for start in range(0, 2000, 200):
        await asyncio.gather(*(one(index) for index in range(start, start + 200)))


@case("ISO-03")
async def cache_domains_are_apart(case: Any, installation: Installation) -> None:
    prompt = "shared words " * 300
    body = {"model": "m-text", "messages": [{"role": "user", "content": prompt}]}
    cached = []
    for key in ("one", "one", "two"):
        answer = await installation.send(
            CHAT, body=body, request_id="iso-three.1", headers={"Authorization": f"Bearer {key}"}
        )
        cached.append(answer.usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert cached[1] > 0
    assert cached[2] == 0
    salts = [record["cache_salt"] for record in installation.engine_saw("iso-three.1")]
    assert salts[0] == salts[1] != salts[2]


@case("GRP-01")
async def large_messages(case: Any, installation: Installation) -> None:
    long = {"model": "m-text", "messages": [{"role": "user", "content": "a b " * 750_000}], "max_tokens": 1}
    answer = await installation.send(CHAT, body=long, request_id="VAL-11.grp")
    assert answer.status == 200, answer.body[:500]
    (record,) = installation.engine_saw("VAL-11.grp")
    assert len(record["token_ids"]) > 1_000_000
    too_long = {"model": "m-text", "messages": [{"role": "user", "content": "q7" * 3_000_000}]}
    answer = await installation.send(CHAT, body=too_long, request_id="VAL-11.grp2")
    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
    assert "Retry-After" not in answer.headers
    assert not installation.engine_saw("VAL-11.grp2")


@case("TRC-01")
async def huge_request_id(case: Any, installation: Installation) -> None:
    body = case["input"]["body"]
    # The parser's own limit for a header line comes first.
    answer = await installation.send(CHAT, body=body, headers={"X-Request-Id": "A" * 20000})
    assert answer.status == 431
    assert answer.error["code"] == "headers_too_large"
    for bad in ("A" * 129, "a b", "a/b"):
        answer = await installation.send(CHAT, body=body, headers={"X-Request-Id": bad})
        assert answer.status == 200
        used = answer.headers["x-request-id"]
        assert used != bad
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", used)
        assert answer.chunks[0]["id"].removeprefix("chatcmpl-") not in used
    assert "AAAAAAAA" * 4 not in installation.gateway_log


@case("TRC-03")
async def one_trace_many_requests(case: Any, installation: Installation) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"model": "m-text", "messages": HI, "stream": True}
    answers = await asyncio.gather(
        *(installation.send(CHAT, body=body, headers={"traceparent": trace}) for _ in range(2))
    )
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2
    for request_id in ids:
        (record,) = installation.engine_saw(request_id)
        assert record["traceparent"].split("-")[1] == trace.split("-")[1]


@case("TRC-04")
async def request_id_on_every_answer(case: Any, installation: Installation) -> None:
    good = {"model": "m-text", "messages": HI}
    limit = 16 << 20
    requests: list[tuple[int, str, Any, bytes | None]] = [
        (200, CHAT, good, None),
        (200, CHAT, {**good, "stream": True}, None),
        (400, CHAT, {**good, "temperature": 9}, None),
        (404, CHAT, {**good, "model": "nobody"}, None),
        (404, "GET /nothing/here", None, None),
        (405, "GET /v1/chat/completions", None, None),
        (413, CHAT, None, b" " * (limit + 1)),
        (200, "GET /v1/models", None, None),
        (200, "GET /health", None, None),
    ]
    for number, (status, http, body, raw) in enumerate(requests):
        for given in (f"trc-four.{number}", None):
            answer = await installation.send(http, body=body, raw=raw, request_id=given)
            assert answer.status == status, (http, answer.body)
            assert len(answer.headers.getall("x-request-id")) == 1  # type: ignore[attr-defined]
            assert given is None or answer.headers["x-request-id"] == given
            if status >= 400:
                assert set(answer.error) == {"message", "type", "param", "code"}
                assert log_line(installation, answer.headers["x-request-id"])["status"] == status
    (record,) = installation.engine_saw("trc-four.0")
    assert record["request_id"] == "trc-four.0"


@case("VAL-01")
async def nulls_are_absent(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert answer.status == 200, answer.body
    bare = await installation.send(CHAT, body={"model": "m-text", "messages": HI}, request_id="VAL-01.2")
    drop = ("id", "created")
    assert {k: v for k, v in answer.json.items() if k not in drop} == {
        k: v for k, v in bare.json.items() if k not in drop
    }
    first, second = (installation.engine_saw(f"VAL-01.{number}")[0] for number in (1, 2))
    assert first["token_ids"] == second["token_ids"]
    assert first["sampling"] == second["sampling"]


@case("VAL-02")
async def null_content_beside_tool_calls(case: Any, installation: Installation) -> None:
    for content in (None, "", "absent"):
        body = copy.deepcopy(case["input"]["body"])
        if content == "absent":
            del body["messages"][1]["content"]
        else:
            body["messages"][1]["content"] = content
        answer = await installation.send(CHAT, body=body, request_id="VAL-02.1")
        assert answer.status == 200, answer.body
    prompt = installation.engine_saw("VAL-02.1")[0]["prompt"]
    assert "get_weather" in prompt
    assert "Sunny" in prompt
    bad = copy.deepcopy(case["input"]["body"])
    del bad["messages"][1]["tool_calls"]
    answer = await installation.send(CHAT, body=bad, request_id="VAL-02.2")
    assert answer.status == 400
    assert answer.error["param"] == "messages[1].content"


@case("VAL-04")
async def half_a_surrogate_pair(case: Any, installation: Installation) -> None:
    answer = await installation.send(CHAT, raw=case["input"]["body_raw"].encode(), request_id="VAL-04.1")
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == "messages[0].content"
    assert not installation.engine_saw("VAL-04.1")
    whole = b'{"model":"m-text","messages":[{"role":"user","content":"smile \\ud83d\\ude00"}]}'
    assert (await installation.send(CHAT, raw=whole, request_id="SSE-01.val")).status == 200
    for field, value in {
        "stop": b'["\\ud83d"]',
        "tools": b'[{"type":"function","function":{"name":"f","description":"\\udc4b"}}]',
        "user": b'"\\ud83d"',
    }.items():
        raw = b'{"model":"m-text","messages":[{"role":"user","content":"a"}],"%b":%b}' % (field.encode(), value)
        answer = await installation.send(CHAT, raw=raw)
        assert answer.status == 400
        assert answer.error["param"].startswith(field)


@case("VAL-06")
async def content_parts(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert answer.status == 200
    prompt = installation.engine_saw("VAL-06.1")[0]["prompt"]
    for text in ("S", "a", "b"):
        assert text in prompt
    assert "type" not in prompt
    assert "[" not in prompt


@case("VAL-08")
async def developer_role(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert answer.status == 200
    prompt = installation.engine_saw("VAL-08.1")[0]["prompt"]
    assert prompt.index("Say ORANGE") < prompt.index("hi")
    pirate = await run(case, installation, messages=[{"role": "pirate", "content": "x"}])
    assert pirate.status == 400
    assert pirate.error["param"] == "messages[0].role"


@case("VAL-09")
async def bad_messages(case: Any, installation: Installation) -> None:
    for answer in await variants(case, installation):
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        assert answer.error["param"] == "messages"


@case("VAL-11")
async def body_sizes(case: Any, installation: Installation) -> None:
    def padded(size: int) -> bytes:
        head, tail = b'{"model":"m-text","messages":[{"role":"user","content":"', b'"}]}'
        return head + b"lorem ipsum " * ((size - len(head) - len(tail)) // 12) + tail

    answer = await installation.send(CHAT, raw=padded(2_621_440), request_id="VAL-11.1")
    assert answer.status == 200, answer.body[:300]
    for raw in (padded((16 << 20) + 100), b"x" * (40 << 20)):
        answer = await installation.send(CHAT, raw=raw, request_id="VAL-11.2")
        assert answer.status == 413
        assert answer.error["code"] == "payload_too_large"
    assert not installation.engine_saw("VAL-11.2")


@case("VAL-12")
async def max_completion_tokens(case: Any, installation: Installation) -> None:
    first, second = await variants(case, installation)
    assert first.status == 200
    assert installation.engine_saw("VAL-12.1")[0]["sampling"]["max_tokens"] == 2
    assert second.status == 400
    assert second.error["param"] == "max_tokens"


@case("VAL-13")
async def wrong_typed_numbers(case: Any, installation: Installation) -> None:
    text, integral, fraction, boolean = await variants(case, installation)
    for answer, param in ((text, "max_tokens"), (fraction, "max_tokens"), (boolean, "n")):
        assert answer.status == 400
        assert answer.error["param"] == param
    assert integral.status in (200, 400)


@case("VAL-15")
async def harmless_extras(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert answer.status == 200, answer.body
    named = answer.headers["x-inferway-ignored"].split(", ")
    assert {"store", "metadata", "service_tier", "user", "x_trace", "messages[].metadata"} <= set(named)
    assert "_id" not in installation.engine_saw("VAL-15.1")[0]["prompt"]
    for field, value in {"modalities": ["text", "audio"], "web_search_options": {}, "audio": {"voice": "x"}}.items():
        refused = await run(case, installation, **{field: value})
        assert refused.status == 400
        assert refused.error["param"] == field


@case("ERR-01")
async def error_object(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert answer.status == 400
    assert answer.headers["Content-Type"].startswith("application/json")
    assert set(answer.json) == {"error"}
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == "temperature"


@case("ERR-06")
async def internal_names_stay_inside(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert answer.status >= 500
    for word in ("Traceback", "KeyError", "sglang", "10.1.2.3", "rid"):
        assert word not in answer.error["message"]
    assert answer.headers["x-request-id"] == "ERR-06.1"


@case("NCH-01")
async def every_choice_finishes(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert [answer.joined("content", index) for index in range(3)] == ["a", "b", "c"]
    assert [answer.finish_reasons(index) for index in range(3)] == [["length"], ["stop"], ["stop"]]


@case("NCH-03")
async def choices_stay_apart(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in answer.json["choices"]] == ["one", "two"]
    assert answer.usage["prompt_tokens"] == 5
    assert answer.usage["completion_tokens"] == 2


@case("RSN-01")
async def closing_tag_over_two_messages(case: Any, installation: Installation) -> None:
    for answer in await run_both_modes(case, installation):
        assert answer.joined("reasoning_content") == "plan"
        assert answer.joined("content") == "answer"


@case("RSN-03")
async def a_bracket_is_not_held(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert answer.joined("content") == "<Plain reply"
    early = [at for at, text in answer.arrivals if "<Plain" in text]
    late = [at for at, text in answer.arrivals if "reply" in text]
    assert late[0] - early[0] > 0.2


@case("RSN-05")
async def text_before_the_thought(case: Any, installation: Installation) -> None:
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == "Sure.Yes"
        assert answer.joined("reasoning_content") == "why"


@case("RSN-08")
async def thinking_off(case: Any, installation: Installation) -> None:
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == "Paris."
        assert not answer.joined("reasoning_content")


@case("RSN-11")
async def limit_inside_the_thought(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.joined("reasoning_content") == "long thought </th"
    assert answer.joined("content") == ""
    assert answer.finish_reasons() == ["length"]


@case("TOK-03")
async def user_text_is_never_a_mark(case: Any, installation: Installation) -> None:
    answer = await run(case, installation)
    assert answer.status == 200
    (record,) = installation.engine_saw("TOK-03.1")
    assert "hello" in record["prompt"]
    assert "world" in record["prompt"]
    clean = [{"role": message["role"], "content": "x"} for message in case["input"]["body"]["messages"]]
    await run({**case, "id": "TOK-03"}, installation, messages=clean)
    bare = installation.engine_saw("TOK-03.1")[1]
    assert record["prompt"].count("</think>") > bare["prompt"].count("</think>")


@case("TOK-04")
async def templates_that_refuse(case: Any, installation: Installation) -> None:
    for answer in await variants(case, installation):
        assert answer.status == 400
        assert answer.error["param"] == "messages"
        assert answer.error["code"] == "conversation_not_supported"
        assert "{%" not in answer.error["message"]
    assert not installation.engine_saw("TOK-04.1")


@case("MET-01")
async def label_values_are_bounded(case: Any, installation: Installation) -> None:
    async def series() -> int:
        answer = await installation.send("GET /metrics")
        return len([line for line in answer.body.splitlines() if line and not line.startswith(b"#")])

    async def junk(index: int) -> None:
        await installation.send(CHAT, body={"model": f"junk-{index}", "messages": HI})
        await installation.send(f"GET /scan/{index}.php")

    await junk(0)
    before = await series()
    for start in range(1, 500, 50):
        await asyncio.gather(*(junk(index) for index in range(start, start + 50)))
    assert await series() <= before + 2


# Cases that need an installation of their own.


@case("ERR-03")
async def context_overflow(case: Any, _installation: Installation) -> None:
    worker = ["--engine", "scripted", "--capability", "max_model_len=8192"]
    with Mesh(workers=[worker]) as mesh:
        installation = Installation(mesh)
        answer = await run(case, installation)
        assert answer.status == 400
        assert answer.error["code"] == "context_length_exceeded"
        assert answer.error["type"] == "invalid_request_error"
        assert answer.error["param"] == "messages"
        assert "maximum context length is 8192 tokens" in answer.error["message"]
        assert not re.search(r"-\d", answer.error["message"])
        both = await installation.send(CHAT, body={"model": "m-text", "messages": HI, "max_tokens": 8192})
        assert both.error["code"] == "context_length_exceeded"
        assert "8192 tokens of completion" in both.error["message"]


@case("ERR-04")
async def overload(case: Any, _installation: Installation) -> None:
    worker = ["--engine", "scripted", "--scripts", str(CASES_FILE), "--max-running", "1", "--max-waiting", "0"]
    with Mesh(
        workers=[worker], router_args=["--queue-limit-requests", "1"], gateway_args=["--queue-timeout-s", "2"]
    ) as mesh:
        installation = Installation(mesh)
        body = {"model": "m-text", "messages": HI, "stream": True}
        holder = await EventStream.open(mesh.gateway.address, body, headers={"X-Request-Id": "ERR-04.0"})
        await until(lambda: engine_load(mesh.workers[0]) == 1, 5, "slot taken")
        answers = await asyncio.gather(
            *(installation.send(CHAT, body=body, request_id=f"ERR-04.{index}") for index in range(1, 6))
        )
        for answer in answers:
            assert answer.status == 503
            assert answer.error["code"] == "overloaded"
            assert int(answer.headers["Retry-After"]) >= 1
        holder.close()


def two_workers() -> Mesh:
    args = ["--engine", "scripted", "--scripts", str(CASES_FILE)]
    return Mesh(workers=[[*args, "--name", "A"], [*args, "--name", "B"]])


async def answered_by_a(case: Any, installation: Installation) -> Answer:
    """Repeat the request until worker A was the first that got it."""
    for attempt in range(40):
        answer = await installation.send(
            CHAT, body=case["input"]["body"], request_id=f"{case['id']}.{attempt}", timeout_s=30
        )
        if log_line(installation, f"{case['id']}.{attempt}")["worker"] == "A":
            return answer
    raise AssertionError("worker A was never chosen")


@case("RTY-01")
async def no_second_attempt_after_output(case: Any, _installation: Installation) -> None:
    with two_workers() as mesh:
        answer = await answered_by_a(case, Installation(mesh))
        assert answer.joined("content") == "Here is"
        assert answer.error["type"] == "server_error"
        assert answer.events[-1] == "[DONE]"


@case("RTY-03")
async def a_stall_is_an_error(case: Any, _installation: Installation) -> None:
    worker = ["--engine", "scripted", "--scripts", str(CASES_FILE)]
    with Mesh(workers=[worker], gateway_args=["--stall-s", "1.5"]) as mesh:
        answer = await run(case, Installation(mesh))
        assert answer.joined("content") == "part"
        assert answer.finish_reasons() == []
        assert answer.error["code"] == "upstream_timeout"
        assert answer.events[-1] == "[DONE]"
        await until(lambda: engine_load(mesh.workers[0]) == 0, 2, "engine aborted")


@case("RTY-04")
async def refusals_keep_their_status(case: Any, _installation: Installation) -> None:
    with two_workers() as mesh:
        installation = Installation(mesh)
        answer = await run(case, installation)
        assert answer.status == 503, answer.body
        assert answer.headers["Content-Type"].startswith("application/json")
        assert int(answer.headers["Retry-After"]) >= 1
    refusing, taking = [["--engine", "scripted", "--scripts", str(CASES_FILE), "--name", name] for name in ("A", "C")]
    with Mesh(workers=[refusing, taking]) as mesh:
        installation = Installation(mesh)
        for attempt in range(6):
            answer = await installation.send(CHAT, body=case["input"]["body"], request_id=f"RTY-04.{attempt}")
            assert answer.status == 200


@case("LIF-03")
async def sigterm_under_load(case: Any, _installation: Installation) -> None:
    with Mesh(gateway_args=["--drain-delay-s", "2"]) as mesh:
        installation = Installation(mesh)
        body = {"model": "m-text", "messages": HI}
        results: list[Answer] = []

        async def keep_asking() -> None:
            while True:
                results.append(await installation.send(CHAT, body=body))
                await asyncio.sleep(0.02)

        askers = [asyncio.create_task(keep_asking()) for _ in range(2)]
        await asyncio.sleep(0.5)
        mesh.gateway.popen.terminate()
        await asyncio.sleep(0.3)
        status, state = await asyncio.to_thread(http_json, mesh.url("/health/ready"))
        assert status == 503
        assert state["status"] == "shutting_down"
        await asyncio.sleep(1.0)
        for asker in askers:
            asker.cancel()
        await asyncio.gather(*askers, return_exceptions=True)
        assert results
        assert all(answer.status == 200 for answer in results)
        assert await asyncio.to_thread(mesh.gateway.popen.wait, 10) == 0


@case("LIF-04")
async def a_gap_without_workers(case: Any, _installation: Installation) -> None:
    with Mesh() as mesh:
        installation = Installation(mesh)
        address = mesh.workers[0].address
        mesh.workers[0].kill()
        await asyncio.sleep(0.3)
        asks = [
            asyncio.create_task(installation.send(CHAT, body={"model": "m-text", "messages": HI})) for _ in range(100)
        ]
        await asyncio.sleep(2)
        mesh.workers.append(await asyncio.to_thread(start_worker, "--engine", "scripted", listen=address))
        answers = await asyncio.gather(*asks)
        assert [answer.status for answer in answers] == [200] * 100


@case("HLT-04")
async def states_of_health(case: Any, _installation: Installation) -> None:
    with Process("gateway", "--listen", "127.0.0.1:0", "--workers", "127.0.0.1:1", "--drain-delay-s", "0") as gateway:
        url = f"http://{gateway.address}"
        assert http_json(url + "/health")[0] == 200
        assert http_json(url + "/health/ready")[0] == 503
        mesh = Mesh()
        mesh.gateway = gateway
        installation = Installation(mesh)
        answer = await installation.send(CHAT, body={"model": "m-text", "messages": HI})
        assert answer.status == 503
    with Mesh(
        workers=[["--engine", "scripted", "--scripts", str(CASES_FILE)]], gateway_args=["--drain-delay-s", "1"]
    ) as mesh:
        installation = Installation(mesh)
        assert http_json(mesh.url("/health"))[0] == http_json(mesh.url("/health/ready"))[0] == 200
        slow = await EventStream.open(
            mesh.gateway.address,
            {"model": "m-text", "messages": HI, "stream": True},
            headers={"X-Request-Id": "DSC-04.drain"},
        )
        await first_event(slow)
        mesh.gateway.popen.terminate()
        await asyncio.sleep(0.3)
        assert http_json(mesh.url("/health"))[0] == 200
        status, state = http_json(mesh.url("/health/ready"))
        assert (status, state["status"]) == (503, "shutting_down")
        await asyncio.sleep(1.2)
        refused = await installation.send(CHAT, body={"model": "m-text", "messages": HI})
        assert refused.status == 503
        assert refused.error["code"] == "shutting_down"
        assert refused.headers["Connection"] == "close"
        mesh.gateway.popen.terminate()
        assert await asyncio.to_thread(mesh.gateway.popen.wait, 10) == 0


@case("MET-03")
async def metrics_of_all_processes(case: Any, _installation: Installation) -> None:
    with Mesh(gateway_args=["--processes", "4"]) as mesh:
        installation = Installation(mesh)
        body = {"model": "m-text", "messages": HI}
        # Every process must have its tokenizer before it can serve.
        await asyncio.sleep(2)
        for _ in range(10):
            answers = await asyncio.gather(*(installation.send(CHAT, body=body) for _ in range(20)))
            assert {answer.status for answer in answers} == {200}
        seen = []
        for _ in range(20):
            text = (await installation.send("GET /metrics")).body.decode()
            values = re.findall(r'^inferway_gateway_requests_total\{.*outcome="ok".*\} (\S+)$', text, re.M)
            seen.append(sum(map(float, values)))
        assert seen == [200.0] * 20


def test_record_file_is_readable(tmp_path: Path) -> None:
    """An installation without a record file says so when a case asks for one."""
    with pytest.raises(AssertionError):
        Installation(Mesh()).engine_saw("x")
