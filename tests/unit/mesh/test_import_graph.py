"""Who may import whom: services never each other, cores nothing that waits, looks at a clock or rolls dice."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).parents[3]
SERVICES = ("gateway", "router", "worker")
PACKAGES = ("inferway", *SERVICES)

IMPURE = {"asyncio", "time", "random", "os", "logging", "socket", "threading", "subprocess"}
PURE_LIBRARIES = {"msgspec", "numpy", "minijinja", "fastokens", "tokenizers", "jsonschema_rs"}
SHARED_WITH_CORES = {
    "inferway.errors",
    "inferway.blocks",
    "inferway.ledger",
    "inferway.rendezvous",
    "inferway.sampling",
    "inferway.settings",
    "inferway.tracing",
    "inferway.usage",
}
# Outside of its core package, held to the same rules and so free to be imported there: the vocabulary of engines, and
# the simulator without its command.
SIMULATOR = ("cache", "capacity", "engine", "figures", "plot", "replay", "report", "trace")
BELONGS_TO_CORE = {
    "worker.engine": "worker.core",
    **{f"router.simulate.{module}": "router.core" for module in SIMULATOR},
}


class Import(NamedTuple):
    """`module` is absolute; `relative` says whether it was written with dots."""

    module: str
    relative: bool


def imports(source: str, module: str, *, is_package: bool) -> Iterator[Import]:
    """Everything that the source of `module` imports, also inside functions and under TYPE_CHECKING."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            # `from package import module` and `from module import name` look the same: both readings are given.
            yield from (Import(f"{name}.{alias.name}", bool(node.level)) for alias in node.names)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def core_of(module: str) -> str | None:
    """The core package that a module belongs to."""
    if module in BELONGS_TO_CORE:
        return BELONGS_TO_CORE[module]
    parts = module.split(".")
    return ".".join(parts[: parts.index("core") + 1]) if "core" in parts else None


def offences(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of one module, a sentence each."""
    owner, core = module.split(".")[0], core_of(module)
    found = []
    for name, relative in imports(source, module, is_package=is_package):
        top = name.split(".")[0]
        if top in SERVICES and top != owner:
            found.append(f"{module} imports {name} of another service")
        if owner in SERVICES and top == owner and not relative:
            found.append(f"{module} imports {name} of its own service by the absolute name")
        if owner == "inferway" and relative:
            found.append(f"{module} imports {name} by a relative name")
        if core and not is_pure(name, core):
            found.append(f"{module} is pure and imports {name}")
    return found


def is_pure(name: str, core: str) -> bool:
    top = name.split(".")[0]
    siblings = {core, *(module for module, owner in BELONGS_TO_CORE.items() if owner == core)}
    if any(within(name, allowed) for allowed in siblings | SHARED_WITH_CORES):
        return True
    return top in PURE_LIBRARIES or (top in sys.stdlib_module_names and top not in IMPURE)


def modules() -> Iterator[tuple[str, Path]]:
    """The modules of the packages by their dotted names, generated ones left out."""
    for package in PACKAGES:
        for path in sorted((CHECKOUT / package).rglob("*.py")):
            parts = path.relative_to(CHECKOUT).with_suffix("").parts
            if not path.stem.endswith(("_pb2", "_pb2_grpc")):
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_the_tree_keeps_the_rules() -> None:
    """No module of the four packages imports what it may not."""
    found = [
        offence
        for module, path in modules()
        for offence in offences(path.read_text(), module, is_package=path.stem == "__init__")
    ]
    assert found == []


def test_every_service_has_a_core() -> None:
    """The rules for cores apply to something."""
    cores = {core_of(module) for module, _ in modules()}
    assert {"gateway.core", "router.core", "worker.core", "inferway.cli.core"} <= cores


@pytest.mark.parametrize(
    ("module", "source", "offence"),
    [
        ("gateway.app", "import router.core", "gateway.app imports router.core of another service"),
        ("worker.app", "from gateway import app", "worker.app imports gateway.app of another service"),
        ("inferway.logs", "def f():\n    import worker", "inferway.logs imports worker of another service"),
        ("router.core.queue", "import asyncio", "router.core.queue is pure and imports asyncio"),
        ("router.core.queue", "from time import monotonic", "router.core.queue is pure and imports time.monotonic"),
        ("router.core.queue", "from ..service import x", "router.core.queue is pure and imports router.service.x"),
        ("worker.engine", "import asyncio", "worker.engine is pure and imports asyncio"),
        ("gateway.core.sse", "import aiohttp", "gateway.core.sse is pure and imports aiohttp"),
        ("gateway.core.sse", "from inferway import logs", "gateway.core.sse is pure and imports inferway.logs"),
        ("gateway.core.tools.a", "from ...app import x", "gateway.core.tools.a is pure and imports gateway.app.x"),
        (
            "gateway.app",
            "from gateway import x",
            "gateway.app imports gateway.x of its own service by the absolute name",
        ),
        ("inferway.logs", "from . import errors", "inferway.logs imports inferway.errors by a relative name"),
    ],
)
def test_offences_are_found(module: str, source: str, offence: str) -> None:
    """Each rule, broken on purpose, is reported."""
    assert offences(source, module) == [offence]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gateway.app", "from .core import sse\nfrom inferway import logs\nimport aiohttp, asyncio"),
        ("gateway.core.tools.hermes", "from .base import Parser\nfrom ..sse import encode\nimport json, msgspec"),
        ("worker.core.stop", "from ..engine import Output"),
        ("router.core.queue", "from inferway.errors import ApiError\nfrom inferway import blocks\nimport heapq"),
    ],
)
def test_what_is_allowed(module: str, source: str) -> None:
    """Siblings, the shared package and pure libraries are fine."""
    assert offences(source, module) == []
