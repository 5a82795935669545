"""What the routes that generate text have in common: from prompts in token ids to the last byte of the answer."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from aiohttp import web

from inferway.blocks import block_hashes, prompt_hash
from inferway.errors import ApiError, Reason

from ..accounts import note
from ..answers import GatheredAnswer, Part, StreamedAnswer
from ..catalog import Catalog, ServedModel
from ..choices import Sink
from ..config import Config
from ..core.answer_reader import AnswerReader
from ..core.generation_fields import GenerationRequest
from ..core.limits import Limits, completion_tokens, tightest
from ..core.naming import Naming
from ..core.rendezvous import session_of
from ..core.sse import Answer, ChoiceText, Encoder, Usage
from ..core.tenants import Caller
from ..embedding import Embedding
from ..generation import TICK_S, Plan, Timing
from ..generation_group import Running
from ..identity import new_answer_id
from ..in_flight import Progress
from ..middleware import Exchange, read_json_body
from ..quota.quotas import Quotas, Reservation
from ..router_client import Ask
from ..sse_stream import SseStream
from ..worker_messages import EmbedSpec, prompt_wire

log = logging.getLogger(__name__)
T = TypeVar("T")

# Bodies above this size are rendered and tokenized off the loop.
_OFFLOAD_BYTES = 32_768


class Prompt(NamedTuple):
    """A prompt as the mesh sees it: token ids, and the chained hashes of their blocks under the salt."""

    token_ids: Sequence[int]
    block_hashes: Sequence[int]
    cache_salt: bytes
    # Of a long prompt, else empty: see `prompt_wire`.
    wire: bytes = b""
    # Of all of it, under the salt.
    hash: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """How an endpoint answers: the events of a stream, or the body of an answer in one piece."""

    # What the id of an answer begins with, and the field that holds the prompts.
    id_prefix: str
    param: str
    encoder: Callable[[Answer], Encoder]
    whole: Callable[[Answer, Sequence[ChoiceText], Usage], bytes]
    # For each choice what takes its text apart, if anything.
    readers: Sequence[AnswerReader | None]
    # Fields that were accepted without effect.
    ignored: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Inference:
    """Everything beyond a request that generating needs."""

    config: Config
    catalog: Catalog
    new_generations: Callable[[Sequence[Plan], Sequence[Sink]], Running]
    # Ends generations that have been made, whatever their state; idempotent.
    discard: Callable[[Running], None]
    # The last argument is the deadline, in monotonic seconds.
    new_embedding: Callable[[Ask, EmbedSpec, float], Embedding]
    quotas: Quotas
    executor: Executor
    cache_secret: bytes
    naming: Callable[[], Naming]
    # Of all models and callers.
    limits: Limits
    # Whether a model is, by any of its names.
    is_blocked: Callable[..., bool]

    def find(
        self, exchange: Exchange, name: str, *, fields: Sequence[str] = (), sticky_key: str = ""
    ) -> tuple[ServedModel, Limits]:
        """The model that is to answer, by what the caller calls it, and what the caller may ask of it.

        What the name or the request's fields bring with them goes into the headers of the answer. `sticky_key` keeps
        requests that belong together on one model of an alias. Raises ApiError (MODEL_NOT_ALLOWED, MODEL_NOT_FOUND,
        MODEL_NOT_READY, MODEL_BLOCKED).
        """
        exchange.model = name
        caller = exchange.caller
        real_name = self.catalog.real_name(name, _key(exchange, sticky_key))
        if not caller.may_use(name, real_name):
            raise ApiError(Reason.MODEL_NOT_ALLOWED, f"This key may not use the model '{name[:200]}'.", "model")
        model = self.catalog.find(real_name)
        exchange.model = model.name
        if self.is_blocked(name, *names_of(model)):
            raise ApiError(Reason.MODEL_BLOCKED, f"The model '{name[:200]}' is blocked at the moment.", "model")
        naming = self.naming()
        exchange.headers.update(naming.headers((name, model.name), fields))
        if model.name != name:
            exchange.headers["x-inferway-model"] = model.name
        of_model = naming.limits_of((model.name, model.description.parent))
        return model, tightest(self.limits, *of_model, caller.limits)

    async def find_in_time(
        self, exchange: Exchange, name: str, *, fields: Sequence[str] = (), sticky_key: str = ""
    ) -> tuple[ServedModel, Limits]:
        """The same for what a worker is to do: waits for one where the model comes when it is asked for."""
        if self.naming().on_demand:
            await self._await_worker(exchange, name, self.catalog.real_name(name, _key(exchange, sticky_key)))
        return self.find(exchange, name, fields=fields, sticky_key=sticky_key)

    async def _await_worker(self, exchange: Exchange, name: str, real_name: str) -> None:
        timeout_s = self.naming().wait_s(real_name)
        is_refused = not exchange.caller.may_use(name, real_name) or self.is_blocked(name, real_name)
        if not timeout_s or is_refused:
            return
        exchange.model = real_name
        timing = Timing(queued=time.monotonic())
        exchange.progress = lambda: Progress(timing, "")
        left_s = exchange.received + self.config.request_deadline_s - time.monotonic()
        await self.catalog.await_worker(real_name, min(timeout_s, max(0.0, left_s)))
        exchange.progress = None

    async def read(self, request: web.BaseRequest) -> bytes:
        """The body, within the configured limits. Raises ApiError."""
        config = self.config
        return await read_json_body(request, limit_bytes=config.max_body_bytes, timeout_s=config.body_timeout_s)

    async def prompts(
        self, model: ServedModel, exchange: Exchange, build: Callable[[], Sequence[Sequence[int]]], *, body_bytes: int
    ) -> list[Prompt]:
        """The token ids that `build` makes, ready to be sent."""
        salt = _cache_salt(self.cache_secret, exchange.caller)

        def prompts() -> list[Prompt]:
            size = model.description.block_size
            made = []
            for ids in build():
                hashes = block_hashes(ids, size, salt)
                wire = prompt_wire(ids) if body_bytes > _OFFLOAD_BYTES else b""
                made.append(Prompt(ids, hashes, salt, wire, prompt_hash(ids, hashes, size, salt)))
            return made

        return await self.run(prompts, body_bytes=body_bytes)

    async def run(self, work: Callable[[], T], *, body_bytes: int) -> T:
        """The result of work on the text of a body: off the loop where that is long."""
        if body_bytes > _OFFLOAD_BYTES:
            return await asyncio.get_running_loop().run_in_executor(self.executor, work)
        return work()

    async def answer(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        model: ServedModel,
        limits: Limits,
        asked: GenerationRequest,
        prompts: Sequence[Prompt],
        reply: Reply,
    ) -> web.StreamResponse:
        """Generate `asked.n` choices for each prompt and answer with them.

        Raises ApiError while the status line is unspent.
        """
        plans = [self._plan(model, limits, asked, prompt, exchange, reply.param) for prompt in prompts]
        exchange.priority = plans[0].ask.priority
        if asked.user:
            exchange.user_hash = _user_hash(self.cache_secret, exchange.caller.tenant_id, asked.user)
        reservation = await self.reserve(exchange, model, _most(plans))
        if self.quotas.is_shared:
            plans = [
                replace(plan, settlement=note(exchange, reservation, prompt=place)) for place, plan in enumerate(plans)
            ]
        answer = Answer(
            new_answer_id(reply.id_prefix), int(time.time()), asked.model, model.fingerprint, asked.service_tier or ""
        )
        exchange.ignores(reply.ignored)
        if asked.stream:
            return await self._stream(request, exchange, asked, plans, answer, reply)
        return await self._whole(exchange, asked, plans, answer, reply)

    async def reserve(self, exchange: Exchange, model: ServedModel, most: Usage) -> Reservation:
        """A place under the caller's bounds for a request that will use `most`, as far as one can tell.

        Raises ApiError.
        """
        reservation = await self.quotas.reserve(exchange.caller, (exchange.asked_model, *names_of(model)), most)
        exchange.reservation = reservation
        exchange.headers.update(reservation.headers)
        return reservation

    def _plan(
        self,
        model: ServedModel,
        limits: Limits,
        asked: GenerationRequest,
        prompt: Prompt,
        exchange: Exchange,
        param: str,
    ) -> Plan:
        config, description = self.config, model.description
        prompt_tokens = len(prompt.token_ids)
        max_tokens = completion_tokens(
            limits,
            asked.sampling.max_tokens,
            prompt_tokens=prompt_tokens,
            context_length=description.context_length,
            param=param,
        )
        sampling = replace(asked.sampling, max_tokens=max_tokens)
        for token_id in sampling.logit_bias:
            if token_id >= description.vocab_size:
                raise ApiError(
                    Reason.INVALID_REQUEST,
                    f"'logit_bias' names token {token_id}; the vocabulary has {description.vocab_size} tokens.",
                    "logit_bias",
                )
        now = time.monotonic()
        room = description.context_length - prompt_tokens
        most = room if max_tokens is None else max(1, min(max_tokens, room))
        expected = most
        if asked.sampling.max_tokens is None:
            expected = self.quotas.expected.expected(exchange.caller.tenant_id, model.name, most=most)
        ask = Ask(
            request_id=exchange.request_id,
            model=model.name,
            tenant_id=exchange.caller.tenant_id,
            priority=exchange.caller.priority(asked.priority, asked.service_tier),
            prompt_tokens=prompt_tokens,
            expected_tokens=expected,
            block_hashes=prompt.block_hashes,
            num_choices=asked.n,
            queue_deadline=now + config.queue_timeout_s,
            pinned_worker=exchange.workers.only,
            excluded_workers=exchange.workers.excluded,
            prompt_hash=prompt.hash,
            tenant_weight=exchange.caller.weight,
            session=session_of(exchange.caller.tenant_id, asked.sticky_key),
        )
        return Plan(
            ask=ask,
            description=description,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            cache_salt=prompt.cache_salt,
            traceparent=exchange.traceparent,
            logprobs=asked.logprobs,
            prompt_logprobs=asked.prompt_logprobs,
            received=exchange.received,
            deadline=exchange.received + config.request_deadline_s,
            stall_s=config.stall_s,
            constraint=asked.constraint,
            # Within two ticks one might go out before any silence, and spend the status of a refusal.
            heartbeat_s=max(config.heartbeat_s, 2 * TICK_S),
            prompt_wire=prompt.wire,
            trace=exchange.trace,
        )

    async def _stream(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        asked: GenerationRequest,
        plans: Sequence[Plan],
        answer: Answer,
        reply: Reply,
    ) -> web.StreamResponse:
        """The status line goes out with the first output or the first heartbeat; later failures are told in-band."""
        config = self.config
        stream = SseStream(request, high_water_bytes=config.coalesce_bytes)
        sink = StreamedAnswer(
            stream,
            reply.encoder(answer),
            reply.readers,
            limit_bytes=config.client_buffer_bytes,
            on_too_slow=lambda: generation.fail(_cut_off()),
            scored=asked.logprobs is not None,
            continuous_usage=(lambda: generation.usage_so_far()) if asked.continuous_usage else None,
        )
        generation = self._generations(exchange, plans, sink)
        try:
            generation.start()
            await generation.started
            exchange.headers["openai-processing-ms"] = _elapsed_ms(exchange)
            await stream.open({**exchange.headers, "x-request-id": exchange.request_id})
            sink.opened()
            await generation.ended
            done = generation.usage
            usage = (lambda: _with_thoughts(done, reply)) if done is not None and asked.include_usage else None
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
            self._finish(generation, exchange, reply)
        response = stream.response
        assert response is not None
        return response

    async def _whole(
        self,
        exchange: Exchange,
        asked: GenerationRequest,
        plans: Sequence[Plan],
        answer: Answer,
        reply: Reply,
    ) -> web.StreamResponse:
        sink = GatheredAnswer(reply.readers, scored=asked.logprobs is not None)
        generation = self._generations(exchange, plans, sink)
        try:
            generation.start()
            await generation.ended
        finally:
            self._finish(generation, exchange, reply)
        assert generation.usage is not None
        body = reply.whole(answer, sink.choices(), _with_thoughts(generation.usage, reply))
        exchange.headers["openai-processing-ms"] = _elapsed_ms(exchange)
        return web.Response(body=body, content_type="application/json")

    def _generations(self, exchange: Exchange, plans: Sequence[Plan], sink: StreamedAnswer | GatheredAnswer) -> Running:
        generation = self.new_generations(plans, _sinks(sink, plans))
        assert exchange.reservation is not None, "reserve first"
        exchange.reservation.running = generation
        exchange.progress = lambda: Progress(generation.timing, generation.worker_id, generation.usage_so_far())
        exchange.stop = generation.fail
        return generation

    def _finish(self, generation: Running, exchange: Exchange, reply: Reply) -> None:
        self.discard(generation)
        exchange.timing, exchange.worker_id = generation.timing, generation.worker_id
        usage = generation.usage
        exchange.usage = _with_thoughts(usage, reply) if usage is not None else None
        for reader in reply.readers:
            if reader is not None:
                exchange.tool_calls.update(reader.outcomes)


def _with_thoughts(usage: Usage, reply: Reply) -> Usage:
    """With the tokens of thoughts, where the engine has not counted them itself."""
    counted = sum(reader.reasoning_tokens for reader in reply.readers if reader is not None)
    if usage.reasoning_tokens or not counted:
        return usage
    return replace(usage, reasoning_tokens=min(counted, usage.completion_tokens))


def _most(plans: Sequence[Plan]) -> Usage:
    """What the plans will use, as far as one can tell: none of it from the cache."""
    return Usage(
        sum(plan.ask.prompt_tokens for plan in plans),
        sum(plan.ask.expected_tokens * plan.ask.num_choices for plan in plans),
    )


def _sinks(sink: StreamedAnswer | GatheredAnswer, plans: Sequence[Plan]) -> list[Sink]:
    """For each prompt its share of the choices, prompt by prompt."""
    if len(plans) == 1:
        return [sink]
    sinks: list[Sink] = []
    first = 0
    for plan in plans:
        sinks.append(Part(sink, first))
        first += plan.ask.num_choices
    return sinks


def _cache_salt(secret: bytes, caller: Caller) -> bytes:
    """That of the caller's cache domain: never chosen by the caller, the same on every gateway."""
    return hmac.digest(secret, caller.cache_domain.encode(), "sha256")[:16]


