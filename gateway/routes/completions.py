"""POST /v1/completions: from the body to token ids; routes/generate.py does the rest of the journey."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aiohttp import web

from inferway.errors import invalid

from ..catalog import ServedModel
from ..core.completion_request import CompletionLimits, CompletionRequest, parse_completion
from ..core.generation_fields import check_ids
from ..core.sse import CompletionEncoder, whole_completion
from ..middleware import Exchange, Handler
from .generate import Inference, Reply, check_capabilities


def make_completions(inference: Inference) -> Handler:
    config = inference.config
    limits = CompletionLimits(config.max_prompts, config.max_choices)

    async def completions(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        body = await inference.read(request)
        completion = parse_completion(body, limits)
        exchange.asks(completion.model, stream=completion.stream, max_tokens=completion.sampling.max_tokens)
        model = inference.catalog.find(completion.model)
        exchange.model = model.name
        check_capabilities(model, completion)

        def build() -> list[Sequence[int]]:
            return [_token_ids(model, prompt) for prompt in completion.prompts]

        prompts = await inference.prompts(model, exchange, build, body_bytes=len(body))
        echoes = _echoes(model, completion)
        reply = Reply(
            id_prefix="cmpl",
            param="prompt",
            encoder=partial(CompletionEncoder, echoes=echoes, include_usage=completion.include_usage),
            whole=partial(whole_completion, echoes=echoes),
            splitters=[None] * len(echoes),
            ignored=completion.ignored,
        )
        return await inference.answer(request, exchange, model, completion, prompts, reply)

    return completions


def _token_ids(model: ServedModel, prompt: str | list[int]) -> Sequence[int]:
    if isinstance(prompt, str):
        ids = model.prompts.build_text(prompt)
        if not ids:
            raise invalid("prompt", f"'prompt' must make at least 1 token for the model '{model.name}', got 0.")
        return ids
    return check_ids(prompt, "prompt", vocab_size=model.description.vocab_size)


def _echoes(model: ServedModel, completion: CompletionRequest) -> list[str]:
    """What each choice begins with."""
    if not completion.echo:
        return [""] * (len(completion.prompts) * completion.n)
    texts = [prompt if isinstance(prompt, str) else model.prompts.text(prompt) for prompt in completion.prompts]
    return [text for text in texts for _ in range(completion.n)]
