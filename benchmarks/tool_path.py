"""What a token of a streamed tool call costs the gateway, against one of plain text in the same run.

    python -m benchmarks.tool_path [--streams 64] [--tokens 128]

One gateway process, one router, one scripted worker at 20 ms steps. Both kinds of streams have the same tokens; those
of a call stand in a string of its arguments, in the format of each family named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from benchmarks.report import process_cpu_s, write_report
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream

TOOL = {
    "type": "function",
    "function": {"name": "say", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
}
# Family -> what stands before and behind the text in its calls.
FAMILIES: Mapping[str, tuple[str, str]] = {
    "m-hermes": ('<tool_call>{"name": "say", "arguments": {"text": "', '"}}</tool_call>'),
    "m-qwen3coder": ("<tool_call>\n<function=say>\n<parameter=text>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "m-glm": ("<tool_call>say<arg_key>text</arg_key><arg_value>", "</arg_value></tool_call>"),
    "m-deepseek31": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>say<｜tool▁sep｜>{"text": "',
        '"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
}


def scripts(tokens: int) -> dict[str, Any]:
    text = {"text": " token", "repeat": tokens}
    end = {"finish": "stop"}
    calls = {name: [{"text": begin}, text, {"text": close}, end] for name, (begin, close) in FAMILIES.items()}
    return {"plain": [text, end], **calls}


async def _one(address: str, model: str, script: str, place: int) -> None:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Say something."}], "stream": True}
    if script != "plain":
        body["tools"] = [TOOL]
    stream = await EventStream.open(address, body, headers={"X-Request-Id": f"{script}.{place}"})
    await stream.done
    assert stream.payloads()[-1] == b"[DONE]", stream.payloads()[-2:]
    reason = next(chunk for chunk in reversed(stream.chunks()) if chunk.get("choices"))["choices"][0]["finish_reason"]
    assert reason == ("stop" if script == "plain" else "tool_calls")


async def _load(address: str, model: str, script: str, streams: int) -> None:
    await asyncio.gather(*(_one(address, model, script, place) for place in range(streams)))


def measure(streams: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "scripts.json"
        file.write_text(json.dumps(scripts(tokens)))
        worker = ["--engine", "scripted", "--scripts", str(file), "--step-ms", "20"]
        with Mesh(workers=[[*worker, "--max-running", str(streams + 64)]]) as mesh:

            def cost(model: str, script: str) -> float:
                before = process_cpu_s(mesh.gateway.pid)
                uvloop.run(_load(mesh.gateway.address, model, script, streams))
                return (process_cpu_s(mesh.gateway.pid) - before) / (streams * tokens) * 1e6

            rows = []
            for family in FAMILIES:
                cost(family, "plain"), cost(family, family)  # warm
                pairs = [(cost(family, "plain"), cost(family, family)) for _ in range(rounds)]
                rows.append(
                    {
                        "family": family,
                        "streams": streams,
                        "tokens": tokens,
                        "plain_cpu_us_a_token": round(statistics.median(plain for plain, _ in pairs), 2),
                        "call_cpu_us_a_token": round(statistics.median(call for _, call in pairs), 2),
                        "ratio": round(statistics.median(call / plain for plain, call in pairs), 2),
                    }
                )
            return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    write_report("tool_path", measure(options.streams, options.tokens, options.rounds))


if __name__ == "__main__":
    main()
