"""Sessions to workers: one long-lived stream each, over which all requests of this process travel.

A session owns its worker's description and the choices that run on it. Deltas are handed to their choice from the
read loop itself: no task is woken and nothing is queued on the way of a token. Protobuf ends in this module.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from inferway import grpc_util, logs
from inferway.api.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from inferway.errors import ApiError, Reason
from inferway.sampling import RANGES

from .core.constraints import Constraint, Kind
from .core.generation_fields import Sampling
from .core.logprobs import ScoredToken
from .core.sse import FinishReason, Usage
from .core.tools import HARMONY

log = logging.getLogger(__name__)

_SessionCall = grpc.aio.StreamStreamCall[worker_pb2.SessionRequest, worker_pb2.StepBatch]

_RECONNECT_S = (0.1, 1.0)
_DESCRIBE_TIMEOUT_S = 10.0
_TOKENIZER_TIMEOUT_S = 60.0
# Prompt tokens after which a message is closed and the next one begun: at most 5 bytes each, so that even two
# of the longest prompts stay far below the message limit.
_TOKENS_A_MESSAGE = 1 << 20
# A message may hold thousands, at some 20 us each; probes, new requests and other workers' tokens come in between.
_DELTAS_A_TURN = 128
# Some 0.3 ms.
_IDS_A_PIECE = 8192

_CONSTRAINTS: dict[Kind, worker_pb2.ConstraintKind] = {
    "structural_tag": worker_pb2.CONSTRAINT_KIND_STRUCTURAL_TAG,
    "json_schema": worker_pb2.CONSTRAINT_KIND_JSON_SCHEMA,
    "regex": worker_pb2.CONSTRAINT_KIND_REGEX,
    "ebnf": worker_pb2.CONSTRAINT_KIND_EBNF,
}
_FINISH: dict[int, FinishReason] = {
    types_pb2.FINISH_REASON_STOP: "stop",
    types_pb2.FINISH_REASON_LENGTH: "length",
}


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """One model as a worker describes it (worker.proto, Model)."""

    name: str
    aliases: Sequence[str]
    context_length: int
    tokenizer_digest: str
    chat_template: str
    bos_token: str
    eos_token: str
    block_size: int
    vocab_size: int
    created: int = field(compare=False)
    tool_parser: str
    reasoning_parser: str
    structural_marks: Sequence[str]
    capabilities: frozenset[str]
    # Name of the model that this is an adapter of; empty: it is a model itself.
    parent: str = ""

    @property
    def call_format(self) -> str:
        """The format in which the model writes calls; harmony is one of thoughts and calls together."""
        return HARMONY if self.reasoning_parser == HARMONY else self.tool_parser


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What to generate (worker.proto, Generate), the same for every choice of a request."""

    request_id: str
    model: str
    prompt_token_ids: Sequence[int]
    sampling: Sampling
    priority: int
    cache_salt: bytes
    lease_id: int
    traceparent: str
    logprobs: int | None
    prompt_logprobs: bool
    # Of a long prompt: `prompt_wire` of its ids, made off the loop.
    prompt_wire: bytes = b""
    constraint: Constraint | None = None
    # What another gateway needs to know to settle it, at most 2 KiB; empty: nobody settles it.
    settlement: bytes = b""


@dataclass(frozen=True, slots=True)
class Orphan:
    """What a worker has produced for a gateway that broke off before it settled it (worker.proto, Orphan)."""

    orphan_id: int
    # Unique for ever, and the same however often and by whomever it is told.
    part: str
    settlement: bytes
    gateway_id: str
    usage: Usage
    age_ms: int
    outcome: str


@dataclass(frozen=True, slots=True)
class EmbedSpec:
    """What to embed (worker.proto, EmbedRequest), less its lease."""

    request_id: str
    model: str
    inputs: Sequence[Sequence[int]]
    dimensions: int | None
    priority: int
    traceparent: str


