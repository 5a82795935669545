"""The configurations of the proxies in front: what may be said, what follows, and what must never be missing."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Config as GatewayConfig
from gateway.core.ids import is_request_id
from inferway.cli.core import local_mesh
from inferway.cli.front import main
from inferway.config import load
from inferway.front import settings
from inferway.front.answers import own_answers
from inferway.front.envoy import envoy, envoy_yaml
from inferway.front.nginx import nginx_conf
from inferway.front.settings import PROXIES, FrontConfig, Proxy

CHECKOUT = Path(__file__).parents[3]
PATH = re.compile(r"/[a-z][a-z0-9_./-]*")


def front(*flags: str) -> FrontConfig:
    return load(FrontConfig, "front", {}, flags)


def values(data: Any, key: str) -> Iterator[Any]:
    """What stands under a key, anywhere in nested data."""
    if isinstance(data, dict):
        for name, value in data.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(data, list):
        for entry in data:
            yield from values(entry, key)


SHARED = "max_body_bytes max_header_bytes body_timeout_s heartbeat_s request_deadline_s keepalive_s drain_delay_s"


@pytest.mark.parametrize("name", SHARED.split())
def test_values_of_gateways_have_their_defaults(name: str) -> None:
    """A gateway and a proxy that are told nothing agree."""
    assert getattr(FrontConfig(), name) == getattr(GatewayConfig(), name)


@pytest.mark.parametrize(
    ("proxy", "flags", "mistake"),
    [
        ("envoy", ["--gateways", ""], "--gateways: at least one is needed"),
        ("envoy", ["--gateways", "a:1,a:1"], "--gateways: each may be named once, got 'a:1,a:1'"),
        ("envoy", ["--tls-cert", "/c"], "--tls-cert and --tls-key: both are needed, or none"),
        ("nginx", ["--tls-key", "/k"], "--tls-cert and --tls-key: both are needed, or none"),
        ("nginx", ["--idle-timeout-s", "15"], "--idle-timeout-s: must be above --heartbeat-s (15 s), got 15"),
        (
            "envoy",
            ["--admin", "0.0.0.0:1"],
            "--admin: must be on loopback: it has no authentication, got '0.0.0.0:1'",
        ),
        ("nginx", ["--admin", "127.0.0.1:9901"], "--admin: nginx has no admin interface"),
        ("envoy", ["--dns-server", "dns:53"], "--dns-server: must be an IP address and a port, got 'dns:53'"),
        (
            "nginx",
            ["--dns-server", "1.1.1.1:53", "--gateways", "a:1,b:1"],
            "--gateways: with --dns-server nginx takes one name",
        ),
    ],
)
def test_mistakes_between_values(proxy: Proxy, flags: list[str], mistake: str) -> None:
    """Each is named by its flag, and is the only one."""
    assert front(*flags).mistakes(proxy) == [mistake]


@pytest.mark.parametrize(
    ("flags", "mistake"),
    [
        (["--gateways", "a;b:1"], "--gateways: must have a host of letters, digits, dots and hyphens"),
        (["--listen", "127.0.0.1:0"], "--listen: must be host:port with a port from 1 to 65535"),
        (["--tls-cert", 'a"b'], "--tls-cert: must be a path without quotes"),
        (["--tls-key", "a\nb"], "--tls-key: must be a path without quotes"),
        (["--max-header-bytes", "1"], "--max-header-bytes: must be at least 1024"),
        (["--otlp-endpoint", "collector:4317"], "--otlp-endpoint: must be http://host:port or https://host:port"),
        (["--otlp-headers", "token"], "--otlp-headers: must be name=value,name=value"),
        (["--otlp-headers", "a=b%0Ac"], "--otlp-headers: must be name=value,name=value"),
        (["--trace-sample-ratio", "10"], "--trace-sample-ratio: must be at most 1"),
    ],
)
def test_mistakes_in_a_value(flags: list[str], mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What would be read as something else in a configuration does not get into one."""
    with pytest.raises(SystemExit) as ended:
        main({}, ["nginx", *flags])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"front: {mistake}")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints one of the two, and says so when it is asked for neither or for something that cannot be."""
    assert main({}, ["envoy"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == envoy(FrontConfig())
    assert main({}, ["nginx"]) == 0
    assert capsys.readouterr().out == nginx_conf(FrontConfig())
    assert main({}, []) == main({}, ["haproxy"]) == 2
    assert "envoy or nginx is needed before all flags, got 'haproxy'" in capsys.readouterr().err
    assert main({}, ["nginx", "--tls-cert", "/c", "--idle-timeout-s", "1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_missing_proxy_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the proxy is not installed one line says how to get it."""
    monkeypatch.setattr("inferway.cli.front._SYSTEM_PATH", "")
    assert main({"PATH": "/nowhere"}, ["nginx", "--run"]) == 2
    assert "apt-get install nginx-light" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "silence_s"),
    [
        ([], 630),
        (["--request-deadline-s", "10"], 60),  # heartbeats every 15 s, and a margin
        (["--heartbeat-s", "1", "--request-deadline-s", "1200"], 1230),
        (["--idle-timeout-s", "100"], 100),
    ],
)
def test_patience(flags: list[str], silence_s: float) -> None:
    """Above the longest silence that is in order, in both: that of answers in one piece."""
    config = front(*flags)
    assert config.silence_s == silence_s
    assert set(values(envoy(config), "stream_idle_timeout")) == {f"{silence_s}s"}
    assert f"proxy_read_timeout {silence_s * 1000}ms;" in nginx_conf(config)


