"""POST /tokenize and /detokenize: a model's own token ids, as requests to it are made of them."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from inferway.errors import invalid

from ..core.body import convert, decode_object, sent
from ..core.chat_request import parse_chat
from ..core.fields import DETOKENIZE, TOKENIZE
from ..core.generation_fields import check_ids
from ..middleware import Exchange, Handler
from .chat import chat_prompt
from .generate import Inference, require_chat


class TokenizeBody(msgspec.Struct):
    model: str
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct):
    model: str
    tokens: list[Any]


# What has an effect only beside one of the two.
_OF_MESSAGES = ("tools", "chat_template_kwargs")
_OF_A_PROMPT = ("add_special_tokens",)


def make_tokenize(inference: Inference) -> Handler:
    """The ids of a `prompt` as a completion would have them, or of `messages` as a chat would."""

    async def tokenize(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        body = await inference.read(request)
        raw = decode_object(body)
        ignored = TOKENIZE.screen(raw)
        asked = convert(raw, TokenizeBody, required=("model",))
        model, _ = inference.find(exchange, asked.model)
        if (asked.prompt is None) is (asked.messages is None):
            raise invalid("prompt", "Exactly one of 'prompt' and 'messages' is required.")
        of_the_other = _OF_MESSAGES if asked.messages is None else _OF_A_PROMPT
        exchange.ignores([*ignored, *(name for name in sent(raw) if name in of_the_other)])
        if asked.prompt is not None:
            text, add_special_tokens = asked.prompt, asked.add_special_tokens is not False
            ids = await inference.run(
                lambda: model.prompts.build_text(text, framed=add_special_tokens), body_bytes=len(body)
            )
        else:
            chat = parse_chat(body)
            require_chat(model)
            ids = await inference.run(lambda: chat_prompt(model, chat), body_bytes=len(body))
        return _answer({"count": len(ids), "max_model_len": model.description.context_length, "tokens": ids})

    return tokenize


def make_detokenize(inference: Inference) -> Handler:
    """The text of `tokens`, control tokens written out."""

    async def detokenize(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        body = await inference.read(request)
        raw = decode_object(body)
        exchange.ignores(DETOKENIZE.screen(raw))
        asked = convert(raw, DetokenizeBody, required=("model", "tokens"))
        model, _ = inference.find(exchange, asked.model)
        ids = check_ids(asked.tokens, "tokens", vocab_size=model.description.vocab_size)
        return _answer({"prompt": await inference.run(lambda: model.prompts.text(ids), body_bytes=len(body))})

    return detokenize


def _answer(value: dict[str, Any]) -> web.StreamResponse:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
