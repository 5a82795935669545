"""What pods may do, whom they may reach, and how they start and stop."""

from __future__ import annotations

from typing import Any

import pytest

from inferway import config
from scripts.chart_values import service_config
from tests.support.chart import VALUE_SETS, Rendered, value_set, with_values
from tests.support.kubelet import live

every_set = pytest.mark.parametrize("name", VALUE_SETS)


@every_set
def test_nobody_has_more_than_needed(name: str) -> None:
    """No root, no privilege, no writable image, nothing without a size; a token of the API server for routers alone."""
    rendered = value_set(name)
    for container, spec, pod in rendered.containers():
        security = spec["securityContext"]
        assert security["runAsNonRoot"], container
        assert security["readOnlyRootFilesystem"], container
        assert not security["allowPrivilegeEscalation"], container
        assert security["capabilities"] == {"drop": ["ALL"]}, container
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] == (spec["name"] == "router"), container
        assert {"requests", "limits"} <= spec["resources"].keys(), container
        assert not spec["image"].endswith(":latest"), container
        # Whatever is mounted exists, and only what must be is writable.
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        volumes |= {"data": {"persistentVolumeClaim": {}}} if spec["name"] == "valkey" else {}
        for mount in spec.get("volumeMounts", []):
            writable = volumes[mount["name"]].keys() & {"emptyDir", "persistentVolumeClaim"}
            assert mount.get("readOnly") or writable, (container, mount)


