"""Addresses: how they are read and shown, and the rule about open ones."""

from __future__ import annotations

import pytest

from inferway.net import HostAndPort, check_exposure, host_and_port, is_loopback, peer


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:8000", HostAndPort("127.0.0.1", 8000)),
        ("localhost:0", HostAndPort("localhost", 0)),
        ("[::1]:65535", HostAndPort("::1", 65535)),
    ],
)
def test_addresses(address: str, expected: HostAndPort) -> None:
    """A name, an IPv4 address or an IPv6 address in brackets, and a port."""
    assert host_and_port(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1",
        ":8000",
        "127.0.0.1:",
        "a:99999",
        "a:-1",
        "a:b",
        "a:１",
        "::1:80",
        "[]:80",
        "[::1]",
        "http://a:1",
    ],
)
def test_what_is_no_address(address: str) -> None:
    """Anything else is refused with what it must be."""
    with pytest.raises(ValueError, match=r"^must be host:port with a port from 0 to 65535$"):
        host_and_port(address)


def test_nobody_is_reached_on_port_0() -> None:
    """An address to connect to needs a real port."""
    with pytest.raises(ValueError, match="from 1 to 65535"):
        peer("127.0.0.1:0")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:8000", True),
        ("127.8.8.8:1", True),
        ("localhost:8000", True),
        ("[::1]:8000", True),
        ("0.0.0.0:8000", False),
        ("[::]:8000", False),
        (":8000", False),
        ("127.0.0.1.example.com:8000", False),
        ("10.0.0.7:8000", False),
        ("gateway.example.com:443", False),
    ],
)
def test_loopback(address: str, expected: bool) -> None:
    """An address stays on this machine only when its host says so."""
    assert is_loopback(address) is expected


def test_closed_by_default() -> None:
    """Off loopback a process needs authentication or --insecure, and says so by address."""
    assert check_exposure("127.0.0.1:1", authenticated=False, insecure=False) is None
    assert check_exposure("0.0.0.0:1", authenticated=True, insecure=False) is None
    assert check_exposure("0.0.0.0:1", authenticated=False, insecure=True) is None
    refusal = check_exposure("0.0.0.0:1", authenticated=False, insecure=False)
    assert refusal is not None
    assert "0.0.0.0:1" in refusal
    assert "--insecure" in refusal
