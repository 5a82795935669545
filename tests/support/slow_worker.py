"""A worker behind a relay that lets one of its answers wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio


class Relay(grpc.GenericRpcHandler):
    """Passes every call on to `target` as it is, on a free port of loopback; `method` only once `release` is set.

    Used with `async with`. All calls are passed on as streams of bytes: a single message is a stream of one.
    """

    def __init__(self, target: str, method: str = "", change: Callable[[str, str, bytes], bytes] | None = None) -> None:
        """`change` gets every message with the name of its method and whether it is "asked" or "said"."""
        self._target, self._method = target, method
        self._change = change or (lambda _name, _side, message: message)
        self.release = asyncio.Event()
        # How many of those calls have come.
        self.held = 0
        self.address = ""

    async def __aenter__(self) -> Relay:
        self._channel = grpc.aio.insecure_channel(self._target)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._server.stop(0)
        await self._channel.close()

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method

        async def pass_on(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            if name.endswith(f"/{self._method}"):
                self.held += 1
                await self.release.wait()
            metadata = [pair for pair in context.invocation_metadata() if not pair[0].startswith(("user-agent", ":"))]
            asked = (self._change(name, "asked", message) async for message in messages)
            call = self._channel.stream_stream(name)(asked, metadata=metadata)
            await call.initial_metadata()
            await context.send_initial_metadata(())
            async for message in call:
                yield self._change(name, "said", message)

        return grpc.stream_stream_rpc_method_handler(pass_on)
