"""What the commands for admins make of what is typed, and what they show. The commands themselves: test_admin.py."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.cli.core import admin_tables
from inferway.cli.core.fields import patch_of, without_nulls


@pytest.mark.parametrize(
    ("words", "patch"),
    [
        ([], {}),
        (["weight=2.5", "choose_workers=true"], {"weight": 2.5, "choose_workers": True}),
        (["quota.tokens_per_day=10", "quota.x="], {"quota": {"tokens_per_day": 10, "x": None}}),
        (["models=chat, llama-*"], {"models": ["chat", "llama-*"]}),
        (["models=chat"], {"models": ["chat"]}),
        (['models=["chat"]'], {"models": ["chat"]}),
        (["models="], {"models": None}),
        (["expires=2027-06-30", "project=web"], {"expires": "2027-06-30", "project": "web"}),
        (["quota="], {"quota": None}),
        (["model_quotas.llama-3.1*.tokens_per_minute=5"], {"model_quotas": {"llama-3.1*": {"tokens_per_minute": 5}}}),
        (['model_quotas.llama-3.1*={"tokens_per_day":5}'], {"model_quotas": {"llama-3.1*": {"tokens_per_day": 5}}}),
        (["model_quotas.llama-3.1*="], {"model_quotas": {"llama-3.1*": None}}),
        (["model_quotas="], {"model_quotas": None}),
        (["project=a=b"], {"project": "a=b"}),
    ],
)  # fmt: skip
def test_fields_as_they_are_typed(words: list[str], patch: dict[str, Any]) -> None:
    assert patch_of(words) == patch


@pytest.mark.parametrize(
    "words",
    [["weight"], ["=2"], ["quota.=2"], ["quota=1", "quota.tokens_per_day=1"], ["weight=1", "weight=2"]],
)
def test_what_is_no_field(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"FIELD=VALUE|given"):
        patch_of(words)


def test_a_new_document_has_no_nulls() -> None:
    assert without_nulls({"a": None, "b": {"c": None, "d": 0}, "e": []}) == {"b": {"d": 0}, "e": []}


def test_a_table_says_what_is_set() -> None:
    """Everything beyond the columns, and nothing that would steer a terminal."""
    answer = {"tenants": [{"id": "a\x1b[2J", "source": "redis", "weight": 2, "models": ["m"]}], "next": None}
    lines = admin_tables.tenants(answer).splitlines()
    assert lines[1] == 'a?[2J   redis  weight=2 models=["m"]'
    assert admin_tables.tenants({"tenants": []}) == "there are no tenants"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, {"weight": 2}, "weight=2"),
        ({"weight": 1, "models": ["a"]}, {"weight": 2}, "weight=2 models="),
        ({"weight": 1}, {"weight": 1}, ""),
        ({"weight": 1}, None, ""),
        ("not understood", {"weight": 2}, "weight=2"),
    ],
)
def test_a_change_is_shown_by_its_difference(before: Any, after: Any, expected: str) -> None:
    change = {"at": "now", "by": "anna", "action": "put", "subject": "tenant:a", "before": before, "after": after}
    (line,) = admin_tables.changes({"changes": [change]}).splitlines()[1:]
    assert line.removeprefix("now  anna  put     tenant:a").strip() == expected


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, ""),
        ({"silent": 0}, ""),
        ({"silent": 2}, "2 gateways did not answer in time"),
        ({"silent": None}, "only the gateway that was asked"),
    ],
)
def test_what_is_missing_is_said(answer: dict[str, Any], words: str) -> None:
    text = admin_tables.warning(answer)
    assert words in text
    assert bool(words) == bool(text)
