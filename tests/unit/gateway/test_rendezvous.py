"""gateway/core/rendezvous.py"""

from __future__ import annotations

from gateway.core.rendezvous import session_of, within_bounded_load


def test_bounded_load_skips_the_crowded() -> None:
    """The favourite is taken until it is well above the mean; nobody at all gives None."""
    assert within_bounded_load(["a", "b"], {"a": 0, "b": 0}) == "a"
    assert within_bounded_load(["a", "b"], {"a": 8, "b": 0}) == "b"
    assert within_bounded_load([], {}) is None


def test_sessions_belong_to_their_tenant() -> None:
    """The same at every gateway and after every start; nobody meets another tenant's session."""
    assert session_of("acme", "chat-1") == 10214722447881276041
    assert session_of("acme", "chat-1") != session_of("acm", "echat-1") != session_of("other", "chat-1")
    assert session_of("acme", "") == 0