class ChoiceListener(Protocol):
    """Receives what one choice gains. Exactly one of on_finish, on_error (the worker
    says so) and on_lost (the session broke) comes, last."""

    # Whether on_scores is called, always before the text that the scores belong to.
    wants_scores: bool

    def on_scores(self, scores: Sequence[ScoredToken]) -> None: ...
    def on_text(self, text: str, completion_tokens: int, now: float) -> None: ...
    def on_first(self, usage: Usage) -> None: ...
    def on_finish(self, text: str, reason: FinishReason, usage: Usage, now: float) -> None: ...
    def on_error(self, error: ApiError, usage: Usage | None = None) -> None:
        """`usage` is the final count; None where there is none, as in a refusal."""

    def on_lost(self) -> None: ...


# Told the final count of a choice, all of it 0 where the worker had refused it, or None where the session broke first.
Counted = Callable[[Usage | None], None]
# Gets what workers offer; whoever takes it answers with `orphans_booked`.
OnOrphans = Callable[["WorkerSession", Sequence[Orphan]], None]


class WorkerSession:
    """The connection to one worker; `run` keeps it open until cancelled."""

    def __init__(
        self,
        address: str,
        gateway_id: str,
        token: grpc_util.InternalToken,
        on_change: Callable[[], None],
        on_orphans: OnOrphans | None = None,
    ) -> None:
        self.address = address
        self.worker_id = ""
        self._instance_id = ""
        self.models: Mapping[str, ModelDescription] = {}
        self.capacity = 0
        # Of `models`; the worker says when it has changed.
        self._models_version = 0
        self._models_changed = asyncio.Event()
        self.connected = False
        self._gateway_id = gateway_id
        self._token = token
        self._on_change = on_change
        self._on_orphans = on_orphans
        self._channel = grpc_util.channel(address)
        self._stub = worker_pb2_grpc.WorkerStub(self._channel)
        self._listeners: dict[int, ChoiceListener] = {}
        # Choices that are being aborted and whose count is of interest.
        self._counted: dict[int, Counted] = {}
        # Keys that wait for the next message, or for `tell_settled`.
        self._settled: list[int] = []
        self._next_key = 1
        # What goes out next; the last message is still being filled.
        self._outbox = [worker_pb2.SessionRequest()]
        self._outbox_tokens = 0
        self._outbox_filled = asyncio.Event()

    @property
    def choices_in_flight(self) -> int:
        return len(self._listeners) + len(self._counted)

    def generate(self, spec: RequestSpec, listeners: Sequence[ChoiceListener]) -> list[int]:
        """Send a request to the worker, a choice for each listener, and return the keys of the choices.

        The session must be connected. If it breaks, the listeners get on_lost.
        """
        assert self.connected
        first: worker_pb2.Generate | None = None
        keys = []
        for index, listener in enumerate(listeners):
            self._outbox_tokens += len(spec.prompt_token_ids)
            if self._outbox_tokens > _TOKENS_A_MESSAGE:
                self._outbox.append(worker_pb2.SessionRequest())
                self._outbox_tokens = len(spec.prompt_token_ids)
            message = self._outbox[-1].generates.add()
            if first is None:
                try:
                    _fill(message, spec)
                except BaseException:
                    del self._outbox[-1].generates[-1]
                    raise
                first = message
            else:
                message.CopyFrom(first)
            message.key, message.choice_index = self._next_key, index
            self._listeners[self._next_key] = listener
            keys.append(self._next_key)
            self._next_key += 1
        self._outbox_filled.set()
        return keys

    def abort(self, key: int, counted: Counted | None = None) -> None:
        """Stop a choice; its listener hears nothing more. Unknown keys are ignored.

        `counted` is called once: with the final count when the worker tells it, or with None when the session breaks
        or does not know the key (any more). It must not raise.
        """
        if self._listeners.pop(key, None) is not None and self.connected:
            self._outbox[-1].aborts.append(key)
            self._outbox_filled.set()
            if counted is not None:
                self._counted[key] = counted
        elif counted is not None:
            counted(None)

    def settled(self, keys: Iterable[int]) -> None:
        """These choices are booked, or never will be; the worker hears of it soon, or need not where it was lost."""
        if self.connected:
            self._settled += keys

    def orphans_booked(self, orphan_ids: Iterable[int]) -> None:
        """These orphans are booked, or never will be, wherever they were told."""
        if self.connected:
            self._outbox[-1].orphans_booked.extend(orphan_ids)
            self._outbox_filled.set()

    def tell_settled(self) -> None:
        """Have the worker hear now of what is settled, also if there is nothing else to say."""
        if self._settled:
            self._outbox_filled.set()

    async def embed(self, spec: EmbedSpec, lease_id: int, *, timeout_s: float) -> list[Sequence[float]]:
        """The vectors of the inputs, in order. Raises ApiError as the worker says, and grpc.RpcError."""
        request = worker_pb2.EmbedRequest(
            request_id=spec.request_id,
            model=spec.model,
            inputs=[worker_pb2.TokenIds(ids=ids) for ids in spec.inputs],
            dimensions=spec.dimensions or 0,
            priority=spec.priority,
            lease_id=lease_id,
            traceparent=spec.traceparent,
        )
        response = await self._stub.Embed(request, metadata=self._token.metadata(), timeout=max(0.0, timeout_s))
        if response.HasField("error"):
            raise grpc_util.error_from_proto(response.error)
        return [one.values for one in response.embeddings]

    async def get_tokenizer(self, digest: str) -> bytes:
        """The tokenizer.json with that digest. Raises grpc.RpcError."""
        request = worker_pb2.GetTokenizerRequest(digest=digest)
        call = self._stub.GetTokenizer(request, metadata=self._token.metadata(), timeout=_TOKENIZER_TIMEOUT_S)
        return b"".join([piece.data async for piece in call])

    async def run(self) -> None:
        """Describe, open the session, read until it breaks, and again."""
        try:
            while True:
                try:
                    await self._describe()
                    await self._converse()
                except* (grpc.RpcError, asyncio.InvalidStateError) as group:
                    reason = repr(group.exceptions[0])
                    logs.event(log, "worker_stream_broke", address=self.address, error=reason, level=logging.DEBUG)
                finally:
                    self._disconnected()
                await asyncio.sleep(random.uniform(*_RECONNECT_S))
        finally:
            await self._channel.close(None)

    async def _describe(self) -> None:
        # Waiting for the connection lets a worker that comes up be met by the channel's own retry, without adding ours.
        described = await self._stub.Describe(
            worker_pb2.DescribeRequest(),
            metadata=self._token.metadata(),
            timeout=_DESCRIBE_TIMEOUT_S,
            wait_for_ready=True,
        )
        self.worker_id, self._instance_id = described.worker_id, described.instance_id
        self.capacity = described.max_running + described.max_waiting
        self.models = {model.name: _model(model) for model in described.models}
        self._models_version = described.models_version

    async def _converse(self) -> None:
        call = self._stub.Session(metadata=self._token.metadata())
        self._outbox = [worker_pb2.SessionRequest(gateway_id=self._gateway_id)]
        self._outbox_tokens = 0
        self._outbox_filled.set()
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self._write(call))
            follower = group.create_task(self._follow_models())
            try:
                # The worker's initial metadata says that it has taken the session.
                await grpc_util.opened(call)
                self.connected = True
                logs.event(log, "worker_session_open", worker_id=self.worker_id, address=self.address)
                self._on_change()
                await self._read(call)
            finally:
                writer.cancel()
                follower.cancel()
                call.cancel()

    async def _write(self, call: _SessionCall) -> None:
        """Send what has gathered since the last write, as one message where it fits."""
        while True:
            await self._outbox_filled.wait()
            self._outbox_filled.clear()
            messages, self._outbox, self._outbox_tokens = self._outbox, [worker_pb2.SessionRequest()], 0
            messages[-1].settled.extend(self._settled)
            self._settled.clear()
            for message in messages:
                await call.write(message)

    async def _follow_models(self) -> None:
        """Adapters come and go while the session lasts."""
        while True:
            await self._models_changed.wait()
            self._models_changed.clear()
            try:
                await self._describe()
            except grpc.RpcError as error:
                logs.event(log, "describe_failed", address=self.address, error=repr(error), level=logging.WARNING)
                await asyncio.sleep(random.uniform(*_RECONNECT_S))
                self._models_changed.set()
            else:
                logs.event(log, "worker_models_changed", worker_id=self.worker_id, models=list(self.models))
                self._on_change()

    async def _read(self, call: _SessionCall) -> None:
        listeners = self._listeners
        while isinstance(batch := await call.read(), worker_pb2.StepBatch):
            now = time.monotonic()
            if batch.models_version not in (0, self._models_version):
                self._models_changed.set()
            deltas = batch.deltas
            if not deltas:
                self._take_orphans(batch.orphans)
            for index, delta in enumerate(deltas, 1):
                if index % _DELTAS_A_TURN == 0:
                    await asyncio.sleep(0)
                    now = time.monotonic()
                listener = listeners.get(delta.key)
                if listener is None:
                    if self._counted and (delta.finish_reason or delta.HasField("error")):
                        self._count(delta)
                    continue
                try:
                    if listener.wants_scores:
                        listener.on_scores(_scores(delta))
                    if delta.finish_reason or delta.HasField("error"):
                        del listeners[delta.key]
                        _finish(listener, delta, now)
                    elif delta.HasField("usage"):
                        listener.on_first(_usage(delta.usage))
                        listener.on_text(delta.text, delta.completion_tokens, now)
                    else:
                        listener.on_text(delta.text, delta.completion_tokens, now)
                except Exception:
                    # A fault of ours in one request must not end the streams of all others.
                    log.exception("delta_failed")
                    self.abort(delta.key)
                    listener.on_error(ApiError(Reason.INTERNAL_ERROR, "An internal error occurred."))

    def _count(self, delta: worker_pb2.Delta) -> None:
        """The last delta of a choice that was aborted, or that ended before the abort came."""
        if (counted := self._counted.pop(delta.key, None)) is not None:
            counted(_usage(delta.usage))

    def _take_orphans(self, orphans: Sequence[worker_pb2.Orphan]) -> None:
        if orphans and self._on_orphans is not None:
            try:
                self._on_orphans(self, [self._orphan(orphan) for orphan in orphans])
            except Exception:
                log.exception("orphans_failed")

    def _orphan(self, orphan: worker_pb2.Orphan) -> Orphan:
        return Orphan(
            orphan_id=orphan.orphan_id,
            part=f"{self._instance_id}.{orphan.orphan_id}",
            settlement=orphan.settlement,
            gateway_id=orphan.gateway_id,
            usage=_usage(orphan.usage),
            age_ms=orphan.age_ms,
            outcome=orphan.outcome,
        )

    def _disconnected(self) -> None:
        was_connected, self.connected = self.connected, False
        lost, self._listeners = self._listeners, {}
        uncounted, self._counted = self._counted, {}
        self._settled.clear()
        for listener in lost.values():
            listener.on_lost()
        for counted in uncounted.values():
            counted(None)
        if was_connected:
            logs.event(log, "worker_session_lost", worker_id=self.worker_id, choices=len(lost), level=logging.WARNING)
            self._on_change()


