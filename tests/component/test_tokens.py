"""Bearer tokens with real signatures: which are taken, which never, and where the keys that judge them come from."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jwt.warnings import InsecureKeyLengthWarning

from gateway.core.issuers import Issuers, parse_issuers
from gateway.core.quota.policy import Quota
from gateway.core.tenants import Caller, TenantFields
from gateway.directory import key_sets
from gateway.directory import tokens as tokens_module
from gateway.directory.tokens import Tokens, looks_like_token
from inferway.errors import ApiError, Reason
from tests.support.issuer import ISSUER, Issuer, KeyServer, part
from tests.support.waiting import until

TENANTS = {"research": TenantFields(models=("chat", "m*"), weight=3)}
ALL = ["RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA"]


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    issuer = Issuer()
    issuer.add("rsa", "RS256")
    issuer.add("rsa-512-only", "RS512", alg="RS512")
    issuer.add("pss", "PS256")
    issuer.add("ec", "ES256")
    issuer.add("ec-384", "ES384")
    issuer.add("ed", "EdDSA")
    return issuer


@pytest.fixture
async def server(issuer: Issuer) -> AsyncIterator[KeyServer]:
    async with KeyServer(issuer) as server:
        yield server


def rules(source: dict[str, str], **changes: Any) -> Issuers:
    entry = {"issuer": ISSUER, "audience": ["inferway", "other"], "algorithms": ALL, "claims": {"tenant": "tenant_id"}}
    return parse_issuers({"issuers": {"corp": {**entry, **source, **changes}}})


async def tenant(tenant_id: str) -> TenantFields | None:
    return TENANTS.get(tenant_id)


def tokens_by(server: KeyServer, **changes: Any) -> Tokens:
    settings = rules({"jwks_url": server.url}, **changes)
    return Tokens(lambda: settings, tenant)


@pytest.mark.parametrize("key_id", ["rsa", "rsa-512-only", "pss", "ec", "ec-384", "ed"])
async def test_tokens_of_every_kind_of_key(issuer: Issuer, server: KeyServer, key_id: str) -> None:
    """The tenant's settings hold, and the key's name says the issuer."""
    token = issuer.token(key_id)
    assert looks_like_token(token)
    found = await tokens_by(server).find(token)
    assert found == Caller("research", "corp:anna", (("chat", "m*"),), weight=3)


async def test_what_claims_say(issuer: Issuer, server: KeyServer) -> None:
    where = {"tenant": "tenant_id", "models": ["x", "models"], "priority": "p", "quota": "plan", "project": "proj"}
    tokens = tokens_by(server, claims=where, quotas={"gold": {"requests_per_minute": 9}})
    token = issuer.token("ec", x={"models": "m1"}, p=7, plan="gold", proj="apollo")
    caller = await tokens.find(token)
    assert caller is not None
    assert caller.models == (("chat", "m*"), ("m1",))
    assert (caller.default_priority, caller.highest_priority, caller.project) == (7, 7, "apollo")
    assert caller.quota.key == Quota(requests_per_minute=9)
    assert await tokens.find(issuer.token("ec")) is None


async def test_tenants_that_no_directory_knows(issuer: Issuer, server: KeyServer) -> None:
    token = issuer.token("ec", tenant_id="guests")
    assert await tokens_by(server).find(token) is None
    assert await tokens_by(server, tenants="any").find(token) == Caller("guests", "corp:anna")


NOW = int(time.time())
BAD: dict[str, Callable[[Issuer], str]] = {
    "another audience": lambda issuer: issuer.token("ec", aud="elsewhere"),
    "no audience": lambda issuer: issuer.token("ec", aud=None),
    "another issuer": lambda issuer: issuer.token("ec", iss="https://evil.example/"),
    "no issuer": lambda issuer: issuer.token("ec", iss=None),
    "an issuer that is no text": lambda issuer: forged(issuer, iss=[ISSUER]),
    "expired": lambda issuer: issuer.token("ec", exp=NOW - 3600),
    "without an end": lambda issuer: issuer.token("ec", exp=None),
    "an end that is no number": lambda issuer: forged(issuer, exp="soon"),
    "not yet valid": lambda issuer: issuer.token("ec", nbf=NOW + 36_000),
    "unsigned": lambda issuer: issuer.unsigned_token(),
    "unsigned in capitals": lambda issuer: issuer.unsigned_token("None"),
    "signed with the public key": lambda issuer: issuer.token_signed_with_the_public_key("rsa"),
    "an unknown key": lambda issuer: issuer.token("ec", headers={"kid": "nobody's"}),
    "a key that is no text": lambda issuer: forged(issuer, {"kid": ["ec"]}),
    "an algorithm that is no text": lambda issuer: forged(issuer, {"alg": ["ES256"]}),
    "a key of another kind": lambda issuer: issuer.token("ec", headers={"kid": "rsa"}),
    "an algorithm that the key is not for": lambda issuer: (
        f"{part({'alg': 'RS256', 'kid': 'rsa-512-only'})}.{issuer.token('rsa').split('.', 1)[1]}"
    ),
    "an extension that must be understood": lambda issuer: issuer.token("ec", headers={"crit": ["x"], "x": 1}),
    "a key of its own": lambda issuer: issuer.token("ec", headers={"kid": "own", "jku": "http://127.0.0.1:1/"}),
    "the tenant is missing": lambda issuer: issuer.token("ec", tenant_id=None),
    "no subject": lambda issuer: issuer.token("ec", sub=None),
    "other claims under the same signature": lambda issuer: ".".join(
        (*issuer.token("ec").split(".")[:1], part(issuer.claims(sub="root")), issuer.token("ec").split(".")[2])
    ),
    "too many parts": lambda issuer: issuer.token("ec") + ".x",
    "no JSON": lambda issuer: "eyJhbGci.e30.x",
    "not text": lambda issuer: "eyJ\udcff." + issuer.token("ec").split(".", 1)[1],
    "nested beyond reason": lambda issuer: f"{part({'alg': 'ES256'})}.{NESTED}.AAAA",
}
NESTED = base64.urlsafe_b64encode(b'{"a":' * 900 + b"1" + b"}" * 900).decode().rstrip("=")


def forged(issuer: Issuer, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
    """A token that nobody has signed."""
    return f"{part({'alg': 'ES256', 'kid': 'ec', **(header or {})})}.{part(issuer.claims(**claims))}.AAAA"


@pytest.mark.parametrize("what", BAD)
async def test_tokens_that_are_never_taken(issuer: Issuer, server: KeyServer, what: str) -> None:
    tokens = tokens_by(server)
    assert await tokens.find(issuer.token("ec")) is not None
    assert await tokens.find(BAD[what](issuer)) is None


async def test_clocks_may_differ_by_the_leeway(issuer: Issuer, server: KeyServer) -> None:
    token = issuer.token("ec", exp=int(time.time()) - 100)
    assert await tokens_by(server, leeway_s=300).find(token) is not None
    assert await tokens_by(server, leeway_s=0).find(token) is None


async def test_an_algorithm_that_the_issuer_does_not_use(issuer: Issuer, server: KeyServer) -> None:
    tokens = tokens_by(server, algorithms=["ES256"])
    assert await tokens.find(issuer.token("ec")) is not None
    assert await tokens.find(issuer.token("rsa")) is None


async def test_keys_that_are_not_for_this() -> None:
    """Short ones, secret ones, those for encryption, and entries that are none at all; the good one beside them is."""
    issuer = Issuer()
    issuer.add("short", "RS256", bits=1024)
    issuer.add("for encryption", "ES256", use="enc")
    issuer.add("good", "ES256", use="sig")
    issuer.entries += [{"kty": "oct", "k": "AAAA", "kid": "secret"}, {"kty": []}, {"kty": "EC", "crv": {}}, 7, {}]  # type: ignore[list-item]
    async with KeyServer(issuer) as server:
        tokens = tokens_by(server)
        assert await tokens.find(issuer.token("good")) is not None
        assert await tokens.find(issuer.token("for encryption")) is None
        with pytest.warns(InsecureKeyLengthWarning):
            short = issuer.token("short")
        assert await tokens.find(short) is None


async def test_a_new_key_is_fetched_when_it_is_first_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a flood of unknown ones has the set fetched once."""
    issuer = Issuer()
    issuer.add("old")
    async with KeyServer(issuer) as server:
        tokens = tokens_by(server)
        assert await tokens.find(issuer.token("old")) is not None
        issuer.add("new")
        monkeypatch.setattr(key_sets, "_RETRY_S", 0.0)
        found = await asyncio.gather(*(tokens.find(issuer.token("new")) for _ in range(10)))
        assert all(found)
        assert server.asked == 2
        monkeypatch.setattr(key_sets, "_RETRY_S", 3600.0)
        for number in range(20):
            assert await tokens.find(issuer.token("new", headers={"kid": f"unknown-{number}"})) is None
        assert server.asked == 2


