"""`python -m router`: parse, build, run, drain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import uvloop

from inferway import logs
from inferway.config import effective, load_or_exit
from inferway.grpc_util import InternalToken, check_exposure

from .app import App, CannotListen
from .config import Config

log = logging.getLogger("router")


def main() -> int:
    config = load_or_exit(Config, "router", os.environ, sys.argv[1:])
    logs.setup("router", config.log_level)
    token = InternalToken(config.internal_token, config.internal_token_file)
    if config.internal_token_file and not token:
        return _refuse("the internal token file is missing, unreadable or empty")
    for address in (config.listen, config.ops_listen):
        if sentence := check_exposure(address, authenticated=bool(token), insecure=config.insecure):
            return _refuse(sentence)
    logs.event(log, "config", **effective(config))
    try:
        app = App(config)
        uvloop.run(_serve(app))
    except (CannotListen, ValueError) as error:
        return _refuse(str(error))
    return 0


async def _serve(app: App) -> None:
    """Serve until the first signal, then drain; the second has its default effect and ends the process."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await app.listen()
        await app.serve_until(stop)
        await app.drain()
    finally:
        await app.close()


def _refuse(sentence: str) -> int:
    print(f"router: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
