"""The secret from which the cache domains of tenants are derived: the same on every gateway of a mesh."""

from __future__ import annotations

import logging
from pathlib import Path

from inferway import logs
from inferway.config import Secret
from inferway.grpc_util import InternalToken
from inferway.service import CannotStart

from .config import Config

log = logging.getLogger(__name__)

# Where no token is configured there is nothing that a caller could not know anyway.
_NO_SECRET = Secret("inferway")


def cache_secret(config: Config, token: InternalToken) -> Secret:
    """The configured secret, else the first token that is there now, else a constant.

    Raises CannotStart for a file without a secret.
    """
    if config.cache_secret:
        return config.cache_secret
    if config.cache_secret_file:
        return _read(config.cache_secret_file)
    first = token.first
    if first and config.internal_token_file:
        advice = "rotation moves every cache domain; set a cache secret"
        logs.event(log, "cache_secret_from_token_file", level=logging.WARNING, advice=advice)
    return Secret(first) or _NO_SECRET


def _read(path: str) -> Secret:
    try:
        secret = Secret(Path(path).read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"--cache-secret-file: the file cannot be read: {error}") from error
    if not secret:
        raise CannotStart(f"--cache-secret-file: the file is empty: {path}")
    return secret
