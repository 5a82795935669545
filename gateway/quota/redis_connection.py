"""A client for a URL of Redis.

It is for what is rare or long. What every request needs goes over RedisStore, at a fraction of the cost.
"""

from __future__ import annotations

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from inferway.redis_url import RedisUrl


def redis_client(url: RedisUrl, *, timeout_s: float = 5.0) -> Redis | RedisCluster:
    """A client whose calls fail after this time, without another try. Connects with the first call; close it."""
    options = url.server_options(timeout_s)
    if url.mode == "cluster":
        nodes = [ClusterNode(address.host, address.port) for address in url.addresses]
        return RedisCluster(startup_nodes=nodes, **options)
    options |= {"retry": Retry(NoBackoff(), 0), "db": url.db}
    if url.mode == "single":
        (address,) = url.addresses
        return Redis(host=address.host, port=address.port, **options)
    watched = [(address.host, address.port) for address in url.addresses]
    sentinel = Sentinel(watched, sentinel_kwargs=url.sentinel_options(timeout_s), **options)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(url.service)
    return client
