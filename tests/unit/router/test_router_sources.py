"""Reading --workers."""

from __future__ import annotations

import pytest

from router.sources import DnsName, parse_sources, worker_address


def test_addresses_and_names_are_told_apart() -> None:
    """host:port is one worker, dns:host:port a name; what is given twice counts once."""
    sources = parse_sources(["10.0.0.1:50051", "dns:workers.ns.svc:50051", "[::1]:1", "10.0.0.1:50051"])
    assert sources.static == ("10.0.0.1:50051", "[::1]:1")
    assert sources.names == (DnsName("workers.ns.svc", 50051),)


@pytest.mark.parametrize("value", ["worker", "worker:", ":50051", "worker:0", "worker:70000", "dns:worker", "w:x"])
def test_what_is_no_address_is_refused(value: str) -> None:
    """The sentence says what was expected."""
    with pytest.raises(ValueError, match="must be host:port with a port from 1 to 65535"):
        worker_address(value)
