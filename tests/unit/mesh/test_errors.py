"""The error table: its strings are a contract, and every row is explained."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import OK, OUTCOMES, ApiError, Reason, invalid, reason_from_label

ERRORS_PAGE = Path(__file__).parents[3] / "docs" / "errors.md"
INVALID, PERMISSION, SERVER = "invalid_request_error", "permission_error", "server_error"

# What callers have been promised; a change here is a change of the contract.
CONTRACT = {
    Reason.INVALID_REQUEST: (400, INVALID, None),
    Reason.UNSUPPORTED_VALUE: (400, INVALID, "unsupported_value"),
    Reason.CONTEXT_LENGTH_EXCEEDED: (400, INVALID, "context_length_exceeded"),
    Reason.CONVERSATION_NOT_SUPPORTED: (400, INVALID, "conversation_not_supported"),
    Reason.INVALID_SCHEMA: (400, INVALID, "invalid_schema"),
    Reason.SCHEMA_NOT_SUPPORTED: (422, INVALID, "schema_not_supported"),
    Reason.INVALID_API_KEY: (401, INVALID, "invalid_api_key"),
    Reason.MODEL_NOT_ALLOWED: (403, PERMISSION, "model_not_allowed"),
    Reason.PRIORITY_NOT_ALLOWED: (403, PERMISSION, "priority_not_allowed"),
    Reason.WORKER_CHOICE_NOT_ALLOWED: (403, PERMISSION, "worker_choice_not_allowed"),
    Reason.KILLED: (403, PERMISSION, "request_killed"),
    Reason.TENANT_BLOCKED: (403, PERMISSION, "tenant_blocked"),
    Reason.MODEL_BLOCKED: (403, PERMISSION, "model_blocked"),
    Reason.MODEL_NOT_FOUND: (404, INVALID, "model_not_found"),
    Reason.UNKNOWN_URL: (404, INVALID, "unknown_url"),
    Reason.NOT_FOUND: (404, INVALID, "not_found"),
    Reason.METHOD_NOT_ALLOWED: (405, INVALID, "method_not_allowed"),
    Reason.REQUEST_TIMEOUT: (408, INVALID, "request_timeout"),
    Reason.CONFLICT: (409, INVALID, "conflict"),
    Reason.READ_ONLY: (409, INVALID, "read_only"),
    Reason.PAYLOAD_TOO_LARGE: (413, INVALID, "payload_too_large"),
    Reason.UNSUPPORTED_MEDIA_TYPE: (415, INVALID, "unsupported_media_type"),
    Reason.HEADERS_TOO_LARGE: (431, INVALID, "headers_too_large"),
    Reason.CLIENT_CLOSED_REQUEST: (499, INVALID, "client_closed_request"),
    Reason.CLIENT_TOO_SLOW: (499, INVALID, "client_too_slow"),
    Reason.RATE_LIMITED: (429, "rate_limit_error", "rate_limit_exceeded"),
    Reason.INSUFFICIENT_QUOTA: (429, "insufficient_quota", "insufficient_quota"),
    Reason.INTERNAL_ERROR: (500, SERVER, "internal_error"),
    Reason.WORKER_FAILED: (500, SERVER, "worker_failed"),
    Reason.OVERLOADED: (503, SERVER, "overloaded"),
    Reason.MODEL_NOT_READY: (503, SERVER, "model_not_ready"),
    Reason.SHUTTING_DOWN: (503, SERVER, "shutting_down"),
    Reason.QUOTA_UNAVAILABLE: (503, SERVER, "quota_unavailable"),
    Reason.AUTH_UNAVAILABLE: (503, SERVER, "auth_unavailable"),
    Reason.UPSTREAM_TIMEOUT: (504, SERVER, "upstream_timeout"),
}


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.label)
def test_rows(reason: Reason) -> None:
    """Status, type and code of each row are what was promised, and its gRPC status exists."""
    row = reason.value
    assert (row.status, row.type, row.code) == CONTRACT[reason]
    assert row.grpc in grpc.StatusCode.__members__
    assert re.fullmatch(r"[a-z_]+", reason.label)
    assert row.meaning


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.label)
def test_every_reason_is_an_outcome_with_a_row_in_the_docs(reason: Reason) -> None:
    """Whatever a request may end in has a label and one line in docs/errors.md."""
    assert reason.label in OUTCOMES
    rows = [line for line in ERRORS_PAGE.read_text().splitlines() if line.startswith(f"| `{reason.label}` |")]
    assert len(rows) == 1


def test_outcomes_are_distinct() -> None:
    """No two outcomes share a label, and success is one of them."""
    assert len(set(OUTCOMES)) == len(OUTCOMES) == len(Reason) + 1
    assert OUTCOMES[0] == OK


def test_labels_are_read_back() -> None:
    """A peer's label is found again; one that this version does not know is a fault, not a crash."""
    assert [reason_from_label(reason.label) for reason in Reason] == list(Reason)
    assert reason_from_label("from_the_future") is Reason.INTERNAL_ERROR


def test_the_body_is_openais() -> None:
    """The error object has exactly message, type, param and code."""
    error = invalid("messages[0].content", "'messages[0].content' must be a string.")
    assert error.status == 400
    assert error.body() == {
        "error": {
            "message": "'messages[0].content' must be a string.",
            "type": "invalid_request_error",
            "param": "messages[0].content",
            "code": None,
        }
    }


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (ApiError(Reason.INVALID_REQUEST, "no"), {}),
        (ApiError(Reason.INVALID_API_KEY, "no"), {"WWW-Authenticate": "Bearer"}),
        (
            ApiError(Reason.OVERLOADED, "full", retry_after_s=1.2),
            {"Retry-After": "2", "retry-after-ms": "1200"},
        ),
        (
            ApiError(Reason.OVERLOADED, "full", retry_after_s=0.0),
            {"Retry-After": "1", "retry-after-ms": "1"},
        ),
        (
            ApiError(Reason.SHUTTING_DOWN, "bye", retry_after_s=5.0),
            {"Retry-After": "5", "retry-after-ms": "5000", "Connection": "close"},
        ),
        (ApiError(Reason.METHOD_NOT_ALLOWED, "no", extra_headers={"Allow": "POST"}), {"Allow": "POST"}),
    ],
)
def test_headers(error: ApiError, headers: dict[str, str]) -> None:
    """Each row brings its headers: when to retry in seconds and milliseconds, how to authenticate, to close."""
    assert error.headers() == headers


@given(st.floats(min_value=0.0, max_value=1e6))
def test_retry_headers_are_never_too_early(seconds: float) -> None:
    """Retry-After is a whole number of seconds, at least 1 and never before the time that was meant."""
    headers = ApiError(Reason.OVERLOADED, "full", retry_after_s=seconds).headers()
    assert int(headers["Retry-After"]) >= max(1.0, seconds)
    assert abs(int(headers["retry-after-ms"]) - seconds * 1000) <= 1


def test_the_headers_of_an_error_are_a_copy() -> None:
    """Who adds to the headers of a response does not change the error."""
    error = ApiError(Reason.METHOD_NOT_ALLOWED, "no", extra_headers={"Allow": "POST"})
    error.headers()["x-request-id"] = "1"
    assert error.headers() == {"Allow": "POST"}
