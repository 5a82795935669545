"""What the proxy answers itself, in the shape of every other error."""

from __future__ import annotations

import json
from dataclasses import dataclass

from inferway.errors import ApiError, Reason
from inferway.front.settings import FrontConfig

HEALTH_BODY = '{"status":"ok"}'
JSON = "application/json"
SERVER = "inferway"


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """`status` is that of the error's row, but for 502: what is behind a proxy is a matter of proxies alone."""

    status: int
    error: ApiError

    @property
    def body(self) -> str:
        return json.dumps(self.error.body(), separators=(",", ":"))

    @property
    def headers(self) -> dict[str, str]:
        return self.error.headers()


@dataclass(frozen=True, slots=True)
class OwnAnswers:
    invalid: OwnAnswer
    hidden: OwnAnswer
    request_timeout: OwnAnswer
    body_too_large: OwnAnswer
    headers_too_large: OwnAnswer
    # The connection to a gateway broke after the request was sent: it may have been processed.
    lost: OwnAnswer
    # No gateway could be connected to: nothing was processed.
    unreachable: OwnAnswer
    timeout: OwnAnswer
    fault: OwnAnswer


def own_answers(config: FrontConfig) -> OwnAnswers:
    def answer(reason: Reason, message: str, *, status: int = 0, retry_after_s: float | None = None) -> OwnAnswer:
        return OwnAnswer(status or reason.value.status, ApiError(reason, message, retry_after_s=retry_after_s))

    return OwnAnswers(
        invalid=answer(Reason.INVALID_REQUEST, "The request is not valid HTTP."),
        hidden=answer(Reason.UNKNOWN_URL, "There is nothing at this path."),
        request_timeout=answer(Reason.REQUEST_TIMEOUT, "The request did not arrive in time."),
        body_too_large=answer(
            Reason.PAYLOAD_TOO_LARGE, f"The body is above the limit of {config.max_body_bytes} bytes."
        ),
        headers_too_large=answer(
            Reason.HEADERS_TOO_LARGE, f"The headers are above the limit of {config.max_header_bytes} bytes."
        ),
        lost=answer(
            Reason.INTERNAL_ERROR,
            "The server was lost before its answer; the request may have been processed.",
            status=502,
        ),
        unreachable=answer(Reason.OVERLOADED, "No server can take the request now; try again.", retry_after_s=1.0),
        timeout=answer(Reason.UPSTREAM_TIMEOUT, "The server was silent for too long."),
        fault=answer(Reason.INTERNAL_ERROR, "An internal error occurred."),
    )
