"""What one meets beyond the six sets: names, registries, users, placement, Services, upgrades without a change."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.chart import CHART, CUSTOM_KINDS, NAMESPACE, Rendered, helm, refusal, value_set, with_values

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Labels of DNS, by which Services are found.
_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_POOL = "a-name-of-20-letters"


def _valid(rendered: Rendered) -> Rendered:
    """What the API server takes."""
    for one in rendered.objects:
        if one["kind"] not in CUSTOM_KINDS:
            kubernetes_validate.validate(one, "1.33", strict=True)
    return rendered


@pytest.mark.parametrize(
    "release", ["a", "mesh.v2.blue", "inferway", "production-inference-of-the-research-department-eu"]
)
@pytest.mark.parametrize("values", [{}, {"nameOverride": "llm"}, {"fullnameOverride": "x" * 60}], ids=str)
def test_names_are_taken(release: str, values: dict[str, Any]) -> None:
    """Whatever a release is called: names of Services are labels of DNS, of CronJobs 52 letters, and all differ."""
    pools = {"workers": [{"name": "cpu"}, {"name": _POOL}], "probe": {"cronJob": {"enabled": True}}}
    rendered = with_values({**values, **pools}, release=release)
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered.objects]
    assert len(set(names)) == len(names)
    for kind, name in names:
        assert kind != "Service" or _LABEL.fullmatch(name), name
        assert kind not in ("CronJob", "StatefulSet") or len(name) <= 52, name
    for one in rendered.objects:
        for label, value in one["metadata"]["labels"].items():
            assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", value), (label, value)


def test_names_that_cannot_be() -> None:
    """What no Service may be called is refused with the value that helps, and a scaler that could not tell its pods."""
    result = helm("template", "7b", str(CHART))
    assert result.returncode
    assert "fullnameOverride" in result.stderr
    scaled = {"minReplicas": 0, "keda": {"enabled": True, "models": ["m"]}}
    values = {"fullnameOverride": "x" * 25, "workers": [{"name": _POOL, "autoscaling": scaled}]}
    assert "shorten the name of the pool" in refusal(values)
    assert refusal({**values, "fullnameOverride": "x" * 18}) == ""


def test_two_releases_in_one_namespace() -> None:
    """No object of one is one of the other, and no selector finds the other's pods."""
    one, other = (with_values({}, release=release) for release in ("blue", "green"))
    assert not {(a["kind"], a["metadata"]["name"]) for a in one.objects} & {
        (b["kind"], b["metadata"]["name"]) for b in other.objects
    }
    pods = [pod["metadata"]["labels"].items() for _, pod in other.pods()]
    for found in one.of("Service"):
        assert not any(found["spec"]["selector"].items() <= labels for labels in pods)


def test_an_upgrade_without_a_change_restarts_nothing(tmp_path: Path) -> None:
    """Pods are the same each time, though secrets are random, and with a later chart of the same images."""
    later = shutil.copytree(CHART, tmp_path / "inferway")
    about = later / "Chart.yaml"
    about.write_text(about.read_text().replace("\nversion: 0.1.0", "\nversion: 9.9.9"))
    result = helm("template", "mesh", str(later), "-n", NAMESPACE)
    assert "inferway-9.9.9" in result.stdout
    upgraded = Rendered(tuple(one for one in yaml.safe_load_all(result.stdout) if one))
    first, second = (
        {name: pod for name, pod in rendered.pods() if not name.startswith("Pod/")}
        for rendered in (with_values({}), upgraded)
    )
    assert len(first) == 5
    assert first == second