@every_set
def test_rights_at_the_api_server(name: str) -> None:
    """Routers may follow EndpointSlices in their namespace; that is all, and there is nothing for the whole cluster."""
    rendered = value_set(name)
    assert not rendered.of("ClusterRole", "ClusterRoleBinding")
    (role,), (binding,) = rendered.of("Role"), rendered.of("RoleBinding")
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    assert role["rules"] == [slices]
    (subject,) = binding["subjects"]
    router = rendered.one("StatefulSet", "router")["spec"]["template"]["spec"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", router["serviceAccountName"])
    accounts = {one["metadata"]["name"] for one in rendered.of("ServiceAccount")}
    assert {pod["spec"]["serviceAccountName"] for _, pod in rendered.pods()} == accounts


# Who may connect to which port of whom.
EDGES = {
    ("*", "front", "clients"),
    ("front", "gateway", "http"),
    ("gateway", "router", "grpc"),
    ("gateway", "worker", "grpc"),
    ("router", "worker", "grpc"),
    ("gateway", "redis", "redis"),
    ("prometheus", "gateway", "http"),
    ("prometheus", "router", "ops"),
    ("prometheus", "worker", "ops"),
}


def test_network_policies() -> None:
    """Exactly these edges are open, and every pod that listens is under a policy."""
    assert _edges(value_set("everything-on")) == EDGES | {("console", "gateway", "admin")}
    without_redis = {edge for edge in EDGES if "redis" not in edge}
    # Its admin port is on, and open to nobody.
    assert _edges(value_set("external-redis")) == without_redis
    assert with_values({"networkPolicy": {"enabled": False}}).of("NetworkPolicy") == []


def _edges(rendered: Rendered) -> set[tuple[str, str, str]]:
    edges = set()
    policies = rendered.of("NetworkPolicy")
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        target = _component(policy["spec"]["podSelector"])
        for rule in policy["spec"]["ingress"]:
            for port in rule["ports"]:
                edges |= {(_peer(peer), target, port["port"]) for peer in rule.get("from", [{}])}
    for name, pod in rendered.pods():
        listens = any(container.get("ports") for container in pod["spec"]["containers"])
        labels = pod["metadata"]["labels"].items()
        covered = [one for one in policies if one["spec"]["podSelector"]["matchLabels"].items() <= labels]
        assert len(covered) == int(listens), name
    return edges


def _component(selector: dict[str, Any]) -> str:
    name: str = selector["matchLabels"]["app.kubernetes.io/component"]
    return name


def _peer(peer: dict[str, Any]) -> str:
    if "namespaceSelector" in peer:
        labels = peer["namespaceSelector"]["matchLabels"]
        return {"monitoring": "prometheus", "operators": "console"}[labels["kubernetes.io/metadata.name"]]
    return _component(peer["podSelector"]) if peer else "*"


@every_set
def test_selectors_find_pods(name: str) -> None:
    """Services, budgets and monitors select what there is, and no two workloads take each other's pods."""
    rendered = value_set(name)
    labels = {owner: pod["metadata"]["labels"].items() for owner, pod in rendered.pods()}
    for one in rendered.of("Deployment", "StatefulSet"):
        selected = one["spec"]["selector"]["matchLabels"].items()
        assert [owner for owner, found in labels.items() if selected <= found] == [
            f"{one['kind']}/{one['metadata']['name']}"
        ]
    for one in rendered.of("Service"):
        assert any(one["spec"]["selector"].items() <= found for found in labels.values()), one["metadata"]["name"]
    for one in rendered.of("PodDisruptionBudget", "PodMonitor"):
        assert any(one["spec"]["selector"]["matchLabels"].items() <= found for found in labels.values())
    services = [one["metadata"]["labels"].items() for one in rendered.of("Service")]
    for one in rendered.of("ServiceMonitor"):
        assert sum(one["spec"]["selector"]["matchLabels"].items() <= found for found in services) == 1
    budgets = {one["metadata"]["name"] for one in rendered.of("PodDisruptionBudget")}
    assert budgets == {one["metadata"]["name"] for one in rendered.of("Deployment", "StatefulSet")} - {
        "mesh-inferway-redis"
    }


@every_set
def test_drains_end_before_the_grace_period(name: str) -> None:
    """A pod is killed later than it needs to let its requests end, with the defaults and with other limits."""
    rendered = value_set(name)
    for container, spec, pod in rendered.containers():
        if spec["name"] in ("gateway", "router", "worker"):
            given = next(env for one, _, env in rendered.services() if one == container)
            options = config.load(service_config(spec["name"]), spec["name"], given, [])
            needed = getattr(options, "drain_delay_s", 0) + options.drain_limit_s
            assert pod["terminationGracePeriodSeconds"] >= needed + 10, container
    gateway = next(env for _, service, env in rendered.services() if service == "gateway")
    options = config.load(service_config("gateway"), "gateway", gateway, [])
    front = rendered.one("Deployment", "front")["spec"]["template"]["spec"]
    assert front["terminationGracePeriodSeconds"] >= options.drain_delay_s + options.drain_limit_s + 10
    # The front lets streams end for as long as gateways do.
    words = " ".join(front["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]).split()
    assert [word for word in words if word.strip(";").isdigit()][-1] == f"{options.drain_limit_s:g}"


@pytest.mark.parametrize(("load_s", "survives"), [(0, True), (300, True), (1750, True), (2000, False)])
def test_probes_survive_a_long_load(load_s: float, survives: bool) -> None:
    """A worker that loads for five minutes is not started anew and gets requests in seconds; half an hour is enough."""
    for name in VALUE_SETS:
        for deployment in value_set(name).of("Deployment"):
            (container,) = deployment["spec"]["template"]["spec"]["containers"]
            if container["name"] == "worker":
                life = live(container, lambda path, at: _loading(path, at, load_s), until_s=load_s + 600)
                assert (life.killed_at is None) == survives
                assert not survives or load_s <= life.turns[0] <= load_s + 10
                assert len(life.turns) == int(survives)
                # Nor is the rollout given up meanwhile.
                assert deployment["spec"]["progressDeadlineSeconds"] > 1800


def _loading(path: str, at: float, load_s: float) -> float | None:
    """As the ops port of a worker: it answers at once, and is ready when its engine is."""
    return 0.01 if path == "/health" or at >= load_s else None


def test_a_process_that_hangs_is_started_anew() -> None:
    """Liveness ends a container that has answered nothing for a minute, and not one that had a slow moment."""
    (container,) = value_set("minimal").one("Deployment", "worker-cpu")["spec"]["template"]["spec"]["containers"]
    hung = live(container, lambda _, at: None if at >= 100 else 0.01, until_s=1000)
    assert hung.killed_at is not None
    assert 130 <= hung.killed_at <= 200
    slow = live(container, lambda _, at: None if 100 <= at < 125 else 0.01, until_s=1000)
    assert slow.killed_at is None
