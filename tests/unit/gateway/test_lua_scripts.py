"""What a cluster demands of scripts, and what keeps them exact."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
SCRIPTS = sorted(CHECKOUT.glob("[a-z]*/**/*.lua"))
CALL = re.compile(r"redis\.(\w+)\(\s*'(\w+)'\s*(?:,\s*([^,)]+))?")


def offences(text: str) -> list[str]:
    """Calls whose key is not one that came in through KEYS, and what names a key in another way."""
    code = re.sub(r"--.*", "", text)
    found = [match.group(0) for match in CALL.finditer(code) if not _is_right(*match.groups())]
    if code.count("redis.") != len(CALL.findall(code)):
        found.append("redis is used in a way that this test does not read")
    return found + re.findall(r"KEYS\s*\[[^\]]*\]\s*\.\.|\.\.\s*KEYS|KEYS\[[^\d][^\]]*\]", code)


def _is_right(how: str, command: str, key: str | None) -> bool:
    return how == "call" and (command == "TIME" or re.fullmatch(r"KEYS\[\d\]", (key or "").strip()) is not None)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_keys_come_through_KEYS(script: Path) -> None:
    """None is built in a script, so that a cluster can tell beforehand which node has them all."""
    assert offences(script.read_text()) == []


def test_the_scripts_are_found() -> None:
    """There are some."""
    assert {"books.lua", "reserve.lua", "settle.lua", "heartbeat.lua"} <= {path.name for path in SCRIPTS}


@pytest.mark.parametrize(
    "text",
    [
        "redis.call('GET', 'a')",
        "redis.call('GET', ARGV[1])",
        "redis.call('GET', KEYS[1] .. ':x')",
        "redis.pcall('GET', KEYS[1])",
        "local key = 'a:' .. KEYS[1]",
        "redis.call(command, KEYS[1])",
        "redis.call('GET', KEYS[i])",
    ],
)
def test_what_is_found(text: str) -> None:
    """The ways in which a key could get around KEYS."""
    assert offences(text)
