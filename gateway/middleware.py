"""The front of every request: its id, its limits, its one outcome, its log line.

`Front` is the only place where an ApiError becomes an HTTP response and where an outcome is counted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.client_exceptions import ClientConnectionError
from aiohttp.http_exceptions import HttpProcessingError

from inferway import logs
from inferway.errors import OK, ApiError, Reason

from .core.ids import is_request_id, is_traceparent
from .core.sse import Usage
from .core.tenants import Caller
from .core.trace import Ended, RequestTrace
from .core.worker_choice import ANY_WORKER, WorkerChoice, worker_choice
from .generation import Timing
from .http_server import SERVER, error_response
from .identity import new_request_id
from .in_flight import InFlight, Progress
from .metrics import OTHER, Metrics
from .quota.quotas import Reservation
from .tracing import Tracing
from .turns import Turns

log = logging.getLogger("gateway.request")

# Who asks while that is not known: a probe, or a caller without a valid key.
NOBODY = Caller("")


@dataclass(slots=True)
class Exchange:
    """What is known of one HTTP request while it is answered, and at its end."""

    request_id: str
    received: float
    # Key of the route that serves it.
    route: str
    traceparent: str = ""
    caller: Caller = NOBODY
    workers: WorkerChoice = ANY_WORKER
    # None where traces are off, and for what is not an inference request.
    trace: RequestTrace | None = None
    # Keyed hash of the caller's own name for its user; empty without.
    user_hash: str = ""
    # Empty for what is not an inference request; those get no outcome.
    model: str = ""
    # By the name that the caller uses.
    asked_model: str = ""
    stream: bool = False
    timing: Timing = field(default_factory=Timing)
    usage: Usage | None = None
    max_tokens: int | None = None
    priority: int | None = None
    worker_id: str = ""
    # Its place under the bounds of its caller, from when it has one.
    reservation: Reservation | None = None
    # Set where a failure was told in-band, behind a status of 200.
    error: ApiError | None = None
    # What the answer says beside its body, whatever becomes of it.
    headers: dict[str, str] = field(default_factory=dict)
    # What became of the tool calls in the answer.
    tool_calls: Counter[str] = field(default_factory=Counter)
    # See in_flight.Request.
    progress: Callable[[], Progress] | None = None
    stop: Callable[[ApiError], None] | None = None
    task: asyncio.Task[object] | None = None
    killed: ApiError | None = None

    def asks(self, model: str, *, stream: bool, max_tokens: int | None) -> None:
        """What the body says, as soon as it has been read."""
        self.model = self.asked_model = model
        self.stream, self.max_tokens = stream, max_tokens

    def ignores(self, fields: Sequence[str]) -> None:
        """The answer names fields that were accepted without effect."""
        if fields:
            self.headers["x-inferway-ignored"] = ", ".join(fields)


_LEAST_SERVER_ERROR = 500
# Reading a request, checking it and making its prompt takes the loop some 0.5 ms.
_STARTS_A_TURN = 16
# Asked for every few seconds by machines, which have no key.
_PROBES = ("/health", "/health/ready", "/metrics")
_NEEDS_NO_KEY = (*_PROBES, "/openapi.json")

Handler = Callable[[web.BaseRequest, Exchange], Awaitable[web.StreamResponse]]
# path -> method -> handler. A path that ends in a slash stands for all that are longer.
Routes = Mapping[str, Mapping[str, Handler]]


class Front:
    """Called by the HTTP server for every request that its parser accepted.

    A handler that has begun its answer tells failures itself: no second answer can follow. `close` is told of every
    exchange that has a reservation, with its outcome.
    """

    def __init__(
        self,
        routes: Routes,
        metrics: Metrics,
        caller_of: Callable[[str], Awaitable[Caller]],
        is_known_model: Callable[[str], bool],
        close: Callable[[Exchange, Reservation, str], None],
        write_timeout_s: float,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._routes = routes
        self._prefixes = [path for path in routes if path.endswith("/")]
        self._metrics = metrics
        self._caller_of = caller_of
        self._is_known_model = is_known_model
        self._close = close
        self._write_timeout_s = write_timeout_s
        # In the drain delay: answers ask their clients to connect anew, where others may be in front of us by then.
        self.leaving = False
        # After it: every answer closes its connection and inference is refused.
        self.shutting_down = False
        self._turns = Turns(_STARTS_A_TURN)
        # Inference requests being answered.
        self.in_flight = InFlight()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        route = self._route(request.path)
        exchange = Exchange(_request_id(request), time.monotonic(), route, _traceparent(request))
        outcome = OK
        status = 0
        is_load = self._is_inference(request)  # a probe or a scrape is none
        if is_load:
            if self._tracing is not None:
                exchange.trace = self._tracing.begin(exchange.traceparent)
            exchange.task = asyncio.current_task()
            self.in_flight.add(exchange)
            self._metrics.in_flight.inc()
        try:
            if is_load:
                await self._turns.take()
            response = await self._answer(request, exchange)
            status = response.status
            if exchange.error is not None:
                outcome = exchange.error.reason.label
            return response
        except ApiError as error:
            outcome, status = error.reason.label, error.status
            return self._refuse(error, exchange)
        except (asyncio.CancelledError, ConnectionError) as gone:
            if exchange.killed is not None and isinstance(gone, asyncio.CancelledError) and _takes_back_cancel():
                outcome, status = exchange.killed.reason.label, exchange.killed.status
                return self._refuse(exchange.killed, exchange)
            # The server's own end cancels what is left, too.
            is_ours = self.shutting_down and isinstance(gone, asyncio.CancelledError) and request.transport is not None
            reason = Reason.SHUTTING_DOWN if is_ours else Reason.CLIENT_CLOSED_REQUEST
            outcome, status = reason.label, reason.value.status
            raise
        except Exception:
            log.exception("request_failed", extra={"fields": {"request_id": exchange.request_id}})
            fault = ApiError(Reason.INTERNAL_ERROR, "An internal error occurred.")
            outcome, status = fault.reason.label, fault.status
            return self._refuse(fault, exchange)
        finally:
            if is_load:
                self.in_flight.remove(exchange)
                self._metrics.in_flight.dec()
            if exchange.reservation is not None:
                self._close(exchange, exchange.reservation, outcome)
            self._record(request, exchange, outcome, status, time.monotonic())

    def refused(self, error: ApiError, request_id: str) -> None:
        """Counts and logs what no handler has seen: text that is no HTTP, headers that are too large."""
        now = time.monotonic()
        self._metrics.http_responses.labels(OTHER, str(error.status)).inc()
        _log_line(Exchange(request_id, now, OTHER), error.reason.label, error.status, now)

    async def _answer(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        path = request.path
        methods = self._routes.get(exchange.route)
        if methods is None:
            raise ApiError(Reason.UNKNOWN_URL, f"There is nothing at {request.method} {path[:200]}.")
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            allowed = ", ".join(sorted(methods))
            message = f"{path} takes {allowed}, not {request.method[:20]}."
            raise ApiError(Reason.METHOD_NOT_ALLOWED, message, extra_headers={"Allow": allowed})
        if self.shutting_down and self._is_inference(request):
            raise ApiError(Reason.SHUTTING_DOWN, "This server is shutting down; try again.", retry_after_s=1.0)
        if path not in _NEEDS_NO_KEY:
            exchange.caller = await self._caller_of(request.headers.get("Authorization", ""))
            if self._is_inference(request):
                exchange.workers = worker_choice(request.headers, exchange.caller)
        response = await handler(request, exchange)
        exchange.task = None
        # A stream that has begun without saying so goes on with its connection while that is served.
        if self.shutting_down or (self.leaving and not response.prepared):
            response.force_close()
        if not response.prepared:
            response.headers.update(exchange.headers)
            response.headers["x-request-id"] = exchange.request_id
            response.headers["Server"] = SERVER
            await self._send(request, response)
        return response

    async def _send(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Write a whole answer; a client that does not read it in time is cut."""
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ApiError(Reason.CLIENT_TOO_SLOW, "The client did not read its answer in time.") from None

    def _refuse(self, error: ApiError, exchange: Exchange) -> web.Response:
        response = error_response(error, exchange.request_id)
        response.headers.update(exchange.headers)
        if self.leaving or error.reason in (Reason.PAYLOAD_TOO_LARGE, Reason.REQUEST_TIMEOUT):
            response.force_close()
        return response

    def _record(self, request: web.BaseRequest, exchange: Exchange, outcome: str, status: int, now: float) -> None:
        route = exchange.route
        self._metrics.http_responses.labels(route, str(status)).inc()
        if exchange.trace is not None:
            self._trace(exchange, exchange.trace, request.method, route, outcome, status, now)
        if self._is_inference(request):
            self._record_inference(exchange, outcome, now)
        elif route in _PROBES:
            return  # counted, not logged
        _log_line(exchange, outcome, status, now)

    def _trace(
        self,
        exchange: Exchange,
        trace: RequestTrace,
        method: str,
        route: str,
        outcome: str,
        status: int,
        now: float,
    ) -> None:
        assert self._tracing is not None
        error, timing = exchange.error, exchange.timing
        is_failure = (error.status if error is not None else status) >= _LEAST_SERVER_ERROR
        if not self._tracing.keeps(trace, is_failure=is_failure, now=now):
            return
        end = Ended(
            request_id=exchange.request_id,
            method=method,
            route=route,
            status=status,
            is_failure=is_failure,
            outcome=outcome,
            received=exchange.received,
            queued=timing.queued,
            first_token=timing.first_token,
            ended=now,
            model=exchange.model[:200],
            stream=exchange.stream,
            max_tokens=exchange.max_tokens,
            usage=exchange.usage,
            tenant_id=exchange.caller.tenant_id,
            key_id=exchange.caller.key_id,
            user_hash=exchange.user_hash,
        )
        self._tracing.end(trace, end)

    def _route(self, path: str) -> str:
        """The key of the route that serves a path, which is also its label."""
        if path in self._routes and not path.endswith("/"):
            return path
        return next((one for one in self._prefixes if path.startswith(one) and path != one), OTHER)

    def _is_inference(self, request: web.BaseRequest) -> bool:
        return request.method == "POST" and "POST" in self._routes.get(request.path, ())

    def _record_inference(self, exchange: Exchange, outcome: str, now: float) -> None:
        metrics, timing, usage = self._metrics, exchange.timing, exchange.usage
        model = metrics.model(exchange.model, is_known=self._is_known_model(exchange.model))
        tenant = metrics.tenant(exchange.caller.tenant_id)
        metrics.requests.labels(model, outcome).inc()
        metrics.tenant_requests.labels(tenant, outcome).inc()
        metrics.e2e_latency.labels(model).observe(now - exchange.received)
        if timing.dispatched:
            metrics.queue_time.labels(model).observe(timing.dispatched - timing.queued)
        if timing.first_token:
            metrics.time_to_first_token.labels(model).observe(timing.first_token - exchange.received)
        for what, count in exchange.tool_calls.items():
            metrics.tool_calls.labels(model, what).inc(count)
        if usage is not None:
            kinds = (
                ("prompt", usage.prompt_tokens),
                ("cached", usage.cached_tokens),
                ("completion", usage.completion_tokens),
            )
            for kind, tokens in kinds:
                metrics.tokens.labels(model, kind).inc(tokens)
                metrics.tenant_tokens.labels(tenant, kind).inc(tokens)
            if timing.first_token and usage.completion_tokens > 1:
                mean_gap_s = (now - timing.first_token) / (usage.completion_tokens - 1)
                metrics.time_per_output_token.labels(model).observe(mean_gap_s)