def _finish(listener: ChoiceListener, delta: worker_pb2.Delta, now: float) -> None:
    if delta.HasField("error"):
        usage = _usage(delta.usage) if delta.HasField("usage") else None
        if delta.text:
            if usage is not None:
                # Its first text may come with its end; what a caller has seen is not begun anew elsewhere.
                listener.on_first(usage)
            listener.on_text(delta.text, delta.completion_tokens, now)
        listener.on_error(grpc_util.error_from_proto(delta.error), usage)
    elif delta.finish_reason in _FINISH:
        listener.on_finish(delta.text, _FINISH[delta.finish_reason], _usage(delta.usage), now)
    else:
        error = ApiError(Reason.WORKER_FAILED, "The worker gave up on this request.")
        listener.on_error(error, _usage(delta.usage))


def _scores(delta: worker_pb2.Delta) -> list[ScoredToken]:
    """The prompt's first; they come before everything else."""
    return [
        ScoredToken(
            one.token,
            one.logprob if one.HasField("logprob") else None,
            [(other.token, other.logprob) for other in one.top],
        )
        for one in (*delta.prompt_logprobs, *delta.logprobs)
    ]


def _usage(usage: types_pb2.Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)


def _model(model: worker_pb2.Model) -> ModelDescription:
    return ModelDescription(
        name=model.name,
        aliases=tuple(model.aliases),
        context_length=model.context_length,
        tokenizer_digest=model.tokenizer_digest,
        chat_template=model.chat_template,
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        block_size=model.block_size,
        vocab_size=model.vocab_size,
        created=model.created,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
        structural_marks=tuple(model.structural_marks),
        capabilities=frozenset(model.capabilities),
        parent=model.parent,
    )


