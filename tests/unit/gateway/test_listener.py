from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.listener import Acceptor
from tests.support.waiting import until


@pytest.fixture
async def listener() -> AsyncIterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        yield server


class Accepted(asyncio.Protocol):
    """Counts itself, and closes what it gets."""

    def __init__(self, made: list[asyncio.BaseTransport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append(transport)
        transport.close()


async def test_a_burst_of_connections_takes_few_turns(listener: socket.socket) -> None:
    """Whoever connects last, a probe perhaps, waits for a handful of turns and not for one a connection."""
    made: list[asyncio.BaseTransport] = []
    clients = [socket.create_connection(listener.getsockname()) for _ in range(256)]
    acceptor = Acceptor(listener, lambda: Accepted(made))
    acceptor.start()
    turns = 0
    while len(made) < len(clients):
        await asyncio.sleep(0)
        turns += 1
    acceptor.stop()
    assert turns < 32
    for client in clients:
        client.close()


async def test_nothing_is_accepted_after_the_stop(listener: socket.socket) -> None:
    made: list[asyncio.BaseTransport] = []
    acceptor = Acceptor(listener, lambda: Accepted(made))
    acceptor.start()
    acceptor.stop()
    with socket.create_connection(listener.getsockname()):
        await asyncio.sleep(0.05)
        assert not made


class _Exhausted(socket.socket):
    """A listening socket for which the process has no file left, until told otherwise."""

    is_exhausted = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_exhausted:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_without_files_it_waits_and_goes_on() -> None:
    made: list[asyncio.BaseTransport] = []
    with _Exhausted() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        acceptor = Acceptor(server, lambda: Accepted(made), pause_s=0.05)
        acceptor.start()
        with socket.create_connection(server.getsockname()):
            await asyncio.sleep(0.2)
            assert not made
            server.is_exhausted = False
            await until(lambda: len(made) == 1, 5, "accepted once there are files again")
        acceptor.stop()
