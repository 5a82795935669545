"""POST /v1/chat/completions: the journey of one request, from body to last byte."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from aiohttp import web

from inferway.blocks import block_hashes
from inferway.errors import ApiError, Reason

from ..answers import GatheredAnswer, StreamedAnswer
from ..catalog import Catalog, ServedModel
from ..config import Config
from ..core.chat_request import ChatRequest, Limits, parse_chat
from ..core.generation_fields import Sampling
from ..core.reasoning import ThinkSplitter, make_splitter
from ..core.sse import Answer, ChunkEncoder, whole_answer
from ..generation import Generation, Plan, Sink
from ..identity import new_answer_id
from ..middleware import Exchange, Handler, read_json_body
from ..router_client import Ask
from ..sse_stream import SseStream

log = logging.getLogger(__name__)

_DEFAULT_PRIORITY = 5
# Completion tokens to reckon with where the caller gave no limit.
_DEFAULT_EXPECTED_TOKENS = 256
# Bodies above this size are rendered and tokenized off the loop.
_OFFLOAD_BYTES = 32_768


class Prompt(NamedTuple):
    """A conversation as the mesh sees it: token ids, and the chained hashes of their blocks under the salt."""

    token_ids: Sequence[int]
    block_hashes: Sequence[int]
    cache_salt: bytes


@dataclass(frozen=True, slots=True)
class ChatRoute:
    """What the route needs; `handler()` is what the front calls."""

    config: Config
    catalog: Catalog
    new_generation: Callable[[Plan, Sink], Generation]
    # Ends a generation that has been made, whatever its state; idempotent.
    discard: Callable[[Generation], None]
    executor: Executor
    cache_secret: bytes

    def handler(self) -> Handler:
        return self._answer

    async def _answer(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        config = self.config
        body = await read_json_body(request, limit_bytes=config.max_body_bytes, timeout_s=config.body_timeout_s)
        chat = parse_chat(body, Limits(config.max_messages, config.max_choices))
        exchange.model, exchange.stream, exchange.max_tokens = chat.model, chat.stream, chat.sampling.max_tokens
        model = self.catalog.find(chat.model)
        exchange.model = model.name
        _check_capabilities(model, chat)
        salt = _cache_salt(self.cache_secret, exchange.tenant_id)
        prompt = await self._prompt(model, chat, salt, off_loop=len(body) > _OFFLOAD_BYTES)
        plan = self._plan(model, chat, prompt, exchange)
        answer = Answer(new_answer_id(), int(time.time()), chat.model, model.fingerprint)
        headers = {"x-request-id": exchange.request_id}
        ignored = [*chat.ignored, *(["tools"] if chat.tools and not _honours_tools(model) else [])]
        if ignored:
            headers["x-inferway-ignored"] = ", ".join(ignored)
        if chat.stream:
            return await self._stream(request, exchange, model, chat, plan, answer, headers)
        return await self._whole(exchange, model, chat, plan, answer, headers)

    async def _prompt(self, model: ServedModel, chat: ChatRequest, salt: bytes, *, off_loop: bool) -> Prompt:
        prompts = model.prompts
        if prompts is None:
            raise ApiError(Reason.UNSUPPORTED_VALUE, f"The model '{model.name}' takes no chat requests.", "model")

        def build() -> Prompt:
            ids = prompts.build(chat.messages, tools=chat.tools, template_kwargs=chat.template_kwargs)
            return Prompt(ids, block_hashes(ids, model.description.block_size, salt), salt)

        if off_loop:
            return await asyncio.get_running_loop().run_in_executor(self.executor, build)
        return build()

    def _plan(self, model: ServedModel, chat: ChatRequest, prompt: Prompt, exchange: Exchange) -> Plan:
        config, description = self.config, model.description
        prompt_tokens = len(prompt.token_ids)
        sampling = _fit_to_context(chat.sampling, prompt_tokens, description.context_length)
        for token_id in sampling.logit_bias:
            if token_id >= description.vocab_size:
                raise ApiError(
                    Reason.INVALID_REQUEST,
                    f"'logit_bias' names token {token_id}; the vocabulary has {description.vocab_size} tokens.",
                    "logit_bias",
                )
        now = time.monotonic()
        expected = min(sampling.max_tokens or _DEFAULT_EXPECTED_TOKENS, description.context_length - prompt_tokens)
        ask = Ask(
            request_id=exchange.request_id,
            model=model.name,
            tenant_id=exchange.tenant_id,
            priority=_DEFAULT_PRIORITY if chat.priority is None else chat.priority,
            prompt_tokens=prompt_tokens,
            expected_tokens=expected,
            block_hashes=prompt.block_hashes,
            num_choices=chat.n,
            queue_deadline=now + config.queue_timeout_s,
        )
        return Plan(
            ask=ask,
            description=description,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            cache_salt=prompt.cache_salt,
            traceparent=exchange.traceparent,
            received=exchange.received,
            deadline=exchange.received + config.request_deadline_s,
            stall_s=config.stall_s,
            heartbeat_s=config.heartbeat_s,
        )

    async def _stream(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        model: ServedModel,
        chat: ChatRequest,
        plan: Plan,
        answer: Answer,
        headers: dict[str, str],
    ) -> web.StreamResponse:
        """The status line goes out with the first output or the first heartbeat; later failures are told in-band."""
        config = self.config
        stream = SseStream(request, high_water_bytes=config.coalesce_bytes)
        sink = StreamedAnswer(
            stream,
            ChunkEncoder(answer, n=chat.n, include_usage=chat.include_usage),
            _splitters(model, chat),
            limit_bytes=config.client_buffer_bytes,
            on_too_slow=lambda: generation.fail(_cut_off()),
            continuous_usage=(lambda: generation.usage_so_far()) if chat.continuous_usage else None,
        )
        generation = self.new_generation(plan, sink)
        try:
            generation.start()
            await generation.started
            await stream.open({**headers, "openai-processing-ms": _elapsed_ms(exchange)})
            sink.opened()
            await generation.ended
            usage = generation.usage if chat.include_usage else None
            await sink.complete(usage, timeout_s=config.client_write_timeout_s)
        except ConnectionError:
            raise
        except Exception as error:
            # Behind an open stream nobody else can answer; before that, the front does.
            if stream.response is None:
                raise
            exchange.error = error if isinstance(error, ApiError) else _fault(error, exchange)
            self.discard(generation)
            if exchange.error.reason is Reason.CLIENT_TOO_SLOW:
                stream.cut()
            else:
                with suppress(ApiError):  # a client that does not read is cut; the first error is the outcome
                    await sink.fail(exchange.error, timeout_s=config.client_write_timeout_s)
        finally:
            self._finish(generation, exchange)
        response = stream.response
        assert response is not None
        return response

    async def _whole(
        self,
        exchange: Exchange,
        model: ServedModel,
        chat: ChatRequest,
        plan: Plan,
        answer: Answer,
        headers: dict[str, str],
    ) -> web.StreamResponse:
        sink = GatheredAnswer(_splitters(model, chat))
        generation = self.new_generation(plan, sink)
        try:
            generation.start()
            await generation.ended
        finally:
            self._finish(generation, exchange)
        assert generation.usage is not None
        body = whole_answer(answer, sink.choices(), generation.usage)
        headers["openai-processing-ms"] = _elapsed_ms(exchange)
        return web.Response(body=body, headers=headers, content_type="application/json")

    def _finish(self, generation: Generation, exchange: Exchange) -> None:
        self.discard(generation)
        exchange.timing, exchange.usage, exchange.worker_id = generation.timing, generation.usage, generation.worker_id


def _cache_salt(secret: bytes, tenant_id: str) -> bytes:
    """The tenant's cache domain: never chosen by the tenant, the same on every gateway."""
    return hmac.digest(secret, tenant_id.encode(), "sha256")[:16]