async def test_keys_serve_on_while_their_source_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sets, "_RETRY_S", 0.0)
    monkeypatch.setattr(key_sets, "_REFRESH_S", 0.0)
    monkeypatch.setattr(tokens_module, "_TICK_S", 0.01)
    issuer = Issuer()
    issuer.add("k")
    async with KeyServer(issuer) as server:
        tokens = tokens_by(server)
        assert await tokens.find(issuer.token("k")) is not None
        running = asyncio.create_task(tokens.run())
        for status, body in ((500, None), (302, None), (200, b"no JSON"), (200, b"{}"), (200, b'{"keys": []}')):
            server.status, server.body, asked = status, body, server.asked
            await until(lambda asked=asked: server.asked > asked)  # type: ignore[misc]
            assert await tokens.find(issuer.token("k")) is not None
        running.cancel()
    # Its port is closed by now.
    assert await tokens.find(issuer.token("k")) is not None


async def test_without_any_key_nobody_is_judged(server: KeyServer, issuer: Issuer) -> None:
    """It is a 503 that may be repeated: the token may well be good."""
    server.status = 503
    with pytest.raises(ApiError) as caught:
        await tokens_by(server).find(issuer.token("ec"))
    assert caught.value.reason is Reason.AUTH_UNAVAILABLE
    assert caught.value.retry_after_s


