"""What routing.yaml says: a policy for each model, by name or put together from plug-ins.

    default: {policy: default}
    models:
      coder:
        filters: [{name: spread, options: {factor: 1.1}}]
        scorers: [{name: wait}, {name: work, weight: 2, options: {price: 3}}]
        picker: {name: softmax, options: {temperature: 0.2}}

An entry is whole: it takes over nothing from `default`, which holds for models without an entry of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inferway.settings import SettingsError, refuse, shaped

from .pickers import Least
from .plugins import FILTERS, PICKERS, SCORERS, make
from .policies import NamedFilter, Policy, WeightedScorer, policy_named

CUSTOM = "custom"
_MOST_WEIGHT = 1e6


class _Plugin(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    options: dict[str, float] = {}


class _Scorer(_Plugin, forbid_unknown_fields=True):
    weight: float = 1.0


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    policy: str | None = None
    filters: list[_Plugin] = []
    scorers: list[_Scorer] = []
    picker: _Plugin | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    default: Any = None
    models: dict[str, Any] = {}


class Routing:
    """Policies by model. `policy_for` makes a new one at each call, because some remember whom they picked."""

    def __init__(self, default: Callable[[], Policy], models: Mapping[str, Callable[[], Policy]]) -> None:
        self._default = default
        self._models = models

    def policy_for(self, model: str) -> Policy:
        return self._models.get(model, self._default)()


def routing_of(policy: str) -> Routing:
    """One policy for all models. Raises LookupError."""
    policy_named(policy)
    return Routing(lambda: policy_named(policy), {})


def read_routing(document: Any) -> Routing:
    """Raises SettingsError with the place and the mistake of each entry that is wrong."""
    whole = shaped({} if document is None else document, _Document)
    places = {f"models.{name}": entry for name, entry in whole.models.items()}
    if whole.default is not None:
        places["default"] = whole.default
    made: dict[str, Callable[[], Policy]] = {}
    mistakes = []
    for place, entry in places.items():
        try:
            made[place] = _maker(shaped(entry, _Entry, place), place)
        except SettingsError as error:
            mistakes.append(str(error))
    refuse(mistakes)
    default = made.pop("default", lambda: policy_named("default"))
    return Routing(default, {place.removeprefix("models."): maker for place, maker in made.items()})


def _maker(entry: _Entry, place: str) -> Callable[[], Policy]:
    """Makes the entry's policy; once here, so that what is wrong is found now."""
    parts = bool(entry.filters or entry.scorers or entry.picker)
    if (entry.policy is not None) == parts:
        raise SettingsError(f"{place}: must have either 'policy' or 'filters', 'scorers' and 'picker'")

    def build() -> Policy:
        if entry.policy is not None:
            return policy_named(entry.policy)
        return Policy(
            CUSTOM,
            filters=[NamedFilter(one.name, make("filter", FILTERS, one.name, one.options)) for one in entry.filters],
            scorers=[
                WeightedScorer(one.name, one.weight, make("scorer", SCORERS, one.name, one.options))
                for one in entry.scorers
            ],
            picker=make("picker", PICKERS, entry.picker.name, entry.picker.options) if entry.picker else Least(),
        )

    for number, scorer in enumerate(entry.scorers):
        if not 0.0 <= scorer.weight <= _MOST_WEIGHT:
            raise SettingsError(
                f"{place}.scorers[{number}].weight: must be from 0 to {_MOST_WEIGHT:g}, got {scorer.weight}"
            )
    try:
        build()
    except (LookupError, ValueError) as error:
        raise SettingsError(f"{place}: {error.args[0]}") from None
    return build
