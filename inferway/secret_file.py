"""A file of secrets that is read again when it changes, so that they can be rotated under a running process."""

from __future__ import annotations

import logging
from pathlib import Path

from inferway import logs

log = logging.getLogger(__name__)


class SecretFile:
    """While the file cannot be read, what it said last holds, and the log says so as `event`."""

    def __init__(self, path: str, event: str) -> None:
        self._path = Path(path)
        self._event = event
        self._stamp: tuple[int, int] | None = None
        self._text = ""

    def text(self) -> str:
        """What it says now; costs a look at the file's time. Empty while it has never been read."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                self._text = self._path.read_text()
                self._stamp = stamp
        except (OSError, UnicodeDecodeError) as error:
            logs.event(log, self._event, level=logging.WARNING, error=str(error))
        return self._text
