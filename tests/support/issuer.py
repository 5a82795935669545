"""An issuer of tokens for tests: real keys of several kinds, and a small server of its key set."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://login.example/", "inferway"


class Issuer:
    """Signs with keys by name; `published` is its key set as JSON."""

    def __init__(self, url: str = ISSUER) -> None:
        self.url = url
        self._keys: dict[str, Any] = {}
        self._algorithms: dict[str, str] = {}
        self.entries: list[dict[str, Any]] = []

    def add(self, key_id: str, algorithm: str = "ES256", *, bits: int = 2048, **extra: Any) -> None:
        """A key of the kind that the algorithm needs; `extra` are further members of what is published."""
        key: Any
        if algorithm == "EdDSA":
            key = ed25519.Ed25519PrivateKey.generate()
            public = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
        elif algorithm.startswith("ES"):
            key = ec.generate_private_key({"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1()}[algorithm])
            public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        else:
            key = rsa.generate_private_key(65537, bits)
            public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        self._keys[key_id], self._algorithms[key_id] = key, algorithm
        self.entries.append({**public, "kid": key_id, **extra})

    @property
    def published(self) -> bytes:
        return json.dumps({"keys": self.entries}).encode()

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Good ones, with changes; None takes a claim away."""
        now = int(time.time())
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "anna", "tenant_id": "research", "exp": now + 600, "iat": now}
        return {name: value for name, value in (good | changes).items() if value is not None}

    def token(self, key_id: str, *, headers: Mapping[str, Any] | None = None, **claims: Any) -> str:
        header = {"kid": key_id, **(headers or {})}
        return jwt.encode(self.claims(**claims), self._keys[key_id], self._algorithms[key_id], headers=header)

    def token_signed_with_the_public_key(self, key_id: str) -> str:
        """By HMAC, with what everybody can read as its secret."""
        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        secret = self._keys[key_id].public_key().public_bytes(*form)
        signed = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': key_id})}.{part(self.claims())}"
        signature = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
        return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    def unsigned_token(self, algorithm: str = "none") -> str:
        return f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(self.claims())}."


def part(value: Any) -> str:
    """A part of a token."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


class KeyServer:
    """Serves what an issuer publishes at `url`; counts how often it was asked."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self.asked = 0
        # Answered in the place of 200.
        self.status = 200
        self.body: bytes | None = None

    async def __aenter__(self) -> KeyServer:
        self._runner = web.ServerRunner(web.Server(self._answer))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/keys"
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _answer(self, _request: web.BaseRequest) -> web.Response:
        self.asked += 1
        body = self._issuer.published if self.body is None else self.body
        return web.Response(status=self.status, body=body, content_type="application/json")