def test_a_registry_for_all() -> None:
    """Every image comes from it, whatever registry its repository names, and a tag may be a digest."""
    digest = "sha256:" + "0" * 64
    values = {
        "imageRegistry": "registry.example:5000/mirror",
        "gateway": {"image": {"tag": digest}},
        "workers": [{"name": "a", "image": {"repository": "ghcr.io/other/worker", "tag": f"1.0@{digest}"}}],
        "imagePullSecrets": [{"name": "registry"}],
        "probe": {"cronJob": {"enabled": True}},
    }
    rendered = _valid(with_values(values))
    parent = with_values({"imageRegistry": "a.example", "global": {"imageRegistry": "b.example"}})
    assert all(spec["image"].startswith("b.example/") for _, spec, _ in parent.containers())
    images = {container.rpartition("/")[2]: spec["image"] for container, spec, _ in rendered.containers()}
    base = "registry.example:5000/mirror"
    assert all(image.startswith(f"{base}/") for image in images.values())
    assert images["gateway"] == images["probe"] == images["configuration"] == f"{base}/inferway-gateway@{digest}"
    assert images["worker"] == f"{base}/other/worker:1.0@{digest}"
    assert images["envoy"].startswith(f"{base}/envoyproxy/envoy:")
    assert all(pod["spec"]["imagePullSecrets"] == [{"name": "registry"}] for _, pod in rendered.pods())


def test_a_user_of_the_clusters_choice() -> None:
    """With 0 nothing says which user it is, but that it is not root."""
    for _, pod in _valid(with_values({"runAsUser": 0})).pods():
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod["spec"]["securityContext"].keys()
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
    for _, pod in with_values({"runAsUser": 1000650000}).pods():
        assert pod["spec"]["securityContext"]["fsGroup"] == 1000650000


_PLACE: dict[str, Any] = {
    "nodeSelector": {"pool": "mesh"},
    "tolerations": [{"key": "mesh", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "podAnnotations": {"example.com/inject": "false"},
}


def test_placement_of_every_pod() -> None:
    """Each kind of pod can be put on its nodes: also those of the probe and of `helm test`."""
    parts = ("gateway", "router", "front", "redis", "probe")
    values: dict[str, Any] = {part: dict(_PLACE) for part in parts} | {"workers": [{"name": "a", **_PLACE}]}
    values["probe"]["cronJob"] = {"enabled": True}
    rendered = _valid(with_values(values))
    found = dict(rendered.pods())
    assert len(found) == 7
    for name, pod in found.items():
        assert {key: pod["spec"][key] for key in _PLACE if key != "podAnnotations"}.items() <= _PLACE.items(), name
        assert pod["metadata"]["annotations"]["example.com/inject"] == "false", name


def test_volumes_of_ones_own() -> None:
    """A certificate authority can be mounted where something is asked over TLS, also by the download."""
    extra = {
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    }
    model = {"path": "m", "existingClaim": "models", "download": {"repository": "a/b"}}
    values = {"gateway": extra, "router": extra, "workers": [{"name": "a", "model": model, **extra}]}
    mounted = {
        spec["name"]
        for _, spec, _ in _valid(with_values(values)).containers()
        if any(mount["name"] == "ca" for mount in spec.get("volumeMounts", []))
    }
    assert mounted == {"gateway", "router", "worker", "download"}


def test_a_cluster_with_ipv6_alone() -> None:
    """Every address that is listened on is of IPv6, and taken by the service's own reader."""
    rendered = _valid(with_values({"listenHost": "[::]", "gateway": {"admin": {"enabled": True}}}))
    listening = {
        (service, name): value
        for _, service, environ in rendered.services()
        for name, value in environ.items()
        if name.endswith("_LISTEN")
    }
    assert len(listening) == 7
    assert all(value.startswith("[::]:") for value in listening.values()), listening


def test_a_load_balancer() -> None:
    """Its class, who may connect, whose addresses are kept, and the ports that it takes."""
    service = {
        "type": "LoadBalancer",
        "port": 8443,
        "nodePort": 30443,
        "loadBalancerClass": "example.com/nlb",
        "loadBalancerSourceRanges": ["203.0.113.0/24"],
        "externalTrafficPolicy": "Local",
        "ipFamilyPolicy": "PreferDualStack",
    }
    spec = _valid(with_values({"front": {"service": service}})).one("Service", "front")["spec"]
    assert spec["ports"] == [{"name": "clients", "port": 8443, "targetPort": "clients", "nodePort": 30443}]
    kept = service.keys() - {"port", "nodePort"}
    assert {key: spec[key] for key in kept} == {key: service[key] for key in kept}
    plain = value_set("minimal").one("Service", "front")["spec"]
    assert plain.keys() == {"type", "selector", "ports"}


def test_gpus_are_requested_as_they_are_limited() -> None:
    """Whatever else the resources say."""
    resources = {"requests": {"cpu": "8", "nvidia.com/gpu": 1}, "limits": {"memory": "9Gi", "nvidia.com/gpu": 8}}
    pool = {"name": "a", "gpu": {"count": 4}, "resources": resources}
    (container,) = with_values({"workers": [pool]}).one("Deployment", "worker-a")["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["resources"]["requests"] == {"cpu": "8", "memory": "2Gi", "nvidia.com/gpu": 4}
    assert container["resources"]["limits"] == {"memory": "9Gi", "nvidia.com/gpu": 4}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no pool", {"workers": []}, "/workers"),
    ("a label of the chart's own", {"commonLabels": {"app.kubernetes.io/name": "x"}}, "propertyName"),
    ("a port that is none", {"front": {"service": {"port": "https"}}}, "/front/service/port"),
    ("a share that is none", {"router": {"maxUnavailable": "half"}}, "/router/maxUnavailable"),
    ("half a replica", {"gateway": {"replicas": 1.5}}, "/gateway/replicas"),
    ("a text for a truth", {"redis": {"enabled": "no"}}, "/redis/enabled"),
    ("a list for an object", {"gateway": {"config": []}}, "/gateway/config"),
    ("an unknown value of a probe", {"front": {"probes": {"liveness": {"delay": 1}}}}, "/front/probes/liveness"),
    (
        "an unknown value of a scaler",
        {"workers": [{"name": "a", "autoscaling": {"keda": {"max": 1}}}]},
        "/workers/0/autoscaling/keda",
    ),
    (
        "an unknown value of a download",
        {"workerDefaults": {"model": {"download": {"repo": "x"}}}},
        "/workerDefaults/model",
    ),
    ("a bound above another", {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 11}}}, "minReplicas"),
    ("an address that is none", {"listenHost": "localhost"}, "/listenHost"),
    ("a mount without a place", {"router": {"extraVolumeMounts": [{"name": "x"}]}}, "/router/extraVolumeMounts/0"),
]


