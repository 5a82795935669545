"""A YAML file of settings that is read at the start, and again whenever it changes.

A version with a mistake is left out whole: what stood before stays in force, and the log says what is wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from inferway import logs
from inferway.service import CannotStart
from inferway.settings import SettingsError

log = logging.getLogger(__name__)
T = TypeVar("T")

_POLL_S = 1.0


class SettingsFile(Generic[T]):
    """`value` is what the newest good version says, or `empty` where no file is given."""

    def __init__(self, flag: str, path: str, parse: Callable[[Any], T], empty: T) -> None:
        """`parse` turns plain data into settings and raises SettingsError. Raises CannotStart for a bad file."""
        self._flag = flag
        self._path = Path(path) if path else None
        self._parse = parse
        self._seen = b""
        self.value = empty
        # Of the version in force; empty where no file is given.
        self.version = ""
        if self._path is not None:
            try:
                self._seen = self._path.read_bytes()
                self.value = self._parse(_load(self._seen))
                self.version = _version(self._seen)
            except OSError as error:
                raise CannotStart(f"{flag}: {path} cannot be read: {error.strerror}") from error
            except SettingsError as error:
                raise CannotStart("\n".join(f"{flag}: {path}: {line}" for line in str(error).splitlines())) from error

    async def run(self, on_change: Callable[[bool], None]) -> None:
        """Follow the file until cancelled; `on_change` is told of each new version whether it is in force."""
        while self._path is not None:
            await asyncio.sleep(_POLL_S)
            try:
                data = self._path.read_bytes()
            except OSError as error:
                if self._seen:
                    self._seen = b""
                    logs.event(log, "settings_unreadable", flag=self._flag, error=str(error), level=logging.ERROR)
                    on_change(False)
                continue
            if data != self._seen:
                self._seen = data
                on_change(await asyncio.to_thread(self._take, data))

    def _take(self, data: bytes) -> bool:
        version = _version(data)
        try:
            self.value = self._parse(_load(data))
        except SettingsError as error:
            logs.event(
                log, "settings_refused", flag=self._flag, version=version, mistakes=str(error), level=logging.ERROR
            )
            return False
        self.version = version
        logs.event(log, "settings_loaded", flag=self._flag, version=version)
        return True


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses what YAML parsers commonly let pass: a name that is there twice would hide what stood first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"'{twice[0]}' is there more than once", node.start_mark
            )
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _load(data: bytes) -> Any:
    try:
        return yaml.load(data, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise SettingsError(f"{place}{problem}") from None
