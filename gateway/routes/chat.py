"""POST /v1/chat/completions: from the body to token ids; routes/generate.py does the rest of the journey."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from ..catalog import ServedModel
from ..core.chat_request import ChatRequest, Limits, parse_chat
from ..core.reasoning import ThinkSplitter, make_splitter
from ..core.sse import ChunkEncoder, whole_answer
from ..middleware import Exchange, Handler
from .generate import Inference, Reply, check_capabilities, require_chat


def make_chat(inference: Inference) -> Handler:
    config = inference.config
    limits = Limits(config.max_messages, config.max_choices)

    async def chat_completions(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        body = await inference.read(request)
        chat = parse_chat(body, limits)
        exchange.asks(chat.model, stream=chat.stream, max_tokens=chat.sampling.max_tokens)
        model = inference.catalog.find(chat.model)
        exchange.model = model.name
        check_capabilities(model, chat)
        require_chat(model)

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
        return await inference.answer(request, exchange, model, chat, prompts, reply)

    return chat_completions


def _splitters(model: ServedModel, chat: ChatRequest) -> list[ThinkSplitter | None]:
    enabled = chat.template_kwargs.get("enable_thinking", True) is not False
    return [make_splitter(model.description.reasoning_parser, enabled=enabled) for _ in range(chat.n)]
