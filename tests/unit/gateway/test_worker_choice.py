"""Callers that name workers: what the headers mean, who may send them, and where that is said."""

from __future__ import annotations

import hashlib

import pytest
import yaml

from gateway.authentication import authentication
from gateway.core.directory import parse_tenants
from gateway.core.tenants import Caller
from gateway.core.worker_choice import ANY_WORKER, WorkerChoice, worker_choice
from inferway.errors import ApiError, Reason
from inferway.settings import SettingsError

PRIVILEGED = Caller("ops", may_choose_workers=True)
ONLY, EXCLUDED = "x-inferway-worker", "x-inferway-exclude-workers"


@pytest.mark.parametrize(
    ("headers", "choice"),
    [
        ({}, ANY_WORKER),
        ({ONLY: "", EXCLUDED: " , "}, ANY_WORKER),
        ({ONLY: " gpu-1 "}, WorkerChoice("gpu-1")),
        ({EXCLUDED: "a, b,a"}, WorkerChoice("", frozenset("ab"))),
        ({ONLY: "c", EXCLUDED: "a,b"}, WorkerChoice("c", frozenset("ab"))),
    ],
)
def test_what_is_asked_for(headers: dict[str, str], choice: WorkerChoice) -> None:
    assert worker_choice(headers, PRIVILEGED) == choice


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({ONLY: "a", EXCLUDED: "a,b"}, EXCLUDED),
        ({ONLY: "a" * 257}, ONLY),
        ({EXCLUDED: "a" * 257}, EXCLUDED),
        ({EXCLUDED: ",".join(map(str, range(33)))}, EXCLUDED),
    ],
)
def test_what_makes_no_sense(headers: dict[str, str], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        worker_choice(headers, PRIVILEGED)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.param == param


@pytest.mark.parametrize("header", [ONLY, EXCLUDED])
def test_others_are_told_no(header: str) -> None:
    """A header that is not allowed is refused, not ignored; without one nobody needs a permission."""
    with pytest.raises(ApiError) as caught:
        worker_choice({header: "a"}, Caller("research"))
    assert caught.value.status == 403
    assert caught.value.reason is Reason.WORKER_CHOICE_NOT_ALLOWED
    assert header in caught.value.message
    assert worker_choice({}, Caller("research")) == ANY_WORKER


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.parametrize(
    ("tenant", "key", "allowed"),
    [
        ("", "", False),
        ("choose_workers: true", "", True),
        ("", "choose_workers: true", True),
        ("choose_workers: true", "choose_workers: false", False),
    ],
)
def test_the_file_says_who_may(tenant: str, key: str, allowed: bool) -> None:
    """A tenant or a key, and the key goes first."""
    tenant, key = tenant or "models: null", key or "models: null"
    file = f"tenants: {{ops: {{{tenant}, keys: {{admin: {{sha256: {sha('k')}, {key}}}}}}}}}"
    caller = parse_tenants(yaml.safe_load(file)).find("k", now=0)
    assert caller is not None
    assert caller.may_choose_workers is allowed


def test_only_yes_and_no_are_taken() -> None:
    file = {"tenants": {"ops": {"keys": {"admin": {"sha256": sha("k"), "choose_workers": "sometimes"}}}}}
    with pytest.raises(SettingsError, match=r"tenants\.ops\.keys\.admin\.choose_workers"):
        parse_tenants(file)


@pytest.mark.parametrize("allowed", [False, True])
async def test_without_a_file_an_option_says_so(allowed: bool) -> None:
    """For callers with a key and without one."""
    caller_of = authentication(None, anyone_may_choose_workers=allowed)
    assert (await caller_of("")).may_choose_workers is allowed
    assert (await caller_of("Bearer k")).may_choose_workers is allowed
