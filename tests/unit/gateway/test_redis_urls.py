"""URLs of Redis, and in which slot a key is."""

from __future__ import annotations

import pytest

from gateway.quota.redis_store import slot_of
from inferway.redis_url import Address, RedisUrl


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("redis://h", RedisUrl("single", (Address("h", 6379),))),
        ("redis://u:p%40q@h:1/2", RedisUrl("single", (Address("h", 1),), False, "u", "p@q", 2)),
        ("rediss://:p@[::1]:1", RedisUrl("single", (Address("::1", 1),), True, "", "p")),
        (
            "redis+sentinel://a,b:7/mesh/3",
            RedisUrl("sentinel", (Address("a", 26379), Address("b", 7)), db=3, service="mesh"),
        ),
        ("redis+cluster://a:1,b:2", RedisUrl("cluster", (Address("a", 1), Address("b", 2)))),
    ],
)
def test_what_urls_mean(text: str, meant: RedisUrl) -> None:
    """Each form, with its defaults."""
    assert RedisUrl.parse(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "h:1", "http://h", "redis://", "redis://a,b", "redis://h:x", "redis://h:0", "redis://h/x", "redis://h/1/2",
        "redis://h?db=1", "redis+sentinel://a", "redis+cluster://a/1", "redis://:hidden@h:99999",
    ],
)  # fmt: skip
def test_what_is_no_url(text: str) -> None:
    """A sentence, without the password."""
    with pytest.raises(ValueError) as caught:
        RedisUrl.parse(text)
    assert "hidden" not in str(caught.value)


def test_a_password_is_not_shown() -> None:
    """Nor is it in a repr."""
    assert "hidden" not in repr(RedisUrl.parse("redis://:hidden@h"))


@pytest.mark.parametrize("key", ["123456789", "{123456789}:books", "x{123456789}{y}"])
def test_the_slot_is_that_of_the_hash_tag(key: str) -> None:
    """What stands in the first braces, or all of it; 12739 is from the specification of Redis Cluster."""
    assert slot_of(key) == 12739
