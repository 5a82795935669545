"""The clients that docs/clients.md names are those that the tests install."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
PAGE = (CHECKOUT / "docs" / "clients.md").read_text()
EXTRAS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NODE = CHECKOUT / "tests" / "clients" / "node"
PACKAGE = json.loads((NODE / "package.json").read_text())
LOCK = json.loads((NODE / "package-lock.json").read_text())


def pinned(extra: str, package: str) -> str:
    (version,) = (line.partition("==")[2] for line in EXTRAS[extra] if line.startswith(f"{package}=="))
    return version


@pytest.mark.parametrize(
    ("row", "versions"),
    [
        ("openai (Python)", [pinned("dev", "openai"), pinned("clients", "openai")]),
        ("openai (Node)", [PACKAGE["devDependencies"]["openai"]]),
        ("langchain-openai", [pinned("clients", "langchain-openai")]),
        ("llama-index-llms-openai-like", [pinned("clients", "llama-index-llms-openai-like")]),
        ("llama-index-embeddings-openai-like", [pinned("clients", "llama-index-embeddings-openai-like")]),
        ("instructor", [pinned("clients", "instructor")]),
        (
            "ai with @ai-sdk/openai-compatible",
            [PACKAGE["devDependencies"]["ai"], PACKAGE["devDependencies"]["@ai-sdk/openai-compatible"]],
        ),
        (
            "ai with @ai-sdk/openai",
            [PACKAGE["devDependencies"]["ai"], PACKAGE["devDependencies"]["@ai-sdk/openai"]],
        ),
    ],
)
def test_the_page_names_the_tested_versions(row: str, versions: list[str]) -> None:
    """Each row's version is the pin."""
    (said,) = re.findall(rf"^\| \[{re.escape(row)}\]\([^)]*\) \| ([^|]+) \|", PAGE, re.M)
    assert said.strip().split(", ") == versions


def test_the_lock_file_is_of_the_package_file_and_names_no_registry() -> None:
    """Exact versions, checksums, and wherever the packages were fetched from is left open."""
    assert LOCK["packages"][""]["devDependencies"] == PACKAGE["devDependencies"]
    installed = {name: entry for name, entry in LOCK["packages"].items() if name}
    for name, version in PACKAGE["devDependencies"].items():
        assert installed[f"node_modules/{name}"]["version"] == version
    assert all(entry["integrity"].startswith("sha512-") for entry in installed.values())
    assert not any("resolved" in entry for entry in installed.values())
