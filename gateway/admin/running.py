"""Requests in flight on all gateways: every process is asked over the channel and answers into a list in Redis.

The process that asks does its own part directly, so that it works for itself also while Redis is away. A process that
does not answer in time is counted as silent: it may be gone, or its subscription may be broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec
from redis.asyncio.cluster import RedisCluster

from inferway import logs
from inferway.lifecycle import end_if_cancelled

from ..directory.documents import AWAY_ERRORS, Client
from ..in_flight import Flight, InFlight, Selection

log = logging.getLogger("gateway.admin")

# What a message on the channel begins with that is for this module.
WORD = "ask"
_PATIENCE_S = 3.0
_POLL_S = 0.02
_KEPT_S = 10
# Requests that one process tells of.
_MOST = 1_000
# Questions that wait to be answered; beyond, this process counts as silent.
_MOST_WAITING = 1_000


class _Ask(msgspec.Struct, frozen=True):
    id: str
    do: Literal["list", "kill"]
    selection: Selection
    # Who asks, and has done its part.
    gateway_id: str


class _Answer(msgspec.Struct, frozen=True):
    gateway_id: str
    flights: Sequence[Flight] = ()
    left_out: int = 0
    killed: int = 0


class Found(NamedTuple):
    # With the process that answers each; the oldest first.
    flights: Sequence[tuple[str, Flight]]
    left_out: int
    killed: int
    gateways: int
    # None: Redis does not answer, so nobody else could be asked.
    silent: int | None


@dataclass(slots=True)
class Running:
    """`redis` None: there is only this process. Else `run` answers the others until it is cancelled."""

    gateway_id: str
    in_flight: InFlight
    redis: Client | None
    prefix: str
    channel: str
    # How many gateways there are, where that is known: one whose subscription is broken is not among the receivers.
    living: Callable[[], int | None] = lambda: None
    _waiting: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(_MOST_WAITING))

    async def list(self, selection: Selection) -> Found:
        return await self._everywhere("list", selection)

    async def kill(self, selection: Selection) -> Found:
        return await self._everywhere("kill", selection)

    def on_message(self, message: str) -> None:
        """What came on the channel behind WORD."""
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(message)

    async def run(self) -> None:
        while True:
            end_if_cancelled()
            await self._respond(await self._waiting.get())

    async def _respond(self, message: str) -> None:
        try:
            asked = msgspec.json.decode(message, type=_Ask)
        except msgspec.DecodeError:
            logs.event(log, "ask_not_understood", level=logging.WARNING)
            return
        is_own = asked.gateway_id == self.gateway_id
        answer = _Answer(self.gateway_id) if is_own else self._here(asked.do, asked.selection)
        redis: Any = self.redis
        if redis is None:
            return
        try:
            await redis.rpush(self._answers(asked.id), msgspec.json.encode(answer))
            await redis.expire(self._answers(asked.id), _KEPT_S)
        except AWAY_ERRORS as error:
            logs.event(log, "ask_not_answered", level=logging.WARNING, error=str(error))

    def _here(self, do: Literal["list", "kill"], selection: Selection) -> _Answer:
        if do == "kill":
            return _Answer(self.gateway_id, killed=self.in_flight.kill(selection))
        flights = self.in_flight.flights(selection)
        return _Answer(self.gateway_id, flights[:_MOST], max(0, len(flights) - _MOST))

    async def _everywhere(self, do: Literal["list", "kill"], selection: Selection) -> Found:
        own = self._here(do, selection)
        asked = _Ask(secrets.token_hex(8), do, selection, self.gateway_id)
        others: Sequence[_Answer] = ()
        silent: int | None = 0
        if self.redis is not None:
            try:
                others, silent = await self._others(asked)
            except AWAY_ERRORS as error:
                logs.event(log, "others_not_asked", level=logging.WARNING, error=str(error))
                silent = None
        answers = [own, *others]
        flights = [(answer.gateway_id, flight) for answer in answers for flight in answer.flights]
        flights.sort(key=lambda one: -one[1].age_ms)
        return Found(
            flights,
            sum(answer.left_out for answer in answers),
            sum(answer.killed for answer in answers),
            len(answers),
            silent,
        )

    async def _others(self, asked: _Ask) -> tuple[Sequence[_Answer], int]:
        """Their answers, and how many gave none. Raises what the client of Redis raises."""
        redis: Any = self.redis
        receivers = await redis.publish(self.channel, f"{WORD} {msgspec.json.encode(asked).decode()}")
        if isinstance(redis, RedisCluster):
            # The message reaches all, and the answer counts those of one node.
            counts = await redis.execute_command("PUBSUB NUMSUB", self.channel, target_nodes="all")
            receivers = sum(number for _, number in counts)
        receivers = max(receivers, self.living() or 0)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            given = await redis.lrange(self._answers(asked.id), 0, -1)
            if len(given) >= receivers or time.monotonic() >= deadline:
                break
            await asyncio.sleep(_POLL_S)
        answers = [msgspec.json.decode(text, type=_Answer) for text in given]
        others = [answer for answer in answers if answer.gateway_id != self.gateway_id]
        return others, max(0, receivers - len(answers))

    def _answers(self, ask_id: str) -> str:
        return f"{self.prefix}:dir:answers:{ask_id}"
