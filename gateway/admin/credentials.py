"""Who may administrate: tokens with a name each, which is what the audit log says of a change."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple

from inferway.config import Secret
from inferway.secret_file import SecretFile
from inferway.service import CannotStart

from ..config import Config

# Of a token that has no name of its own.
UNNAMED = "admin"
# Shorter ones could be guessed in the lifetime of an installation.
LEAST_CHARACTERS = 16


class Credential(NamedTuple):
    name: str
    token: str


def parse_credentials(text: str) -> list[Credential]:
    """A line each: a token, or a name and a token. Empty lines and those that begin with # are passed over.

    Raises ValueError for a line that is neither, or has a token that is too short.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise ValueError(f"line {number}: must be a token, or a name and a token, got {len(words)} words")
        if len(words[-1]) < LEAST_CHARACTERS:
            raise ValueError(f"line {number}: a token must have {LEAST_CHARACTERS} characters at least")
        found.append(Credential(words[0] if len(words) == 2 else UNNAMED, words[-1]))
    return found


class AdminCredentials:
    """Given directly, in a file that is read again when it changes, or both.

    A version of the file with a mistake lets nobody in by the file.
    """

    def __init__(self, token: Secret, path: str) -> None:
        """Raises CannotStart for a token that is too short and for a file that has no credential."""
        self._given: Sequence[Credential] = ()
        if token:
            try:
                self._given = parse_credentials(token)
            except ValueError as error:
                raise CannotStart(f"--admin-token: {str(error).partition(': ')[2]}") from error
        self._file = SecretFile(path, "admin_token_file_unreadable") if path else None
        if self._file is not None:
            try:
                if not parse_credentials(self._file.text()):
                    raise CannotStart(f"--admin-token-file: the file is missing, unreadable or empty: {path}")
            except ValueError as error:
                raise CannotStart(f"--admin-token-file: {path}: {error}") from error

    def __bool__(self) -> bool:
        return bool(self._given) or self._file is not None

    def who(self, token: str) -> str | None:
        """The name of the credential; None for a token that is none. Its time does not tell how much of it is right."""
        sent = _digest(token)
        name = None
        for credential in self._current():
            if hmac.compare_digest(sent, _digest(credential.token)):
                name = credential.name
        return name

    def _current(self) -> Sequence[Credential]:
        if self._file is None:
            return self._given
        try:
            return [*self._given, *parse_credentials(self._file.text())]
        except ValueError:
            return self._given


def admin_credentials(config: Config) -> AdminCredentials | None:
    """None where there is no port for admins.

    Raises CannotStart where there is one and no credential: whoever can connect, also a web page in a browser on this
    machine, could hand out keys; --insecure does not change that.
    """
    if not config.admin_listen:
        return None
    credentials = AdminCredentials(config.admin_token, config.admin_token_file)
    if not credentials:
        raise CannotStart("--admin-listen needs a credential: give --admin-token or --admin-token-file")
    return credentials


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
