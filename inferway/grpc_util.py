"""gRPC as every service uses it: limits, keepalive, the internal token, health and reflection."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from inferway import net
from inferway.api.v1 import types_pb2
from inferway.errors import ApiError, reason_from_label
from inferway.secret_file import SecretFile

MAX_MESSAGE_BYTES = 64 << 20
# A dead peer is noticed within keepalive time + timeout: 10 s.
_KEEPALIVE_TIME_MS = 5_000
_KEEPALIVE_TIMEOUT_MS = 3_000
_WINDOW_BYTES = 1 << 20

_COMMON_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # The wait for a ping's answer; without it a peer that is frozen, not gone, is noticed after a minute.
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A window of some step batches, the same from the first byte on, instead of one that pings feel their way to.
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    ("grpc.http2.bdp_probe", 0),
]
CLIENT_OPTIONS = [
    *_COMMON_OPTIONS,
    # A peer that comes back is met within a second, not after the default two minutes of backoff.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Channels to one address are separate connections: one reader cannot hold up another's stream.
    ("grpc.use_local_subchannel_pool", 1),
]
SERVER_OPTIONS = [
    *_COMMON_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.so_reuseport", 0),
]

_TOKEN_HEADER = "authorization"


class InternalToken:
    """The shared secret of the mesh, given directly or in a file that is read again when it changes.

    A file may hold several tokens, a line each: the first is sent, all are accepted, so that a rotation never
    refuses a peer. No token at all: nothing is sent and everyone is let in (loopback only, see `net.check_exposure`).
    """

    def __init__(self, token: str = "", path: str = "") -> None:
        self._file = SecretFile(path, "internal_token_file_unreadable") if path else None
        self._token = token

    def __bool__(self) -> bool:
        return bool(self._current())

    @property
    def first(self) -> str:
        """The token that is sent now; empty without any."""
        return next(iter(self._current()), "")

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a client sends with a call."""
        tokens = self._current()
        return ((_TOKEN_HEADER, f"Bearer {tokens[0]}"),) if tokens else ()

    def accepts(self, metadata: Sequence[tuple[str, str | bytes]]) -> bool:
        """Whether a call may pass; compares in constant time."""
        tokens = self._current()
        if not tokens:
            return True
        sent = next((value for key, value in metadata if key == _TOKEN_HEADER), "")
        sent_bytes = sent if isinstance(sent, bytes) else sent.encode()
        matches = [hmac.compare_digest(sent_bytes, f"Bearer {token}".encode()) for token in tokens]
        return any(matches)

    def _current(self) -> list[str]:
        from_file = self._file.text().split() if self._file is not None else []
        return from_file or ([self._token] if self._token else [])


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the internal token, health checks excepted (probes carry none)."""

    def __init__(self, token: InternalToken) -> None:
        self._token = token

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith("/grpc.health.v1.Health/"):
            return handler
        if self._token.accepts(handler_call_details.invocation_metadata or ()):
            return handler
        return _refusal(handler)


def _refusal(handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same shape as `handler` that ends the call with UNAUTHENTICATED."""

    async def refuse(_request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the internal token is missing or wrong")

    async def refuse_stream(_request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the internal token is missing or wrong")
        yield  # an async generator, as streaming handlers are

    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse_stream)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse_stream)
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)


def server(token: InternalToken) -> grpc.aio.Server:
    return grpc.aio.server(options=SERVER_OPTIONS, interceptors=[TokenInterceptor(token)])


def bind(target: grpc.aio.Server, address: str) -> str:
    """Take hold of host:port for `target`, which serves there once it starts; returns it with its real port.

    Raises CannotListen.
    """
    # A socket of our own says why an address cannot be had; gRPC only says that, and in lines of its own.
    net.bind(address).close()
    try:
        port = target.add_insecure_port(address)
    except RuntimeError as error:
        raise net.CannotListen(f"cannot listen on {address}: {error}") from error
    return f"{address.rpartition(':')[0]}:{port}"


def channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)


async def opened(call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
    """Wait until the peer has taken a stream. Raises AioRpcError when it has not.

    A peer takes a stream by sending its initial metadata at once; that of a call that failed reads as empty.
    """
    initial = await call.initial_metadata()
    if call.done():
        raise grpc.aio.AioRpcError(await call.code(), initial, await call.trailing_metadata(), await call.details())


def add_health_and_reflection(target: grpc.aio.Server, service: str) -> health.aio.HealthServicer:
    """Serve grpc.health.v1 and reflection; the health of `service` and of "" starts as NOT_SERVING."""
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, target)
    reflection.enable_server_reflection((service, health.SERVICE_NAME, reflection.SERVICE_NAME), target)
    return servicer


async def set_serving(servicer: health.aio.HealthServicer, service: str, serving: bool) -> None:
    status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    await servicer.set(service, status)
    await servicer.set("", status)


def error_to_proto(error: ApiError) -> types_pb2.Error:
    return types_pb2.Error(
        reason=error.reason.label,
        message=error.message,
        param=error.param or "",
        retry_after_ms=round((error.retry_after_s or 0) * 1000),
    )


def error_from_proto(error: types_pb2.Error) -> ApiError:
    """By the reason in the message, never by a gRPC status code."""
    return ApiError(
        reason_from_label(error.reason),
        error.message,
        error.param or None,
        error.retry_after_ms / 1000 if error.retry_after_ms else None,
    )
