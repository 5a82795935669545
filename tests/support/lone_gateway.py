"""A gateway's end of a session in a process of its own, to be killed: `python -m tests.support.lone_gateway WORKER`.

It runs RUNNING, each with a choice for each number in it, and finishes FINISHED; what they are settled by is their
name. It never settles anything. A JSON line says {"event": "busy"} once all of that is so.
"""

from __future__ import annotations

import asyncio
import sys

from gateway.core.generation_fields import Sampling
from gateway.core.sse import FinishReason, Usage
from gateway.worker_messages import RequestSpec
from gateway.worker_sessions import WorkerSessions
from inferway.errors import ApiError
from inferway.grpc_util import InternalToken
from tests.support.waiting import until

GATEWAY_ID = "doomed"
# The name of each request, which is that of its script and its settlement, and its number of choices.
RUNNING = {"drip.1": 1, "drip.2": 2, "drip.3": 1}
FINISHED = {"hello.1": 1, "hello.2": 2}
PROMPT = [5, 6, 7, 8]


class Listener:
    """Counts what comes."""

    wants_scores = False

    def __init__(self) -> None:
        self.tokens = 0
        self.has_ended = False

    def on_scores(self, scores: object) -> None: ...

    def on_first(self, usage: Usage) -> None: ...

    def on_text(self, text: str, completion_tokens: int, now: float) -> None:
        self.tokens = completion_tokens

    def on_finish(self, text: str, reason: FinishReason, usage: Usage, now: float) -> None:
        self.has_ended = True

    def on_error(self, error: ApiError, usage: Usage | None = None) -> None:
        raise AssertionError(error.message)

    def on_lost(self) -> None: ...


def spec(name: str) -> RequestSpec:
    return RequestSpec(name, "m-text", PROMPT, Sampling(), 5, b"", 0, "", None, False, settlement=name.encode())


async def main(worker: str) -> None:
    sessions = WorkerSessions(GATEWAY_ID, InternalToken(), lambda: None)
    sessions.want({worker})
    async with asyncio.TaskGroup() as group:
        group.create_task(sessions.run())
        await until(sessions.connected)
        (session,) = sessions.connected()
        running: list[Listener] = []
        finished: list[Listener] = []
        for names, listeners in ((RUNNING, running), (FINISHED, finished)):
            for name, choices in names.items():
                theirs = [Listener() for _ in range(choices)]
                session.generate(spec(name), theirs)
                listeners += theirs
        await until(lambda: all(one.tokens >= 3 for one in running) and all(one.has_ended for one in finished))
        print('{"event": "busy"}', flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
