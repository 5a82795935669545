"""POST /v1/chat/completions: from the body to token ids; routes/generate.py does the rest of the journey."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from ..catalog import ServedModel
from ..core.chat_request import ChatRequest, parse_chat
from ..core.limits import check_items, check_request
from ..core.reasoning import ThinkSplitter, make_splitter
from ..core.sse import ChunkEncoder, whole_answer
from ..middleware import Exchange, Handler
from .generate import Inference, Reply, check_capabilities, require_chat


def make_chat(inference: Inference) -> Handler:
    async def chat_completions(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        body = await inference.read(request)
        chat = parse_chat(body)
        exchange.asks(chat.model, stream=chat.stream, max_tokens=chat.sampling.max_tokens)
        model, limits = inference.find(exchange, chat.model, fields=chat.fields, sticky_key=chat.sticky_key)
        check_items("messages", len(chat.messages), limits.max_messages)
        check_request(limits, chat, body_bytes=len(body))
        require_chat(model)
        check_capabilities(model, chat)

        def build() -> list[list[int]]:
            return [model.prompts.build(chat.messages, tools=chat.tools, template_kwargs=chat.template_kwargs)]

        prompts = await inference.prompts(model, exchange, build, body_bytes=len(body))
        reply = Reply(
            id_prefix="chatcmpl",
            param="messages",
            encoder=partial(ChunkEncoder, n=chat.n, include_usage=chat.include_usage),
            whole=whole_answer,
            splitters=_splitters(model, chat),
            ignored=[*chat.ignored, *(["tools"] if chat.tools and not model.prompts.uses_tools else [])],
        )
        return await inference.answer(request, exchange, model, limits, chat, prompts, reply)

    return chat_completions


def _splitters(model: ServedModel, chat: ChatRequest) -> list[ThinkSplitter | None]:
    enabled = chat.template_kwargs.get("enable_thinking", True) is not False
    return [make_splitter(model.description.reasoning_parser, enabled=enabled) for _ in range(chat.n)]
