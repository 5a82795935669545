"""Handed cases on what may be asked and how refusals look: validation, errors, ids, sizes, tokens, labels."""

from __future__ import annotations

import asyncio
import copy
import re
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import ASK, CHAT, HI, STREAM, log_line, run, variants

pytestmark = pytest.mark.timeout(180)

MAX_BODY_BYTES = 16 << 20


@case("VAL-01")
async def test_nulls_are_absent(case: Any, installation: Installation) -> None:
    """A request full of nulls is the same as one without those fields, at the engine and in the answer."""
    answer = await run(case, installation)
    assert answer.status == 200, answer.body
    bare = await installation.send(CHAT, body=ASK, request_id="VAL-01.2")
    drop = ("id", "created")
    assert {k: v for k, v in answer.json.items() if k not in drop} == {
        k: v for k, v in bare.json.items() if k not in drop
    }
    first, second = (installation.engine_saw(f"VAL-01.{number}")[0] for number in (1, 2))
    assert first["token_ids"] == second["token_ids"]
    assert first["sampling"] == second["sampling"]


@case("VAL-02")
async def test_content_may_be_null_beside_tool_calls(case: Any, installation: Installation) -> None:
    """Null, empty or absent beside calls; without calls it is a 400 that names the message."""
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
async def test_half_a_surrogate_pair(case: Any, installation: Installation) -> None:
    """In whichever field it stands it is a 400 that names the field; a whole pair is fine."""
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
async def test_content_in_parts(case: Any, installation: Installation) -> None:
    """The prompt holds the parts' texts and nothing of their wrapping."""
    answer = await run(case, installation)
    assert answer.status == 200
    prompt = installation.engine_saw("VAL-06.1")[0]["prompt"]
    for text in ("S", "a", "b"):
        assert text in prompt
    assert "type" not in prompt
    assert "[" not in prompt


@case("VAL-08")
async def test_the_developer_role(case: Any, installation: Installation) -> None:
    """It is rendered as the system's; a role that nobody knows is a 400."""
    answer = await run(case, installation)
    assert answer.status == 200
    prompt = installation.engine_saw("VAL-08.1")[0]["prompt"]
    assert prompt.index("Say ORANGE") < prompt.index("hi")
    pirate = await run(case, installation, messages=[{"role": "pirate", "content": "x"}])
    assert pirate.status == 400
    assert pirate.error["param"] == "messages[0].role"


@case("VAL-09")
async def test_bad_messages(case: Any, installation: Installation) -> None:
    """Whatever is no list of messages is a 400 that names the field."""
    for answer in await variants(case, installation):
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"
        assert answer.error["param"] == "messages"


