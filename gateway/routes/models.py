"""GET /v1/models, and one of them."""

from __future__ import annotations

import msgspec
from aiohttp import web

from ..catalog import Catalog, ServedModel
from ..middleware import Exchange, Handler

ONE_MODEL = "/v1/models/"


def make_list_models(catalog: Catalog) -> Handler:
    async def list_models(_request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
        body = msgspec.json.encode({"object": "list", "data": [_model(model) for model in catalog.all()]})
        return web.Response(body=body, content_type="application/json")

    return list_models


def make_one_model(catalog: Catalog) -> Handler:
    """By name or alias, which is the rest of the path."""

    async def one_model(request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
        body = msgspec.json.encode(_model(catalog.find(request.path.removeprefix(ONE_MODEL))))
        return web.Response(body=body, content_type="application/json")

    return one_model


def _model(model: ServedModel) -> dict[str, object]:
    description = model.description
    return {
        "id": description.name,
        "object": "model",
        "created": description.created,
        "owned_by": "inferway",
        # Beyond OpenAI's fields.
        "parent": description.parent or None,
        "aliases": list(description.aliases),
        "max_model_len": description.context_length,
        "tokenizer_digest": description.tokenizer_digest,
    }
