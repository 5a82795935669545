"""The gRPC face of a worker: protobuf in, protobuf out, everything else in runtime.py."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from array import array
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc

from inferway import logs
from inferway.api.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from inferway.blocks import BlocksRemoved, BlocksStored, KvEvent
from inferway.errors import ApiError, Reason
from inferway.grpc_util import error_to_proto
from inferway.lifecycle import wait_for
from inferway.sampling import RANGES

from .core.choice import Delta, Usage
from .core.logprobs import ScoredToken
from .engine import Constraint, ConstraintKind, EmbedRequest, FinishReason, GenerateRequest, ModelInfo, Sampling
from .runtime import Runtime
from .sessions import GatewaySession, Watcher

log = logging.getLogger(__name__)

SERVICE_NAME = worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name
_TOKENIZER_PIECE_BYTES = 1 << 20
# Reports of a fast engine are merged: routers need load, not every step.
_REPORT_INTERVAL_S = 0.002
# A watcher hears from an idle worker this often.
_REPORT_IDLE_S = 1.0
# Of at most 2 KiB of settlement each, and as much for the rest: below the 256 KiB of a StepBatch.
_ORPHANS_A_BATCH = 64
# Of a model whose engine does not say when it was made: one and the same for all workers, 2024-01-01.
_CREATED_UNKNOWN = 1_704_067_200

_STATUS = {
    Reason.MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    Reason.WORKER_FAILED: grpc.StatusCode.UNAVAILABLE,
    Reason.INTERNAL_ERROR: grpc.StatusCode.INTERNAL,
}
_FINISH_REASONS = {
    None: types_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORTED: types_pb2.FINISH_REASON_ABORTED,
}


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # By the name of the model.
        self._digests: dict[str, str] = {}
        self._is_cordoned = False

    async def Describe(self, request: worker_pb2.DescribeRequest, context: Any) -> worker_pb2.DescribeResponse:
        await self._refuse_while_loading(context)
        info = self._runtime.info
        assert info is not None
        return worker_pb2.DescribeResponse(
            worker_id=self._runtime.worker_id,
            instance_id=self._runtime.instance_id,
            engine=info.name,
            models=[self._describe_model(model) for model in self._runtime.served],
            models_version=self._runtime.served.version,
            max_running=info.max_running,
            max_waiting=info.max_waiting,
            kv_total_tokens=info.kv_total_tokens,
            prefill_tokens_per_s=info.prefill_tokens_per_s,
            publishes_kv_events=info.publishes_kv_events,
            cordoned=self._is_cordoned,
        )

    async def GetTokenizer(
        self, request: worker_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[worker_pb2.GetTokenizerResponse]:
        await self._refuse_while_loading(context)
        for model in self._runtime.served:
            if self._digest(model) == request.digest:
                break
        else:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no model of this worker has a tokenizer with this digest")
        for start in range(0, len(model.tokenizer_json), _TOKENIZER_PIECE_BYTES):
            yield worker_pb2.GetTokenizerResponse(data=model.tokenizer_json[start : start + _TOKENIZER_PIECE_BYTES])

    async def Session(self, request_iterator: AsyncIterator[worker_pb2.SessionRequest], context: Any) -> None:
        session = self._runtime.open_session()
        try:
            # Tells the gateway that its requests are taken, before the first of them has anything to say.
            await context.send_initial_metadata(())
            async with asyncio.TaskGroup() as group:
                ways = {
                    group.create_task(self._read(session, request_iterator)),
                    group.create_task(self._write(session, context)),
                }
                # The stream is over when either way is: the gateway left, or this worker closes.
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
        finally:
            self._runtime.close_session(session)
            logs.event(log, "session_closed", gateway_id=session.gateway_id)

    async def Watch(self, request: worker_pb2.WatchRequest, context: Any) -> None:
        await self._refuse_while_loading(context)
        watcher = self._runtime.open_watch()
        logs.event(log, "watch_opened", router_id=request.router_id)
        try:
            while not self._runtime.is_closing:
                watcher.wake.clear()
                if not await _write(context, self._report(watcher)):
                    return
                await asyncio.sleep(_REPORT_INTERVAL_S)
                if not watcher.feed.has_more:
                    await wait_for(watcher.wake, _REPORT_IDLE_S)
        finally:
            self._runtime.close_watch(watcher)
            logs.event(log, "watch_closed", router_id=request.router_id)

    async def Embed(self, request: worker_pb2.EmbedRequest, context: Any) -> worker_pb2.EmbedResponse:
        inputs = [
            EmbedRequest(
                request_id=request.request_id,
                model=request.model,
                prompt_token_ids=array("I", one.ids),
                dimensions=request.dimensions or None,
                priority=request.priority,
                traceparent=request.traceparent,
            )
            for one in request.inputs
        ]
        try:
            vectors = await self._runtime.embed(inputs, request.lease_id)
        except ApiError as error:
            logs.event(log, "embed_failed", request_id=request.request_id, outcome=error.reason.label)
            return worker_pb2.EmbedResponse(error=error_to_proto(error))
        except Exception:
            log.exception("embed_failed", extra={"fields": {"request_id": request.request_id}})
            fault = ApiError(Reason.INTERNAL_ERROR, "An internal error occurred.")
            return worker_pb2.EmbedResponse(error=error_to_proto(fault))
        return worker_pb2.EmbedResponse(embeddings=[worker_pb2.Embedding(values=vector) for vector in vectors])

    async def LoadAdapter(self, request: worker_pb2.LoadAdapterRequest, context: Any) -> worker_pb2.LoadAdapterResponse:
        await self._refuse_while_loading(context)
        try:
            await self._runtime.load_adapter(request.model, request.adapter, request.path)
        except ApiError as error:
            await _abort(context, error)
        logs.event(log, "adapter_loaded", model=request.model, adapter=request.adapter, path=request.path)
        return worker_pb2.LoadAdapterResponse()

    async def UnloadAdapter(
        self, request: worker_pb2.UnloadAdapterRequest, context: Any
    ) -> worker_pb2.UnloadAdapterResponse:
        await self._refuse_while_loading(context)
        try:
            await self._runtime.unload_adapter(request.model, request.adapter)
        except ApiError as error:
            await _abort(context, error)
        logs.event(log, "adapter_unloaded", model=request.model, adapter=request.adapter)
        return worker_pb2.UnloadAdapterResponse()

    async def Cordon(self, request: worker_pb2.CordonRequest, context: Any) -> worker_pb2.CordonResponse:
        if request.cordoned != self._is_cordoned:
            logs.event(log, "cordoned" if request.cordoned else "uncordoned")
        self._is_cordoned = request.cordoned
        return worker_pb2.CordonResponse()

    async def _read(self, session: GatewaySession, requests: AsyncIterator[worker_pb2.SessionRequest]) -> None:
        async for request in requests:
            if request.gateway_id and not session.gateway_id:
                self._runtime.greet_session(session, request.gateway_id)
                logs.event(log, "session_opened", gateway_id=session.gateway_id)
            for generate in request.generates:
                stop = list(generate.sampling.stop)
                self._runtime.generate(session, generate.key, _request(generate), stop, generate.settlement)
            for key in request.aborts:
                self._runtime.abort(session, key, request.abort_reasons.get(key, ""))
            if request.settled:
                self._runtime.settle(session, request.settled)
            if request.orphans_booked:
                self._runtime.book_orphans(request.orphans_booked)

    async def _write(self, session: GatewaySession, context: Any) -> None:
        while True:
            await session.wake.wait()
            session.wake.clear()
            while session.outbox or session.orphans or session.models_version != self._runtime.served.version:
                # Orphans are few at a time, and in messages of their own, which they cannot make too long.
                message = self._orphan_batch(session) if session.orphans else _step_batch(session.outbox.take())
                if session.models_version != self._runtime.served.version:
                    message.models_version = session.models_version = self._runtime.served.version
                if not await _write(context, message):
                    return
            if self._runtime.is_closing:
                return

    def _orphan_batch(self, session: GatewaySession) -> worker_pb2.StepBatch:
        message = worker_pb2.StepBatch()
        for orphan in session.orphans[:_ORPHANS_A_BATCH]:
            message.orphans.add(
                orphan_id=orphan.orphan_id,
                settlement=orphan.settlement,
                gateway_id=orphan.gateway_id,
                usage=_usage(orphan.usage),
                age_ms=self._runtime.age_ms(orphan),
                outcome=orphan.outcome,
            )
        del session.orphans[:_ORPHANS_A_BATCH]
        return message

    async def _refuse_while_loading(self, context: Any) -> None:
        if self._runtime.info is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is loading its model")

    def _describe_model(self, model: ModelInfo) -> worker_pb2.Model:
        return worker_pb2.Model(
            name=model.name,
            aliases=model.aliases,
            context_length=model.context_length,
            tokenizer_digest=self._digest(model),
            chat_template=model.chat_template,
            bos_token=model.bos_token,
            eos_token=model.eos_token,
            block_size=model.block_size,
            vocab_size=model.vocab_size,
            created=model.created or _CREATED_UNKNOWN,
            tool_parser=model.tool_parser,
            reasoning_parser=model.reasoning_parser,
            structural_marks=model.structural_marks,
            capabilities=model.capabilities,
            parent=model.parent,
        )

    def _digest(self, model: ModelInfo) -> str:
        """SHA-256 of the model's tokenizer.json, computed once; an adapter has its model's."""
        name = model.parent or model.name
        digest = self._digests.get(name)
        if digest is None:
            digest = self._digests[name] = hashlib.sha256(model.tokenizer_json).hexdigest()
        return digest

    def _report(self, watcher: Watcher) -> worker_pb2.WorkerReport:
        load, batch = self._runtime.load(), watcher.feed.take()
        return worker_pb2.WorkerReport(
            worker_id=self._runtime.worker_id,
            instance_id=self._runtime.instance_id,
            step=self._runtime.steps,
            num_requests_running=load.num_requests_running,
            num_requests_waiting=load.num_requests_waiting,
            uncached_tokens_in_flight=load.uncached_tokens_in_flight,
            kv_used_tokens=load.kv_used_tokens,
            kv_total_tokens=load.kv_total_tokens,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            draining=self._runtime.is_draining,
            lease_ids=self._runtime.lease_ids(),
            kv_events=[_kv_event(event) for event in batch.events],
            kv_event_seq=batch.first,
            models_version=self._runtime.served.version,
        )


async def _abort(context: Any, error: ApiError) -> None:
    """Answer a call with the error's sentence, in gRPC's terms."""
    await context.abort(_STATUS.get(error.reason, grpc.StatusCode.INVALID_ARGUMENT), error.message)


async def _write(context: Any, message: Any) -> bool:
    """Whether the peer is still there."""
    try:
        await context.write(message)
    except grpc.aio.BaseError:
        return False
    return True


def _request(generate: worker_pb2.Generate) -> GenerateRequest:
    """The runtime gives it its key."""
    return GenerateRequest(
        key=0,
        request_id=generate.request_id,
        model=generate.model,
        prompt_token_ids=array("I", generate.prompt_token_ids),
        sampling=_sampling(generate.sampling),
        priority=generate.priority,
        cache_salt=generate.cache_salt,
        choice_index=generate.choice_index,
        traceparent=generate.traceparent,
        lease_id=generate.lease_id,
        logprobs=generate.logprobs.top if generate.HasField("logprobs") else None,
        prompt_logprobs=generate.logprobs.prompt,
        constraint=_constraint(generate),
    )


def _sampling(sampling: types_pb2.Sampling) -> Sampling:
    given = {name: getattr(sampling, name) for name in RANGES if sampling.HasField(name)}
    return Sampling(**given, ignore_eos=sampling.ignore_eos, logit_bias=dict(sampling.logit_bias))


def _step_batch(batch: Iterable[tuple[int, Delta]]) -> worker_pb2.StepBatch:
    message = worker_pb2.StepBatch()
    add = message.deltas.add
    for key, delta in batch:
        wire = add(key=key, text=delta.text, completion_tokens=delta.completion_tokens)
        if delta.usage is not None:
            wire.usage.CopyFrom(_usage(delta.usage))
        if delta.finish_reason is not None:
            wire.finish_reason = _FINISH_REASONS[delta.finish_reason]
        if delta.error is not None:
            wire.error.CopyFrom(error_to_proto(delta.error))
        if delta.logprobs:
            wire.logprobs.extend(map(_token_logprob, delta.logprobs))
        if delta.prompt_logprobs:
            wire.prompt_logprobs.extend(map(_token_logprob, delta.prompt_logprobs))
    return message


_KINDS: dict[worker_pb2.ConstraintKind, ConstraintKind] = {
    worker_pb2.CONSTRAINT_KIND_JSON_SCHEMA: "json_schema",
    worker_pb2.CONSTRAINT_KIND_REGEX: "regex",
    worker_pb2.CONSTRAINT_KIND_EBNF: "ebnf",
    worker_pb2.CONSTRAINT_KIND_STRUCTURAL_TAG: "structural_tag",
}


def _constraint(generate: worker_pb2.Generate) -> Constraint | None:
    if not generate.HasField("constraint"):
        return None
    return Constraint(_KINDS.get(generate.constraint.kind, "unknown"), generate.constraint.text)


def _token_logprob(token: ScoredToken) -> worker_pb2.TokenLogprob:
    top = [worker_pb2.TopLogprob(token=other, logprob=logprob) for other, logprob in token.top]
    return worker_pb2.TokenLogprob(token=token.token, logprob=token.logprob, top=top)


def _usage(usage: Usage) -> types_pb2.Usage:
    return types_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def _kv_event(event: KvEvent) -> worker_pb2.KvEvent:
    match event:
        case BlocksStored(model, hashes):
            return worker_pb2.KvEvent(model=model, stored=worker_pb2.KvBlocks(block_hashes=hashes))
        case BlocksRemoved(model, hashes):
            return worker_pb2.KvEvent(model=model, removed=worker_pb2.KvBlocks(block_hashes=hashes))
        case _:
            return worker_pb2.KvEvent(model=event.model, cleared=worker_pb2.KvCleared())