_SCALARS = (*RANGES, "ignore_eos")


def prompt_wire(token_ids: Sequence[int]) -> bytes:
    """Token ids as they stand in a request to a worker, where they go in at 7 ns each instead of 25.

    Takes 40 ns each, in pieces: made in a thread, it lets others have their turn.
    """
    message = worker_pb2.Generate()
    for start in range(0, len(token_ids), _IDS_A_PIECE):
        message.prompt_token_ids.extend(token_ids[start : start + _IDS_A_PIECE])
    return message.SerializeToString()


def _fill(message: worker_pb2.Generate, spec: RequestSpec) -> None:
    """All but key and choice_index."""
    message.request_id, message.model = spec.request_id, spec.model
    if spec.prompt_wire:
        message.MergeFromString(spec.prompt_wire)
    else:
        message.prompt_token_ids.extend(spec.prompt_token_ids)
    message.priority, message.cache_salt = spec.priority, spec.cache_salt
    message.lease_id, message.traceparent = spec.lease_id, spec.traceparent
    if spec.logprobs is not None:
        message.logprobs.top, message.logprobs.prompt = spec.logprobs, spec.prompt_logprobs
    if spec.settlement:
        message.settlement = spec.settlement
    if spec.constraint is not None:
        message.constraint.kind = _CONSTRAINTS[spec.constraint.kind]
        message.constraint.text = spec.constraint.text
    sampling = message.sampling
    for name in _SCALARS:
        value = getattr(spec.sampling, name)
        if value is not None:
            setattr(sampling, name, value)
    sampling.stop.extend(spec.sampling.stop)
    for token_id, bias in spec.sampling.logit_bias.items():
        sampling.logit_bias[token_id] = bias


