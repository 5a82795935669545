"""The scripted engine: a batch, a timer and the loop they run on."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path

import yaml

from inferway import logs
from inferway.errors import ApiError, Reason, invalid

from ...engine import (
    Adapter,
    Constraint,
    EmbedRequest,
    Engine,
    EngineInfo,
    FinishReason,
    GenerateRequest,
    Load,
    ModelInfo,
    Output,
    Step,
)
from .batch import Batch, Job
from .lexicon import Interned, Lexicon
from .models import BLOCK_SIZE, CAPABILITIES, CONTEXT_LENGTH, FAMILIES, build_model, family_of
from .play import Part, Play, planned_tokens
from .record import Recorder
from .script import Script, Scripts, read_scripts

log = logging.getLogger(__name__)

# Larger than the largest context, so that any prompt can be run.
_KV_TOKENS = 2 * CONTEXT_LENGTH
# Of an answer's tokens, those that memory is reserved for at most: few answers are as long as they may be.
_RESERVED_TOKENS = 4096
# The length of a step where only the speed of the prompt pass is given.
_DEFAULT_STEP_S = 0.01
# Numbers of an embedding that no script gives.
_EMBEDDING_SIZE = 8


class ScriptedEngine(Engine):
    def __init__(
        self,
        *,
        scripts_path: str | None = None,
        capabilities: Mapping[str, str] | None = None,
        models: Sequence[str] = (),
        name: str = "",
        record_path: str | None = None,
        record_steps: bool = False,
        record_ends: bool = False,
        step_ms: float = 0.0,
        prefill_tokens_per_s: float = 0.0,
        kv_tokens: int = _KV_TOKENS,
        context_length: int = CONTEXT_LENGTH,
        max_running: int = 256,
        max_waiting: int = 1024,
    ) -> None:
        """`name` is what `worker:` items of a script mean; `capabilities` are those of `--capability`.

        `models` are names of models to serve; without any, it serves one of each family.
        """
        self._models = tuple(models) or tuple(FAMILIES)
        self._scripts_path = scripts_path
        self._capabilities = dict(capabilities or {})
        self._name = name
        self._record_path = record_path
        self._record_steps = record_steps
        self._record_ends = record_ends
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._context_length = context_length
        self._max_running = max_running
        self._max_waiting = max_waiting
        step_s = step_ms / 1000 or (_DEFAULT_STEP_S if prefill_tokens_per_s else 0.0)
        self._batch = Batch(
            max_running=max_running,
            kv_tokens=kv_tokens,
            block_size=BLOCK_SIZE,
            step_s=step_s,
            prefill_tokens_per_s=prefill_tokens_per_s,
        )
        self._scripts = Scripts()
        self._interned = Interned()
        self._lexicons: dict[str, Lexicon] = {}
        self._requests: dict[int, GenerateRequest] = {}
        # Tokens made for each, where there is a record.
        self._said: dict[int, int] = {}
        self._adapters: set[Adapter] = set()
        self._reported: frozenset[str] = frozenset()
        self._recorder: Recorder | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._on_step: Callable[[Step], None]

    async def start(self, on_step: Callable[[Step], None]) -> EngineInfo:
        """Raises ApiError for a script or capability that cannot be understood, OSError for files."""
        self._loop = asyncio.get_running_loop()
        self._on_step = on_step
        context_length, reported = _report(self._capabilities, self._context_length)
        self._reported = frozenset(reported)
        models = await asyncio.to_thread(self._build, context_length, reported)
        self._lexicons = {model.name: Lexicon(model, family_of(model.name), self._interned) for model in models}
        if self._record_path is not None:
            self._recorder = Recorder(self._record_path, self._name)
        return EngineInfo(
            name="scripted",
            models=models,
            max_running=self._max_running,
            max_waiting=self._max_waiting,
            kv_total_tokens=self._batch.kv_tokens,
            prefill_tokens_per_s=self._prefill_tokens_per_s,
            publishes_kv_events=True,
        )

    def generate(self, request: GenerateRequest) -> None:
        if request.adapter and Adapter(request.model, request.adapter) not in self._adapters:
            raise _no_such_adapter(request.adapter)
        limit_tokens = self._context_length if request.sampling.max_tokens is None else request.sampling.max_tokens
        kv_room = self._batch.kv_tokens - len(request.prompt_token_ids)
        if kv_room < 1:
            raise ApiError(
                Reason.CONTEXT_LENGTH_EXCEEDED,
                f"The prompt has {len(request.prompt_token_ids)} tokens; this worker can hold {self._batch.kv_tokens}.",
                "prompt_token_ids",
            )
        lexicon = self._lexicons[request.model]
        if self._recorder is not None:
            self._recorder.generate(request, lexicon.decode(request.prompt_token_ids))
        script = self._scripts.find(request.request_id)
        if request.constraint is not None and not self._takes(request.constraint, script):
            raise ApiError(Reason.UNSUPPORTED_VALUE, "This engine has no such grammars.", "constraint")
        message = partial(lexicon.last_message, request.prompt_token_ids)
        is_endless = request.sampling.ignore_eos
        part = Part(
            worker=self._name,
            choice_index=request.choice_index,
            message_ids=message,
            message_text=lambda: lexicon.text(message()),
            token_id=lexicon.token_id,
            is_endless=is_endless,
        )
        limit_tokens = min(limit_tokens, kv_room)
        expected = planned_tokens(script)
        if expected is None:
            expected = limit_tokens if is_endless else len(request.prompt_token_ids)
        job = Job(
            key=request.key,
            request_id=request.request_id,
            # What an adapter computes is of no use to others.
            model=f"{request.model}:{request.adapter}" if request.adapter else request.model,
            prompt=request.prompt_token_ids,
            play=Play(script, part),
            limit_tokens=limit_tokens,
            expected_tokens=min(expected, limit_tokens, _RESERVED_TOKENS),
            priority=request.priority,
            cache_salt=request.cache_salt,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs,
        )
        self._requests[request.key] = request
        self._batch.submit(job, now=self._loop.time())
        self._schedule()

    def _takes(self, constraint: Constraint, script: Script | None) -> bool:
        mine = (item for item in script or () if item.worker in (None, self._name))
        takes_none = any(item.capability.get("grammar") is False for item in mine)
        return f"constraint.{constraint.kind}" in self._reported and not takes_none

    async def embed(self, request: EmbedRequest) -> Sequence[float]:
        """The script's embedding, or one that is made of the ids; dimensions are the first ones."""
        if not family_of(request.model).is_embedding:
            return await super().embed(request)
        lexicon = self._lexicons[request.model]
        if self._recorder is not None:
            self._recorder.embed(request, lexicon.decode(request.prompt_token_ids))
        vector: Sequence[float] | None = None
        for item in self._scripts.find(request.request_id) or ():
            if item.worker not in (None, self._name):
                continue
            if request.dimensions is not None and item.capability.get("matryoshka") is False:
                raise ApiError(Reason.UNSUPPORTED_VALUE, "This model has embeddings of one size only.", "dimensions")
            await asyncio.sleep(item.sleep_s)
            if item.failure is not None:
                logs.event(log, "script_failure", request_id=request.request_id, detail=item.failure.detail)
                raise item.failure.error
            vector = vector if item.embedding is None else item.embedding
        if vector is None:
            vector = _made_of(request.prompt_token_ids)
        if request.dimensions is not None and request.dimensions > len(vector):
            raise invalid("dimensions", f"dimensions must be at most {len(vector)}, got {request.dimensions}.")
        return vector[: request.dimensions]

    def abort(self, key: int) -> None:
        if self._batch.cancel(key):
            if self._recorder is not None:
                self._recorder.abort(self._requests[key], self._said.get(key, 0))
            self._schedule()

    def adapters(self) -> Sequence[Adapter]:
        return sorted(self._adapters)

    async def load_adapter(self, adapter: Adapter, path: str) -> None:
        """Nothing is read: an adapter is a name, and changes no answer."""
        if adapter in self._adapters:
            raise invalid("adapter", f"An adapter '{adapter.name}' is loaded already.")
        self._adapters.add(adapter)

    async def unload_adapter(self, adapter: Adapter) -> None:
        if adapter not in self._adapters:
            raise _no_such_adapter(adapter.name)
        self._adapters.remove(adapter)

    def load(self) -> Load:
        return self._batch.load()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def _build(self, context_length: int, capabilities: Sequence[str]) -> list[ModelInfo]:
        if self._scripts_path is not None:
            self._scripts = _load_scripts(self._scripts_path)
        return [
            build_model(
                name,
                context_length=context_length,
                capabilities=capabilities,
                token_bytes=self._interned.bytes_of,
            )
            for name in self._models
        ]

    def _schedule(self) -> None:
        """Keep one timer, at the time of the next step."""
        at = self._batch.next_step_at()
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return  # rings no later than needed; _tick looks again
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        at = self._batch.next_step_at()
        if at is not None and at <= now:
            result = self._batch.step(now=now)
            for failed in result.failures:
                logs.event(log, "script_failure", request_id=failed.request_id, detail=failed.detail)
            if self._recorder is not None:
                self._record(self._recorder, result.outputs)
            for output in result.outputs:
                if output.finish_reason is not None or output.error is not None:
                    self._requests.pop(output.key, None)
            if result.outputs or result.kv_events:
                self._on_step(Step(result.outputs, result.kv_events))
        self._schedule()

    def _record(self, recorder: Recorder, outputs: Sequence[Output]) -> None:
        for output in outputs:
            said = self._said.pop(output.key, 0) + len(output.token_ids)
            if output.finish_reason is None and output.error is None:
                self._said[output.key] = said
            elif self._record_ends and output.finish_reason is not FinishReason.ABORTED:
                recorder.end(self._requests[output.key], said)
        if self._record_steps:
            recorder.step([output.key for output in outputs if output.token_ids])


