"""`python -m worker`: parse, build, run, drain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

from inferway import logs
from inferway.config import effective, load_or_exit
from inferway.errors import ApiError
from inferway.grpc_util import InternalToken, check_exposure

from .app import App, CannotListen
from .config import Config
from .core.detokenize import UnsupportedTokenizer
from .engines import EngineNotInstalled

log = logging.getLogger("worker")


def main() -> int:
    config = load_or_exit(Config, "worker", os.environ, sys.argv[1:])
    logs.setup("worker", config.log_level)
    token = InternalToken(config.internal_token, config.internal_token_file)
    if config.internal_token_file and not token:
        return _refuse("the internal token file is missing, unreadable or empty")
    if sentence := check_exposure(config.listen, authenticated=bool(token), insecure=config.insecure):
        return _refuse(sentence)
    logs.event(log, "config", **effective(config))
    try:
        return uvloop.run(_serve(config))
    except (CannotListen, EngineNotInstalled, UnsupportedTokenizer) as error:
        return _refuse(str(error))
    except ApiError as error:
        return _refuse(error.message)
    except OSError as error:
        return _refuse(str(error))


async def _serve(config: Config) -> int:
    """Serve until a first signal, drain until done or a second one; 0 is a clean end."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[None] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)
    app = App(config)
    try:
        await app.listen()
        if await _until_signal(app.load(), signals):
            await signals.get()
        await _until_signal(app.drain(), signals)
    finally:
        await app.close()
    return 0


async def _until_signal(work: Coroutine[Any, Any, None], signals: asyncio.Queue[None]) -> bool:
    """Whether `work` came to its end; a signal that comes before it cancels it."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(signals.get())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        task.result()
        return True
    task.cancel()
    await asyncio.wait({task})
    return False


def _refuse(sentence: str) -> int:
    print(f"worker: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
