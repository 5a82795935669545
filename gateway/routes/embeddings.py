"""POST /v1/embeddings: from the body to vectors."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aiohttp import web

from inferway.errors import ApiError, Reason, invalid

from ..catalog import ServedModel
from ..core.embedding_request import embedding_answer, parse_embedding
from ..core.generation_fields import check_ids
from ..core.sse import Usage
from ..generation import Timing
from ..in_flight import Progress
from ..middleware import Exchange, Handler
from ..router_client import Ask
from ..worker_messages import EmbedSpec
from .generate import Inference


def make_embeddings(inference: Inference) -> Handler:
    config = inference.config

    async def embeddings(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        body = await inference.read(request)
        asked = parse_embedding(body)
        exchange.asks(asked.model, stream=False, max_tokens=None)
        model, limits = inference.find(exchange, asked.model, fields=asked.fields, sticky_key=asked.sticky_key)
        _check_capabilities(model, asked.dimensions)
        inputs = await inference.run(
            lambda: [_token_ids(model, one, f"input[{place}]") for place, one in enumerate(asked.inputs)],
            body_bytes=len(body),
        )
        prompt_tokens = sum(map(len, inputs))
        most = min(config.max_embedding_tokens, limits.max_input_tokens or config.max_embedding_tokens)
        if prompt_tokens > most:
            raise invalid("input", f"'input' may have {most} tokens at most in all, got {prompt_tokens}.")
        now = time.monotonic()
        ask = Ask(
            request_id=exchange.request_id,
            model=model.name,
            tenant_id=exchange.caller.tenant_id,
            priority=exchange.caller.priority(),
            prompt_tokens=prompt_tokens,
            expected_tokens=1,
            block_hashes=(),
            num_choices=1,
            queue_deadline=now + config.queue_timeout_s,
            pinned_worker=exchange.workers.only,
            excluded_workers=exchange.workers.excluded,
            tenant_weight=exchange.caller.weight,
        )
        spec = EmbedSpec(exchange.request_id, model.name, inputs, asked.dimensions, ask.priority, exchange.traceparent)
        exchange.priority = ask.priority
        await inference.reserve(exchange, model, Usage(prompt_tokens, 0))
        embedding = inference.new_embedding(ask, spec, exchange.received + config.request_deadline_s)
        exchange.progress = lambda: Progress(Timing(embedding.queued, embedding.dispatched), embedding.worker_id)
        embedding.trace = exchange.trace
        try:
            vectors = await embedding.run()
        finally:
            exchange.worker_id = embedding.worker_id
            exchange.timing = Timing(embedding.queued, embedding.dispatched)
            exchange.usage = Usage(prompt_tokens, 0) if embedding.dispatched else None
        exchange.ignores(asked.ignored)
        answer = embedding_answer(asked.model, vectors, asked.encoding, prompt_tokens)
        return web.Response(body=answer, content_type="application/json")

    return embeddings


def _check_capabilities(model: ServedModel, dimensions: int | None) -> None:
    capabilities = model.description.capabilities
    if "embeddings" not in capabilities:
        raise ApiError(Reason.UNSUPPORTED_VALUE, f"The model '{model.name}' makes no embeddings.", "model")
    if dimensions is not None and "dimensions" not in capabilities:
        raise ApiError(
            Reason.UNSUPPORTED_VALUE, f"'dimensions' is not supported by the model '{model.name}'.", "dimensions"
        )


def _token_ids(model: ServedModel, given: str | list[int], path: str) -> Sequence[int]:
    description = model.description
    if isinstance(given, str):
        ids: Sequence[int] = model.prompts.build_text(given)
    else:
        ids = check_ids(given, path, param="input", vocab_size=description.vocab_size)
    if not 1 <= len(ids) <= description.context_length:
        raise ApiError(
            Reason.CONTEXT_LENGTH_EXCEEDED if ids else Reason.INVALID_REQUEST,
            f"'{path}' must have 1 to {description.context_length} tokens, got {len(ids)}.",
            "input",
        )
    return ids