class WorkerSessions:
    """A session for each known worker address. Owned by one task: `run`."""

    def __init__(
        self,
        gateway_id: str,
        token: grpc_util.InternalToken,
        on_change: Callable[[], None],
        on_orphans: OnOrphans | None = None,
    ) -> None:
        """`on_orphans` None: what other gateways left is not booked here; workers offer it elsewhere after a while."""
        self._gateway_id = gateway_id
        self._token = token
        self._on_change = on_change
        self._on_orphans = on_orphans
        self._sessions: dict[str, WorkerSession] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: set[str] = set()
        self._wanted_changed = asyncio.Event()

    def want(self, addresses: set[str]) -> None:
        """The workers that exist now. Sessions to others are closed once nothing runs on them."""
        if addresses != self._wanted:
            self._wanted = set(addresses)
            self._wanted_changed.set()

    def by_address(self, address: str) -> WorkerSession | None:
        session = self._sessions.get(address)
        return session if session is not None and session.connected else None

    def connected(self) -> list[WorkerSession]:
        return [session for session in self._sessions.values() if session.connected]

    def worker_ids(self, model: str | None = None) -> set[str]:
        """Every worker that has described itself, connected or not; those that serve `model` if one is given."""
        known = (session for session in self._sessions.values() if session.worker_id)
        return {session.worker_id for session in known if model is None or model in session.models}

    def serving(self, model: str) -> list[WorkerSession]:
        """Connected sessions to workers that serve `model`."""
        return [session for session in self._sessions.values() if session.connected and model in session.models]

    def tell_settled(self) -> None:
        """Have every worker hear now of what is settled; without this it does within a second or so."""
        for session in self._sessions.values():
            session.tell_settled()

    async def run(self) -> None:
        """Open and close sessions as `want` says, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    for address in self._wanted - self._sessions.keys():
                        session = WorkerSession(
                            address, self._gateway_id, self._token, self._on_change, self._on_orphans
                        )
                        self._sessions[address] = session
                        self._tasks[address] = group.create_task(session.run())
                    for address in self._sessions.keys() - self._wanted:
                        if not self._sessions[address].choices_in_flight:
                            del self._sessions[address]
                            self._tasks.pop(address).cancel()
                    try:
                        async with asyncio.timeout(1.0):  # a leaving worker may have run dry meanwhile
                            await self._wanted_changed.wait()
                    except TimeoutError:
                        pass
                    self._wanted_changed.clear()
                    self.tell_settled()
        finally:
            self._sessions.clear()
