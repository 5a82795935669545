"""POST /v1/completions: from the body to token ids; routes/generate.py does the rest of the journey."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aiohttp import web

from inferway.errors import invalid

from ..catalog import ServedModel
from ..core.best_of import best, without_scores
from ..core.body import unsupported
from ..core.completion_request import CompletionRequest, parse_completion
from ..core.generation_fields import check_ids
from ..core.limits import check_items, check_request
from ..core.sse import Answer, ChoiceText, CompletionEncoder, Usage, whole_completion
from ..middleware import Exchange, Handler
from .generate import Inference, Reply, check_capabilities


def make_completions(inference: Inference) -> Handler:
    async def completions(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        body = await inference.read(request)
        completion = parse_completion(body)
        exchange.asks(completion.model, stream=completion.stream, max_tokens=completion.sampling.max_tokens)
        model, limits = await inference.find_in_time(
            exchange, completion.model, fields=completion.fields, sticky_key=completion.sticky_key
        )
        check_items("prompt", len(completion.prompts), limits.max_prompts)
        check_request(limits, completion, body_bytes=len(body))
        _require_completions(model, completion)
        check_capabilities(model, completion)

        def build() -> list[Sequence[int]]:
            return [_token_ids(model, prompt) for prompt in completion.prompts]

        prompts = await inference.prompts(model, exchange, build, body_bytes=len(body))
        echoes = await inference.run(lambda: _echoes(model, completion), body_bytes=len(body))

        def whole(answer: Answer, choices: Sequence[ChoiceText], usage: Usage) -> bytes:
            if completion.keep is not None:
                scored = [len(prompt.token_ids) if completion.prompt_logprobs else 0 for prompt in prompts]
                choices = best(choices, keep=completion.keep, prompt_scores=scored)
            if not completion.shows_logprobs:
                choices = without_scores(choices)
            return whole_completion(answer, choices, usage, echoes=echoes)

        reply = Reply(
            id_prefix="cmpl",
            param="prompt",
            encoder=partial(CompletionEncoder, echoes=echoes, include_usage=completion.include_usage),
            whole=whole,
            readers=[None] * (len(prompts) * completion.n),
            ignored=completion.ignored,
        )
        return await inference.answer(request, exchange, model, limits, completion, prompts, reply)

    return completions


def _require_completions(model: ServedModel, completion: CompletionRequest) -> None:
    capabilities = model.description.capabilities
    if "embeddings" in capabilities:
        raise unsupported("model", f"The model '{model.name}' makes no completions.")
    if completion.keep is not None and "logprobs" not in capabilities:
        raise unsupported("best_of", f"'best_of' above 'n' is not supported by the model '{model.name}'.")


def _token_ids(model: ServedModel, prompt: str | list[int]) -> Sequence[int]:
    if isinstance(prompt, str):
        ids = model.prompts.build_text(prompt)
        if not ids:
            raise invalid("prompt", f"'prompt' must make at least 1 token for the model '{model.name}', got 0.")
        return ids
    return check_ids(prompt, "prompt", vocab_size=model.description.vocab_size)


def _echoes(model: ServedModel, completion: CompletionRequest) -> list[str]:
    """What each choice of the answer begins with."""
    n = completion.keep or completion.n
    if not completion.echo:
        return [""] * (len(completion.prompts) * n)
    texts = [prompt if isinstance(prompt, str) else model.prompts.text(prompt) for prompt in completion.prompts]
    return [text for text in texts for _ in range(n)]