def _log_line(exchange: Exchange, outcome: str, status: int, now: float) -> None:
    timing, usage = exchange.timing, exchange.usage
    logs.event(
        log,
        "request",
        request_id=exchange.request_id,
        route=exchange.route,
        status=status,
        outcome=outcome,
        model=exchange.model[:200],
        tenant_id=exchange.caller.tenant_id,
        key_id=exchange.caller.key_id,
        user_hash=exchange.user_hash,
        stream=exchange.stream,
        worker_id=exchange.worker_id,
        max_tokens=exchange.max_tokens,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        queue_ms=_milliseconds(timing.queued, timing.dispatched),
        ttft_ms=_milliseconds(exchange.received, timing.first_token),
        e2e_ms=_milliseconds(exchange.received, now),
    )


def _takes_back_cancel() -> bool:
    """Whether this task goes on after having been cancelled once: not when its client has left as well."""
    task = asyncio.current_task()
    return task is not None and not task.uncancel()


def _milliseconds(start: float, end: float) -> float | None:
    return round((end - start) * 1000, 3) if start and end else None


def _request_id(request: web.BaseRequest) -> str:
    given = request.headers.get("X-Request-Id", "")
    return given if is_request_id(given) else new_request_id()


def _traceparent(request: web.BaseRequest) -> str:
    given = request.headers.getall("traceparent", ())
    # Of two nobody can tell whose the request is.
    return given[0] if len(given) == 1 and is_traceparent(given[0]) else ""


