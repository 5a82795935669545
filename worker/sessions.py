"""Who is connected to a worker: gateways with their choices, and routers that watch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from .core.choice import Choice
from .core.orphans import Orphan
from .core.outbox import Outbox
from .core.watch import WatchFeed
from .engine import GenerateRequest


@dataclass(slots=True, eq=False)
class Live:
    """A choice between its admission and its last delta."""

    engine_key: int
    gateway_key: int
    session: GatewaySession
    request: GenerateRequest
    choice: Choice
    started_at: float
    has_output: bool = False
    # Monotonic seconds; 0 = not reached, or not known.
    prefill_at: float = 0.0
    first_output_at: float = 0.0
    # Outcome of one that is being aborted; empty: it is not.
    aborted_for: str = ""
    is_settled_later: bool = False


@dataclass(slots=True, eq=False)
class GatewaySession:
    """One gateway process. `wake` is set when there is something to write: in the outbox, or orphans."""

    gateway_id: str = ""
    is_open: bool = True
    outbox: Outbox = field(default_factory=Outbox)
    orphans: list[Orphan] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    live: dict[int, Live] = field(default_factory=dict)
    # The version of the served models that this gateway has been told.
    models_version: int = 0


@dataclass(slots=True, eq=False)
class Watcher:
    """One router. `wake` is set when there is something new to report."""

    feed: WatchFeed
    wake: asyncio.Event = field(default_factory=asyncio.Event)