@pytest.mark.parametrize(("values", "said"), [entry[1:] for entry in REFUSED], ids=[entry[0] for entry in REFUSED])
def test_refusals(values: dict[str, Any], said: str) -> None:
    """Values of the wrong kind, and those that there are not at any depth, are refused with their path."""
    assert said in refusal(values)


def test_every_value_is_described() -> None:
    """The page of values has a row for each, and in each row a word on what it is."""
    rows = [line for line in (DOCS / "values.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.replace(" ", "").endswith("||")] == []


def test_notes_say_what_was_installed() -> None:
    """The commands name the namespace, ports and secrets of this installation, and warn of what is open."""

    def notes(name: str) -> str:
        values = str(CHART / "ci" / f"{name}-values.yaml")
        result = helm("install", "mesh", str(CHART), "-n", NAMESPACE, "--dry-run=client", "-f", values)
        assert result.returncode == 0, result.stderr
        return result.stdout.partition("NOTES:")[2]

    assert "port-forward service/mesh-inferway-front 8080:80 &" in notes("minimal")
    assert "get secret mesh-inferway-auth" in notes("minimal")
    assert "inferway tenants" not in notes("minimal")
    everything = notes("everything-on")
    assert "port-forward service/mesh-inferway-front 8080:443 &" in everything
    assert "-k https://127.0.0.1:8080" in everything
    assert "exec deployment/mesh-inferway-gateway -- python -m inferway tenants list" in everything
    assert "keys of the Secret platform-tenants" in notes("external-redis")
    # Its probe asks for whatever is listed first, and one pool may sleep.
    assert "keeps a pool awake" in everything
    assert "keeps a pool awake" not in notes("minimal")
