"""Keys: who bears them, what they may do, and mistakes told by their place."""

from __future__ import annotations

import hashlib

import pytest
import yaml

from gateway.core.limits import Limits
from gateway.core.tenants import Caller, Directory, parse_tenants
from inferway.errors import ApiError, Reason
from inferway.settings import SettingsError


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def parse(text: str) -> Directory:
    return parse_tenants(yaml.safe_load(text))


FULL = f"""
tenants:
  research:
    models: [chat, "llama-*"]
    priority: {{default: 4, highest: 6}}
    limits: {{max_output_tokens: 1000, max_choices: 4}}
    keys:
      anna:
        sha256: {sha("k-anna")}
        expires: 2027-01-01
        models: [llama-8b, chat]
        limits: {{max_choices: 1}}
      team: {{sha256: {sha("k-team")}, priority: {{highest: 9}}}}
  ops:
    keys: {{admin: {{sha256: {sha("k-ops")}}}}}
"""
NEW_YEAR_2027 = 1_798_761_600.0


def test_a_key_finds_its_bearer() -> None:
    directory = parse(FULL)
    assert directory.find("k-ops", now=0) == Caller("ops", "admin")
    anna = directory.find("k-anna", now=0)
    assert anna == Caller(
        "research",
        "anna",
        (("chat", "llama-*"), ("llama-8b", "chat")),
        Limits(max_output_tokens=1000, max_choices=1),
        4,
        6,
    )
    assert directory.find("k-team", now=0) == Caller(
        "research", "team", (("chat", "llama-*"),), Limits(max_output_tokens=1000, max_choices=4), 5, 9
    )


@pytest.mark.parametrize("key", ["", "k-anna ", "K-ANNA", sha("k-anna"), "k-\udcff"])
def test_nothing_else_does(key: str) -> None:
    assert parse(FULL).find(key, now=0) is None


def test_a_key_ends_with_its_day() -> None:
    directory = parse(FULL)
    assert directory.find("k-anna", now=NEW_YEAR_2027 - 1) is not None
    assert directory.find("k-anna", now=NEW_YEAR_2027) is None


def test_models_by_any_of_their_names() -> None:
    anna = parse(FULL).find("k-anna", now=0)
    assert anna is not None
    assert anna.may_use("llama-8b")
    assert anna.may_use("chat", "qwen-8b")
    assert not anna.may_use("llama-70b")
    assert not anna.may_use("CHAT")
    assert not anna.may_use("llama-8b:adapter")
    assert Caller("t").may_use("anything")


def test_the_weight_is_the_tenants() -> None:
    """All its keys have it; where nothing is said it is 1."""
    keys = f"keys: {{x: {{sha256: {sha('x')}}}, y: {{sha256: {sha('y')}}}}}"
    directory = parse(f"tenants: {{heavy: {{weight: 2.5, {keys}}}, other: {{keys: {{z: {{sha256: {sha('z')}}}}}}}}}")
    callers = [directory.find(key, now=0) for key in "xyz"]
    assert [caller and caller.weight for caller in callers] == [2.5, 2.5, 1.0]


@pytest.mark.parametrize(
    ("default", "highest", "asked", "tier", "priority"),
    [
        (5, 9, None, None, 5),
        (5, 9, None, "default", 5),
        (5, 9, None, "priority", 7),
        (5, 9, None, "flex", 3),
        (1, 9, None, "flex", 0),
        (8, 9, None, "priority", 9),
        (5, 9, 9, "default", 9),
        (5, 9, 0, None, 0),
        (5, 5, None, "priority", None),
        (5, 6, 7, "default", None),
    ],
)
def test_priorities(default: int, highest: int, asked: int | None, tier: str | None, priority: int | None) -> None:
    caller = Caller("t", default_priority=default, highest_priority=highest)
    if priority is not None:
        assert caller.priority(asked, tier) == priority  # type: ignore[arg-type]
        return
    with pytest.raises(ApiError) as caught:
        caller.priority(asked, tier)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.PRIORITY_NOT_ALLOWED
    assert str(highest) in caught.value.message
    assert caught.value.param == ("priority" if asked is not None else "service_tier")


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("", ["Expected 'object', got 'null'"]),
        ("tenants: {'a b': {}}", ["tenants: a name: Expected 'str' matching regex"]),
        ("tenants: {t: {keys: {k: {sha256: abc}}}}", ["tenants.t.keys.k.sha256: Expected 'str' matching regex"]),
        ("tenants: {t: {keys: {k: {}}}}", ["tenants.t.keys.k: Mapping missing required field 'sha256'"]),
        ("tenants: {t: {priority: {highest: 10}}}", ["tenants.t.priority.highest: Expected 'int' <= 9"]),
        ("tenants: {t: {weight: 0}}", ["tenants.t.weight: Expected 'float' >= 0.001"]),
        ("tenants: {t: {weight: .inf}}", ["tenants.t.weight: Expected 'float' <= 1000"]),
        ("tenants: {t: {weight: .nan}}", ["tenants.t.weight: Expected"]),
        (
            f"tenants: {{t: {{keys: {{k: {{sha256: {sha('x')}, priority: {{highest: 3}}}}}}}}}}",
            ["tenants.t.keys.k: the default priority 5 is above 3"],
        ),
        (
            f"tenants: {{a: {{keys: {{k: {{sha256: {sha('x')}}}}}}}, b: {{keys: {{k: {{sha256: {sha('x')}}}}}}}}}",
            ["tenants.b.keys.k.sha256: is that of tenants.a.keys.k as well"],
        ),
    ],
)
def test_mistakes(text: str, mistakes: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(text)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(mistakes)
    assert all(line.startswith(mistake) for line, mistake in zip(lines, mistakes, strict=True)), lines
