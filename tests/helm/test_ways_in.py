"""How clients outside the cluster reach the front: Ingress, HTTPRoute, and what policies and notes say of it."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from gateway.config import Config
from tests.support.chart import CHART, NAMESPACE, helm, refusal, value_set, with_values

DOCS = Path(__file__).resolve().parents[2] / "docs"
_PARENTS = [{"name": "public", "namespace": "gateways", "sectionName": "https"}]
_NAME = {"type": "string", "minLength": 1, "maxLength": 253}


def _only(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


# Of gateway.networking.k8s.io/v1, the fields that we use and what they may be. No package that Python 3.11 can have
# brings the definition (CRD), and npm's has compiled checks that pass over fields which do not exist.
_ROUTE = _only(
    ["parentRefs", "rules"],
    parentRefs={
        "type": "array",
        "minItems": 1,
        "maxItems": 32,
        "items": _only(
            ["name"],
            group={"type": "string", "maxLength": 253},
            kind={"type": "string", "pattern": "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"},
            namespace={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
            name=_NAME,
            sectionName=_NAME,
            port={"type": "integer", "minimum": 1, "maximum": 65535},
        ),
    },
    hostnames={"type": "array", "maxItems": 16, "items": {**_NAME, "pattern": r"^(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*$"}},
    rules={
        "type": "array",
        "minItems": 1,
        "maxItems": 16,
        "items": _only(
            ["backendRefs"],
            matches={
                "type": "array",
                "items": _only(
                    ["path"],
                    path=_only(["type", "value"], type={"enum": ["Exact", "PathPrefix"]}, value={"pattern": "^/"}),
                ),
            },
            backendRefs={
                "type": "array",
                "minItems": 1,
                "items": _only(
                    # The port may be left out for other kinds than Service only.
                    ["name", "port"],
                    name=_NAME,
                    port={"type": "integer", "minimum": 1, "maximum": 65535},
                    weight={"type": "integer", "minimum": 0, "maximum": 1_000_000},
                ),
            },
            timeouts=_only(["request"], request={"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}),
        ),
    },
)
_route_spec = jsonschema_rs.validator_for(_ROUTE)


def test_both_are_off_by_default() -> None:
    """Nobody is let in who was not asked for."""
    assert with_values({}).of("Ingress", "HTTPRoute") == []


@pytest.mark.parametrize("port", ["", 8443])
def test_they_lead_to_the_front(port: str | int) -> None:
    """To its Service and a port that this has, under each name, whatever the path."""
    ways = {
        "front": {"service": {"port": port}},
        "ingress": {"enabled": True, "className": "nginx", "hosts": ["a.example.com", "*.b.example.com"]},
        "httpRoute": {"enabled": True, "parentRefs": _PARENTS, "hostnames": ["a.example.com"]},
    }
    rendered = with_values(ways)
    service = rendered.one("Service", "front")
    (served,) = service["spec"]["ports"]
    spec = rendered.one("Ingress", "front")["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert [rule["host"] for rule in spec["rules"]] == ["a.example.com", "*.b.example.com"]
    for rule in spec["rules"]:
        (path,) = rule["http"]["paths"]
        backend = path["backend"]["service"]
        assert (path["path"], path["pathType"]) == ("/", "Prefix")
        assert (backend["name"], backend["port"]) == (service["metadata"]["name"], {"name": served["name"]})
    route = rendered.one("HTTPRoute", "front")
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert route["spec"]["hostnames"] == ["a.example.com"]
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["name"], backend["port"]) == (service["metadata"]["name"], served["port"])
    # The mesh ends a request itself.
    assert rule["timeouts"] == {"request": "0s"}


def test_names_may_be_left_to_others() -> None:
    """Without hosts an Ingress takes every name, a route those of its Gateway; a Gateway may know no limits of time."""
    rendered = with_values(
        {"ingress": {"enabled": True}, "httpRoute": {"enabled": True, "parentRefs": _PARENTS, "requestTimeout": ""}}
    )
    ingress, route = (rendered.one(kind, "front")["spec"] for kind in ("Ingress", "HTTPRoute"))
    assert ingress.keys() == {"rules"}
    assert [rule.keys() for rule in ingress["rules"]] == [{"http"}]
    assert _route_spec.is_valid(route)
    assert route.keys() == {"parentRefs", "rules"}
    assert route["rules"][0].keys() == {"matches", "backendRefs"}


def test_a_gateway_takes_the_route() -> None:
    """It has the fields that there are, with values that they may have; the check sees a mistake in any."""
    spec = value_set("everything-on").one("HTTPRoute", "front")["spec"]
    assert list(_route_spec.iter_errors(spec)) == []
    for place, value in [
        ({"rules": [{"timeout": {"request": "0s"}}]}, None),
        ({"hostnames": ["https://a.example.com"]}, None),
        ({"parentRefs": []}, None),
        ({}, "0"),
    ]:
        wrong = copy.deepcopy(spec)
        if value is not None:
            wrong["rules"][0]["timeouts"]["request"] = value
        assert not _route_spec.is_valid({**wrong, **place}), place


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("an unknown value of an Ingress", {"ingress": {"host": "a.example.com"}}, "/ingress"),
    ("a URL for a host", {"ingress": {"hosts": ["https://a.example.com"]}}, "/ingress/hosts/0"),
    ("a certificate without a Secret", {"ingress": {"tls": [{"hosts": ["a.example.com"]}]}}, "/ingress/tls/0"),
    ("an annotation that is no text", {"ingress": {"annotations": {"a": False}}}, "/ingress/annotations/a"),
    ("an unknown value of a route", {"httpRoute": {"hosts": []}}, "/httpRoute"),
    ("a Gateway without a name", {"httpRoute": {"parentRefs": [{"namespace": "a"}]}}, "/httpRoute/parentRefs/0"),
    ("a route without a Gateway", {"httpRoute": {"enabled": True}}, "parentRefs must name"),
    ("a time without a unit", {"httpRoute": {"requestTimeout": "630"}}, "/httpRoute/requestTimeout"),
]


@pytest.mark.parametrize(("values", "said"), [entry[1:] for entry in REFUSED], ids=[entry[0] for entry in REFUSED])
def test_refusals(values: dict[str, Any], said: str) -> None:
    """Values of the wrong kind, and those that there are not, are refused with their path."""
    assert said in refusal(values)


def test_a_controller_can_connect() -> None:
    """Everybody may by default; where clients are named, the controller is one of them."""
    ways: dict[str, Any] = {"ingress": {"enabled": True}}
    (rule,) = with_values(ways).one("NetworkPolicy", "front")["spec"]["ingress"]
    assert rule == {"ports": [{"port": "clients"}]}
    controller = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}
    (rule,) = with_values({**ways, "networkPolicy": {"clients": [controller]}}).one("NetworkPolicy", "front")["spec"][
        "ingress"
    ]
    assert controller in rule["from"]


def test_what_the_page_says_of_annotations_fits_the_limits() -> None:
    """Values of docs/kubernetes.md are taken, and tell the controller what gateways themselves allow."""
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "kubernetes.md").read_text(), re.DOTALL)
    (values,) = [values for block in blocks if "ingress" in (values := yaml.safe_load(block))]
    given = with_values(values).one("Ingress", "front")["metadata"]["annotations"]
    told = {name.removeprefix("nginx.ingress.kubernetes.io/"): value for name, value in given.items()}
    limits = Config()
    assert told["proxy-buffering"] == told["proxy-request-buffering"] == "off"
    assert int(told["proxy-read-timeout"]) == int(told["proxy-send-timeout"]) == limits.request_deadline_s + 30
    assert told["proxy-body-size"] == str(limits.max_body_bytes)


def test_notes_say_where_clients_ask() -> None:
    """At the names of the Ingress, with TLS where it has a certificate for them, and at those of the route."""

    def notes(values: dict[str, Any]) -> str:
        flags = ["-n", NAMESPACE, "--dry-run=client", "-f", "-"]
        result = helm("install", "mesh", str(CHART), *flags, stdin=yaml.safe_dump(values))
        assert result.returncode == 0, result.stderr
        return result.stdout.partition("NOTES:")[2]

    assert "from outside" not in notes({})
    hosts = ["a.example.com", "b.example.com", "c.example.org"]
    tls = [{"secretName": "a", "hosts": ["a.example.com"]}, {"secretName": "all", "hosts": ["*.example.org"]}]
    said = notes({"ingress": {"enabled": True, "hosts": hosts, "tls": tls}})
    assert "\n   https://a.example.com/v1\n   http://b.example.com/v1\n   https://c.example.org/v1\n" in said
    assert f"kubectl -n {NAMESPACE} get ingress mesh-inferway-front" in notes({"ingress": {"enabled": True}})
    route = {"enabled": True, "parentRefs": _PARENTS}
    assert "\n   /v1 at the names of the Gateway public\n" in notes({"httpRoute": route})
    assert "\n   c.example.com/v1, http or https" in notes({"httpRoute": {**route, "hostnames": ["c.example.com"]}})
    for kind, place in (("LoadBalancer", "the EXTERNAL-IP of"), ("NodePort", "the second port of")):
        said = notes({"front": {"service": {"type": kind}}})
        assert f"at {place}: kubectl -n {NAMESPACE} get service mesh-inferway-front" in said
