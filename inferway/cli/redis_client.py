"""The mesh's Redis, for commands."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

_TIMEOUT_S = 10.0
_DEFAULT_PORT = 6379
_SENTINEL_PORT = 26379


class RedisUrlError(ValueError):
    """What a URL must be, and is not."""


def redis_client(url: str) -> Any:
    """A client that returns bytes and connects when it is used; close it.

    redis:// and rediss:// name one server, redis+sentinel://HOST:PORT,.../SERVICE its sentinels,
    redis+cluster://HOST:PORT,... some nodes of a cluster. Raises RedisUrlError.
    """
    import redis
    from redis.cluster import ClusterNode, RedisCluster
    from redis.sentinel import Sentinel

    scheme = url.partition("://")[0]
    times: dict[str, Any] = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S}
    if scheme in ("redis", "rediss", "unix"):
        try:
            return redis.Redis.from_url(url, **times)
        except ValueError as error:
            raise RedisUrlError(str(error)) from None
    if scheme not in ("redis+sentinel", "redis+cluster"):
        raise RedisUrlError("must begin with redis://, rediss://, redis+sentinel:// or redis+cluster://")
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    credentials: dict[str, Any] = {"username": unquote(user) or None, "password": unquote(password) or None}
    if scheme == "redis+cluster":
        addresses = [_address(host, _DEFAULT_PORT) for host in hosts.split(",")]
        nodes = [ClusterNode(host, port) for host, port in addresses]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, **credentials, **times)
    service = parts.path.strip("/")
    if not service:
        raise RedisUrlError("must end with the name of the service: redis+sentinel://HOST:PORT,.../SERVICE")
    watchers = [_address(host, _SENTINEL_PORT) for host in hosts.split(",")]
    sentinel = Sentinel(watchers, **times)  # type: ignore[no-untyped-call]
    return sentinel.master_for(service, **credentials, **times)  # type: ignore[no-untyped-call]


def _address(text: str, default_port: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, default_port
    if not port.isdecimal():
        raise RedisUrlError(f"{text!r} is no HOST:PORT")
    return host.strip("[]"), int(port)
