"""What this engine asks of SGLang, as flags of SGLang's own command line. Pure.

Defaults come before the operator's flags, so that those win; what the engine relies on comes after them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

# Tokens of a page, and so of a block of the prefix index.
PAGE_SIZE = 64


@dataclass(frozen=True, slots=True)
class Options:
    """How the engine is to be started. None: SGLang's own choice."""

    model_path: str
    max_running: int
    max_waiting: int
    context_length: int | None = None
    flags: Sequence[str] = ()


def arguments(options: Options, *, cpu_flags: Sequence[str], max_total_tokens: int | None, events: str) -> list[str]:
    """The whole command line. `events` is the folder in which the KV-event sockets are made; empty: no events."""
    argv = [
        "--log-level=warning",
        f"--page-size={PAGE_SIZE}",
        # An idle scheduler otherwise keeps a core busy.
        "--sleep-on-idle",
        # Waiting requests enter by priority. A running one would be taken out for a new one whose priority is higher
        # by more than the threshold: with priorities from 0 to 9 never, because its caller would see a stream that
        # stands still, and the wait for a slot is short. A lower threshold turns it on.
        "--enable-priority-scheduling",
        "--priority-scheduling-preemption-threshold=10",
        *cpu_flags,
    ]
    if max_total_tokens is not None:
        argv.append(f"--max-total-tokens={max_total_tokens}")
    argv += options.flags
    argv += [
        f"--model-path={options.model_path}",
        f"--max-running-requests={options.max_running}",
        # Requests come through the waiting queue also when a slot is free, so it has to hold them all; the engine
        # refuses what is beyond before SGLang would.
        f"--max-queued-requests={options.max_running + options.max_waiting}",
        # Outputs carry what is new, and those of one step come in one go.
        "--incremental-streaming-output",
        f"--batch-notify-size={options.max_running + options.max_waiting}",
        # Otherwise the load is up to 15 steps old.
        "--load-snapshot-publish-interval=1",
    ]
    if options.context_length is not None:
        argv.append(f"--context-length={options.context_length}")
    if events:
        argv += ["--kv-events-config", json.dumps(kv_events_config(events))]
    return argv


def kv_events_config(folder: str) -> dict[str, object]:
    return {
        "publisher": "zmq",
        "endpoint": events_endpoint(folder),
        "replay_endpoint": replay_endpoint(folder),
        "topic": "kv",
    }


def events_endpoint(folder: str) -> str:
    return f"ipc://{folder}/events"


def replay_endpoint(folder: str) -> str:
    return f"ipc://{folder}/replay"
