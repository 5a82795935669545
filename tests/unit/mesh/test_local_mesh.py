"""What `inferway up` runs, and what it tells the newcomer."""

from __future__ import annotations

import ast
import importlib
import json
import shlex

import pytest

from inferway.cli.core import local_mesh
from inferway.config import load

PORTS = {"worker": 1, "worker-ops": 2, "router": 3, "router-ops": 4, "public": 8000}


def children(scripts: str = "", processes: int = 1) -> dict[str, local_mesh.Child]:
    return local_mesh.children(PORTS, engine="scripted", scripts=scripts, processes=processes, log_level="info")


@pytest.mark.parametrize("name", ["worker", "router", "gateway"])
def test_services_understand_their_flags(name: str) -> None:
    """Every flag that is passed to a service is one that it has, with a value that it accepts."""
    child = children(scripts="/scripts.yaml", processes=2)[name]
    config = importlib.import_module(f"{child.module}.config").Config
    load(config, name, {}, child.arguments)


def test_processes_find_each_other() -> None:
    """The router is told where the worker is and the gateway where the router is, all of them on loopback."""
    arguments = {name: " ".join(child.arguments) for name, child in children().items()}
    assert list(arguments) == ["worker", "router", "gateway"]
    assert "--listen 127.0.0.1:1 --ops-listen 127.0.0.1:2" in arguments["worker"]
    assert "--listen 127.0.0.1:3 --ops-listen 127.0.0.1:4 --workers 127.0.0.1:1" in arguments["router"]
    assert "--listen 127.0.0.1:8000 --routers 127.0.0.1:3 --processes 1" in arguments["gateway"]


def test_the_token_is_ours_alone() -> None:
    """The children's token replaces whatever the caller's environment says, and the rest of it is passed on."""
    environ = {"INFERWAY_INTERNAL_TOKEN": "old", "INFERWAY_INTERNAL_TOKEN_FILE": "/secret", "HOME": "/home/me"}
    assert local_mesh.environment(environ, "new") == {"INFERWAY_INTERNAL_TOKEN": "new", "HOME": "/home/me"}


def test_the_greeting_fits_two_screens() -> None:
    """It has the base URL, the model, both examples and how to stop, in at most 48 lines of 120 characters."""
    lines = local_mesh.greeting(8000, "smollm2").splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 120
    text = "\n".join(lines)
    for part in ("http://127.0.0.1:8000/v1", "smollm2", "curl -N", "from openai import OpenAI", "Ctrl-C stops"):
        assert part in text


def test_the_curl_line_is_one_command() -> None:
    """A shell reads it as one curl command with a JSON body that asks for a stream."""
    words = shlex.split(local_mesh.curl_line("http://127.0.0.1:8000/v1", "smollm2"))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8000/v1/chat/completions"]
    body = json.loads(words[-1])
    assert body["model"] == "smollm2"
    assert body["stream"] is True


def test_the_snippet_is_python() -> None:
    """It parses as it is printed, at the left margin."""
    ast.parse(local_mesh.python_snippet("http://127.0.0.1:8000/v1", "smollm2"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], False),
        (["worker: cannot listen on 127.0.0.1:2"], True),
        (["gateway: cannot listen on 127.0.0.1:8000: address in use"], True),
        (["worker: cannot listen on 127.0.0.1:2", "worker: no such model"], False),
        (["worker: cannot listen on 127.0.0.1:77"], False),
        (["worker: cannot listen on 127.0.0.1:22"], False),
    ],
)
def test_a_lost_port_is_recognised(lines: list[str], expected: bool) -> None:
    """A process whose last words name an address that it was given has lost that port to another program."""
    assert local_mesh.is_about_ports(lines, PORTS) is expected
