"""What the pages point at is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.md")])
SOURCES = (
    "benchmarks",
    "docker",
    "docs",
    "gateway",
    "helm",
    "inferway",
    "protos",
    "router",
    "scripts",
    "tests",
    "worker",
)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_links(page: Path) -> None:
    """Each relative link has its file, and where it names a heading, that."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text())):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, heading = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        assert not heading or heading in _headings(there), target


@every_page
def test_files(page: Path) -> None:
    """Each program that a page names is one of this repository; of what has changed since, only CHANGELOG may speak."""
    if page.name == "CHANGELOG.md":
        return
    for name in re.findall(r"`([\w./-]+\.(?:py|sh|lua|proto))`", page.read_text()):
        assert any(f"/{name}" in f"/{path}" for path in _files()), name


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def _headings(page: Path) -> frozenset[str]:
    """As GitHub names them."""
    lines = re.findall(r"^#+ (.*)$", _without_code(page.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines)


@cache
def _files() -> list[str]:
    return [str(path.relative_to(ROOT)) for folder in SOURCES for path in _walk(ROOT / folder)]


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir():
            if path.name != "node_modules":
                yield from _walk(path)
        else:
            yield path
