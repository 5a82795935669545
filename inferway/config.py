"""Configuration: one frozen dataclass a service, its fields the only list of options.

A field declared with `option()` has a flag (`--queue-timeout-s`), an environment variable
(`INFERWAY_GATEWAY_QUEUE_TIMEOUT_S`), a default, a unit and a line of documentation. A flag wins over the
environment, the environment over the default. `load` is pure and reports every mistake at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
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
    check: Callable[[str], object] | None = None,
    default_text: str = "",
    is_rest: bool = False,
) -> Any:
    """Declare a field.

    `env` replaces the derived variable name, for options that services share. `check` looks at each text and raises
    ValueError with what it must be. `default_text` is shown for a default that says nothing by itself. `is_rest`: what
    stands after "--" is, joined as a shell would read it, the value of this text.
    """
    metadata = {
        "doc": doc,
        "unit": unit,
        "env": env,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "check": check,
        "default_text": default_text,
        "is_rest": is_rest,
    }
    return dataclasses.field(default=default, metadata=metadata)


def env_name(service: str, field: dataclasses.Field[Any]) -> str:
    return field.metadata["env"] or f"INFERWAY_{service}_{field.name}".upper()


def flag_name(field: dataclasses.Field[Any]) -> str:
    return "--" + field.name.replace("_", "-")


def metavar(field: dataclasses.Field[Any], hint: Any) -> str:
    """What stands for the value behind the flag; empty for one that takes none."""
    if _scalar(hint) is bool:
        return ""
    return (field.metadata["unit"] or "VALUE").upper().replace(" ", "_")


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
        shown = f"{describe(field)}\n[{env_name(service, field)}; default: {describe_default(field)}]"
        arguments: dict[str, Any] = {"dest": field.name, "default": None, "help": shown.replace("%", "%%")}
        if kind is bool:
            arguments["action"] = argparse.BooleanOptionalAction
        else:
            arguments["metavar"] = metavar(field, hints[field.name])
            if kind is tuple:
                arguments["action"] = "append"
        parser.add_argument(flag_name(field), **arguments)
    own, rest = _split(list(argv), fields)
    flags = vars(parser.parse_args(own)) | rest

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
        except _Mistake as mistake:
            shown = "" if _scalar(hints[field.name]) is Secret else f", got {mistake.value!r}"
            mistakes.append(f"{source}: {mistake}{shown}")
    if mistakes:
        raise ConfigError(mistakes)
    return cls(**values)


def _split(argv: list[str], fields: Sequence[dataclasses.Field[Any]]) -> tuple[list[str], dict[str, str]]:
    """The flags of the parser, and the value of the field that takes what stands after "--"."""
    names = [field.name for field in fields if field.metadata["is_rest"]]
    if not names or "--" not in argv:
        return argv, {}
    cut = argv.index("--")
    return argv[:cut], {names[0]: shlex.join(argv[cut + 1 :])}


def load_or_exit(cls: type[T], service: str, environ: Mapping[str, str], argv: Sequence[str], *, prog: str = "") -> T:
    """`load` for a main module: mistakes go to standard error, and the process ends with status 2."""
    try:
        return load(cls, service, environ, argv, prog=prog)
    except ConfigError as error:
        for mistake in error.mistakes:
            print(f"{service}: {mistake}", file=sys.stderr)
        raise SystemExit(2) from None


def describe(field: dataclasses.Field[Any]) -> str:
    """The line of documentation, with what the value may be."""
    meta = field.metadata
    least, most = meta["minimum"], meta["maximum"]
    if meta["choices"]:
        limits = f" (one of {', '.join(meta['choices'])})"
    elif least is not None and most is not None:
        limits = f" ({least:.12g} to {most:.12g})"
    elif least is not None:
        limits = f" (at least {least:.12g})"
    elif most is not None:
        limits = f" (at most {most:.12g})"
    else:
        limits = ""
    return f"{meta['doc']}{limits}"


def describe_default(field: dataclasses.Field[Any]) -> str:
    """The default as one would type it, with its unit; "none" where there is none."""
    value, unit = field.default, field.metadata["unit"]
    if field.metadata["default_text"]:
        return str(field.metadata["default_text"])
    if value is None or value == "" or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}" if unit else text


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


class _Mistake(ValueError):
    """What a value must be, and the value."""

    def __init__(self, sentence: str, value: Any) -> None:
        super().__init__(sentence)
        self.value = value


def _convert(raw: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """The value of a field from what stands behind a flag or in a variable. Raises _Mistake."""
    kind = _scalar(hint)
    if kind is bool:
        return raw if isinstance(raw, bool) else _boolean(raw)
    if kind is tuple:
        parts = raw if isinstance(raw, list) else [raw]
        items = tuple(item.strip() for part in parts for item in part.split(",") if item.strip())
        for item in items:
            _check(item, item, metadata)
        return items
    converters: dict[type, Callable[[Any], Any]] = {int: _integer, float: _number, Secret: Secret, str: str}
    value = converters[kind](raw)
    _check(value, raw, metadata)
    return value


def _check(value: Any, raw: str, metadata: Mapping[str, Any]) -> None:
    if metadata["choices"] and value not in metadata["choices"]:
        raise _Mistake(f"must be one of {', '.join(metadata['choices'])}", raw)
    if metadata["minimum"] is not None and value < metadata["minimum"]:
        raise _Mistake(f"must be at least {metadata['minimum']:.12g}", raw)
    if metadata["maximum"] is not None and value > metadata["maximum"]:
        raise _Mistake(f"must be at most {metadata['maximum']:.12g}", raw)
    if metadata["check"] is not None:
        try:
            metadata["check"](value)
        except ValueError as error:
            raise _Mistake(str(error), raw) from None


def _integer(raw: str) -> int:
    try:
        return int(raw)
    except ValueError:
        raise _Mistake("must be a whole number", raw) from None


def _number(raw: str) -> float:
    try:
        value = float(raw)
    except ValueError:
        raise _Mistake("must be a number", raw) from None
    if value != value or value in (float("inf"), float("-inf")):
        raise _Mistake("must be finite", raw)
    return value


def _boolean(raw: str) -> bool:
    lowered = raw.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise _Mistake("must be true or false", raw)
