"""What the parts of Envoy's configuration are written with."""

from __future__ import annotations

from typing import Any

from inferway.front.settings import FrontConfig
from inferway.net import host_and_port

TYPE = "type.googleapis.com/envoy."
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
# What was frozen is silent on the socket, too.
TCP_KEEPALIVE = {"keepalive_probes": 3, "keepalive_time": 30, "keepalive_interval": 5}


def extension(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": TYPE + kind, **fields}}


def address(text: str) -> dict[str, Any]:
    host, port = host_and_port(text)
    return {"socket_address": {"address": host, "port_value": port}}


def seconds(value: float) -> str:
    return f"{value:.9g}s"


def resolved(config: FrontConfig) -> dict[str, Any]:
    """Of a cluster whose members have names: how they are found, again and again."""
    how: dict[str, Any] = {"dns_lookup_family": "V4_PREFERRED", "dns_refresh_rate": "5s", "respect_dns_ttl": True}
    how |= {"dns_failure_refresh_rate": {"base_interval": "1s", "max_interval": "5s"}}
    if config.dns_server:
        how |= resolver(config)
    return how


def resolver(config: FrontConfig) -> dict[str, Any]:
    return {
        "typed_dns_resolver_config": extension(
            "envoy.network.dns_resolver.cares",
            "extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
            resolvers=[address(config.dns_server)],
            dns_resolver_options={"no_default_search_domain": True},
        )
    }


def early_mutation(mutations: list[dict[str, Any]]) -> dict[str, Any]:
    """Before anything looks at the request."""
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=mutations,
    )


def replace(name: str, value: str) -> list[dict[str, Any]]:
    """Header mutations. An empty value leaves no header; `value` may speak of what the header was."""
    return [
        {"remove": _HOLDER},
        {"append": {"header": {"key": _HOLDER, "value": value}}},
        {"remove": name},
        {"append": {"header": {"key": name, "value": f"%REQ({_HOLDER})%"}}},
        {"remove": _HOLDER},
    ]


# Holds a header of the client's while it is judged.
_HOLDER = "x-inferway-given"
