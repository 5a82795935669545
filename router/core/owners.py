"""Whose requests are in the machine: what each Dispatch stream, the owner of its tickets, has waiting and under lease.

Cost: O(1) each; `drop` O(requests of the owner).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .books import Lease
from .messages import Ticket
from .model import Model


@dataclass(slots=True)
class _Owner:
    waiting: dict[Ticket, Model] = field(default_factory=dict)
    leases: set[int] = field(default_factory=set)


class Dropped(NamedTuple):
    waiting: dict[Ticket, Model]
    leases: list[Lease]


class Owners:
    def __init__(self) -> None:
        self._owners: dict[int, _Owner] = {}
        self._leases: dict[int, Lease] = {}

    def waits(self, ticket: Ticket, model: Model) -> None:
        """A request has come to the queue of a model."""
        owner = self._owners.get(ticket.owner)
        if owner is None:
            owner = self._owners[ticket.owner] = _Owner()
        owner.waiting[ticket] = model

    def model(self, ticket: Ticket) -> Model | None:
        """Where a ticket waits; None for one that does not."""
        owner = self._owners.get(ticket.owner)
        return owner.waiting.get(ticket) if owner is not None else None

    def waits_no_more(self, ticket: Ticket) -> Model | None:
        """A request has left its queue; returns what `model` did before."""
        owner = self._owners.get(ticket.owner)
        return owner.waiting.pop(ticket, None) if owner is not None else None

    def dispatched(self, lease: Lease) -> None:
        """A request that waited goes on under a lease."""
        owner = self._owners[lease.ticket.owner]
        del owner.waiting[lease.ticket]
        owner.leases.add(lease.lease_id)
        self._leases[lease.lease_id] = lease

    def lease(self, lease_id: int) -> Lease | None:
        """None for one that is unknown or over."""
        return self._leases.get(lease_id)

    def ended(self, lease: Lease) -> None:
        del self._leases[lease.lease_id]
        self._owners[lease.ticket.owner].leases.discard(lease.lease_id)

    def drop(self, owner: int) -> Dropped:
        """The stream is gone; returns what it had."""
        state = self._owners.pop(owner, None) or _Owner()
        return Dropped(state.waiting, [self._leases.pop(lease_id) for lease_id in state.leases])
