"""All plug-ins by name, and how one is made with options of one's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from .filters import Affinity, Filter, KvHeadroom, Spread
from .pickers import Least, Picker, PowerOfTwo, Random, RoundRobin, Softmax
from .rules import AibrixPrefix, DynamoKv, LlmdTokenLoad, LlmdWeighted, SmgCacheAware
from .scorers import Adapter, KvUtilisation, Load, Prefix, Scorer, Session, Wait, Work

P = TypeVar("P")

FILTERS: Mapping[str, type[Filter]] = {"affinity": Affinity, "kv_headroom": KvHeadroom, "spread": Spread}
SCORERS: Mapping[str, type[Scorer]] = {
    "adapter": Adapter,
    "aibrix_prefix": AibrixPrefix,
    "dynamo_kv": DynamoKv,
    "kv_utilisation": KvUtilisation,
    "llmd_token_load": LlmdTokenLoad,
    "llmd_weighted": LlmdWeighted,
    "load": Load,
    "prefix": Prefix,
    "session": Session,
    "smg_cache_aware": SmgCacheAware,
    "wait": Wait,
    "work": Work,
}
PICKERS: Mapping[str, type[Picker]] = {
    "least": Least,
    "power_of_two": PowerOfTwo,
    "random": Random,
    "round_robin": RoundRobin,
    "softmax": Softmax,
}
# Options that may be nothing else than above 0, or have an upper end.
_ABOVE_ZERO = {"most_tokens", "temperature"}
_MOST = {"decode_share": 1.0, "hit": 1.0, "limit": 1.0, "match_threshold": 1.0, "most_utilisation": 0.99}


def options_of(plugin: type[Any]) -> dict[str, float]:
    """The options of a plug-in with their defaults."""
    fields = dataclasses.fields(plugin)
    return {field.name: float(getattr(plugin(), field.name)) for field in fields if not field.name.startswith("_")}


def make(kind: str, plugins: Mapping[str, type[P]], name: str, options: Mapping[str, float]) -> P:
    """Raises ValueError with what is wrong."""
    plugin = plugins.get(name)
    if plugin is None:
        raise ValueError(f"there is no {kind} '{name}'; there are {', '.join(plugins)}")
    known = options_of(plugin)
    for option, value in options.items():
        if option not in known:
            there_are = f"there are {', '.join(known)}" if known else "it has none"
            raise ValueError(f"'{name}' has no option '{option}'; {there_are}")
        is_low = value < 0.0 or (value == 0.0 and option in _ABOVE_ZERO)
        most = _MOST.get(option, math.inf)
        if is_low or value > most or not math.isfinite(value):
            least = "more than 0" if option in _ABOVE_ZERO else "at least 0"
            bounds = least if most == math.inf else f"{least} and at most {most}"
            raise ValueError(f"'{option}' of '{name}' must be {bounds}, got {value}")
    return plugin(**options)
