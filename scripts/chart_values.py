"""The schema and the table of the chart's values, from helm/inferway/values.yaml and the options of the services.

The comment above a value is its description. A line `@schema {...}` in it adds to what follows from the default,
`@options SERVICE` makes its members those options, in camelCase, and `@pools` its entries what workerDefaults is.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from inferway import config
from inferway.front.settings import FrontConfig

CHART = Path(__file__).resolve().parents[1] / "helm" / "inferway"

# What the chart says itself.
_SECRETS = {
    "internal_token",
    "internal_token_file",
    "cache_secret",
    "cache_secret_file",
    "key_secret",
    "key_secret_file",
}
_TRACING = {"otlp_endpoint", "otlp_headers", "otlp_ca_file", "trace_sample_ratio"}
_ADMIN = {"admin_listen", "admin_listen_fd", "admin_token", "admin_token_file"}
_OF_GATEWAYS = {"max_body_bytes", "max_header_bytes", "body_timeout_s", "heartbeat_s", "request_deadline_s"}
_CHART_SAYS: Mapping[str, set[str]] = {
    "gateway": _SECRETS
    | _ADMIN
    | _TRACING
    | {"listen", "listen_fd", "pulse_fd", "follows", "routers", "workers", "insecure", "models", "tenants", "redis"}
    | {"gateways", "spool_dir"},
    "router": _SECRETS
    | _TRACING
    | {"listen", "ops_listen", "name", "workers", "insecure", "routing"}
    | {"kubernetes_api", "kubernetes_token_file", "kubernetes_ca_file", "decision_log"},
    "worker": _SECRETS
    | _TRACING
    | {"listen", "ops_listen", "name", "engine", "engine_flags", "insecure", "scripts", "record"},
    "front": _OF_GATEWAYS
    | _TRACING
    | {"keepalive_s", "drain_delay_s", "listen", "gateways", "dns_server", "tls_cert", "tls_key", "admin"},
}
# What values mean that stand in several places, where nothing is said of them.
_EVERYWHERE = {
    "affinity": "As in a pod.",
    "annotations": "Annotations of the object.",
    "enabled": "Whether there is one.",
    "extraVolumeMounts": "Where they are mounted, as in a container.",
    "failureThreshold": "Failures in a row until it counts as failed.",
    "labels": "Labels by which it is found.",
    "maxReplicas": "Most replicas.",
    "minReplicas": "Fewest replicas.",
    "nodeSelector": "Labels of the nodes that it may run on.",
    "periodSeconds": "Seconds between two probes.",
    "podAnnotations": "Annotations of the pods.",
    "priorityClassName": "PriorityClass of the pods.",
    "pullPolicy": "When a node pulls the image.",
    "replicas": "Number of pods.",
    "repository": "Image, without its tag.",
    "resources": "Requests and limits, as in a container.",
    "size": "Size of the volume.",
    "tag": "Tag of the image, or a digest.",
    "timeoutSeconds": "Seconds after which an answer counts as none.",
    "tolerations": "As in a pod.",
}
_POOL_NAME = "^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$"
_CLOSED = {"additionalProperties": False}


class Value(NamedTuple):
    """`note` is the comment above the key, `default` what stands behind it."""

    key: str
    note: str
    extra: dict[str, Any]
    options: str
    is_pools: bool
    default: Any
    members: tuple[Value, ...]


def values() -> tuple[Value, ...]:
    text = (CHART / "values.yaml").read_text()
    return tuple(_values(yaml.compose(text, Loader=yaml.SafeLoader), text.splitlines()))


def _values(node: Any, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        notes, extra, options, is_pools = [], {}, "", False
        for line in _comment_above(lines, key.start_mark.line):
            if line.startswith("@schema "):
                extra = json.loads(line.removeprefix("@schema "))
            elif line.startswith("@options "):
                options = line.removeprefix("@options ")
            elif line == "@pools":
                is_pools = True
            else:
                notes.append(line)
        is_closed = isinstance(value, yaml.MappingNode) and value.value and not options
        members = tuple(_values(value, lines)) if is_closed and "additionalProperties" not in extra else ()
        # A default that may be replaced as a whole, such as resources, has no members of its own.
        if "default" in extra:
            members = ()
        default = yaml.safe_load(yaml.serialize(value))
        note = " ".join(notes) or ("" if members else _EVERYWHERE.get(key.value, ""))
        yield Value(key.value, note, extra, options, is_pools, default, members)


def _comment_above(lines: list[str], number: int) -> list[str]:
    found: list[str] = []
    while number > 0 and (match := re.match(r"\s*# ?(.*)", lines[number - 1])):
        found.insert(0, match[1].strip())
        number -= 1
    return found


def schema() -> dict[str, Any]:
    every = values()
    defaults = next(value for value in every if value.key == "workerDefaults")
    properties = {value.key: _schema(value, defaults) for value in every}
    # What Helm itself adds when the chart is part of another one.
    properties["global"] = {"type": "object"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart inferway",
        "type": "object",
        "properties": properties,
        **_CLOSED,
    }


def _schema(value: Value, pool: Value) -> dict[str, Any]:
    if value.is_pools:
        one = _schema(pool, pool)
        name = {
            "type": "string",
            "pattern": "^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$",
            "description": "Unique, and short.",
        }
        items = {**one, "properties": {"name": name, **one["properties"]}, "required": ["name"]}
        items.pop("description", None)
        found: dict[str, Any] = {"type": "array", "minItems": 1, "items": items}
    elif value.options:
        found = {"type": "object", "properties": dict(_options(value.options)), **_CLOSED}
    elif value.members:
        found = {"type": "object", "properties": {one.key: _schema(one, pool) for one in value.members}, **_CLOSED}
    else:
        found = {"type": _type(value.default)}
        found |= {name: entry for name, entry in value.extra.items() if name != "default"}
    return {**found, **({"description": value.note} if value.note else {})}


def _type(default: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(default, kind):
            return name
    return "object"


def service_config(service: str) -> type:
    found: type = FrontConfig if service == "front" else importlib.import_module(f"{service}.config").Config
    return found


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def option_names(service: str) -> list[str]:
    """The options of a service that are values."""
    names = (field.name for field in dataclasses.fields(service_config(service)))
    return [name for name in names if name not in _CHART_SAYS[service]]


def _options(service: str) -> Iterator[tuple[str, dict[str, Any]]]:
    cls = service_config(service)
    hints = typing.get_type_hints(cls)
    by_name = {field.name: field for field in dataclasses.fields(cls)}
    for name in option_names(service):
        yield camel_case(name), _option(by_name[name], hints[name])


def _option(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None)]
    kind = tuple if typing.get_origin(hint) is tuple else kinds[0]
    names = {bool: "boolean", int: "integer", float: "number", tuple: "array"}
    found: dict[str, Any] = {"type": names.get(kind, "string"), "description": config.describe(field)}
    if kind is tuple:
        found["items"] = {"type": "string"}
    for key in ("minimum", "maximum"):
        if field.metadata[key] is not None:
            found[key] = field.metadata[key]
    if field.metadata["choices"] and kind is not tuple:
        found["enum"] = list(field.metadata["choices"])
    return found


def schema_text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


def values_page(note: str) -> str:
    rows = "\n".join(_rows(values(), ""))
    return f"""{note}
# Values of the chart

`helm show values helm/inferway` prints the file that this table is made of. A value that is not here is refused. Those
of `config` are the options of the service in [configuration](configuration.md), in camelCase: `--queue-timeout-s` is
`queueTimeoutS`. Addresses, secrets and files are the chart's to say, and refused there.

| value | default | what it is |
| --- | --- | --- |
{rows}
"""


def _rows(every: tuple[Value, ...], prefix: str) -> Iterator[str]:
    for value in every:
        name = f"{prefix}{value.key}"
        if value.members and not value.is_pools:
            if value.note:
                yield f"| `{name}` | | {value.note} |"
            yield from _rows(value.members, f"{name}.")
        else:
            default = json.dumps(value.default).replace("|", "\\|")
            yield f"| `{name}` | `{default}` | {value.note} |"
