"""GET /v1/models, and one of them: those that the caller's key may use and nobody has blocked."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from ..catalog import ServedModel
from ..core.naming import Naming
from ..middleware import Exchange, Handler
from .generate import Inference, names_of

ONE_MODEL = "/v1/models/"


def make_list_models(inference: Inference) -> Handler:
    """Models by their names, then the aliases of the configuration by theirs.

    Those that come when they are asked for are there before any worker is: who does not see them does not ask.
    """

    async def list_models(_request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        naming, catalog, caller = inference.naming(), inference.catalog, exchange.caller
        entries = [
            _entry(naming, model.name, [model])
            for model in catalog.all()
            if model.name not in naming.aliases
            and caller.may_use(model.name, *model.description.aliases)
            and not inference.is_blocked(*names_of(model))
        ]
        met = {name for model in catalog.all() for name in (model.name, *model.description.aliases)}
        unmet = [name for name in naming.on_demand if name not in met]
        entries += [_unmet(naming, name) for name in unmet if _may_see(inference, exchange, name)]
        for alias, targets in naming.aliases.items():
            if targets.keys() <= set(unmet) and _may_see(inference, exchange, alias, *targets):
                entries.append(_unmet(naming, alias))
            models = catalog.known(targets)
            models = [model for model in models if not inference.is_blocked(alias, *names_of(model))]
            if models and caller.may_use(alias, *targets):
                entries.append(_entry(naming, alias, models))
        return _answer({"object": "list", "data": entries})

    return list_models


def make_one_model(inference: Inference) -> Handler:
    """By name or alias, which is the rest of the path."""

    async def one_model(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        naming, catalog = inference.naming(), inference.catalog
        name = request.path.removeprefix(ONE_MODEL)
        targets = naming.targets(name)
        is_unmet = naming.on_demand.keys() >= targets.keys() and not catalog.known(targets)
        if is_unmet and _may_see(inference, exchange, name, *targets):
            return _answer(_unmet(naming, name))
        model, _ = inference.find(exchange, name)
        if name not in naming.aliases:
            return _answer(_entry(naming, model.name, [model]))
        return _answer(_entry(naming, name, catalog.known(naming.aliases[name])))

    return one_model


def _may_see(inference: Inference, exchange: Exchange, *names: str) -> bool:
    return exchange.caller.may_use(*names) and not inference.is_blocked(*names)


def _unmet(naming: Naming, name: str) -> dict[str, object]:
    """A model that no worker has described yet, or an alias of such."""
    announced = naming.retiring_names.get(name)
    sunset = announced.sunset if announced is not None else None
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "inferway",
        "shutdown_date": sunset.isoformat() if sunset is not None else None,
        "parent": None,
        "aliases": [],
        "alias_of": list(naming.aliases.get(name, ())),
        "max_model_len": None,
        "tokenizer_digest": None,
        "capabilities": [],
    }


def _entry(naming: Naming, name: str, models: Sequence[ServedModel]) -> dict[str, object]:
    """A model, or an alias with the models that it stands for: then what all of them have in common."""
    descriptions = [model.description for model in models]
    first = descriptions[0]
    digests = {description.tokenizer_digest for description in descriptions}
    announced = naming.retiring_names.get(name)
    sunset = announced.sunset if announced is not None else None
    return {
        "id": name,
        "object": "model",
        "created": first.created,
        "owned_by": "inferway",
        "shutdown_date": sunset.isoformat() if sunset is not None else None,
        # Beyond OpenAI's fields.
        "parent": first.parent or None,
        "aliases": list(first.aliases) if name == first.name else [],
        "alias_of": [] if name == first.name else [description.name for description in descriptions],
        "max_model_len": min(description.context_length for description in descriptions),
        "tokenizer_digest": digests.pop() if len(digests) == 1 else None,
        "capabilities": sorted(frozenset.intersection(*(one.capabilities for one in descriptions))),
    }


def _answer(value: dict[str, object]) -> web.StreamResponse:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