def _key(exchange: Exchange, sticky_key: str) -> str:
    """By which one of an alias's models is chosen."""
    return f"{exchange.caller.tenant_id} {sticky_key}" if sticky_key else exchange.request_id


def names_of(model: ServedModel) -> Sequence[str]:
    """Everything that a model goes by, and the one that it is an adapter of."""
    description = model.description
    return (description.name, *description.aliases, *([description.parent] if description.parent else []))


def _user_hash(secret: bytes, tenant_id: str, user: str) -> str:
    """What tells a tenant's users apart in traces, and nobody who they are; the same on every gateway."""
    return hmac.digest(secret, f"user {tenant_id} {user}".encode(), "sha256")[:8].hex()


def _fault(error: Exception, exchange: Exchange) -> ApiError:
    log.error("stream_failed", exc_info=error, extra={"fields": {"request_id": exchange.request_id}})
    return ApiError(Reason.INTERNAL_ERROR, "An internal error occurred.")


def _cut_off() -> ApiError:
    return ApiError(Reason.CLIENT_TOO_SLOW, "The client did not read; its stream was cut at the buffer limit.")


def _elapsed_ms(exchange: Exchange) -> str:
    return str(round((time.monotonic() - exchange.received) * 1000))


def require_chat(model: ServedModel) -> None:
    if not model.prompts.takes_chat:
        raise ApiError(Reason.UNSUPPORTED_VALUE, f"The model '{model.name}' takes no chat requests.", "model")


def check_capabilities(model: ServedModel, asked: GenerationRequest) -> None:
    """Refuse by name what the model's engine cannot honour."""
    used = asked.sampling.fields_used()
    used += [name for name, is_used in (("n", asked.n > 1), ("logprobs", asked.logprobs is not None)) if is_used]
    constraint = asked.constraint
    if constraint is not None and f"constraint.{constraint.kind}" not in model.description.capabilities:
        raise ApiError(
            Reason.UNSUPPORTED_VALUE,
            f"'{constraint.param}' is not supported by the model '{model.name}'.",
            constraint.param,
        )
    for name in used:
        if name not in model.description.capabilities:
            raise ApiError(Reason.UNSUPPORTED_VALUE, f"'{name}' is not supported by the model '{model.name}'.", name)
