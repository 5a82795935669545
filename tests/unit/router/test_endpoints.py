"""What follows from lists and events of EndpointSlices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from router.core.endpoints import BadAnswer, Departed, Endpoints, Slices, VersionGone, merged
from tests.support.kubernetes import endpoint, endpoint_slice


def slices(*items: Mapping[str, Any], port_name: str = "grpc", departed: Departed | None = None) -> Slices:
    machine = Slices(port_name, departed or Departed())
    machine.feed_list(json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode())
    return machine


def send(machine: Slices, kind: str, item: Mapping[str, Any], version: str = "8") -> None:
    item = dict(item) | {"metadata": {**item.get("metadata", {}), "resourceVersion": version}}
    machine.feed_event(json.dumps({"type": kind, "object": item}).encode())


def one(**conditions: Any) -> Slices:
    return slices(endpoint_slice("s", [endpoint("10.0.0.1", "u1", **conditions)], port=5))


@pytest.mark.parametrize(
    ("conditions", "is_usable"),
    [
        ({"ready": True}, True),
        ({"ready": None}, True),
        ({"ready": True, "serving": False}, True),
        ({"ready": False, "serving": True}, True),
        ({"ready": False, "serving": False}, False),
        ({"ready": False}, False),
    ],
)
def test_ready_or_serving_is_usable(conditions: dict[str, Any], is_usable: bool) -> None:
    """What is not said counts as ready; neither of the two is idle."""
    found = one(**conditions).endpoints()
    assert found == (Endpoints({"10.0.0.1:5": "u1"}) if is_usable else Endpoints(idle=frozenset(["10.0.0.1:5"])))


@pytest.mark.parametrize("conditions", [{"ready": True, "serving": True}, {"ready": False, "serving": True}, {}])
def test_terminating_leaves_whatever_else_is_said(conditions: dict[str, Any]) -> None:
    """Ready, serving or silent: a pod that terminates leaves."""
    assert one(terminating=True, **conditions).endpoints() == Endpoints(leaving={"10.0.0.1:5": "u1"})


def test_a_pod_comes_back_only_under_a_new_identity() -> None:
    """An event that takes the termination back changes nothing, nor does another slice; another uid does."""
    machine = one(terminating=True)
    send(machine, "MODIFIED", endpoint_slice("s", [endpoint("10.0.0.1", "u1")], port=5))
    assert machine.endpoints().leaving == {"10.0.0.1:5": "u1"}
    send(machine, "DELETED", endpoint_slice("s", []))
    assert machine.endpoints() == Endpoints()
    send(machine, "ADDED", endpoint_slice("t", [endpoint("10.0.0.1", "u1")], port=5))
    assert machine.endpoints().usable == {}
    send(machine, "MODIFIED", endpoint_slice("t", [endpoint("10.0.0.1", "u2")], port=5))
    assert machine.endpoints() == Endpoints({"10.0.0.1:5": "u2"})


def test_one_service_knows_what_another_has_seen() -> None:
    """Two services with the same pods: what terminates in one is used by neither."""
    departed = Departed()
    first = slices(endpoint_slice("a", [endpoint("10.0.0.1", "u1")], port=5), departed=departed)
    second = slices(endpoint_slice("b", [endpoint("10.0.0.1", "u1")], port=5), departed=departed)
    assert second.endpoints().usable == {"10.0.0.1:5": "u1"}
    send(first, "MODIFIED", endpoint_slice("a", [endpoint("10.0.0.1", "u1", terminating=True)], port=5))
    assert second.endpoints().leaving == {"10.0.0.1:5": "u1"}


def test_the_memory_of_departures_is_bounded() -> None:
    """The oldest are forgotten; one that is seen again is young."""
    departed = Departed(limit=2)
    for identity in ("a", "b", "a", "c"):
        departed.add(identity)
    assert [identity in departed for identity in "abc"] == [True, False, True]


def test_slices_of_a_service_are_one_set() -> None:
    """Each slice has its own port; deleting one takes its endpoints away; one endpoint in two slices counts once."""
    machine = slices(
        endpoint_slice("a", [endpoint("10.0.0.1", "u1"), endpoint("10.0.0.2", "u2")], port=5),
        endpoint_slice("b", [endpoint("10.0.0.2", "u2")], port=5),
        endpoint_slice("c", [endpoint("10.0.0.3", "u3")], port=6),
    )
    assert machine.endpoints().usable == {"10.0.0.1:5": "u1", "10.0.0.2:5": "u2", "10.0.0.3:6": "u3"}
    send(machine, "DELETED", endpoint_slice("a", []), version="9")
    assert machine.endpoints().usable == {"10.0.0.2:5": "u2", "10.0.0.3:6": "u3"}
    assert machine.version == "9"


def test_a_list_replaces_what_was_known() -> None:
    """What it does not name is gone."""
    machine = one()
    machine.feed_list(b'{"metadata": {"resourceVersion": "20"}, "items": null}')
    assert (machine.endpoints(), machine.version) == (Endpoints(), "20")


def test_of_two_families_one_is_used() -> None:
    """Each pod counts once: by the family that comes first with endpoints, as long as it has slices."""
    machine = slices(
        endpoint_slice("none", [], port=5, family="IPv4"),
        endpoint_slice("six", [endpoint("fd00::1", "u1")], port=5, family="IPv6"),
        endpoint_slice("four", [endpoint("10.0.0.1", "u1")], port=5),
        endpoint_slice("names", [endpoint("worker.test", "u1")], port=5, family="FQDN"),
    )
    assert machine.endpoints().usable == {"[fd00::1]:5": "u1"}
    send(machine, "MODIFIED", endpoint_slice("six", [], port=5, family="IPv6"))
    assert machine.endpoints().usable == {}
    send(machine, "DELETED", endpoint_slice("six", [], family="IPv6"))
    assert machine.endpoints().usable == {"10.0.0.1:5": "u1"}


@pytest.mark.parametrize(
    ("port_name", "ports", "port", "trouble"),
    [
        ("grpc", [{"name": "http", "port": 80}, {"name": "grpc", "port": 5}], 5, ""),
        ("", [{"name": "", "port": 5}], 5, ""),
        ("", [{"port": 5}], 5, ""),
        ("", [{"name": "http", "port": 80}, {"name": "grpc", "port": 5}], None, "not one port; there are: http, grpc"),
        ("grpc", [{"name": "http", "port": 80}], None, "no port 'grpc'; there are: http"),
        ("", [], None, "not one port; there are: none"),
        ("", [{"port": None}], None, "not one port; there are: none"),
    ],
)
def test_the_port(port_name: str, ports: list[dict[str, Any]], port: int | None, trouble: str) -> None:
    """The named one or the only one; otherwise nothing is used and the sentence says what there is."""
    machine = slices(endpoint_slice("s", [endpoint("10.0.0.1")], ports=ports), port_name=port_name)
    assert list(machine.endpoints().usable) == ([f"10.0.0.1:{port}"] if port else [])
    assert machine.trouble == trouble


def test_a_bookmark_moves_the_version_alone() -> None:
    """It is what a watch goes on from."""
    machine = one()
    send(machine, "BOOKMARK", {"kind": "EndpointSlice"}, version="30")
    assert machine.version == "30"
    assert machine.endpoints().usable == {"10.0.0.1:5": "u1"}


def test_a_version_that_is_gone_is_told_apart() -> None:
    """410 as an event means to list again; other errors have words."""
    machine = one()
    with pytest.raises(VersionGone):
        machine.feed_event(b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}')
    with pytest.raises(BadAnswer, match="500 etcd is away"):
        machine.feed_event(b'{"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is away"}}')


@pytest.mark.parametrize(
    "line",
    [
        b"<html>",
        b"[]",
        b'{"type": "ADDED"}',
        b'{"type": "ADDED", "object": {}}',
        b'{"type": "DREAMED", "object": {}}',
        b'{"type": "MODIFIED", "object": {"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [{}]}}',
        json.dumps({"type": "MODIFIED", "object": endpoint_slice("s", [endpoint("nowhere")], port=5)}).encode(),
        json.dumps({"type": "MODIFIED", "object": endpoint_slice("s", [endpoint("10.0.0.9")], port=70000)}).encode(),
    ],
)
def test_nonsense_changes_nothing(line: bytes) -> None:
    """Events and lists that make no sense are refused as a whole."""
    machine = one()
    with pytest.raises(BadAnswer):
        machine.feed_event(line)
    with pytest.raises(BadAnswer):
        machine.feed_list(line)
    assert (machine.endpoints().usable, machine.version) == ({"10.0.0.1:5": "u1"}, "7")


@pytest.mark.parametrize(
    ("sources", "together"),
    [
        ([Endpoints({"a:1": ""}), Endpoints({"a:1": "u", "b:1": "v"})], Endpoints({"a:1": "u", "b:1": "v"})),
        ([Endpoints({"a:1": ""}), Endpoints(leaving={"a:1": "u"})], Endpoints(leaving={"a:1": "u"})),
        ([Endpoints({"a:1": "u"}), Endpoints(leaving={"a:1": "u"})], Endpoints(leaving={"a:1": "u"})),
        ([Endpoints({"a:1": "w"}), Endpoints(leaving={"a:1": "u"})], Endpoints({"a:1": "w"})),
        (
            [Endpoints({"a:1": ""}), Endpoints(idle=frozenset(["a:1", "b:1"]))],
            Endpoints({"a:1": ""}, frozenset(["b:1"])),
        ),
    ],
)
def test_sources_are_laid_together(sources: list[Endpoints], together: Endpoints) -> None:
    """Whoever leaves is used by nobody, unless another has come to its address; who is idle may be used by others."""
    assert merged(sources) == merged(reversed(sources)) == together


def test_what_is_listed() -> None:
    """Wanted or not, an address that a source names is in it."""
    found = Endpoints({"a:1": ""}, frozenset(["b:1"]), {"c:1": "u"})
    assert [address in found for address in ("a:1", "b:1", "c:1", "d:1")] == [True, True, True, False]
