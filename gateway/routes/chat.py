"""POST /v1/chat/completions: from the body to token ids; routes/generate.py does the rest of the journey."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aiohttp import web

from ..catalog import ServedModel
from ..core.answer_reader import AnswerReader
from ..core.body import unsupported
from ..core.chat_request import ChatRequest, parse_chat
from ..core.history import described_in_words, with_calls_as_expected
from ..core.limits import check_items, check_request
from ..core.reasoning import make_splitter
from ..core.sse import ChunkEncoder, whole_answer
from ..core.tools import PARSERS
from ..core.tools.choice import id_style, make_parser, strict_calls
from ..identity import new_call_id
from ..middleware import Exchange, Handler
from .generate import Inference, Reply, check_capabilities, require_chat


def make_chat(inference: Inference) -> Handler:
    async def chat_completions(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        body = await inference.read(request)
        chat = parse_chat(body)
        exchange.asks(chat.model, stream=chat.stream, max_tokens=chat.sampling.max_tokens)
        model, limits = await inference.find_in_time(
            exchange, chat.model, fields=chat.fields, sticky_key=chat.sticky_key
        )
        check_items("messages", len(chat.messages), limits.max_messages)
        check_request(limits, chat, body_bytes=len(body))
        require_chat(model)
        chat = _constrained(model, chat)
        check_capabilities(model, chat)
        _require_tools(model, chat)

        def build() -> list[list[int]]:
            return [chat_prompt(model, chat)]

        prompts = await inference.prompts(model, exchange, build, body_bytes=len(body))
        is_legacy = chat.tool_use.is_legacy
        reply = Reply(
            id_prefix="chatcmpl",
            param="messages",
            encoder=partial(ChunkEncoder, n=chat.n, include_usage=chat.include_usage, is_legacy=is_legacy),
            whole=partial(whole_answer, is_legacy=is_legacy),
            readers=[_reader(model, chat) for _ in range(chat.n)],
            ignored=[*chat.ignored, *_ignored_tools(model, chat)],
        )
        return await inference.answer(request, exchange, model, limits, chat, prompts, reply)

    return chat_completions


def chat_prompt(model: ServedModel, chat: ChatRequest) -> list[int]:
    """The ids of a conversation. Raises ApiError when the model's template refuses it."""
    prompts, use = model.prompts, chat.tool_use
    tools = list(use.tools) if use.choice != "none" else None
    messages = with_calls_as_expected(
        chat.messages,
        arguments_as_text=prompts.takes_arguments_as_text,
        id_style=id_style(model.description.call_format),
    )
    if tools and use.is_forced and not prompts.uses_tools:
        messages = described_in_words(messages, tools)
    return prompts.build(messages, tools=tools or None, template_kwargs=chat.template_kwargs)


def _constrained(model: ServedModel, chat: ChatRequest) -> ChatRequest:
    """With what its calls must match: those that must be made, and those of strict tools that may be."""
    use, description = chat.tool_use, model.description
    if not use.is_forced:
        may_call = use.choice == "auto" and model.prompts.uses_tools and chat.constraint is None
        strict = strict_calls(description.call_format, use, description.capabilities) if may_call else None
        return replace(chat, constraint=chat.constraint or strict)
    if not model.prompts.uses_tools:
        # A model that has not learned to call would not know when to stop.
        use = replace(use, is_parallel=False)
    return replace(chat, tool_use=use, constraint=use.constraint())


def _reader(model: ServedModel, chat: ChatRequest) -> AnswerReader | None:
    description, use = model.description, chat.tool_use
    is_constrained = chat.constraint is not None and not chat.constraint.leaves_text_free
    parser = make_parser(description.call_format, use, is_constrained=is_constrained)
    # A grammar leaves no room for a thought that the template has opened.
    enabled = chat.template_kwargs.get("enable_thinking", True) is not False and not is_constrained
    call_mark = parser.opening if parser is not None and parser.ends_thought else ""
    splitter = make_splitter(description.reasoning_parser, enabled=enabled, call_mark=call_mark)
    if splitter is None and parser is None:
        return None
    return AnswerReader(
        splitter,
        parser,
        schemas=use.schemas,
        new_id=partial(new_call_id, id_style(description.call_format)),
        most_calls=use.most_calls,
        called="function_call" if use.is_legacy else "tool_calls",
    )


def _require_tools(model: ServedModel, chat: ChatRequest) -> None:
    """A template that shows the tools to a model of whose calls nobody can read is of no use: markup would be shown."""
    use = chat.tool_use
    if use.choice == "auto" and model.prompts.uses_tools and model.description.call_format not in PARSERS:
        field = "functions" if use.is_legacy else "tools"
        raise unsupported(
            field, f"'{field}' with a free choice is not supported by the model '{model.name}'; 'required' may be."
        )


def _ignored_tools(model: ServedModel, chat: ChatRequest) -> list[str]:
    use = chat.tool_use
    if not use.tools or use.choice != "auto":
        return []
    if not model.prompts.uses_tools:
        return ["functions" if use.is_legacy else "tools"]
    is_open = use.strict and chat.constraint is None
    return ["tools[].function.strict"] if is_open else []
