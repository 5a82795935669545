"""python -m gateway"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys

import uvloop

from inferway import logs
from inferway.config import effective, load_or_exit
from inferway.grpc_util import check_exposure

from . import parent
from .app import LISTEN_BACKLOG, Gateway
from .config import Config

log = logging.getLogger("gateway")


def main() -> None:
    config = load_or_exit(Config, "gateway", os.environ, sys.argv[1:])
    logs.setup("gateway", config.log_level)
    refusal = check_exposure(config.listen, authenticated=False, insecure=config.insecure)
    if refusal:
        raise SystemExit(f"gateway: {refusal}")
    _allow_many_connections()
    try:
        listener = _listener(config)
    except OSError as error:
        raise SystemExit(f"gateway: cannot listen on {config.listen}: {error.strerror}") from None
    uvloop.run(_serve(config, listener))


def _listener(config: Config) -> socket.socket:
    if config.listen_fd is not None:
        return socket.socket(fileno=config.listen_fd)
    host, _, port = config.listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host.strip("[]"), int(port)), family=family, backlog=LISTEN_BACKLOG)
    # Accepted sockets inherit it: what a client does not read waits here, where it is counted, not in the kernel.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.coalesce_bytes)
    return listener


def _allow_many_connections() -> None:
    """Raise the soft limit on open files to the hard one: a connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: Config, listener: socket.socket) -> None:
    stop, stop_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    host, port = listener.getsockname()[:2]
    if config.listen_fd is None:
        logs.event(log, "listening", address=f"{host}:{port}", ops_address=f"{host}:{port}")
        logs.event(log, "configuration", **effective(config))
    if config.processes > 1 and config.listen_fd is None:
        await parent.run(listener, config.processes, sys.argv[1:], stop, stop_now)
    else:
        await Gateway(config).run(listener, stop, stop_now)


if __name__ == "__main__":
    main()