def test_connections_are_given_up_before_gateways_close_them() -> None:
    """Else a request could meet a connection that closes; and nginx gives them up within the delay of a drain."""
    config = front("--keepalive-s", "20", "--drain-delay-s", "10")
    assert config.pool_idle_s < 20
    assert 2 * config.pool_reuse_s < 10
    assert "keepalive_timeout 4000ms;" in nginx_conf(config)


def gateway_paths() -> set[str]:
    """The paths of the gateway's routes, read from its source: the strings in the tables of app.py and health.py."""
    found = set()
    for file in ("gateway/app.py", "gateway/routes/health.py", "gateway/routes/models.py", "gateway/openapi.py"):
        for node in ast.walk(ast.parse((CHECKOUT / file).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and PATH.fullmatch(node.value):
                found.add(node.value)
    return found


def test_every_route_is_passed_or_hidden() -> None:
    """A path that the gateway gets must be decided here; what is hidden is hidden on purpose."""
    hidden = {
        path
        for path in gateway_paths()
        if not path.startswith(settings.PASSED_PREFIX) and path not in settings.PASSED_PATHS
    }
    assert hidden == {"/health", "/health/ready", "/metrics"}


def test_own_answers_are_errors_of_the_table() -> None:
    """Each has the shape and a code of the gateway's, and the status of its row, but for 502."""
    answers = own_answers(FrontConfig())
    for field in dataclasses.fields(answers):
        answer = getattr(answers, field.name)
        error = json.loads(answer.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert answer.status in (answer.error.status, 502)
        assert not set(answer.body) & set("'$%\\"), "would be read as something else in a configuration"


def test_ids_are_judged_as_gateways_do() -> None:
    """The rule stands in three places; these are its parts."""
    assert is_request_id("aZ09._-" * 18 + "ab")
    assert len("aZ09._-" * 18 + "ab") == settings.REQUEST_ID_MAX_CHARS
    assert not is_request_id("a" * (settings.REQUEST_ID_MAX_CHARS + 1))


def test_traces_are_made_where_there_is_a_collector() -> None:
    """Else nothing speaks of them; with one the share, the headers and the authority are those of the options."""
    assert not list(values(envoy(front()), "tracing"))
    assert [cluster["name"] for cluster in envoy(front())["static_resources"]["clusters"]] == ["gateways"]
    flags = ["--otlp-endpoint", "https://collector:4317", "--trace-sample-ratio", "0.25", "--otlp-ca-file", "/ca.pem"]
    made = envoy(front(*flags, "--otlp-headers", "Authorization=Bearer%20a%25b, x-b = c=, "))
    assert list(values(made, "sampling_percentage")) == [{"numerator": 250_000, "denominator": "MILLION"}]
    (metadata,) = values(made, "initial_metadata")
    assert metadata == [{"key": "authorization", "value": "Bearer a%b"}, {"key": "x-b", "value": "c="}]
    _, collector = made["static_resources"]["clusters"]
    assert collector["type"] == "STRICT_DNS"
    assert list(values(collector, "trusted_ca")) == [{"filename": "/ca.pem"}]
    assert list(values(collector, "sni")) == ["collector"]
    assert list(values(collector, "port_value")) == [4317]


@pytest.mark.parametrize(
    ("endpoint", "kind", "host", "port"),
    [
        ("http://127.0.0.1:4317", "STATIC", "127.0.0.1", 4317),
        ("http://[::1]:4317", "STATIC", "::1", 4317),
        # gRPC's own port, which the services' exporter takes as well.
        ("https://10.0.0.1", "STATIC", "10.0.0.1", 443),
        ("http://collector.monitoring:4317/", "STRICT_DNS", "collector.monitoring", 4317),
    ],
)
def test_addresses_of_collectors(endpoint: str, kind: str, host: str, port: int) -> None:
    """What is no IP address is asked for again and again."""
    collector = envoy(front("--otlp-endpoint", endpoint))["static_resources"]["clusters"][1]
    assert collector["type"] == kind
    assert list(values(collector, "address")) == [{"socket_address": {"address": host, "port_value": port}}, host]
    sans = list(values(collector, "match_typed_subject_alt_names"))
    expected = [{"san_type": "IP_ADDRESS", "matcher": {"exact": host}}]
    assert sans == ([expected] if endpoint.startswith("https") else [])


@pytest.mark.parametrize("proxy", PROXIES)
def test_traces_of_callers_can_be_ignored(proxy: Proxy) -> None:
    """Whether the proxy makes spans or not, neither header arrives; by default both do."""
    config = front("--ignore-caller-traces")
    if proxy == "nginx":
        removed = {name for name in settings.TRACE_HEADERS if f'proxy_set_header {name} "";' in nginx_conf(config)}
        assert "traceparent" not in nginx_conf(front())
    else:
        removed = set(settings.TRACE_HEADERS) & set(values(envoy(config), "remove"))
        assert not set(settings.TRACE_HEADERS) & set(values(envoy(front()), "remove"))
    assert removed == set(settings.TRACE_HEADERS)


def test_spans_have_names_of_routes() -> None:
    """Every path that the gateway has and clients reach, so that spans have few names and tell what was asked."""
    named = {path for _, path in settings.SPAN_NAMES}
    passed = {path for path in gateway_paths() if path.startswith("/v1/") or path in settings.PASSED_PATHS}
    # A model by its name is GET alone.
    assert passed - named == {"/v1/models/"}
    assert named <= passed


def test_local_use() -> None:
    """`inferway up --front` starts the proxy first, so that it stops last, and gives it the public port."""
    ports = {**local_mesh.INNER_PORTS, "public": 8000}
    for proxy in PROXIES:
        children = local_mesh.children(
            ports, engine="scripted", scripts="", with_embeddings=False, processes=1, log_level="info", front=proxy
        )
        assert list(children) == ["front", "worker", "router", "gateway"]
        module, arguments = children["front"].module, children["front"].arguments
        assert (module, arguments[:3]) == ("inferway", ("front", proxy, "--run"))
        assert "--listen 127.0.0.1:8000 --gateways 127.0.0.1:8010" in " ".join(arguments)
        assert "--listen 127.0.0.1:8010" in " ".join(children["gateway"].arguments)


def test_yaml_is_plain() -> None:
    """No anchors, no tags: what any reader takes."""
    text = envoy_yaml(front("--gateways", "a:1,b:2", "--tls-cert", "/c", "--tls-key", "/k"))
    assert not any(line.lstrip("- ").startswith(("&", "*", "!")) for line in text.splitlines())
    assert ": &" not in text
    assert ": *" not in text
