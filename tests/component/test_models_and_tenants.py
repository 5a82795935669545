"""The files of models and tenants on a running gateway: aliases, announcements, limits, keys, and changes to them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Answer, send
from tests.support.json_lines import JsonLines
from tests.support.probes import metric
from tests.support.processes import Mesh, Process
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.timeout(120)

HI = [{"role": "user", "content": "hi"}]
CHAT, MODELS = "POST /v1/chat/completions", "GET /v1/models"

MODELS_FILE = """
limits: {max_choices: 3}
models:
  m1:
    limits: {max_output_tokens: 20, max_input_tokens: 50, max_temperature: 1, max_stops: 2, max_messages: 4}
    deprecated: 2026-01-10
    sunset: 2026-05-01
    link: https://wiki.example/m1
  away: {}
aliases:
  chat: m1
  canary: {models: {m1: 4, m2: 1}}
  ghost: nowhere
fields:
  seed: {deprecated: 2026-03-01}
"""


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


TENANTS_FILE = f"""
tenants:
  research:
    models: [chat, "m*"]
    priority: {{default: 4, highest: 6}}
    limits: {{max_choices: 2, max_body_bytes: 4000}}
    keys:
      anna: {{sha256: {digest("k-anna")}}}
      intern: {{sha256: {digest("k-intern")}, models: [m2], limits: {{max_choices: 1}}}}
  # The last is called like the domain of the first two.
  one: {{cache_domain: shared, keys: {{k: {{sha256: {digest("k-one")}}}}}}}
  two: {{cache_domain: shared, keys: {{k: {{sha256: {digest("k-two")}}}}}}}
  other: {{cache_domain: another, keys: {{k: {{sha256: {digest("k-other")}}}}}}}
  shared: {{keys: {{k: {{sha256: {digest("k-shared")}}}}}}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settings")
    (folder / "models.yaml").write_text(MODELS_FILE)
    (folder / "tenants.yaml").write_text(TENANTS_FILE)
    return folder


@pytest.fixture(scope="module")
def mesh(folder: Path) -> Iterator[Mesh]:
    worker = ["--engine", "scripted", "--model-name", "m1,m2,other", "--record", str(folder / "record.jsonl")]
    flags = ["--models", str(folder / "models.yaml"), "--tenants", str(folder / "tenants.yaml")]
    router = ["--decision-log", str(folder / "decisions.jsonl")]
    with Mesh(workers=[worker], router_args=router, gateway_args=flags) as mesh:
        yield mesh


async def ask(mesh: Mesh, http: str = CHAT, key: str = "k-anna", request_id: str = "r", **body: Any) -> Answer:
    if http == CHAT:
        body = {"model": "chat", "messages": HI, **body}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return await send(mesh.gateway.address, http, body=body or None, headers=headers, request_id=request_id)


async def test_an_alias_answers_under_its_own_name(mesh: Mesh) -> None:
    """And says which model it was, and that this one is on its way out; streamed, whole, and for embeddings alike."""
    for stream in (False, True):
        answer = await ask(mesh, stream=stream)
        assert answer.status == 200, answer.body
        assert answer.headers["x-inferway-model"] == "m1"
        assert answer.headers["Deprecation"] == "@1768003200"
        assert answer.headers["Sunset"] == "Fri, 01 May 2026 00:00:00 GMT"
        assert answer.headers["Link"] == '<https://wiki.example/m1>; rel="deprecation"'
        assert {chunk["model"] for chunk in answer.chunks or [answer.json]} == {"chat"}
    plain = await ask(mesh, model="m2")
    assert not {"x-inferway-model", "Deprecation", "Sunset", "Link"} & set(plain.headers)
    seeded = await ask(mesh, model="m2", seed=1)
    assert seeded.headers["Deprecation"] == "@1772323200"
    assert "Sunset" not in seeded.headers
    # What is refused carries them as well.
    assert (await ask(mesh, n=3)).headers["Deprecation"] == "@1768003200"


async def test_a_canary_gets_its_share_and_keeps_its_users(mesh: Mesh) -> None:
    models = Counter[str]()
    for number in range(60):
        answers = [await ask(mesh, model="canary", user=f"user-{number}", request_id=f"c{n}") for n in range(2)]
        first, second = (answer.headers["x-inferway-model"] for answer in answers)
        assert first == second
        models[first] += 1
    assert set(models) == {"m1", "m2"}
    assert models["m1"] > models["m2"]


async def test_what_is_listed(mesh: Mesh) -> None:
    entries = {entry["id"]: entry for entry in (await ask(mesh, MODELS)).json["data"]}
    assert list(entries) == ["m1", "m2", "chat", "canary"]
    assert entries["m1"]["shutdown_date"] == "2026-05-01"
    assert entries["chat"]["alias_of"] == ["m1"]
    assert entries["canary"]["alias_of"] == ["m1", "m2"]
    assert entries["canary"]["tokenizer_digest"] == entries["m1"]["tokenizer_digest"]
    assert "seed" in entries["canary"]["capabilities"]
    assert (await ask(mesh, f"{MODELS}/chat")).json == entries["chat"]
    # Aliases of what a key may use are its own as well.
    assert [entry["id"] for entry in (await ask(mesh, MODELS, key="k-intern")).json["data"]] == ["m2", "canary"]


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("away", 403, "model_not_allowed"),
        ("other", 403, "model_not_allowed"),
        ("mistyped", 404, "model_not_found"),
        ("ghost", 403, "model_not_allowed"),
    ],
)
async def test_models_that_do_not_answer(mesh: Mesh, model: str, status: int, code: str) -> None:
    answer = await ask(mesh, model=model)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, "model")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 3}, "n", "'n' may be 2 at most, got 3."),
        ({"temperature": 1.5}, "temperature", "'temperature' may be 1 at most, got 1.5."),
        ({"max_completion_tokens": 21}, "max_completion_tokens", "may be 20 at most, got 21"),
        ({"max_tokens": 21}, "max_tokens", "may be 20 at most, got 21"),
        ({"stop": ["a", "b", "c"]}, "stop", "'stop' may have 2 items at most, got 3."),
        ({"messages": HI * 5}, "messages", "'messages' may have 4 items at most, got 5."),
        ({"messages": [{"role": "user", "content": "word " * 60}]}, "messages", "50 tokens"),
    ],
)
async def test_limits_of_a_model_and_a_tenant(mesh: Mesh, fields: dict[str, Any], param: str, words: str) -> None:
    answer = await ask(mesh, **fields)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert words in answer.error["message"]


