"""Who issues tokens that are taken beside keys, and what their claims say of the bearer.

The file of issuers:

    issuers:
      corp:                                     # what logs and quotas call it
        issuer: https://login.example/          # `iss` of its tokens
        audience: [inferway]                    # one of these must stand in `aud`
        algorithms: [RS256, ES256]              # left out: both
        jwks_url: https://login.example/keys    # or jwks_file: its public keys
        leeway_s: 30                            # between its clock and ours
        tenants: listed                         # or any: tenants that no directory knows get the defaults
        tenant: research                        # of all its tokens; or by a claim, below
        claims:                                 # claim, or the path to one in nested claims
          tenant: tenant_id
          key_id: sub
          project: [inferway, project]
          models: models                        # list of names and patterns, or one text with blanks between
          priority: priority                    # default priority, and highest unless that has its own claim
          highest_priority: highest_priority
          quota: plan                           # names one of the quotas
        quotas:
          gold: {requests_per_minute: 600}

A token is judged by its own issuer's settings alone. Only algorithms with a public key are known, so that nobody can
sign with what is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from inferway.settings import SettingsError, each, refuse, shaped

from .quota.policy import NO_QUOTA, Quota
from .tenants import KeyFields, Name, Priorities

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_Text = Annotated[str, Meta(min_length=1, max_length=2048)]
_Claim = _Text | Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=8)]

# Of what a claim says of its bearer; it appears in logs and in the names of quotas.
_MOST_SUBJECT_CHARS = 128
_LOOPBACK = ("http://127.0.0.1:", "http://localhost:", "http://[::1]:")


class Claims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in a token things stand."""

    tenant: _Claim | None = None
    key_id: _Claim = "sub"
    project: _Claim | None = None
    models: _Claim | None = None
    priority: _Claim | None = None
    highest_priority: _Claim | None = None
    quota: _Claim | None = None


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuer: _Text
    audience: Annotated[tuple[_Text, ...], Meta(min_length=1)]
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ("RS256", "ES256")
    jwks_url: _Text | None = None
    jwks_file: _Text | None = None
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 30.0
    tenants: Literal["listed", "any"] = "listed"
    tenant: Name | None = None
    claims: Claims = Claims()
    quotas: dict[Name, Quota] = msgspec.field(default_factory=dict)


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    issuers: dict[Name, Any]


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whom a token speaks of."""

    tenant_id: str
    key_id: str
    fields: KeyFields
    # Whether the tenant must be in a directory.
    must_be_listed: bool


class BadClaims(ValueError):
    """A claim is missing or is not what it must be; the sentence quotes none of them."""


class NamedIssuer(NamedTuple):
    """With the name that the file gives it."""

    name: str
    settings: Issuer


# By `iss`.
Issuers = Mapping[str, NamedIssuer]


def parse_issuers(raw: Any) -> Issuers:
    """Raises SettingsError."""
    mistakes = []
    found: dict[str, NamedIssuer] = {}
    given = shaped(raw, _File).issuers
    for name, entry in given.items():
        quotas = entry.get("quotas") if isinstance(entry, Mapping) else None
        if isinstance(quotas, Mapping):
            each(quotas, Quota, f"issuers.{name}.quotas")
    for name, issuer in each(given, Issuer, "issuers").items():
        place = f"issuers.{name}"
        if (issuer.jwks_url is None) == (issuer.jwks_file is None):
            mistakes.append(f"{place}: needs either 'jwks_url' or 'jwks_file'")
        if issuer.jwks_url is not None and not issuer.jwks_url.startswith(("https://", *_LOOPBACK)):
            mistakes.append(
                f"{place}.jwks_url: must be https://, or http:// on loopback: who can change the keys signs"
            )
        if (issuer.tenant is None) == (issuer.claims.tenant is None):
            mistakes.append(f"{place}: needs either 'tenant' or 'claims.tenant'")
        if issuer.claims.quota is not None and not issuer.quotas:
            mistakes.append(f"{place}.quotas: 'claims.quota' names one of them, and there is none")
        if issuer.issuer in found:
            mistakes.append(f"{place}.issuer: is that of issuers.{found[issuer.issuer].name} as well")
        found[issuer.issuer] = NamedIssuer(name, issuer)
    refuse(mistakes)
    return found


def bearer_of(name: str, issuer: Issuer, claims: Mapping[str, Any]) -> Bearer:
    """Whom the claims of a token speak of whose signature, times and audience are good. Raises BadClaims.

    Every claim that the settings name must be there: without it, a token would be restricted less than was meant.
    """
    where = issuer.claims
    tenant_id = issuer.tenant if where.tenant is None else _shaped(_claim(claims, where.tenant), Name, "tenant")
    subject = _claim(claims, where.key_id)
    if isinstance(subject, int) and not isinstance(subject, bool):
        subject = str(subject)
    if not isinstance(subject, str) or not 0 < len(subject) <= _MOST_SUBJECT_CHARS or not subject.isprintable():
        raise BadClaims("key_id: must be a printable text of at most 128 characters")
    fields = KeyFields(
        project=None if where.project is None else _shaped(_claim(claims, where.project), Name, "project"),
        models=None if where.models is None else _models(_claim(claims, where.models)),
        priority=_priorities(claims, where),
        quota=NO_QUOTA if where.quota is None else _quota(_claim(claims, where.quota), issuer.quotas),
    )
    assert tenant_id is not None, "parse_issuers refuses settings without either"
    # No key has a colon in its name: blocks and quotas of keys and of subjects are never each other's.
    return Bearer(tenant_id, f"{name}:{subject}", fields, issuer.tenants == "listed")


def _claim(claims: Mapping[str, Any], path: str | Sequence[str]) -> Any:
    """None where there is none."""
    value: Any = claims
    for name in (path,) if isinstance(path, str) else path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _shaped(value: Any, shape: Any, what: str) -> Any:
    try:
        return shaped(value, shape)
    except SettingsError as error:
        raise BadClaims(f"{what}: {error}") from None


def _models(value: Any) -> tuple[str, ...]:
    names = value.split() if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise BadClaims("models: must be a list of names, or names with blanks between")
    return tuple(names)


def _priorities(claims: Mapping[str, Any], where: Claims) -> Priorities | None:
    if where.priority is None and where.highest_priority is None:
        return None
    given = {}
    if where.priority is not None:
        given["default"] = given["highest"] = _claim(claims, where.priority)
    if where.highest_priority is not None:
        given["highest"] = _claim(claims, where.highest_priority)
    priorities: Priorities = _shaped(given, Priorities, "priority")
    return priorities


def _quota(value: Any, quotas: Mapping[str, Quota]) -> Quota:
    if not isinstance(value, str) or value not in quotas:
        raise BadClaims("quota: names none of the issuer's quotas")
    return quotas[value]
