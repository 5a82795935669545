"""What gateways add to rendezvous hashing: the keys of sessions, and a bound for the load of a first choice."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def session_of(tenant_id: str, key: str) -> int:
    """What routers know a tenant's session by; 0 for an empty key."""
    if not key:
        return 0
    digest = blake2b(f"{tenant_id}\0{key}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def within_bounded_load(candidates: Iterable[str], load: dict[str, int], *, factor: float = 1.25) -> str | None:
    """The first candidate whose load stays below `factor` times the mean plus one; None without candidates."""
    ordered = list(candidates)
    if not ordered:
        return None
    bound = factor * sum(load[node] for node in ordered) / len(ordered) + 1
    return next((node for node in ordered if load[node] < bound), ordered[0])
