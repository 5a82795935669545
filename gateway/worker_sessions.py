"""Sessions to workers: one long-lived stream each, over which all requests of this process travel.

A session owns its worker's description and the choices that run on it. Deltas are handed to their choice from the
read loop itself: no task is woken and nothing is queued on the way of a token. Protobuf ends here and in
worker_messages.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import grpc

from inferway import grpc_util, logs
from inferway.api.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from inferway.errors import ApiError, Reason
from inferway.lifecycle import end_if_cancelled

from .core.logprobs import ScoredToken
from .core.sse import FinishReason, Usage
from .worker_messages import (
    EmbedSpec,
    ModelDescription,
    Orphan,
    RequestSpec,
    embed_request,
    fill_generate,
    model_from_proto,
    orphan_from_proto,
    scores_from_proto,
    usage_from_proto,
)

log = logging.getLogger(__name__)

_SessionCall = grpc.aio.StreamStreamCall[worker_pb2.SessionRequest, worker_pb2.StepBatch]

_RECONNECT_S = (0.1, 1.0)
_DESCRIBE_TIMEOUT_S = 10.0
_TOKENIZER_TIMEOUT_S = 60.0
# Prompt tokens after which a message is closed and the next one begun: at most 5 bytes each, so that even two
# of the longest prompts stay far below the message limit.
_TOKENS_A_MESSAGE = 1 << 20
# A worker that has not described itself this long after it was named is not counted on.
_STRANGER_S = 30.0
# A message may hold thousands, at some 20 us each; probes, new requests and other workers' tokens come in between.
_DELTAS_A_TURN = 128
_FINISH: dict[int, FinishReason] = {
    types_pb2.FINISH_REASON_STOP: "stop",
    types_pb2.FINISH_REASON_LENGTH: "length",
}


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
        # In monotonic seconds.
        self.named_at = time.monotonic()
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
                    fill_generate(message, spec)
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

    def abort(self, key: int, counted: Counted | None = None, *, reason: Reason | None = None) -> None:
        """Stop a choice; its listener hears nothing more. Unknown keys are ignored. `reason` None: its caller has left.

        `counted` is called once: with the final count when the worker tells it, or with None when the session breaks
        or does not know the key (any more). It must not raise.
        """
        if self._listeners.pop(key, None) is not None and self.connected:
            self._outbox[-1].aborts.append(key)
            if reason is not None:
                self._outbox[-1].abort_reasons[key] = reason.label
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
        request = embed_request(spec, lease_id)
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
                end_if_cancelled()
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
        self.models = {model.name: model_from_proto(model) for model in described.models}
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
                        listener.on_scores(scores_from_proto(delta))
                    if delta.finish_reason or delta.HasField("error"):
                        del listeners[delta.key]
                        _finish(listener, delta, now)
                    elif delta.HasField("usage"):
                        listener.on_first(usage_from_proto(delta.usage))
                        listener.on_text(delta.text, delta.completion_tokens, now)
                    else:
                        listener.on_text(delta.text, delta.completion_tokens, now)
                except Exception:
                    # A fault of ours in one request must not end the streams of all others.
                    log.exception("delta_failed")
                    self.abort(delta.key, reason=Reason.INTERNAL_ERROR)
                    listener.on_error(ApiError(Reason.INTERNAL_ERROR, "An internal error occurred."))

    def _count(self, delta: worker_pb2.Delta) -> None:
        """The last delta of a choice that was aborted, or that ended before the abort came."""
        if (counted := self._counted.pop(delta.key, None)) is not None:
            counted(usage_from_proto(delta.usage))

    def _take_orphans(self, orphans: Sequence[worker_pb2.Orphan]) -> None:
        if orphans and self._on_orphans is not None:
            try:
                self._on_orphans(self, [orphan_from_proto(orphan, self._instance_id) for orphan in orphans])
            except Exception:
                log.exception("orphans_failed")

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
        usage = usage_from_proto(delta.usage) if delta.HasField("usage") else None
        if delta.text:
            if usage is not None:
                # Its first text may come with its end; what a caller has seen is not begun anew elsewhere.
                listener.on_first(usage)
            listener.on_text(delta.text, delta.completion_tokens, now)
        listener.on_error(grpc_util.error_from_proto(delta.error), usage)
    elif delta.finish_reason in _FINISH:
        listener.on_finish(delta.text, _FINISH[delta.finish_reason], usage_from_proto(delta.usage), now)
    else:
        error = ApiError(Reason.WORKER_FAILED, "The worker gave up on this request.")
        listener.on_error(error, usage_from_proto(delta.usage))


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

    def meets(self) -> bool:
        """Whether a worker that was named lately has yet to say what it serves."""
        since = time.monotonic() - _STRANGER_S
        strangers = (session for session in self._sessions.values() if not session.worker_id)
        return not self._wanted <= self._sessions.keys() or any(session.named_at > since for session in strangers)

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
