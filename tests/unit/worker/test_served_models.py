"""What a worker serves by name: models, aliases and the adapters that are loaded now."""

from __future__ import annotations

import pytest

from inferway.errors import ApiError, Reason
from worker.core.served import ServedModels
from worker.engine import Adapter, ModelInfo


def model(name: str, *capabilities: str, aliases: tuple[str, ...] = ()) -> ModelInfo:
    return ModelInfo(name, 100, b"", 50, aliases=aliases, capabilities=capabilities)


MODELS = [model("m", "seed", "adapter", aliases=("latest",)), model("e", "embeddings")]


def served(*adapters: str) -> ServedModels:
    models = ServedModels()
    models.update(MODELS, [Adapter("m", name) for name in adapters])
    return models


def test_an_adapter_is_a_model_of_its_own_with_a_parent() -> None:
    """It has its model's properties, is no base for further adapters, and other models do not get it."""
    names = {info.name: (info.parent, list(info.capabilities)) for info in served("fr")}
    assert names == {"m": ("", ["seed", "adapter"]), "e": ("", ["embeddings"]), "m:fr": ("m", ["seed"])}


@pytest.mark.parametrize(
    ("name", "model", "adapter"),
    [("m", "m", ""), ("latest", "m", ""), ("m:fr", "m", "fr"), ("latest:fr", "m", "fr"), ("e", "e", "")],
)
def test_names_and_aliases_lead_to_what_the_engine_knows(name: str, model: str, adapter: str) -> None:
    """An alias of a model is one of its adapters, too."""
    found = served("fr").find(name)
    assert (found.model, found.adapter) == (model, adapter)


@pytest.mark.parametrize("name", ["n", "m:de", "e:fr", "", "m:"])
def test_an_unknown_name_is_refused_by_name(name: str) -> None:
    """Neither unknown models nor adapters that are not loaded reach the engine."""
    with pytest.raises(ApiError) as caught:
        served("fr").find(name)
    assert caught.value.reason is Reason.MODEL_NOT_FOUND
    assert f"'{name}'" in caught.value.message


def test_the_version_grows_with_each_change_and_only_then() -> None:
    """Peers ask again when it has grown."""
    models = ServedModels()
    versions = [models.version]
    for adapters in ([], [], ["fr"], ["fr"], ["fr", "de"], ["de"]):
        models.update(MODELS, [Adapter("m", name) for name in adapters])
        versions.append(models.version)
    assert versions == [0, 1, 1, 2, 2, 3, 4]


@pytest.mark.parametrize(
    ("model", "adapter", "reason"),
    [
        ("n", "fr", Reason.MODEL_NOT_FOUND),
        ("e", "fr", Reason.UNSUPPORTED_VALUE),
        ("m:fr", "de", Reason.UNSUPPORTED_VALUE),
        ("m", "", Reason.INVALID_REQUEST),
        ("m", "a:b", Reason.INVALID_REQUEST),
        ("m", "a b", Reason.INVALID_REQUEST),
        ("m", "x" * 129, Reason.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_an_adapter_is_refused(model: str, adapter: str, reason: Reason) -> None:
    """Of a model that takes none, or by a name that could not stand behind a colon."""
    with pytest.raises(ApiError) as caught:
        served("fr").adapter(model, adapter)
    assert caught.value.reason is reason