async def test_limits_of_bodies_and_keys(mesh: Mesh) -> None:
    too_large = await ask(mesh, metadata={"x": "y" * 4000})
    assert too_large.status == 413
    assert re.search(r"4000 bytes at most, got 4\d\d\d", too_large.error["message"])
    assert "'n' may be 1 at most" in (await ask(mesh, key="k-intern", model="m2", n=2)).error["message"]
    assert (await ask(mesh, key="k-intern", model="m1")).status == 403
    prompts = await ask(mesh, "POST /v1/completions", model="m2", prompt=["a"] * 129)
    assert "'prompt' may have 128 items at most, got 129" in prompts.error["message"]


async def test_tenants_of_one_cache_domain_share_and_others_do_not(mesh: Mesh, folder: Path) -> None:
    """What the router predicts is what the engine finds: both go by the one salt of the domain."""
    record, decisions = JsonLines(folder / "record.jsonl"), JsonLines(folder / "decisions.jsonl")
    keys = ["k-one", "k-two", "k-other", "k-shared"]
    cached = {}
    for key in keys:
        long = [{"role": "user", "content": "shared words " * 300}]
        answer = await ask(mesh, key=key, request_id=key, model="m2", messages=long)
        cached[key] = answer.usage["prompt_tokens_details"]["cached_tokens"]
    assert {key for key, tokens in cached.items() if tokens > 0} == {"k-two"}
    salts = {line["request_id"]: line["cache_salt"] for line in record.read() if line["event"] == "generate"}
    assert salts["k-one"] == salts["k-two"]
    assert len({salts[key] for key in keys}) == 3
    predicted: dict[str, int] = {}

    def are_written() -> bool:
        predicted.update((line["request_id"], line["predicted_cached_tokens"]) for line in decisions.read())
        return set(keys) <= predicted.keys()

    await until(are_written)
    assert {key: predicted[key] for key in keys} == cached


async def test_output_is_bounded_where_nothing_is_asked_for(mesh: Mesh, folder: Path) -> None:
    await ask(mesh, request_id="bounded")
    record = JsonLines(folder / "record.jsonl").read()
    (line,) = (line for line in record if line["request_id"] == "bounded" and line["event"] == "generate")
    assert line["sampling"]["max_tokens"] == 20


async def test_priorities_are_bounded_and_tiers_are_told(mesh: Mesh, folder: Path) -> None:
    for number, (fields, tier, priority) in enumerate(
        [({}, "default", 4), ({"service_tier": "flex"}, "flex", 2), ({"service_tier": "priority"}, "priority", 6)]
    ):
        for stream in (False, True):
            request_id = f"tier{number}{stream}"
            answer = await ask(mesh, request_id=request_id, stream=stream, **fields)
            assert (answer.chunks or [answer.json])[-1]["service_tier"] == tier
            record = JsonLines(folder / "record.jsonl").read()
            assert {line["priority"] for line in record if line["request_id"] == request_id} == {priority}
    refused = await ask(mesh, priority=7)
    assert (refused.status, refused.error["code"], refused.error["param"]) == (403, "priority_not_allowed", "priority")
    assert "7" in refused.error["message"]
    assert "6" in refused.error["message"]


@pytest.mark.parametrize("key", ["", "k-wrong", digest("k-anna")])
async def test_a_wrong_key_is_refused_everywhere(mesh: Mesh, key: str) -> None:
    for http in (CHAT, "POST /v1/embeddings", "POST /tokenize", MODELS, f"{MODELS}/m1"):
        answer = await ask(mesh, http, key=key)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), http
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    for path in ("/health", "/health/ready", "/metrics", "/openapi.json"):
        assert (await ask(mesh, f"GET {path}", key=key)).status == 200


