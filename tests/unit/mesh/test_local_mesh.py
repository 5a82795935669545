"""What `inferway up` runs, and what it tells the newcomer."""

from __future__ import annotations

import ast
import importlib
import json
import shlex

import pytest

from inferway.cli.core import local_mesh
from inferway.config import load
from worker.config import Config

PORTS = {
    "worker": 1,
    "worker-ops": 2,
    "router": 3,
    "router-ops": 4,
    "embedding-worker": 5,
    "embedding-worker-ops": 6,
    "gateway": 7,
    "admin": 8,
    "public": 8000,
}
BOTH = local_mesh.Models("smollm2", "minilm")


def children(scripts: str = "", with_embeddings: bool = False, processes: int = 1) -> dict[str, local_mesh.Child]:
    return local_mesh.children(
        PORTS,
        engine="scripted",
        scripts=scripts,
        with_embeddings=with_embeddings,
        processes=processes,
        log_level="info",
    )


def test_every_port_has_a_role() -> None:
    """The ports that are looked for are those that the processes get."""
    assert {*local_mesh.INNER_PORTS, "public"} == set(PORTS)


@pytest.mark.parametrize("name", ["worker", "embedding-worker", "router", "gateway"])
def test_services_understand_their_flags(name: str) -> None:
    """Every flag that is passed to a service is one that it has, with a value that it accepts."""
    child = children(scripts="/scripts.yaml", with_embeddings=True, processes=2)[name]
    config = importlib.import_module(f"{child.module}.config").Config
    load(config, name, {}, child.arguments)


def test_processes_find_each_other() -> None:
    """The router is told where the worker is and the gateway where the router is, all of them on loopback."""
    arguments = {name: " ".join(child.arguments) for name, child in children().items()}
    assert list(arguments) == ["worker", "router", "gateway"]
    assert "--listen 127.0.0.1:1 --ops-listen 127.0.0.1:2" in arguments["worker"]
    assert "--listen 127.0.0.1:3 --ops-listen 127.0.0.1:4 --workers 127.0.0.1:1" in arguments["router"]
    assert (
        "--listen 127.0.0.1:8000 --admin-listen 127.0.0.1:8 --routers 127.0.0.1:3 --processes 1" in arguments["gateway"]
    )


def test_the_embedding_model_has_a_worker_of_its_own() -> None:
    """It starts after the chat model's, at addresses of its own, and the router is told of both."""
    arguments = {name: " ".join(child.arguments) for name, child in children(with_embeddings=True).items()}
    assert list(arguments) == ["worker", "embedding-worker", "router", "gateway"]
    assert "--engine=minilm" in arguments["embedding-worker"]
    assert "--listen 127.0.0.1:5 --ops-listen 127.0.0.1:6" in arguments["embedding-worker"]
    assert "--workers 127.0.0.1:1,127.0.0.1:5" in arguments["router"]


def test_variables_of_the_chat_model_leave_the_embedding_model_alone() -> None:
    """What the environment says of a worker's model, name and context is meant for the first worker."""
    meant = {"NAME": "mine", "MODEL_PATH": "/a.gguf", "MODEL_NAME": "a", "CONTEXT_LENGTH": "2048", "ENGINE": "llamacpp"}
    environ = {f"INFERWAY_WORKER_{name}": value for name, value in meant.items()}
    child = children(with_embeddings=True)["embedding-worker"]
    config = load(Config, "worker", environ, child.arguments)
    assert (config.engine, config.name, config.model_path, config.model_name) == ("minilm", "", "", "")
    assert config.context_length == 256


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([], local_mesh.Models()),
        ([("b", ["stop"]), ("c", ["stop"])], local_mesh.Models(chat="b")),
        ([("a", ["embeddings"])], local_mesh.Models(embedding="a")),
        # Sorted by name, the embedding model may come first.
        ([("a", ["embeddings"]), ("b", []), ("c", ["embeddings", "dimensions"])], local_mesh.Models("b", "a")),
    ],
)
def test_models_are_told_apart(listed: list[tuple[str, list[str]]], expected: local_mesh.Models) -> None:
    """By their capabilities, not by their place in the list."""
    assert local_mesh.first_models({"id": name, "capabilities": able} for name, able in listed) == expected


def test_the_tokens_are_ours_alone() -> None:
    """The children's tokens replace whatever the caller's environment says, and the rest of it is passed on."""
    ours = {"INFERWAY_INTERNAL_TOKEN": "new", "INFERWAY_ADMIN_TOKEN": "admin", "HOME": "/home/me"}
    environ = {"INFERWAY_INTERNAL_TOKEN": "old", "INFERWAY_ADMIN_TOKEN_FILE": "/secret", "HOME": "/home/me"}
    assert local_mesh.environment(environ, "new", "admin") == ours
    environ = {"INFERWAY_ADMIN_TOKEN": "old", "INFERWAY_INTERNAL_TOKEN_FILE": "/secret", "HOME": "/home/me"}
    assert local_mesh.environment(environ, "new", "admin") == ours


def test_the_public_port_is_nobody_elses() -> None:
    """A port of the inner ones that somebody wants in public leaves its role to any free port."""
    assert local_mesh.beside(8001, {"admin": 8001, "router": 50050}) == {"admin": 0, "router": 50050}


def test_the_greeting_fits_two_screens() -> None:
    """It has the base URL, the models, their examples and how to stop, in at most 48 lines of 120 characters."""
    lines = local_mesh.greeting(8000, BOTH).splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 120
    text = "\n".join(lines)
    parts = ("http://127.0.0.1:8000/v1", "smollm2", "curl -N", "from openai import OpenAI", "minilm", "Ctrl-C stops")
    for part in parts:
        assert part in text


def test_the_greeting_promises_nothing_that_is_not_served() -> None:
    """Without an embedding model there is no word of embeddings."""
    assert "mbed" not in local_mesh.greeting(8000, local_mesh.Models(chat="smollm2"))


def test_the_curl_line_is_one_command() -> None:
    """A shell reads it as one curl command with a JSON body that asks for a stream."""
    words = shlex.split(local_mesh.curl_line("http://127.0.0.1:8000/v1", "smollm2"))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8000/v1/chat/completions"]
    body = json.loads(words[-1])
    assert body["model"] == "smollm2"
    assert body["stream"] is True


def test_the_embedding_line_is_one_command() -> None:
    """A shell reads it as one curl command with a JSON body that holds texts."""
    words = shlex.split(local_mesh.embedding_line("http://127.0.0.1:8000/v1", "minilm"))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/embeddings"]
    body = json.loads(words[-1])
    assert (body["model"], len(body["input"])) == ("minilm", 2)


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
