"""What a worker serves now: the models of its engine and the LoRA adapters that are loaded, by public name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from inferway.errors import ApiError, Reason, invalid

from ..engine import Adapter, ModelInfo

ADAPTER_CAPABILITY = "adapter"
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class Served:
    """A public name's model as callers see it, and what the engine calls the same; adapter "" is the model as it is."""

    info: ModelInfo
    model: str
    adapter: str = ""


class ServedModels:
    """`version` is 0 before the first `update`, and grows with each that changes something."""

    def __init__(self) -> None:
        self.version = 0
        self._listed: list[ModelInfo] = []
        self._by_name: dict[str, Served] = {}

    def update(self, models: Sequence[ModelInfo], adapters: Iterable[Adapter]) -> None:
        """An adapter is served as "model:adapter"."""
        served = [Served(model, model.name) for model in models]
        by_name = {model.name: model for model in models}
        served += [Served(_with_adapter(by_name[of], name), of, name) for of, name in adapters]
        listed = [one.info for one in served]
        if listed == self._listed:
            return
        self.version += 1
        self._listed = listed
        self._by_name = {name: one for one in served for name in (one.info.name, *one.info.aliases)}

    def __iter__(self) -> Iterator[ModelInfo]:
        """Models first, then adapters."""
        return iter(self._listed)

    def find(self, name: str) -> Served:
        """By name or alias. Raises ApiError (MODEL_NOT_FOUND)."""
        served = self._by_name.get(name)
        if served is None:
            raise ApiError(Reason.MODEL_NOT_FOUND, f"The model '{name}' is not served by this worker.", "model")
        return served

    def adapter(self, model: str, adapter: str) -> Adapter:
        """One of a model that is given by name or alias, loaded or not. Raises ApiError."""
        info = self.find(model).info
        if ADAPTER_CAPABILITY not in info.capabilities:
            raise ApiError(Reason.UNSUPPORTED_VALUE, f"The model '{model}' takes no adapters.", "model")
        if not _ADAPTER_NAME.fullmatch(adapter):
            raise invalid("adapter", f"adapter must be 1 to 128 of A-Z a-z 0-9 . _ -, got {adapter[:200]!r}.")
        return Adapter(info.name, adapter)


def _with_adapter(model: ModelInfo, adapter: str) -> ModelInfo:
    return replace(
        model,
        name=f"{model.name}:{adapter}",
        aliases=[f"{alias}:{adapter}" for alias in model.aliases],
        capabilities=[name for name in model.capabilities if name != ADAPTER_CAPABILITY],
        parent=model.name,
    )
