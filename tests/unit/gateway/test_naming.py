"""Names of models: aliases with weights, announcements, and mistakes told by their place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml

from gateway.core.limits import Limits
from gateway.core.naming import Naming, parse_models, pick
from inferway.settings import SettingsError


def parse(text: str) -> Naming:
    return parse_models(yaml.safe_load(text))


FULL = """
limits: {max_output_tokens: 4096}
models:
  big:
    limits: {max_input_tokens: 32000, max_temperature: 1.5}
    deprecated: 2027-01-10
    sunset: 2027-03-15
    link: https://wiki.example/big
  small: {wait_for_workers_s: 90}
aliases:
  chat: big
  next: {models: {big: 9, small: 1}, deprecated: 2027-01-01}
fields:
  functions: {deprecated: 2027-02-01, sunset: 2027-06-01}
"""


def test_a_full_file() -> None:
    naming = parse(FULL)
    assert naming.targets("chat") == {"big": 1}
    assert naming.targets("next") == {"big": 9, "small": 1}
    assert naming.targets("unheard-of") == {"unheard-of": 1}
    assert naming.targets("chat:legal") == {"big:legal": 1}
    assert naming.known == {"big", "small"}
    assert naming.on_demand == {"small": 90}
    assert [naming.wait_s(name) for name in ("small", "small:legal", "big", "unheard-of")] == [90, 90, 0, 0]
    assert naming.limits_of(["big", ""]) == [
        Limits(max_output_tokens=4096),
        Limits(max_input_tokens=32000, max_temperature=1.5),
    ]


def test_an_empty_file_says_nothing() -> None:
    assert parse("") == Naming()


def test_announcements_become_headers() -> None:
    naming = parse(FULL)
    assert naming.headers(["small"], ["messages"]) == {}
    big = {
        "Deprecation": "@1799539200",
        "Sunset": "Mon, 15 Mar 2027 00:00:00 GMT",
        "Link": '<https://wiki.example/big>; rel="deprecation"',
    }
    assert naming.headers(["chat", "big"], []) == big
    # The earliest of each, and the place to read about what ends first.
    assert naming.headers(["next", "big"], ["functions"]) == {**big, "Deprecation": "@1798761600"}
    assert naming.headers(["small"], ["functions"]) == {
        "Deprecation": "@1801440000",
        "Sunset": "Tue, 01 Jun 2027 00:00:00 GMT",
    }


def test_weights_are_kept_and_a_key_stays_where_it_is() -> None:
    targets = {"old": 9, "new": 1, "off": 0}
    chosen = [pick(targets, targets, f"user-{number}") for number in range(10_000)]
    counts = Counter(chosen)
    assert counts["off"] == 0
    assert 850 < counts["new"] < 1150
    assert chosen == [pick(targets, targets, f"user-{number}") for number in range(10_000)]
    # A larger share takes callers over and sends none back.
    larger = [pick({"old": 8, "new": 2}, targets, f"user-{number}") for number in range(10_000)]
    assert all(after == "new" for before, after in zip(chosen, larger, strict=True) if before == "new")


def test_a_canary_that_nobody_serves_gets_no_share() -> None:
    targets = {"old": 1, "new": 99}
    assert {pick(targets, {"old"}, str(number)) for number in range(100)} == {"old"}
    assert {pick(targets, set(), str(number)) for number in range(1000)} == {"old", "new"}


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("models: 3", ["models: Expected 'object', got 'int'"]),
        ("modles: {}", ["Mapping contains unknown field 'modles'"]),
        ("models: {m: {limits: {max_tokens: 3}}}", ["models.m.limits: Mapping contains unknown field 'max_tokens'"]),
        ("models: {m: {limits: {max_choices: 0}}}", ["models.m.limits.max_choices: Expected 'int' >= 1"]),
        ("models: {m: {limits: {max_temperature: 3}}}", ["models.m.limits.max_temperature: Expected 'float' <= 2.0"]),
        ("aliases: {a: {models: {m: -1}}}", ["aliases.a.models[...]: Expected 'int' >= 0"]),
        ("aliases: {a: {models: {m: 0}}}", ["aliases.a.models: needs at least one model with a weight above 0"]),
        ("aliases: {a: b, b: m}", ["aliases.a.models: 'b' is an alias itself"]),
        ("{models: {m: {}}, aliases: {m: n}}", ["aliases.m: is a model's own name as well"]),
        (
            "models: {m: {sunset: 2027-03-01}}",
            ["models.m.sunset: needs 'deprecated', the day from which it is announced"],
        ),
        (
            "{models: {m: {deprecated: 2027-01-01, sunset: 2027-03-01}},"
            " aliases: {a: {models: m, sunset: 2027-03-01}}}",
            [
                "models.m.sunset: must be at least 60 days after 'deprecated', is 59 days after it",
                "aliases.a.sunset: needs 'deprecated', the day from which it is announced",
            ],
        ),
        ("fields: {f: {deprecated: 2027-01-01, sunset: 2026-01-01}}", ["fields.f.sunset: must be at least 60 days"]),
        (
            "models: {m: {link: 'a\\r\\nSet-Cookie: x'}, n: {link: 'b>'}}",
            ["models.m.link: Expected", "models.n.link: Ex"],
        ),
    ],
)
def test_mistakes(text: str, mistakes: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(text)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(mistakes)
    assert all(line.startswith(mistake) for line, mistake in zip(lines, mistakes, strict=True)), lines


def test_sixty_days_of_notice_are_enough() -> None:
    raw: Any = {"models": {"m": {"deprecated": "2027-01-01", "sunset": "2027-03-02"}}}
    assert "m" in parse_models(raw).retiring_names
