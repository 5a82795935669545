"""Handed cases of models and keys: what is listed, to whom, and how a wrong key is told."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import CASES_FILE, Installation
from tests.cases.support import ASK, CHAT
from tests.support.processes import Mesh

pytestmark = pytest.mark.timeout(120)

SCRIPTED = ("--engine", "scripted", "--scripts", str(CASES_FILE))
KEY = "sk-CANARY-123"


def tenants(folder: Path, key: str, **fields: str) -> list[str]:
    """Flags of a gateway that knows one key."""
    entries = "".join(f", {name}: {value}" for name, value in fields.items())
    file = folder / "tenants.yaml"
    digest = hashlib.sha256(key.encode()).hexdigest()
    file.write_text(f"tenants: {{research: {{keys: {{anna: {{sha256: {digest}{entries}}}}}}}}}")
    return ["--tenants", str(file)]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@case("MOD-01")
async def test_the_models_of_all_workers(case: Any, tmp_path: Path) -> None:
    """Each once, with OpenAI's fields, and only those that the key may use."""
    workers = [[*SCRIPTED, "--name", "A", "--model-name", "m1,m2"], [*SCRIPTED, "--name", "B", "--model-name", "m2,m3"]]
    with Mesh(workers=workers) as mesh:
        everything = await Installation(mesh).send(case["input"]["http"])
        assert everything.json["object"] == "list"
        entries = everything.json["data"]
        assert [entry["id"] for entry in entries] == ["m1", "m2", "m3"]
        for entry in entries:
            assert entry["object"] == "model"
            assert isinstance(entry["created"], int)
            assert entry["owned_by"]
        one = await Installation(mesh).send("GET /v1/models/m2")
        assert one.json == entries[1]
        unknown = await Installation(mesh).send("GET /v1/models/m4")
        assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    with Mesh(workers=workers, gateway_args=tenants(tmp_path, KEY, models="[m1, m2]")) as mesh:
        allowed = await Installation(mesh).send("GET /v1/models", headers=bearer(KEY))
        assert [entry["id"] for entry in allowed.json["data"]] == ["m1", "m2"]
        assert (await Installation(mesh).send("GET /v1/models/m2", headers=bearer(KEY))).json == entries[1]
        assert (await Installation(mesh).send("GET /v1/models/m3", headers=bearer(KEY))).status == 403


@case("AUT-01")
async def test_how_a_key_is_sent(case: Any, tmp_path: Path) -> None:
    """The scheme in any spelling; without it, or without a header, 401."""
    with Mesh(gateway_args=tenants(tmp_path, "K")) as mesh:
        statuses = []
        for entry in case["input"]["matrix"]:
            answer = await Installation(mesh).send(case["input"]["http"], headers=entry["headers"])
            statuses.append(answer.status)
            if answer.status == 401:
                assert answer.error["code"] == "invalid_api_key"
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert statuses == [200, 200, 200, 401, 401]


@case("AUT-03")
async def test_a_refusal_tells_nothing(case: Any, tmp_path: Path) -> None:
    """Wrong and expired keys look the same; a forbidden model is refused without a list of the others."""
    wrong, forbidden = case["input"]["matrix"]
    with Mesh(gateway_args=tenants(tmp_path, KEY, models="[m-text, m-other]")) as mesh:
        installation = Installation(mesh)
        refused = await installation.send(wrong["http"], headers=wrong["headers"])
        assert refused.status == 401
        answer = await installation.send(forbidden["http"], body=forbidden["body"], headers=bearer(KEY))
        assert (answer.status, answer.error["code"]) == (403, "model_not_allowed")
        assert "m-text" not in answer.body.decode()
        assert "m-other" not in answer.body.decode()
        # Whether a model exists is nobody's business either.
        known = await installation.send(CHAT, body={**ASK, "model": "m-hermes"}, headers=bearer(KEY))
        assert known.body == answer.body.replace(b"m-forbidden", b"m-hermes")
    with Mesh(gateway_args=tenants(tmp_path, KEY, expires="2020-01-01")) as mesh:
        expired = await Installation(mesh).send("GET /v1/models", headers=bearer(KEY))
        assert (expired.status, expired.body) == (401, refused.body)
        text = expired.body.decode() + str(expired.headers)
        assert KEY not in text
        assert hashlib.sha256(KEY.encode()).hexdigest()[:8] not in text
