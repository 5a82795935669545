"""From an exchange to its account in the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable

from inferway.ledger import LedgerEntry

from .core.quota.note import note_of
from .core.sse import Usage
from .middleware import Exchange
from .quota.quotas import Quotas, Reservation

_NOTHING = Usage(0, 0)


def closing(quotas: Quotas) -> Callable[[Exchange, Reservation, str], None]:
    """What closes the reservation of an exchange, told its outcome."""

    def close(exchange: Exchange, reservation: Reservation, outcome: str) -> None:
        usage = (exchange.usage or _NOTHING) if exchange.timing.dispatched else None
        quotas.close(reservation, _entry(exchange, reservation, outcome), usage)

    return close


def note(exchange: Exchange, reservation: Reservation, *, prompt: int = 0) -> bytes:
    """What a worker keeps of it for the case that this gateway dies."""
    entry = _entry(exchange, reservation, "")
    return note_of(entry, reservation.bounds, reservation.caller.quota.weights, prompt=prompt).encode()


def _entry(exchange: Exchange, reservation: Reservation, outcome: str) -> LedgerEntry:
    caller = reservation.caller
    return LedgerEntry(
        reservation_id=reservation.reservation_id,
        request_id=exchange.request_id,
        tenant=caller.tenant_id,
        project=caller.project,
        key=caller.key_id,
        model=exchange.model,
        endpoint=exchange.route,
        outcome=outcome,
        priority=exchange.priority,
        is_stream=exchange.stream,
        worker=exchange.worker_id,
        received_ms=_unix_ms(exchange.received),
        first_token_ms=_unix_ms(exchange.timing.first_token) if exchange.timing.first_token else None,
    )


def _unix_ms(monotonic_s: float) -> int:
    return round((time.time() - (time.monotonic() - monotonic_s)) * 1000)