def _fault(error: Exception, exchange: Exchange) -> ApiError:
    log.error("stream_failed", exc_info=error, extra={"fields": {"request_id": exchange.request_id}})
    return ApiError(Reason.INTERNAL_ERROR, "An internal error occurred.")


def _cut_off() -> ApiError:
    return ApiError(Reason.CLIENT_TOO_SLOW, "The client did not read; its stream was cut at the buffer limit.")


def _elapsed_ms(exchange: Exchange) -> str:
    return str(round((time.monotonic() - exchange.received) * 1000))


def _splitters(model: ServedModel, chat: ChatRequest) -> list[ThinkSplitter | None]:
    enabled = chat.template_kwargs.get("enable_thinking", True) is not False
    return [make_splitter(model.description.reasoning_parser, enabled=enabled) for _ in range(chat.n)]


def _honours_tools(model: ServedModel) -> bool:
    return model.prompts is not None and model.prompts.uses_tools


def _check_capabilities(model: ServedModel, chat: ChatRequest) -> None:
    """Refuse by name what the model's engine cannot honour."""
    for name in (*chat.sampling.fields_used(), *(["n"] if chat.n > 1 else [])):
        if name not in model.description.capabilities:
            raise ApiError(Reason.UNSUPPORTED_VALUE, f"'{name}' is not supported by the model '{model.name}'.", name)


def _fit_to_context(sampling: Sampling, prompt_tokens: int, context_length: int) -> Sampling:
    """Check that prompt and completion fit. Worded so that agents recognise it and compact."""
    asked = sampling.max_tokens
    if prompt_tokens + (asked or 1) <= context_length:
        return sampling
    completion = f" and asked for {asked} tokens of completion ({prompt_tokens + asked} in all)" if asked else ""
    raise ApiError(
        Reason.CONTEXT_LENGTH_EXCEEDED,
        f"This model's maximum context length is {context_length} tokens, but the messages have {prompt_tokens} "
        f"tokens{completion}. Shorten the messages or the completion.",
        "messages",
    )
