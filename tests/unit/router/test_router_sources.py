"""Reading --workers."""

from __future__ import annotations

import pytest

from router.sources import DnsName, parse_sources


def test_addresses_and_names_are_told_apart() -> None:
    """host:port is one worker, dns:host:port a name; what is given twice counts once."""
    sources = parse_sources(["10.0.0.1:50051", "dns:workers.ns.svc:50051", "[::1]:1", "10.0.0.1:50051"])
    assert sources.static == ("10.0.0.1:50051", "[::1]:1")
    assert sources.names == (DnsName("workers.ns.svc", 50051),)


@pytest.mark.parametrize("value", ["worker", "worker:", ":50051", "worker:0", "worker:70000", "dns:worker", "w:x"])
def test_what_is_no_address_is_named(value: str) -> None:
    """The sentence shows the value and what was expected."""
    with pytest.raises(
        ValueError, match=f"must be host:port with a port from 1 to 65535, got '{value.removeprefix('dns:')}'"
    ):
        parse_sources([value])


def test_no_worker_at_all_is_a_mistake() -> None:
    """A router without workers would never answer."""
    with pytest.raises(ValueError, match="at least one address"):
        parse_sources([])
