"""A Submit of the wire, checked."""

from __future__ import annotations

from array import array

from inferway.api.v1 import router_pb2
from inferway.errors import invalid

from .core.messages import PRIORITIES, AllBut, Request, Ticket

_MAX_PRIORITY = PRIORITIES - 1
MAX_NAME_CHARS = 256
_MAX_CHOICES = 128
_MAX_EXCLUDED = 64
_MAX_QUEUE_TIMEOUT_MS = 3_600_000
_LEAST_WEIGHT, _MAX_WEIGHT = 0.001, 1_000.0


def request_from_proto(submit: router_pb2.Submit, owner: int, *, now: float) -> Request:
    """Raises ApiError (INVALID_REQUEST) naming the field, its limit and the observed value."""
    excluded_workers = frozenset(submit.excluded_workers)
    pinned_worker = submit.pinned_worker
    request = Request(
        ticket=Ticket(owner, submit.ticket),
        request_id=submit.request_id,
        model=submit.model,
        tenant_id=submit.tenant_id,
        priority=submit.priority,
        prompt_tokens=submit.prompt_tokens,
        expected_tokens=submit.expected_tokens,
        block_hashes=array("Q", submit.block_hashes[:]),
        queued_at=now,
        deadline=now + submit.queue_timeout_ms / 1000,
        excluded=AllBut(pinned_worker, excluded_workers) if pinned_worker else excluded_workers,
        num_choices=submit.num_choices,
        tenant_weight=submit.tenant_weight or 1.0,
        prompt_hash=submit.prompt_hash,
        session=submit.session,
        traceparent=submit.traceparent,
    )
    _check_range("priority", request.priority, 0, _MAX_PRIORITY)
    _check_range("queue_timeout_ms", submit.queue_timeout_ms, 1, _MAX_QUEUE_TIMEOUT_MS)
    _check_range("num_choices", request.num_choices, 1, _MAX_CHOICES)
    _check_range("tenant_weight", request.tenant_weight, _LEAST_WEIGHT, _MAX_WEIGHT)
    _check_least_one("prompt_tokens", request.prompt_tokens)
    _check_least_one("expected_tokens", request.expected_tokens)
    _check_name("model", request.model)
    _check_name("request_id", request.request_id)
    if len(request.tenant_id) > MAX_NAME_CHARS:
        length = len(request.tenant_id)
        raise invalid("tenant_id", f"tenant_id must have at most {MAX_NAME_CHARS} characters, got {length}")
    if len(request.block_hashes) > request.prompt_tokens:
        blocks, tokens = len(request.block_hashes), request.prompt_tokens
        raise invalid("block_hashes", f"block_hashes must be at most prompt_tokens ({tokens}), got {blocks}")
    excluded = len(submit.excluded_workers)
    if excluded > _MAX_EXCLUDED:
        raise invalid("excluded_workers", f"excluded_workers must be at most {_MAX_EXCLUDED}, got {excluded}")
    return request


def _check_range(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise invalid(field, f"{field} must be from {least} to {most}, got {value}")


def _check_least_one(field: str, count: int) -> None:
    if count < 1:
        raise invalid(field, f"{field} must be at least 1, got {count}")


def _check_name(field: str, name: str) -> None:
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        raise invalid(field, f"{field} must have 1 to {MAX_NAME_CHARS} characters, got {len(name)}")