async def test_keys_from_a_file_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sets, "_FILE_REFRESH_S", 0.0)
    monkeypatch.setattr(tokens_module, "_TICK_S", 0.01)
    issuer = Issuer()
    issuer.add("first")
    file = tmp_path / "keys.json"
    file.write_bytes(issuer.published)
    settings = rules({"jwks_file": str(file)})
    tokens = Tokens(lambda: settings, tenant)
    first = issuer.token("first")
    assert await tokens.find(first) is not None
    issuer.entries.clear()
    issuer.add("second")
    file.write_bytes(issuer.published)
    running = asyncio.create_task(tokens.run())
    second = issuer.token("second")
    while await tokens.find(second) is None:
        await asyncio.sleep(0.01)
    assert await tokens.find(first) is None
    running.cancel()


@pytest.fixture(scope="module")
def keys_file(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_bytes(issuer.published)
    return file


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1), character=st.characters(codec="utf-8") | st.just("\udcff"), cut=st.booleans())
def test_a_changed_token_is_never_a_fault(
    issuer: Issuer, keys_file: Path, place: float, character: str, cut: bool
) -> None:
    """Whatever is done to its header or claims, it is refused; to its signature, refused or the same."""
    token = issuer.token("ec")
    at = int(place * (len(token) - 1))
    changed = token[:at] + (character if not cut else "") + token[at + 1 :]

    async def find() -> Caller | None:
        tokens = Tokens(lambda: settings, tenant)
        return await tokens.find(changed)

    settings = rules({"jwks_file": str(keys_file)})
    found = asyncio.run(find())
    assert found is None or changed.rpartition(".")[0] == token.rpartition(".")[0]


async def test_what_was_judged_once_is_judged_again_when_its_grounds_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that was good is refused once its key is withdrawn, its issuer's rules change, or it ends."""
    monkeypatch.setattr(key_sets, "_FILE_REFRESH_S", 0.0)
    monkeypatch.setattr(tokens_module, "_TICK_S", 0.01)
    issuer = Issuer()
    issuer.add("k")
    issuer.add("other")
    file = tmp_path / "keys.json"
    file.write_bytes(issuer.published)
    source = {"jwks_file": str(file)}
    in_force = [rules(source)]
    tokens = Tokens(lambda: in_force[0], tenant)
    token = issuer.token("k")
    assert await tokens.find(token) is not None
    in_force[0] = rules(source, audience=["other"])
    assert await tokens.find(token) is None
    in_force[0] = rules(source)
    assert await tokens.find(token) is not None
    issuer.entries.pop(0)
    file.write_bytes(issuer.published)
    running = asyncio.create_task(tokens.run())
    while await tokens.find(token) is not None:
        await asyncio.sleep(0.01)
    running.cancel()
    ending = issuer.token("other", exp=int(time.time()) + 2)
    in_force[0] = rules(source, leeway_s=0)
    assert await tokens.find(ending) is not None
    while await tokens.find(ending) is not None:
        await asyncio.sleep(0.05)
