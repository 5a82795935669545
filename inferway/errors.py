"""The error table: every way a request can fail, with its projection on HTTP and on gRPC.

A request ends in exactly one outcome: "ok", or the name of one row of this table. docs/errors.md is generated
from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One line of the table. `code` None: the JSON body carries `"code": null`."""

    status: int
    type: str
    code: str | None
    grpc: str
    meaning: str


_INVALID = "invalid_request_error"
_SERVER = "server_error"


class Reason(Enum):
    """Stable names for programs: metric label, log field and `Error.reason` on the wire."""

    INVALID_REQUEST = Row(400, _INVALID, None, "INVALID_ARGUMENT", "a field has a wrong type or a value out of range")
    UNSUPPORTED_VALUE = Row(
        400, _INVALID, "unsupported_value", "INVALID_ARGUMENT", "a valid field that this model cannot honour"
    )
    CONTEXT_LENGTH_EXCEEDED = Row(
        400, _INVALID, "context_length_exceeded", "INVALID_ARGUMENT", "prompt and completion do not fit the model"
    )
    CONVERSATION_NOT_SUPPORTED = Row(
        400, _INVALID, "conversation_not_supported", "INVALID_ARGUMENT", "the chat template refuses the conversation"
    )
    INVALID_SCHEMA = Row(
        400, _INVALID, "invalid_schema", "INVALID_ARGUMENT", "what an answer must match is no valid schema or grammar"
    )
    INVALID_API_KEY = Row(401, _INVALID, "invalid_api_key", "UNAUTHENTICATED", "no key, or a wrong one")
    MODEL_NOT_ALLOWED = Row(403, "permission_error", "model_not_allowed", "PERMISSION_DENIED", "not with this key")
    PRIORITY_NOT_ALLOWED = Row(
        403, "permission_error", "priority_not_allowed", "PERMISSION_DENIED", "above the key's highest priority"
    )
    WORKER_CHOICE_NOT_ALLOWED = Row(
        403, "permission_error", "worker_choice_not_allowed", "PERMISSION_DENIED", "this key may not choose workers"
    )
    KILLED = Row(403, "permission_error", "request_killed", "ABORTED", "ended by an operator while it was answered")
    TENANT_BLOCKED = Row(
        403, "permission_error", "tenant_blocked", "PERMISSION_DENIED", "the operator has blocked the tenant"
    )
    MODEL_BLOCKED = Row(
        403, "permission_error", "model_blocked", "PERMISSION_DENIED", "the operator has blocked the model"
    )
    MODEL_NOT_FOUND = Row(404, _INVALID, "model_not_found", "NOT_FOUND", "no such model")
    UNKNOWN_URL = Row(404, _INVALID, "unknown_url", "NOT_FOUND", "no such path")
    NOT_FOUND = Row(404, _INVALID, "not_found", "NOT_FOUND", "admin API: no such tenant, key, block or request")
    METHOD_NOT_ALLOWED = Row(405, _INVALID, "method_not_allowed", "UNIMPLEMENTED", "the path takes other methods")
    REQUEST_TIMEOUT = Row(408, _INVALID, "request_timeout", "DEADLINE_EXCEEDED", "the body did not arrive in time")
    CONFLICT = Row(409, _INVALID, "conflict", "ALREADY_EXISTS", "admin API: it is there already, or has changed")
    READ_ONLY = Row(409, _INVALID, "read_only", "FAILED_PRECONDITION", "admin API: what is asked for is set elsewhere")
    PAYLOAD_TOO_LARGE = Row(413, _INVALID, "payload_too_large", "OUT_OF_RANGE", "the body is above the limit")
    UNSUPPORTED_MEDIA_TYPE = Row(415, _INVALID, "unsupported_media_type", "INVALID_ARGUMENT", "not JSON")
    SCHEMA_NOT_SUPPORTED = Row(
        422,
        _INVALID,
        "schema_not_supported",
        "FAILED_PRECONDITION",
        "a valid schema that the model's engine cannot enforce",
    )
    HEADERS_TOO_LARGE = Row(431, _INVALID, "headers_too_large", "INVALID_ARGUMENT", "the headers are above the limit")
    CLIENT_CLOSED_REQUEST = Row(499, _INVALID, "client_closed_request", "CANCELLED", "the client left")
    CLIENT_TOO_SLOW = Row(
        499, _INVALID, "client_too_slow", "CANCELLED", "the client did not read; its stream was cut at the buffer limit"
    )
    RATE_LIMITED = Row(
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        "RESOURCE_EXHAUSTED",
        "above a limit of tenant, key or model",
    )
    INSUFFICIENT_QUOTA = Row(
        429, "insufficient_quota", "insufficient_quota", "RESOURCE_EXHAUSTED", "the day's or month's budget is spent"
    )
    INTERNAL_ERROR = Row(500, _SERVER, "internal_error", "INTERNAL", "a fault of ours")
    WORKER_FAILED = Row(500, _SERVER, "worker_failed", "INTERNAL", "the worker was lost or failed on this request")
    OVERLOADED = Row(503, _SERVER, "overloaded", "UNAVAILABLE", "over capacity: queue full or queue timeout")
    MODEL_NOT_READY = Row(503, _SERVER, "model_not_ready", "UNAVAILABLE", "no worker is ready for the model")
    SHUTTING_DOWN = Row(503, _SERVER, "shutting_down", "UNAVAILABLE", "this process is going away")
    QUOTA_UNAVAILABLE = Row(
        503, _SERVER, "quota_unavailable", "UNAVAILABLE", "the store of quotas is away and the tenant is to wait for it"
    )
    AUTH_UNAVAILABLE = Row(
        503, _SERVER, "auth_unavailable", "UNAVAILABLE", "the store of keys is away and this key is not known here"
    )
    UPSTREAM_TIMEOUT = Row(504, _SERVER, "upstream_timeout", "DEADLINE_EXCEEDED", "the worker was silent too long")

    @property
    def label(self) -> str:
        """The snake_case name used on the wire, in metrics and in logs."""
        return self.name.lower()


OK = "ok"
OUTCOMES: tuple[str, ...] = (OK, *(reason.label for reason in Reason))
_BY_LABEL = {reason.label: reason for reason in Reason}


@dataclass(slots=True, eq=False)
class ApiError(Exception):
    """A failure with a row in the table and a sentence for the caller.

    `retry_after_s` goes into Retry-After (whole seconds, at least 1) and retry-after-ms.
    """

    reason: Reason
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    extra_headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.reason.label}: {self.message}"

    @property
    def status(self) -> int:
        return self.reason.value.status

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        row = self.reason.value
        return {"error": {"message": self.message, "type": row.type, "param": self.param, "code": row.code}}

    def headers(self) -> dict[str, str]:
        headers = dict(self.extra_headers)
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
            headers["retry-after-ms"] = str(max(1, round(self.retry_after_s * 1000)))
        if self.reason is Reason.INVALID_API_KEY:
            headers["WWW-Authenticate"] = "Bearer"
        if self.reason is Reason.SHUTTING_DOWN:
            headers["Connection"] = "close"
        return headers


def invalid(param: str | None, message: str) -> ApiError:
    """A 400 that names the field at fault."""
    return ApiError(Reason.INVALID_REQUEST, message, param)


def reason_from_label(label: str) -> Reason:
    """The row that a peer named; a name that this version does not know is an internal error."""
    return _BY_LABEL.get(label, Reason.INTERNAL_ERROR)
