"""What a case runs against, and how it sees what the engine saw."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.client import Answer, send
from tests.support.json_lines import JsonLines
from tests.support.processes import ROOT, Mesh, engine_load
from tests.support.raw_client import EventStream

CASES_FILE = Path(os.environ.get("INFERWAY_CASES") or ROOT.parent / "shared" / "cases" / "handed.yaml")


class Installation:
    """A running mesh, and the record of its engine if that keeps one."""

    def __init__(self, mesh: Mesh, record_file: Path | None = None) -> None:
        self.mesh = mesh
        self.record_file = record_file
        self._record = JsonLines(record_file) if record_file is not None else None

    @property
    def address(self) -> str:
        """Of the gateway, host:port."""
        return self.mesh.gateway.address

    @property
    def gateway_log(self) -> str:
        return self.mesh.gateway.log_text()

    def request_lines(self) -> list[dict[str, Any]]:
        """What the gateway has logged of requests that have ended."""
        return self.mesh.gateway.events("request")

    def engine_load(self) -> int:
        """Choices at the first worker's engine, running and waiting, by its own report."""
        return engine_load(self.mesh.workers[0])

    def engine_saw(self, request_id: str, event: str = "generate") -> list[dict[str, Any]]:
        """Records of one request's Generates or Aborts at the engine."""
        assert self._record is not None, "this installation keeps no record"
        return [line for line in self._record.read() if line["request_id"] == request_id and line["event"] == event]

    async def send(
        self,
        http: str,
        *,
        body: Any = None,
        raw: bytes | None = None,
        request_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Answer:
        return await send(
            self.address, http, body=body, raw=raw, request_id=request_id, headers=headers, timeout_s=timeout_s
        )

    async def open(self, body: Mapping[str, Any], request_id: str, **headers: str) -> EventStream:
        """A chat completion whose events are seen as they come."""
        return await EventStream.open(self.address, body, headers={"X-Request-Id": request_id, **headers})