async def test_the_log_names_tenant_and_key_and_never_the_key(mesh: Mesh) -> None:
    await ask(mesh, request_id="logged")
    await ask(mesh, key="k-CANARY", request_id="logged-refused")
    await until(
        lambda: len([line for line in mesh.gateway.events("request") if "logged" in line["request_id"]]) == 2, 5
    )
    lines = {line["request_id"]: line for line in mesh.gateway.events("request")}
    assert (lines["logged"]["tenant_id"], lines["logged"]["key_id"]) == ("research", "anna")
    assert lines["logged-refused"]["outcome"] == "invalid_api_key"
    assert "k-anna" not in mesh.gateway.log_text()
    assert "CANARY" not in mesh.gateway.log_text()


async def test_changes_take_effect_and_mistakes_do_not(mesh: Mesh, folder: Path) -> None:
    """A new version is in force within seconds; one with a mistake leaves the old one in force and says so."""
    models = folder / "models.yaml"

    def seen(event: str) -> int:
        return len(mesh.gateway.events(event))

    try:
        replace(models, MODELS_FILE.replace("chat: m1", "chat: m2"))
        await until(lambda: seen("settings_loaded") == 1, 10, "new version loaded")
        assert (await ask(mesh)).headers["x-inferway-model"] == "m2"
        replace(models, MODELS_FILE.replace("max_choices: 3", "max_choices: none"))
        await until(lambda: seen("settings_refused") == 1, 10, "new version refused")
        (refusal,) = mesh.gateway.events("settings_refused")
        assert refusal["mistakes"].startswith("limits.max_choices: Expected 'int'")
        assert (await ask(mesh)).headers["x-inferway-model"] == "m2"
        replace(folder / "tenants.yaml", TENANTS_FILE.replace(digest("k-anna"), digest("k-new")))
        await until(lambda: seen("settings_loaded") == 2, 10, "tenants loaded")
        assert (await ask(mesh)).status == 401
        assert (await ask(mesh, key="k-new")).status == 200
        assert metric(mesh.url("/metrics"), "inferway_gateway_settings_versions_total") == 3
    finally:
        replace(models, MODELS_FILE)
        replace(folder / "tenants.yaml", TENANTS_FILE)
        await until(lambda: seen("settings_loaded") == 4, 10, "as it was")


def replace(file: Path, text: str) -> None:
    """As ConfigMaps and careful editors do it: a reader sees the old or the new version."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


async def test_models_of_the_file_are_not_ready_rather_than_unknown(folder: Path) -> None:
    """Without a file of tenants everybody is let in; what is named and not served is a 503 that says when to come."""
    with Mesh(gateway_args=["--models", str(folder / "models.yaml")]) as mesh:
        for name in ("away", "ghost", "nowhere"):
            answer = await ask(mesh, key="", model=name)
            assert (answer.status, answer.error["code"]) == (503, "model_not_ready"), name
            assert int(answer.headers["Retry-After"]) >= 1
        assert (await ask(mesh, key="", model="mistyped")).status == 404


@pytest.mark.parametrize(
    ("flag", "text", "mistakes"),
    [
        (
            "--models",
            "aliases: {a: {models: {}}}",
            ["aliases.a.models: needs at least one model with a weight above 0"],
        ),
        ("--models", "models: {}\nmodels: {}", ["line 1, column 1: 'models' is there more than once"]),
        ("--models", "models: [", ["line 2, column 1: "]),
        (
            "--tenants",
            "tenants: {t: {keys: {a: {}, b: {sha256: x}}}}",
            ["tenants.t.keys.a: ", "tenants.t.keys.b.sha256: "],
        ),
        ("--tenants", None, ["cannot be read: No such file or directory"]),
    ],
)
def test_a_gateway_does_not_start_with_a_bad_file(
    tmp_path: Path, flag: str, text: str | None, mistakes: list[str]
) -> None:
    file = tmp_path / "settings.yaml"
    if text is not None:
        file.write_text(text)
    with Process("gateway", "--listen", "127.0.0.1:0", flag, str(file), wait=False) as gateway:
        assert gateway.popen.wait(30) == 2
        lines = [line for line in gateway.log_text().splitlines() if line.startswith("gateway: ")]
        assert len(lines) == len(mistakes)
        for line, mistake in zip(lines, mistakes, strict=True):
            assert line.startswith(f"gateway: {flag}: {file}")
            assert mistake in line


def test_keys_open_the_door_off_loopback(folder: Path, tmp_path: Path) -> None:
    """Without authentication a gateway stays on this machine; with a file of tenants it may be seen."""
    with Process("gateway", "--listen", "0.0.0.0:0", wait=False) as closed:
        assert closed.popen.wait(30) == 2
        assert "without authentication" in closed.log_text()
    with Process("gateway", "--listen", "0.0.0.0:0", "--tenants", str(folder / "tenants.yaml")) as gateway:
        wait_until(lambda: gateway.port > 0, 10, "listening")
        assert json.loads(gateway.log_text().splitlines()[0])["event"] == "config"
