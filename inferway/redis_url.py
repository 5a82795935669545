"""What a URL of Redis means: one server, one behind sentinels, or a cluster.

redis://[USER:PASSWORD@]HOST[:PORT][/DB]            rediss:// with TLS
redis+sentinel://HOST[:PORT],HOST[:PORT]/SERVICE[/DB]
redis+cluster://HOST[:PORT],HOST[:PORT]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from inferway.config import Secret

_PORTS = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_SCHEMES: dict[str, tuple[Mode, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}

Mode = Literal["single", "sentinel", "cluster"]


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    mode: Mode
    # The server, the sentinels, or some of the cluster.
    addresses: tuple[Address, ...]
    is_tls: bool = False
    # For the server, not for sentinels.
    username: str = ""
    password: Secret = Secret("")
    db: int = 0
    # The name by which sentinels know the master.
    service: str = ""

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Raises ValueError with a sentence that does not repeat the password."""
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ValueError(f"the scheme must be one of {', '.join(_SCHEMES)}, as in redis://127.0.0.1:6379")
        mode, is_tls = _SCHEMES[parts.scheme]
        if parts.query or parts.fragment:
            raise ValueError("options after '?' are not known")
        credentials, _, hosts = parts.netloc.rpartition("@")
        username, _, password = credentials.partition(":")
        addresses = tuple(_address(text, _PORTS[mode]) for text in hosts.split(","))
        if mode == "single" and len(addresses) > 1:
            raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
        path = [unquote(word) for word in parts.path.strip("/").split("/") if word]
        service = path.pop(0) if mode == "sentinel" and path else ""
        if mode == "sentinel" and not service:
            raise ValueError("sentinels need the name of their service: redis+sentinel://HOST:PORT/SERVICE")
        db = path.pop(0) if path else "0"
        if path or not db.isascii() or not db.isdigit():
            raise ValueError("what follows the hosts must be the number of a database")
        if mode == "cluster" and db != "0":
            raise ValueError("a cluster has no databases but 0")
        return cls(mode, addresses, is_tls, unquote(username), Secret(unquote(password)), int(db), service)

    def sentinel_options(self, timeout_s: float) -> dict[str, Any]:
        """What the clients of the library redis are given for a sentinel: no credentials."""
        return {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "ssl": self.is_tls}

    def server_options(self, timeout_s: float) -> dict[str, Any]:
        """The same for a server, but for the database, of which a cluster has one."""
        credentials = {"username": self.username or None, "password": self.password or None}
        return {**credentials, **self.sentinel_options(timeout_s)}


def redis_url(text: str) -> str:
    """The text itself, for options. Raises ValueError."""
    RedisUrl.parse(text)
    return text


def _address(text: str, default_port: int) -> Address:
    """HOST, HOST:PORT, or [IPv6]:PORT. Raises ValueError."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ValueError(f"{text!r} is not HOST or HOST:PORT")
    return Address(host, int(port or default_port))
