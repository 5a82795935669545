"""The secrets that all gateways of a mesh must share: of the cache domains of tenants, and of the digests of keys."""

from __future__ import annotations

import hmac
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
    if given := _given(config.cache_secret, config.cache_secret_file, "--cache-secret-file"):
        return given
    if token.first and config.internal_token_file:
        advice = "rotation moves every cache domain; set a cache secret"
        logs.event(log, "cache_secret_from_token_file", level=logging.WARNING, advice=advice)
    return Secret(token.first) or _NO_SECRET


def key_secret(config: Config, token: InternalToken) -> Secret:
    """The configured secret, else one that is derived from the first token that is there now, else from a constant.

    Raises CannotStart for a file without a secret.
    """
    if given := _given(config.key_secret, config.key_secret_file, "--key-secret-file"):
        return given
    if token.first and config.internal_token_file and config.redis:
        advice = "rotation invalidates every key in Redis; set a key secret"
        logs.event(log, "key_secret_from_token_file", level=logging.WARNING, advice=advice)
    return Secret(hmac.new((token.first or _NO_SECRET).encode(), b"keys", "sha256").hexdigest())


def _given(secret: Secret, path: str, flag: str) -> Secret | None:
    if secret or not path:
        return secret or None
    try:
        secret = Secret(Path(path).read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"{flag}: the file cannot be read: {error}") from error
    if not secret:
        raise CannotStart(f"{flag}: the file is empty: {path}")
    return secret