async def read_json_body(request: web.BaseRequest, *, limit_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises ApiError: 415, 413 without reading the rest, 408, 400 for one that breaks off."""
    content_type = request.headers.get("Content-Type", "application/json")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        message = f"The content type must be application/json, got '{media_type[:100]}'."
        raise ApiError(Reason.UNSUPPORTED_MEDIA_TYPE, message)
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise ApiError(Reason.UNSUPPORTED_MEDIA_TYPE, f"The body must not be encoded, got '{encoding[:100]}'.")
    announced = request.content_length
    if announced is not None and announced > limit_bytes:
        raise _too_large(limit_bytes, announced)
    expects = request.version >= (1, 1) and request.headers.get("Expect", "").lower() == "100-continue"
    if expects and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > limit_bytes:
                    raise _too_large(limit_bytes, size)
                chunks.append(chunk)
    except TimeoutError:
        message = f"The body did not arrive within {timeout_s:g} s; {size} bytes came."
        raise ApiError(Reason.REQUEST_TIMEOUT, message) from None
    except (web.RequestPayloadError, HttpProcessingError, ClientConnectionError):
        raise ApiError(Reason.INVALID_REQUEST, f"The body broke off or is malformed after {size} bytes.") from None
    return b"".join(chunks)


def _too_large(limit: int, observed: int) -> ApiError:
    return ApiError(
        Reason.PAYLOAD_TOO_LARGE, f"The body may have {limit} bytes at most, got {math.ceil(observed)} or more."
    )
