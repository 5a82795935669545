"""Configuration: one frozen dataclass a service, its fields the only list of options.

A field declared with `option()` has a flag (`--queue-timeout-s`), an environment variable
(`INFERWAY_GATEWAY_QUEUE_TIMEOUT_S`), a default, a unit and a line of documentation. A flag wins over the
environment, the environment over the default. `load` is pure and reports every mistake at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Secret(str):
    """Text that never shows in a repr or in a logged configuration."""

    def __repr__(self) -> str:
        return "Secret('***')" if self else "Secret('')"


class ConfigError(Exception):
    """Every mistake found in one configuration, a line each."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = list(mistakes)


def option(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    env: str | None = None,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declare a field. `env` replaces the derived variable name, for options that services share."""
    metadata = {"doc": doc, "unit": unit, "env": env, "choices": choices, "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


def env_name(service: str, field: dataclasses.Field[Any]) -> str:
    return field.metadata["env"] or f"INFERWAY_{service}_{field.name}".upper()


def flag_name(field: dataclasses.Field[Any]) -> str:
    return "--" + field.name.replace("_", "-")


def load(cls: type[T], service: str, environ: Mapping[str, str], argv: Sequence[str], *, prog: str = "") -> T:
    """Build `cls` from flags and environment. `prog` is what --help says to type: `python -m service` if empty.

    Raises ConfigError with all mistakes; SystemExit for --help and unknown flags (argparse).
    """
    assert dataclasses.is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    parser = argparse.ArgumentParser(
        prog=prog or f"python -m {service}",
        description=(cls.__doc__ or "").strip().splitlines()[0],
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    fields = dataclasses.fields(cls)
    for field in fields:
        kind = _scalar(hints[field.name])
        shown = f"{field.metadata['doc']}\n[{env_name(service, field)}; default: {describe_default(field)}]"
        arguments: dict[str, Any] = {"dest": field.name, "default": None, "help": shown.replace("%", "%%")}
        if kind is bool:
            arguments["action"] = argparse.BooleanOptionalAction
        elif kind is tuple:
            arguments |= {"action": "append", "metavar": "VALUE"}
        else:
            arguments["metavar"] = (field.metadata["unit"] or "VALUE").upper().replace(" ", "_")
        parser.add_argument(flag_name(field), **arguments)
    flags = vars(parser.parse_args(list(argv)))

    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for field in fields:
        source, raw = flag_name(field), flags[field.name]
        if raw is None and env_name(service, field) in environ:
            source, raw = env_name(service, field), environ[env_name(service, field)]
        if raw is None:
            continue
        try:
            values[field.name] = _convert(raw, hints[field.name], field.metadata)
        except ValueError as mistake:
            mistakes.append(f"{source}: {mistake}, got {raw!r}")
    if mistakes:
        raise ConfigError(mistakes)
    return cls(**values)


def load_or_exit(cls: type[T], service: str, environ: Mapping[str, str], argv: Sequence[str], *, prog: str = "") -> T:
    """`load` for a main module: mistakes go to the caller's terminal, exit status 1."""
    try:
        return load(cls, service, environ, argv, prog=prog)
    except ConfigError as error:
        raise SystemExit(f"{service}: " + f"\n{service}: ".join(error.mistakes)) from None


def describe_default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if value is None or value == "" or value == ():
        return "none"
    unit = f" {field.metadata['unit']}" if field.metadata["unit"] else ""
    return f"{value}{unit}"


def effective(config: Any) -> dict[str, Any]:
    """The configuration as logged at start, secrets masked."""
    shown = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: ("***" if value else "") if isinstance(value, Secret) else value for name, value in shown.items()}


def _scalar(hint: Any) -> type:
    """The type that a field's text is converted to; `X | None` counts as X."""
    if isinstance(hint, types.UnionType):
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    scalar: type = typing.get_origin(hint) or hint
    return scalar


def _convert(raw: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    kind = _scalar(hint)
    if kind is bool:
        return raw if isinstance(raw, bool) else _boolean(raw)
    if kind is tuple:
        parts = raw if isinstance(raw, list) else [raw]
        return tuple(item.strip() for part in parts for item in part.split(",") if item.strip())
    converters: dict[type, Callable[[Any], Any]] = {int: _integer, float: _number, Secret: Secret, str: str}
    value = converters[kind](raw)
    if metadata["choices"] and value not in metadata["choices"]:
        raise ValueError(f"must be one of {', '.join(metadata['choices'])}")
    if metadata["minimum"] is not None and value < metadata["minimum"]:
        raise ValueError(f"must be at least {metadata['minimum']}")
    if metadata["maximum"] is not None and value > metadata["maximum"]:
        raise ValueError(f"must be at most {metadata['maximum']}")
    return value


def _integer(raw: Any) -> int:
    try:
        return int(raw)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _number(raw: Any) -> float:
    try:
        value = float(raw)
    except ValueError:
        raise ValueError("must be a number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("must be finite")
    return value


def _boolean(raw: str) -> bool:
    lowered = raw.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("must be true or false")
