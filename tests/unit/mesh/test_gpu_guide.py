"""docs/gpu.md tells operators only what our services understand. tests/sglang holds it to SGLang's flags as well."""

from __future__ import annotations

import dataclasses
import importlib
import json

import pytest

from inferway.config import ConfigError, flag_name, load
from tests.support.gpu_guide import GUIDE, Command, commands, mentions

SERVICES = ("worker", "router", "gateway")
TEXT = GUIDE.read_text()
COMMANDS = [command for command in commands(TEXT) if command.service in SERVICES]


def understand(command: Command) -> None:
    """Raises SystemExit for a flag that the service does not have, and ConfigError for a value that it refuses."""
    config = importlib.import_module(f"{command.service}.config").Config
    load(config, command.service, {}, command.arguments)


def flags(service: str) -> set[str]:
    config = importlib.import_module(f"{service}.config").Config
    return {flag_name(field) for field in dataclasses.fields(config)}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.service)
def test_services_understand_the_commands(command: Command) -> None:
    """Every flag before "--" is one that the service has, with a value that it accepts."""
    understand(command)


def test_all_commands_are_seen() -> None:
    """Each service is started on the page; the worker also in its image and by systemd, each time on the GPU."""
    assert {command.service for command in COMMANDS} == set(SERVICES)
    workers = [command for command in COMMANDS if command.service == "worker"]
    assert len(workers) == 5
    assert all("--device" in command.engine_flags for command in workers)


def test_flags_in_the_text() -> None:
    """A flag of ours that a sentence names is one that some service has; one of SGLang's is not taken for ours."""
    named = mentions(TEXT)
    ours = {flag for service in SERVICES for flag in flags(service)}
    assert len(named.ours) > 5
    assert len(named.engine) > 15
    assert named.ours <= ours


def test_requests_are_json() -> None:
    """The body of the curl line is a JSON object that asks for a stream."""
    body = TEXT.split("-d '", 1)[1].split("'", 1)[0]
    assert json.loads(body)["stream"] is True


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m worker --engine sglang -- --tp-size 4", None),
        ("A=1 /venv/bin/python -m worker --max-running 8", None),
        ("docker run --gpus all inferway-worker-sglang --model-path /m", None),
        ("python -m worker --no-such-flag", SystemExit),
        ("docker run --gpus all inferway-worker-sglang --no-such-flag", SystemExit),
        ("ExecStart=/venv/bin/python -m router \\\n    --no-such-flag", SystemExit),
        ("python -m gateway --processes 0", ConfigError),
        ("python -m worker --listen 10.0.0.5", ConfigError),
    ],
)
def test_mistakes_are_noticed(line: str, expected: type[BaseException] | None) -> None:
    """A command with a flag or a value that its service does not take fails, however it is written."""
    (command,) = commands(f"Text.\n\n```\n{line}\n```\n")
    if expected is None:
        understand(command)
        return
    with pytest.raises(expected):
        understand(command)


def test_mentions_are_told_apart() -> None:
    """Flags of ours, flags of SGLang, and words in a block or of another program."""
    named = mentions("`--a` and `-- --b 4`, `docker run --c`\n\n```\npython -m worker --d\n```\n")
    assert named.ours == {"--a"}
    assert named.engine == {"--b"}