def _made_of(token_ids: Sequence[int]) -> list[float]:
    """The same for the same ids, of length 1."""
    digest = blake2b(b"".join(token_id.to_bytes(4, "big") for token_id in token_ids), digest_size=_EMBEDDING_SIZE)
    numbers = [byte - 127.5 for byte in digest.digest()]
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


def _no_such_adapter(name: str) -> ApiError:
    return ApiError(Reason.MODEL_NOT_FOUND, f"No adapter '{name}' is loaded.", "model")


def _load_scripts(path: str) -> Scripts:
    """YAML or JSON. Raises OSError, or ApiError with what is wrong where."""
    text = Path(path).read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        try:
            document = json.loads(text)
            # Half a pair is no text, wherever it stands.
            json.dumps(document, ensure_ascii=False).encode()
        except json.JSONDecodeError:
            # Nearly all JSON is YAML, but not an escaped surrogate pair: how JSON's writers say an emoji.
            document = yaml.load(text, Loader=loader)
        return read_scripts(document or {})
    except yaml.YAMLError as error:
        raise ApiError(Reason.INVALID_REQUEST, f"the scripts in {path} are no YAML: {error}") from error
    except ValueError as error:
        raise ApiError(Reason.INVALID_REQUEST, f"the scripts in {path} cannot be read: {error}") from error


def _report(capabilities: Mapping[str, str], context_length: int) -> tuple[int, list[str]]:
    """What models report: their context length, and capabilities less those set to false."""
    reported = dict.fromkeys(CAPABILITIES, "true")
    for key, value in capabilities.items():
        if key == "max_model_len":
            if not value.isdecimal() or int(value) < 2:
                raise ApiError(Reason.INVALID_REQUEST, f"capability max_model_len must be at least 2, got {value!r}")
            context_length = int(value)
        else:
            reported[key] = value.lower() if value.lower() in ("true", "false") else value
    if reported.pop("grammar") == "true":
        reported.update(dict.fromkeys(("constraint.json_schema", "constraint.regex", "constraint.ebnf"), "true"))
    shown = [key if value == "true" else f"{key}={value}" for key, value in reported.items() if value != "false"]
    return context_length, shown
