"""The public keys of issuers of tokens: read at the start, again while the gateway runs, and when one is missing.

A set that cannot be read leaves the one that was there before in force. A token that names an unknown key has the set
read again, as after an issuer's change of keys, but not more often than every few seconds: anybody can name a key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import msgspec

from inferway import logs

log = logging.getLogger(__name__)

_REFRESH_S = 300.0
# A file costs nothing to look at.
_FILE_REFRESH_S = 5.0
# After a failure, and at least between two readings.
_RETRY_S = 5.0
_TIMEOUT_S = 3.0
_MOST_BYTES = 1 << 20
_MOST_KEYS = 100
_LEAST_RSA_BITS = 2048
# Keys without a name that a token without one is tried with.
_MOST_TRIED = 4

# What a key of a kind can verify. Symmetric keys are not among them: what is published must not sign.
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}


class Unread(Exception):
    """The set has never been read: no token can be judged by it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A URL, or a file."""

    place: str
    is_url: bool


class KeySet:
    """The keys of one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        # By algorithm and name.
        self._keys: Mapping[tuple[str, str], jwt.PyJWK] | None = None
        self._next_read = 0.0
        self._last_read = -_RETRY_S
        self._reading = asyncio.Lock()
        self._seen = b""
        # Another one with every other set of keys.
        self.version = 0

    async def keys(self, algorithm: str, key_id: object) -> list[jwt.PyJWK]:
        """Those with which a token may be signed that names an algorithm and perhaps (None) a key. Raises Unread."""
        found = self._known(algorithm, key_id)
        if not found:
            asked = time.monotonic()
            async with self._reading:
                # Whoever waited for another's reading has it.
                if self._last_read < asked and time.monotonic() - self._last_read >= _RETRY_S:
                    await self._read()
            found = self._known(algorithm, key_id)
        if self._keys is None:
            raise Unread(self._source.place)
        return found

    async def refresh(self) -> None:
        """Read it if it is time to."""
        if time.monotonic() >= self._next_read:
            async with self._reading:
                await self._read()

    def _known(self, algorithm: str, key_id: object) -> list[jwt.PyJWK]:
        keys = self._keys or {}
        if key_id is not None:
            key = keys.get((algorithm, key_id)) if isinstance(key_id, str) else None
            return [] if key is None else [key]
        return [key for (one, _), key in keys.items() if one == algorithm][:_MOST_TRIED]

    async def _read(self) -> None:
        place = self._source.place
        try:
            data = await (_download(place) if self._source.is_url else asyncio.to_thread(Path(place).read_bytes))
            if data != self._seen or self._keys is None:
                self._keys = _key_set(data)
                self._seen = data
                self.version += 1
                logs.event(log, "issuer_keys_read", source=place, keys=len({name for _, name in self._keys}))
            self._next_read = time.monotonic() + (_REFRESH_S if self._source.is_url else _FILE_REFRESH_S)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, msgspec.DecodeError) as error:
            fault = f"{type(error).__name__}: {error}"
            logs.event(log, "issuer_keys_unreadable", source=place, error=fault, level=logging.WARNING)
            self._next_read = time.monotonic() + _RETRY_S
        self._last_read = time.monotonic()


async def _download(url: str) -> bytes:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, allow_redirects=False, headers={"Accept": "application/json"}) as response,
    ):
        if response.status != 200:
            raise ValueError(f"the answer has status {response.status}")
        data = await response.content.read(_MOST_BYTES + 1)
        while len(data) <= _MOST_BYTES and (more := await response.content.read(_MOST_BYTES)):
            data += more
    if len(data) > _MOST_BYTES:
        raise ValueError(f"the answer is longer than {_MOST_BYTES} bytes")
    return data


def _key_set(data: bytes) -> dict[tuple[str, str], jwt.PyJWK]:
    """The keys that can verify something; ones of other kinds are left out. Raises ValueError."""
    document = msgspec.json.decode(data)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("this is no JSON Web Key Set: there is no list of keys")
    keys: dict[tuple[str, str], jwt.PyJWK] = {}
    for number, entry in enumerate(entries[:_MOST_KEYS]):
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        key_id = entry.get("kid", f"#{number}")
        for algorithm in _fitting(entry):
            try:
                key = jwt.PyJWK(entry, algorithm=algorithm)
            except (jwt.PyJWTError, ValueError, TypeError, KeyError):
                continue
            if isinstance(key_id, str) and getattr(key.key, "key_size", _LEAST_RSA_BITS) >= _least_bits(algorithm):
                keys[algorithm, key_id] = key
    if not keys:
        raise ValueError("there is no key in it that could verify a token")
    return keys


def _fitting(entry: Mapping[str, Any]) -> list[str]:
    kind, curve = entry.get("kty"), entry.get("crv")
    fitting = _ALGORITHMS.get((str(kind), None if kind == "RSA" else str(curve)), ())
    return [algorithm for algorithm in fitting if entry.get("alg") in (None, algorithm)]


def _least_bits(algorithm: str) -> int:
    return _LEAST_RSA_BITS if algorithm in _RSA else 0
