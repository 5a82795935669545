"""Why a request is turned away, in words for its caller."""

from __future__ import annotations

from inferway.errors import ApiError, Reason

from .messages import AllBut, Request
from .model import Model
from .quarantine import PromptKey, Quarantine


def impossible(request: Request, model: Model, *, now: float) -> ApiError | None:
    """The error of a request that no worker could take even if it were idle."""
    excluded = request.excluded
    if isinstance(excluded, AllBut):
        # One that has not been met yet may come.
        is_refused = excluded.worker_id in excluded.also
    else:
        is_refused = bool(excluded and model.workers) and all(w.worker_id in excluded for w in model.workers)
    if is_refused:
        message = "every worker that may have this request has refused or failed it, or is excluded by its caller"
        return ApiError(Reason.OVERLOADED, message, retry_after_s=model.retry_after_s(request.priority, now=now))
    if request.num_choices == 1:
        return None
    ready = [worker for worker in model.workers if worker.is_ready]
    if not ready or any(worker.could_ever_take(request.num_choices) for worker in ready):
        return None
    most = max(worker.info.max_running + worker.info.max_waiting for worker in ready)
    message = f"a worker of this model takes at most {most} choices at once, got {request.num_choices}"
    return ApiError(Reason.UNSUPPORTED_VALUE, message, "n")


def in_quarantine(request: Request, quarantine: Quarantine, *, now: float) -> ApiError | None:
    """The error of a request whose prompt is held."""
    if not request.prompt_hash or not quarantine.holds_any(now=now):
        return None
    held_s = quarantine.held_for_s(PromptKey(request.model, request.prompt_hash), now=now)
    if not held_s:
        return None
    message = f"two workers were lost while they ran this prompt; it is not tried again for {held_s:.0f} s"
    return ApiError(Reason.WORKER_FAILED, message, retry_after_s=held_s)


def queue_full(request: Request, model: Model, limit: str, rival: Request | None, *, now: float) -> ApiError:
    """For the request that must leave, the newcomer or one whose place the newcomer, its `rival`, takes."""
    message = f"the queue of this model is full: {limit}"
    if rival is not None:
        kind = "of higher priority" if rival.priority > request.priority else "of a tenant with less waiting"
        message += f"; a request {kind} took this one's place"
    message += _place(model, model.queue.num_from(request.priority), now)
    return ApiError(Reason.OVERLOADED, message, retry_after_s=model.retry_after_s(request.priority, now=now))


def waited_in_vain(request: Request, position: int, model: Model, *, now: float) -> ApiError:
    """For a request whose time in the queue is over; `position` is the place that it left."""
    waited = f"after {now - request.queued_at:.1f} s in the queue"
    retry_after_s = model.retry_after_s(request.priority, now=now)
    if not model.is_ready():
        return ApiError(Reason.MODEL_NOT_READY, f"no worker was ready {waited}", retry_after_s=retry_after_s)
    message = f"no worker had room {waited}{_place(model, position, now)}"
    return ApiError(Reason.OVERLOADED, message, retry_after_s=retry_after_s)


def _place(model: Model, position: int, now: float) -> str:
    text = f", with about {position} {'request' if position == 1 else 'requests'} before it"
    wait_s = model.wait_s(position, now=now)
    return text if wait_s is None else f"{text} ({wait_s:.0f} s at the present rate)"
