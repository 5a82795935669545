"""The file of issuers, and what the claims of a token say of its bearer."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gateway.core.issuers import BadClaims, Bearer, Issuers, bearer_of, parse_issuers
from gateway.core.quota.policy import Quota
from gateway.core.tenants import KeyFields, Priorities
from inferway.settings import SettingsError

FULL = """
issuers:
  corp:
    issuer: https://login.example/
    audience: [inferway]
    jwks_url: https://login.example/keys
    claims:
      tenant: tenant_id
      project: [inferway, project]
      models: models
      priority: priority
      highest_priority: highest
      quota: plan
    quotas:
      gold: {requests_per_minute: 600}
  plain: {issuer: other, audience: [a], jwks_file: keys.json, tenant: research, tenants: any}
"""
CLAIMS: dict[str, Any] = {
    "tenant_id": "research",
    "sub": "auth0|anna",
    "inferway": {"project": "apollo"},
    "models": ["chat", "llama-*"],
    "priority": 4,
    "highest": 6,
    "plan": "gold",
}


def parse(text: str) -> Issuers:
    return parse_issuers(yaml.safe_load(text))


def bearer(issuer: str = "https://login.example/", **claims: Any) -> Bearer:
    return bearer_of(*parse(FULL)[issuer], {**CLAIMS, **claims})


def test_claims_say_who_it_is() -> None:
    fields = KeyFields(
        project="apollo",
        models=("chat", "llama-*"),
        priority=Priorities(default=4, highest=6),
        quota=Quota(requests_per_minute=600),
    )
    assert bearer() == Bearer("research", "corp:auth0|anna", fields, True)
    assert bearer(models="chat llama-*") == bearer()
    assert bearer(sub=17).key_id == "corp:17"
    assert bearer("other", tenant_id="evil") == Bearer("research", "plain:auth0|anna", KeyFields(), False)


@pytest.mark.parametrize(
    ("claims", "what"),
    [
        ({"tenant_id": None}, "tenant"),
        ({"tenant_id": "a b"}, "tenant"),
        ({"tenant_id": ["research"]}, "tenant"),
        ({"sub": None}, "key_id"),
        ({"sub": ""}, "key_id"),
        ({"sub": True}, "key_id"),
        ({"sub": "x" * 129}, "key_id"),
        ({"sub": "anna\nlevel=error"}, "key_id"),
        ({"inferway": None}, "project"),
        ({"inferway": {"project": 3}}, "project"),
        ({"models": None}, "models"),
        ({"models": [1]}, "models"),
        ({"models": {"chat": 1}}, "models"),
        ({"priority": None}, "priority"),
        ({"priority": "9"}, "priority"),
        ({"priority": 7, "highest": 6}, "priority"),
        ({"highest": 10}, "priority"),
        ({"plan": None}, "quota"),
        ({"plan": "platinum"}, "quota"),
        ({"plan": ["gold"]}, "quota"),
    ],
)
def test_every_claim_that_is_asked_for_must_be_there_and_good(claims: dict[str, Any], what: str) -> None:
    with pytest.raises(BadClaims, match=f"^{what}: "):
        bearer(**claims)


def test_a_list_of_no_models_allows_none() -> None:
    assert bearer(models=[]).fields.models == ()
    assert bearer(models="").fields.models == ()


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        ("tenant: t", "issuers.i: needs either 'jwks_url' or 'jwks_file'"),
        ("tenant: t, jwks_file: a, jwks_url: https://a", "issuers.i: needs either 'jwks_url' or 'jwks_file'"),
        ("tenant: t, jwks_url: http://login.example/keys", "issuers.i.jwks_url: must be https://"),
        ("tenant: t, jwks_url: 'http://localhost.evil.example/'", "issuers.i.jwks_url: must be https://"),
        ("jwks_file: a", "issuers.i: needs either 'tenant' or 'claims.tenant'"),
        ("jwks_file: a, tenant: t, claims: {tenant: t}", "issuers.i: needs either 'tenant' or 'claims.tenant'"),
        ("jwks_file: a, tenant: t, algorithms: [HS256]", "issuers.i.algorithms[0]: Invalid enum value 'HS256'"),
        ("jwks_file: a, tenant: t, algorithms: [none]", "issuers.i.algorithms[0]: Invalid enum value 'none'"),
        ("jwks_file: a, tenant: t, claims: {quota: plan}", "issuers.i.quotas: 'claims.quota' names one of them"),
        ("jwks_file: a, tenant: t, quotas: {g: {rpm: 1}}", "issuers.i.quotas.g: Mapping contains unknown field 'rpm'"),
        ("jwks_file: a, tenant: t, surprise: 1", "issuers.i: Mapping contains unknown field 'surprise'"),
    ],
)
def test_mistakes(settings: str, mistake: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(f"issuers: {{i: {{issuer: x, audience: [a], {settings}}}}}")
    assert str(caught.value).startswith(mistake), caught.value


def test_an_issuer_has_one_set_of_rules() -> None:
    with pytest.raises(SettingsError, match=r"issuers.b.issuer: is that of issuers.a as well"):
        parse(
            "issuers: {a: {issuer: x, audience: [a], jwks_file: f, tenant: t},"
            " b: {issuer: x, audience: [b], jwks_file: f, tenant: u}}"
        )
