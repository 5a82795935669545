"""The commands and flags that docs/gpu.md tells an operator to type."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
_BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(?P<engine>-- )?(?P<flag>--[a-z0-9-]+)[^`]*`")
# The entry point of docker/worker-sglang.Dockerfile.
_IMAGE, _IMAGE_ARGUMENTS = "inferway-worker-sglang", ["--engine", "sglang"]


class Command(NamedTuple):
    """`python -m SERVICE ARGUMENTS -- ENGINE_FLAGS`; also what is run in the worker's image."""

    service: str
    arguments: list[str]
    engine_flags: list[str]


class Mentions(NamedTuple):
    """Flags named outside of commands: those of our services, and, as `-- --flag`, those of SGLang."""

    ours: set[str]
    engine: set[str]


def commands(text: str) -> list[Command]:
    """Those of all blocks, in order."""
    lines = [line for block in _BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    return [command for line in lines if (command := _command(line)) is not None]


def mentions(text: str) -> Mentions:
    found = list(_INLINE.finditer(_BLOCK.sub("", text)))
    return Mentions(
        {match["flag"] for match in found if not match["engine"]},
        {match["flag"] for match in found if match["engine"]},
    )


def _command(line: str) -> Command | None:
    if "-m " not in line and _IMAGE not in line:
        return None
    words = shlex.split(line, comments=True)
    if "-m" in words[:-1]:
        at = words.index("-m") + 1
        service, rest = words[at], words[at + 1 :]
    elif words[0] == "docker" and words[1] == "run":
        service, rest = "worker", _IMAGE_ARGUMENTS + words[words.index(_IMAGE) + 1 :]
    else:
        return None
    cut = rest.index("--") if "--" in rest else len(rest)
    return Command(service, rest[:cut], rest[cut + 1 :])
