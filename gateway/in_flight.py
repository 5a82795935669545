"""The inference requests that one process is answering: what is known of each, and how one is ended from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from inferway.errors import ApiError, Reason

from .core.sse import Usage
from .core.tenants import Caller
from .generation import Timing

# sending: all there is to say has been made, and the client has not read it yet.
Stage = Literal["receiving", "preparing", "waiting", "prefilling", "generating", "sending"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is that the mesh works on."""

    timing: Timing
    worker_id: str
    usage: Usage | None = None


class Request(Protocol):
    """What an exchange tells while it is answered."""

    request_id: str
    # Monotonic seconds.
    received: float
    caller: Caller
    # Empty until the body has been read.
    model: str
    asked_model: str
    stream: bool
    # None until the mesh works on it.
    progress: Callable[[], Progress] | None
    # Ends the work of the mesh with an error, which the handler then tells; None: its task is cancelled instead.
    stop: Callable[[ApiError], None] | None
    # The handler's; None once everything has been made that it will say.
    task: asyncio.Task[object] | None
    # Why its task has been cancelled.
    killed: ApiError | None


@dataclass(frozen=True, slots=True)
class Flight:
    """One request as operators see it."""

    request_id: str
    tenant_id: str
    key_id: str
    model: str
    stream: bool
    stage: Stage
    age_ms: int
    worker_id: str
    # Of the present run; 0 while not known.
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Requests by what is known of them, a model by either of its names; an empty text selects any."""

    request_id: str = ""
    tenant_id: str = ""
    key_id: str = ""
    model: str = ""

    def takes(self, request: Request) -> bool:
        return (
            self.request_id in ("", request.request_id)
            and self.tenant_id in ("", request.caller.tenant_id)
            and self.key_id in ("", request.caller.key_id)
            and self.model in ("", request.model, request.asked_model)
        )


class InFlight:
    """Adding and removing are all that a request pays."""

    def __init__(self) -> None:
        # By identity: several may have one request id.
        self._requests: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        self._requests[id(request)] = request

    def remove(self, request: Request) -> None:
        """Does nothing for one that was never added."""
        self._requests.pop(id(request), None)

    def flights(self, selection: Selection) -> list[Flight]:
        """Oldest first."""
        now = time.monotonic()
        selected = sorted(self._selected(selection), key=lambda request: request.received)
        return [_flight(request, now) for request in selected]

    def kill(self, selection: Selection) -> int:
        """End what is selected by an operator's word; see `end`."""
        return self.end(selection, Reason.KILLED, "This request was ended by an operator.")

    def end(self, selection: Selection, reason: Reason, message: str) -> int:
        """End what is selected, each with an error of its own; returns how many that were.

        Whoever is only waiting for the client to read what has been made is left alone.
        """
        killed = 0
        for request in list(self._selected(selection)):
            if request.task is None:
                continue
            killed += 1
            error = ApiError(reason, message)
            if request.stop is not None:
                request.stop(error)
            elif request.killed is None:
                request.killed = error
                request.task.cancel()
        return killed

    def _selected(self, selection: Selection) -> Iterator[Request]:
        return (request for request in self._requests.values() if selection.takes(request))


def _flight(request: Request, now: float) -> Flight:
    progress = request.progress() if request.progress is not None else None
    usage = progress.usage if progress is not None else None
    return Flight(
        request_id=request.request_id,
        tenant_id=request.caller.tenant_id,
        key_id=request.caller.key_id,
        model=request.model[:200],
        stream=request.stream,
        stage=_stage(request, progress),
        age_ms=round((now - request.received) * 1000),
        worker_id=progress.worker_id if progress is not None else "",
        prompt_tokens=usage.prompt_tokens if usage is not None else 0,
        completion_tokens=usage.completion_tokens if usage is not None else 0,
    )


def _stage(request: Request, progress: Progress | None) -> Stage:
    if request.task is None:
        return "sending"
    if progress is None:
        return "preparing" if request.model else "receiving"
    if progress.timing.first_token:
        return "generating"
    return "prefilling" if progress.timing.dispatched else "waiting"
