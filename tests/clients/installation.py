"""What the clients talk to: the product in its own environment, which is not theirs, with two real engines."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cases.installation import Installation
from tests.support.processes import ROOT, Mesh
from tests.support.waiting import wait_until

# The bundled model on the CPU; the others are scripted.
REAL = "smollm2-135m-instruct"
REAL_CHAT: list[Any] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
REAL_ANSWER = "The capital of France is Paris."

# The key that the clients have, and a model that it may not use.
KEY = "sk-of-the-clients"
FORBIDDEN = "m-gemma"
_TENANTS = {
    "tenants": {
        "clients": {
            # Of what a key may not use it does not learn whether it exists: `nobody` is allowed, and does not.
            "models": ["m-text", "m-think", "m-hermes", "m-embed", REAL, "nobody"],
            "keys": {"ci": {"sha256": hashlib.sha256(KEY.encode()).hexdigest()}},
        }
    }
}

ADA = '```json\n{"name": "Ada", "age": 36}\n```'
# What the scripted engine says to a request whose id begins with the script's name; without one it echoes.
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "hello": [{"text": "Hel"}, {"text": "lo"}, {"finish": "stop", "usage": {"prompt": 5, "completion": 3}}],
    "thought": [{"text": "<think>Be kind.</think>"}, {"text": "Hello!"}, {"finish": "stop"}],
    "scored": [
        {"tokens": [{"token": "Hi", "logprob": -0.25, "top": [["Hi", -0.25], ["Ho", -1.5]]}]},
        {"finish": "stop", "usage": {"prompt": 5, "completion": 1}},
    ],
    "pair": [
        {"index": 0, "text": "left"},
        {"index": 1, "text": "right"},
        {"finish": "stop"},
    ],
    "person": [{"text": ADA}, {"finish": "stop"}],
    "call": [
        {"text": '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, '},
        {"text": '"b": 7}}\n</tool_call>'},
        {"finish": "stop"},
    ],
    "object": [{"text": '{"name": "Ada", '}, {"text": '"age": 36}'}, {"finish": "stop"}],
    "quiet": [{"sleep_ms": 1600}, {"text": "Hel"}, {"sleep_ms": 1600}, {"text": "lo"}, {"finish": "stop"}],
    "silent": [{"sleep_ms": 60_000}, {"text": "late"}, {"finish": "stop"}],
    "brief": [{"text": "word ", "repeat": 10, "gap_ms": 20}, {"finish": "stop"}],
    "slow": [{"text": "word ", "repeat": 2000, "gap_ms": 20}, {"finish": "stop"}],
    "breaks": [{"text": "par"}, {"text": "tial"}, {"grpc_error": {"code": "INTERNAL", "details": "oom at layer 12"}}],
    "fails": [{"grpc_error": {"code": "INTERNAL", "details": "oom at layer 12"}}],
    "full": [{"grpc_error": {"code": "RESOURCE_EXHAUSTED", "details": "no room"}}],
}

_numbers = itertools.count(1)


def request_id(script: str) -> str:
    """An id that plays `script` and that no other request has."""
    return f"{script}.{next(_numbers)}"


def write_scripts(folder: Path) -> str:
    path = folder / "scripts.json"
    path.write_text(json.dumps(SCRIPTS))
    return str(path)


def product_python() -> Path:
    """The interpreter of the product, wherever the clients run."""
    python = ROOT / ".venv" / "bin" / "python"
    assert python.exists(), "the product has no environment yet: run `make setup`"
    return python


@contextmanager
def running(folder: Path) -> Iterator[Installation]:
    """A mesh of a scripted worker, whose record is kept, and one with the bundled model."""
    record, tenants = folder / "record.jsonl", folder / "tenants.yaml"
    tenants.write_text(json.dumps(_TENANTS))
    scripted = ["--engine", "scripted", "--scripts", write_scripts(folder), "--record", str(record)]
    with Mesh(
        workers=[scripted, ["--engine", "llamacpp"]],
        # Often enough that the silences of `quiet` have some, and too seldom for a refusal to come after one: within
        # its queue time a full worker is asked three times, over 0.75 s.
        gateway_args=["--heartbeat-s", "1.5", "--queue-timeout-s", "1", "--tenants", str(tenants)],
        python=product_python(),
    ) as mesh:
        wait_until(lambda: _serves(mesh, REAL), what="the second worker's model is served, too")
        yield Installation(mesh, record)


def _serves(mesh: Mesh, model: str) -> bool:
    return model in [event["model"] for event in mesh.gateway.events("model_ready")]
