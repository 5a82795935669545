"""The names under which models are asked for, what becomes of them, and what each model allows.

The file of models:

    limits: {max_output_tokens: 4096}            # of every model
    models:
      llama-3.1-8b:                              # known even while no worker serves it
        limits: {max_input_tokens: 32000}
        deprecated: 2027-01-10                   # announced by headers from now on
        sunset: 2027-03-15                       # at least 60 days later
        link: https://wiki.example/llama         # where callers read about it
    qwen3-8b:
      wait_for_workers_s: 300                  # without any worker requests wait this long: asking brings one
    aliases:
      chat: llama-3.1-8b
      chat-next:                                 # a canary: one caller in ten
        models: {llama-3.1-8b: 9, qwen3-8b: 1}
    fields:                                      # of request bodies
      functions: {deprecated: 2027-01-10, sunset: 2027-06-01}
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from email.utils import formatdate
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from inferway.settings import each, refuse, shaped, unix_s

from .limits import UNLIMITED, Limits

# What is to go is announced this long ahead.
_LEAST_NOTICE_DAYS = 60

_Link = Annotated[str, Meta(pattern=r"^(https?://[^\s<>\"]{1,1000})?$")]
_Weight = Annotated[int, Meta(ge=0, le=1_000_000)]
_Wait = Annotated[float, Meta(gt=0, le=3600)] | None


class Announcement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """That something is on its way out; days are UTC. Empty: it is not."""

    deprecated: date | None = None
    sunset: date | None = None
    link: _Link = ""


class _Model(Announcement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limits: Limits = UNLIMITED
    wait_for_workers_s: _Wait = None


class _Alias(Announcement, frozen=True, kw_only=True, forbid_unknown_fields=True):
    models: str | dict[str, _Weight]


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    limits: Limits = UNLIMITED
    models: dict[str, Any] = {}
    aliases: dict[str, Any] = {}
    fields: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Naming:
    limits: Limits = UNLIMITED
    models: Mapping[str, _Model] = field(default_factory=dict)
    # For each alias the models that it stands for, with weights of which at least one is above 0.
    aliases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Models whose workers come when they are asked for: how long a request may wait for the first one.
    on_demand: Mapping[str, float] = field(default_factory=dict)
    # By name of a model or alias, and by name of a field of request bodies.
    retiring_names: Mapping[str, Announcement] = field(default_factory=dict)
    retiring_fields: Mapping[str, Announcement] = field(default_factory=dict)

    @property
    def known(self) -> frozenset[str]:
        """The models that are named: a request for one that nobody serves comes too early, and is not mistaken."""
        return frozenset(self.models).union(*self.aliases.values())

    def wait_s(self, model: str) -> float:
        """How long a request may wait while a model, or that of an adapter, has no worker; 0: it does not."""
        name = model if model in self.models else model.partition(":")[0]
        return self.on_demand.get(name, 0.0)

    def targets(self, name: str) -> Mapping[str, int]:
        """The models that a name stands for, by weight; `ALIAS:ADAPTER` is the adapter of what the alias stands for."""
        if name in self.aliases:
            return self.aliases[name]
        base, colon, adapter = name.partition(":")
        if colon and base in self.aliases:
            return {f"{model}:{adapter}": weight for model, weight in self.aliases[base].items()}
        return {name: 1}

    def limits_of(self, names: Iterable[str]) -> list[Limits]:
        """Those of every model, and those of the models named."""
        return [self.limits, *(self.models[name].limits for name in names if name in self.models)]

    def headers(self, names: Iterable[str], fields: Iterable[str]) -> dict[str, str]:
        """What tells a caller that a name or field that was used is on its way out (RFC 9745, RFC 8594)."""
        used = [self.retiring_names[name] for name in names if name in self.retiring_names]
        if self.retiring_fields:
            used += [self.retiring_fields[name] for name in fields if name in self.retiring_fields]
        return _headers(used) if used else {}


def parse_models(raw: Any) -> Naming:
    """Raises SettingsError."""
    file = shaped(raw or {}, _File)
    models = each(file.models, _Model, "models")
    full = {name: {"models": entry} if isinstance(entry, str) else entry for name, entry in file.aliases.items()}
    aliases = each(full, _Alias, "aliases")
    fields = each(file.fields, Announcement, "fields")
    mistakes = [f"aliases.{name}: is a model's own name as well" for name in aliases if name in models]
    targets = {}
    for name, alias in aliases.items():
        targets[name] = {alias.models: 1} if isinstance(alias.models, str) else alias.models
        if not any(targets[name].values()):
            mistakes.append(f"aliases.{name}.models: needs at least one model with a weight above 0")
        mistakes += [f"aliases.{name}.models: '{one}' is an alias itself" for one in targets[name] if one in aliases]
    for section, entries in (("models", models), ("aliases", aliases), ("fields", fields)):
        for name, announcement in entries.items():
            mistakes += [f"{section}.{name}.sunset: {mistake}" for mistake in _mistakes_of_dates(announcement)]
    refuse(mistakes)
    return Naming(
        limits=file.limits,
        models=models,
        aliases=targets,
        on_demand={name: entry.wait_for_workers_s for name, entry in models.items() if entry.wait_for_workers_s},
        retiring_names={name: entry for name, entry in {**models, **aliases}.items() if entry.deprecated},
        retiring_fields=fields,
    )


def pick(targets: Mapping[str, int], served: Collection[str], key: str) -> str:
    """One of some weighted names, the same for the same key; among those that are served, if any is."""
    candidates = {name: weight for name, weight in targets.items() if weight and name in served} or targets
    total = sum(candidates.values())
    point = int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8]) * total >> 64
    for name, weight in candidates.items():
        point -= weight
        if point < 0:
            return name
    raise AssertionError("weights sum to more than the point")


def _mistakes_of_dates(announcement: Announcement) -> list[str]:
    deprecated, sunset = announcement.deprecated, announcement.sunset
    if sunset is None:
        return []
    if deprecated is None:
        return ["needs 'deprecated', the day from which it is announced"]
    notice = (sunset - deprecated).days
    if notice >= _LEAST_NOTICE_DAYS:
        return []
    return [f"must be at least {_LEAST_NOTICE_DAYS} days after 'deprecated', is {notice} days after it"]


def _headers(used: Sequence[Announcement]) -> dict[str, str]:
    """Of several announcements the earliest days, and where to read about the one that ends first."""
    headers = {}
    if deprecated := [unix_s(one.deprecated) for one in used if one.deprecated]:
        headers["Deprecation"] = f"@{min(deprecated)}"
    ending = sorted((one for one in used if one.sunset), key=lambda one: one.sunset or date.max)
    if ending and ending[0].sunset:
        headers["Sunset"] = formatdate(unix_s(ending[0].sunset), usegmt=True)
    if link := next((one.link for one in [*ending, *used] if one.link), ""):
        headers["Link"] = f'<{link}>; rel="deprecation"'
    return headers
