"""Logs: one JSON object a line on standard error. Prompts and keys never go into a field."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(enc_hook=str).encode


class JsonFormatter(logging.Formatter):
    """Writes time, level, service, message and the fields given to `event`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.gmtime(record.created)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', seconds)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line).decode()


def setup(service: str, level: str = "info") -> None:
    """Send every logger of this process to standard error as JSON; the details of libraries are never among it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    logging.basicConfig(handlers=[handler], force=True)
    set_level(service, level)


def set_level(service: str, level: str) -> None:
    """From now on; nothing is lost by it, and nothing is kept of what was not logged before."""
    ours = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(ours, logging.INFO))
    for package in ("inferway", service):
        logging.getLogger(package).setLevel(ours)


def event(logger: logging.Logger, name: str, /, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log `name` with fields; costs nothing when the level is off."""
    if logger.isEnabledFor(level):
        logger.log(level, name, extra={"fields": fields})
