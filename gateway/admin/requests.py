"""Endpoints of requests in flight, and of the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferway.errors import invalid

from ..in_flight import Selection
from .audit import AuditLog
from .calls import Call, Handler, Result, not_found, shown_time
from .endpoints import AuditPage, Which
from .running import Found, Running


class RequestEndpoints:
    def __init__(self, running: Running, audit: AuditLog) -> None:
        self._running = running
        self._audit = audit

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "list_requests": self._list,
            "kill_request": self._kill,
            "kill_requests": self._kill_many,
            "audit": self._changes,
        }

    async def _list(self, call: Call) -> Result:
        found = await self._running.list(_selection(call.query))
        flights = [{"gateway_id": gateway_id, **msgspec.to_builtins(flight)} for gateway_id, flight in found.flights]
        return Result(
            {"requests": flights, "left_out": found.left_out, "gateways": found.gateways, "silent": found.silent}
        )

    async def _kill(self, call: Call) -> Result:
        request_id = call.places["request_id"]
        await self._audit.record(call.by, "kill", f"request:{request_id}")
        found = await self._running.kill(Selection(request_id=request_id))
        # Where somebody did not answer it may have been there.
        if not found.killed and found.silent == 0:
            raise not_found(f"request '{request_id[:128]}' that is being answered")
        return Result(_killed(found))

    async def _kill_many(self, call: Call) -> Result:
        selection = _selection(call.query)
        if selection == Selection():
            raise invalid(None, "Say whose requests: tenant, key (with its tenant) or model.")
        await self._audit.record(call.by, "kill", "requests", None, msgspec.to_builtins(call.query))
        return Result(_killed(await self._running.kill(selection)))

    async def _changes(self, call: Call) -> Result:
        page: AuditPage = call.query
        changes = await self._audit.changes(limit=page.limit, before=page.before)
        return Result({"changes": [_change(one) for one in changes]})


def _selection(which: Which) -> Selection:
    """Raises ApiError (400)."""
    if which.key and not which.tenant:
        raise invalid("key", "Names of keys are the tenant's own: say the tenant as well.")
    return Selection(tenant_id=which.tenant, key_id=which.key, model=which.model)


def _killed(found: Found) -> dict[str, Any]:
    return {"killed": found.killed, "gateways": found.gateways, "silent": found.silent}


def _change(change: Any) -> dict[str, Any]:
    return {
        "id": change.id,
        "at": shown_time(change.at_ms // 1000),
        "by": change.by,
        "action": change.action,
        "subject": change.subject,
        "before": change.before,
        "after": change.after,
    }
