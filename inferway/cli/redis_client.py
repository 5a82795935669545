"""The mesh's Redis, for commands."""

from __future__ import annotations

from typing import Any

from inferway.redis_url import RedisUrl

_TIMEOUT_S = 10.0


def redis_client(url: RedisUrl) -> Any:
    """A client that returns bytes; close it. Raises redis.RedisError where a cluster or a sentinel does not answer."""
    from redis import Redis
    from redis.cluster import ClusterNode, RedisCluster
    from redis.sentinel import Sentinel

    options = url.server_options(_TIMEOUT_S)
    addresses = [(address.host, address.port) for address in url.addresses]
    if url.mode == "cluster":
        nodes = [ClusterNode(host, port) for host, port in addresses]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, **options)
    options["db"] = url.db
    if url.mode == "single":
        ((host, port),) = addresses
        return Redis(host=host, port=port, **options)
    sentinel = Sentinel(addresses, sentinel_kwargs=url.sentinel_options(_TIMEOUT_S), **options)  # type: ignore[no-untyped-call]
    return sentinel.master_for(url.service)  # type: ignore[no-untyped-call]