@case("VAL-11")
async def test_body_sizes(case: Any, installation: Installation) -> None:
    """2.5 MiB are served; what is above the limit is a 413 before the engine sees it."""

    def padded(size: int) -> bytes:
        head, tail = b'{"model":"m-text","messages":[{"role":"user","content":"', b'"}]}'
        return head + b"lorem ipsum " * ((size - len(head) - len(tail)) // 12) + tail

    answer = await installation.send(CHAT, raw=padded(2_621_440), request_id="VAL-11.1")
    assert answer.status == 200, answer.body[:300]
    for raw in (padded(MAX_BODY_BYTES + 100), b"x" * (40 << 20)):
        answer = await installation.send(CHAT, raw=raw, request_id="VAL-11.2")
        assert answer.status == 413
        assert answer.error["code"] == "payload_too_large"
    assert not installation.engine_saw("VAL-11.2")


@case("VAL-12")
async def test_max_completion_tokens(case: Any, installation: Installation) -> None:
    """The newer name reaches the engine as the limit; two that differ are a 400."""
    first, second = await variants(case, installation)
    assert first.status == 200
    assert installation.engine_saw("VAL-12.1")[0]["sampling"]["max_tokens"] == 2
    assert second.status == 400
    assert second.error["param"] == "max_tokens"


@case("VAL-13")
async def test_numbers_of_the_wrong_type(case: Any, installation: Installation) -> None:
    """Text, fractions and booleans for a whole number are a 400 that names the field."""
    text, integral, fraction, boolean = await variants(case, installation)
    for answer, param in ((text, "max_tokens"), (fraction, "max_tokens"), (boolean, "n")):
        assert answer.status == 400
        assert answer.error["param"] == param
    assert integral.status in (200, 400)


@case("VAL-15")
async def test_harmless_extras(case: Any, installation: Installation) -> None:
    """Fields without a meaning here are ignored by name; those that ask for something else are a 400."""
    answer = await run(case, installation)
    assert answer.status == 200, answer.body
    named = answer.headers["x-inferway-ignored"].split(", ")
    assert {"store", "metadata", "user", "x_trace", "messages[].metadata"} <= set(named)
    assert "_id" not in installation.engine_saw("VAL-15.1")[0]["prompt"]
    for field, value in {"modalities": ["text", "audio"], "web_search_options": {}, "audio": {"voice": "x"}}.items():
        refused = await run(case, installation, **{field: value})
        assert refused.status == 400
        assert refused.error["param"] == field


@case("ERR-01")
async def test_the_error_object(case: Any, installation: Installation) -> None:
    """A refusal is JSON with one key, and that object has its four fields."""
    answer = await run(case, installation)
    assert answer.status == 400
    assert answer.headers["Content-Type"].startswith("application/json")
    assert set(answer.json) == {"error"}
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == "temperature"


@case("ERR-06")
async def test_internal_names_stay_inside(case: Any, installation: Installation) -> None:
    """The engine's words are not the caller's business."""
    answer = await run(case, installation)
    assert answer.status >= 500
    for word in ("Traceback", "KeyError", "sglang", "10.1.2.3", "rid"):
        assert word not in answer.error["message"]
    assert answer.headers["x-request-id"] == "ERR-06.1"


@case("TOK-03")
async def test_user_text_is_never_a_mark(case: Any, installation: Installation) -> None:
    """Marks written by a user are plain text to the model, and stay in the history."""
    answer = await run(case, installation)
    assert answer.status == 200
    (record,) = installation.engine_saw("TOK-03.1")
    assert "hello" in record["prompt"]
    assert "world" in record["prompt"]
    clean = [{"role": message["role"], "content": "x"} for message in case["input"]["body"]["messages"]]
    await run(case, installation, messages=clean)
    bare = installation.engine_saw("TOK-03.1")[1]
    assert record["prompt"].count("</think>") > bare["prompt"].count("</think>")


@case("TOK-04")
async def test_templates_that_refuse(case: Any, installation: Installation) -> None:
    """A conversation that the template refuses is a 400 without the template's source."""
    for answer in await variants(case, installation):
        assert answer.status == 400
        assert answer.error["param"] == "messages"
        assert answer.error["code"] == "conversation_not_supported"
        assert "{%" not in answer.error["message"]
    assert not installation.engine_saw("TOK-04.1")


@case("TRC-01")
async def test_a_huge_request_id(case: Any, installation: Installation) -> None:
    """An id that is too long or has other characters is replaced, and is nowhere in the log."""
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
async def test_one_trace_holds_many_requests(case: Any, installation: Installation) -> None:
    """Requests of one trace have ids of their own, and the trace's id reaches the engine."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answers = await asyncio.gather(
        *(installation.send(CHAT, body=STREAM, headers={"traceparent": trace}) for _ in range(2))
    )
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 2
    for request_id in ids:
        (record,) = installation.engine_saw(request_id)
        assert record["traceparent"].split("-")[1] == trace.split("-")[1]


@case("TRC-04")
async def test_every_answer_has_its_request_id(case: Any, installation: Installation) -> None:
    """Whatever the status, the id is there once; it is the caller's if there was one, and the log line's."""
    requests: list[tuple[int, str, Any, bytes | None]] = [
        (200, CHAT, ASK, None),
        (200, CHAT, STREAM, None),
        (400, CHAT, {**ASK, "temperature": 9}, None),
        (404, CHAT, {**ASK, "model": "nobody"}, None),
        (404, "GET /nothing/here", None, None),
        (405, "GET /v1/chat/completions", None, None),
        (413, CHAT, None, b" " * (MAX_BODY_BYTES + 1)),
        (200, "GET /v1/models", None, None),
        (200, "GET /health", None, None),
    ]
    for number, (status, http, body, raw) in enumerate(requests):
        for given in (f"trc-four.{number}", None):
            answer = await installation.send(http, body=body, raw=raw, request_id=given)
            assert answer.status == status, (http, answer.body)
            assert len(answer.headers.getall("x-request-id")) == 1
            assert given is None or answer.headers["x-request-id"] == given
            if status >= 400:
                assert set(answer.error) == {"message", "type", "param", "code"}
                line = await log_line(installation, answer.headers["x-request-id"])
                assert line["status"] == status
    (record,) = installation.engine_saw("trc-four.0")
    assert record["request_id"] == "trc-four.0"


@case("GRP-01")
async def test_large_messages(case: Any, installation: Installation) -> None:
    """A million tokens reach the engine; more than the context holds is a 400 that does not ask for a retry."""
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


@case("MET-01")
async def test_label_values_are_bounded(case: Any, installation: Installation) -> None:
    """Names and paths that clients make up do not become series."""

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
