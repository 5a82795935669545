"""Keys: who bears them, what they may do, and mistakes told by their place."""

from __future__ import annotations

import hashlib

import pytest
import yaml

from gateway.core.directory import FileDirectory, parse_tenants
from gateway.core.limits import Limits
from gateway.core.quota.policy import Quota, QuotaPolicy, TokenWeights
from gateway.core.tenants import Caller
from inferway.errors import ApiError, Reason
from inferway.settings import SettingsError


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def parse(text: str) -> FileDirectory:
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


def test_quotas_come_from_tenant_key_and_model() -> None:
    directory = parse(f"""
tenants:
  t:
    quota: {{requests_per_minute: 60}}
    model_quotas: {{"big-*": {{tokens_per_minute: 1000}}}}
    token_weights: {{cached: 0.1, output: 3}}
    quota_mode: shadow
    quota_outage: closed
    keys: {{k: {{sha256: {sha("k")}, project: apollo, quota: {{parallel_requests: 2}}}}}}
  plain: {{keys: {{p: {{sha256: {sha("p")}}}}}}}
""")
    caller, plain = directory.find("k", now=0), directory.find("p", now=0)
    assert caller is not None
    assert plain is not None
    assert caller.project == "apollo"
    assert caller.quota == QuotaPolicy(
        Quota(requests_per_minute=60),
        Quota(parallel_requests=2),
        (("big-*", Quota(tokens_per_minute=1000)),),
        TokenWeights(cached=0.1, output=3),
        is_shadow=True,
        outage="closed",
    )
    assert (plain.project, plain.quota) == ("", QuotaPolicy())


def test_a_cache_domain_is_shared_by_those_that_name_it_alone() -> None:
    """A tenant that is called like a shared domain, and one that has another name, stay outside."""
    names = {"a": "cache_domain: x, ", "b": "cache_domain: x, ", "x": "", "c": "cache_domain: y, "}
    tenants = ", ".join(f"{name}: {{{domain}keys: {{k: {{sha256: {sha(name)}}}}}}}" for name, domain in names.items())
    directory = parse(f"tenants: {{{tenants}}}")
    callers = {name: directory.find(name, now=0) for name in names}
    domains = {name: caller.cache_domain for name, caller in callers.items() if caller is not None}
    assert domains["a"] == domains["b"]
    assert len({domains[name] for name in "axc"}) == 3
    assert domains["x"] == "x"


def test_neither_keys_nor_their_digests_are_in_memory() -> None:
    """What is found by is keyed by a secret: without it, the same file finds nobody."""
    with_secret = parse_tenants(yaml.safe_load(FULL), b"secret")
    assert with_secret.find("k-ops", now=0) == Caller("ops", "admin")
    assert sha("k-ops") not in repr(with_secret)
    assert set(with_secret._entries).isdisjoint(parse(FULL)._entries)


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
            ["tenants.t.keys.k.priority: the default priority 5 is above 3"],
        ),
        (
            "tenants: {t: {priority: {default: 7, highest: 6}}}",
            ["tenants.t.priority: the default priority 7 is above 6"],
        ),
        (
            "tenants: {t: {quota: {requests_per_minute: 0}}}",
            ["tenants.t.quota.requests_per_minute: Expected 'int' >= 1"],
        ),
        ("tenants: {t: {quota: {rpm: 1}}}", ["tenants.t.quota: Mapping contains unknown field 'rpm'"]),
        (
            "tenants: {t: {model_quotas: {'a*': {}, 'b*': {tokens_per_day: -1}}}}",
            ["tenants.t.model_quotas.b*.tokens_per_day: Expected 'int' >= 1"],
        ),
        ("tenants: {t: {model_quotas: [a]}}", ["tenants.t.model_quotas: Expected 'object', got 'array'"]),
        ("tenants: {t: {token_weights: {output: -1}}}", ["tenants.t.token_weights.output: Expected 'float' >= 0"]),
        ("tenants: {t: {quota_mode: off}}", ["tenants.t.quota_mode: Expected 'str', got 'bool'"]),
        ("tenants: {t: {quota_outage: half}}", ["tenants.t.quota_outage: Invalid enum value 'half'"]),
        ("tenants: {t: {cache_domain: 'shared:x'}}", ["tenants.t.cache_domain: Expected 'str' matching regex"]),
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


def test_quotas_that_nobody_could_share() -> None:
    """Several processes without Redis would each grant the whole of a quota: a file that has one is refused."""
    text = """
tenants:
  a: {quota: {requests_per_minute: 5}, keys: {}}
  b: {model_quotas: {"m-*": {tokens_per_day: 5}}, keys: {}}
  c: {keys: {k: {sha256: "%s", quota: {parallel_requests: 1}}}}
  d: {keys: {k: {sha256: "%s"}}}
"""
    raw = yaml.safe_load(text % ("0" * 64, "1" * 64))
    parse_tenants(raw)
    with pytest.raises(SettingsError) as caught:
        parse_tenants(raw, may_have_quotas=False)
    sentence = "has quotas, which several processes can only share with --redis"
    places = ["tenants.a", "tenants.b", "tenants.c.keys.k.quota"]
    assert str(caught.value).splitlines() == [f"{place}: {sentence}" for place in places]
