"""Files of tenants for tests, and what a store holds of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from tests.support.valkey import Valkey


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def tenants_file(folder: Path, **tenants: Mapping[str, Any]) -> Path:
    """What is said of each tenant; without `keys` it gets one named "k", which is its own name."""

    def with_keys(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
        keys = said.get("keys", {"k": {}})
        # The key of tenant "a" named "k" is "a", any other "a-NAME".
        texts = {key: name if key == "k" else f"{name}-{key}" for key in keys}
        digests = {key: hashlib.sha256(text.encode()).hexdigest() for key, text in texts.items()}
        return {**said, "keys": {key: {"sha256": digests[key], **fields} for key, fields in keys.items()}}

    path = folder / "tenants.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({"tenants": {name: with_keys(name, said) for name, said in tenants.items()}}))
    return path


class Account:
    """One tenant's books and ledger, as they lie in a store."""

    def __init__(self, valkey: Valkey, tenant: str) -> None:
        self._tenant = tenant
        self._redis = redis.Redis.from_url(valkey.url, decode_responses=True)

    def entries(self) -> list[dict[str, str]]:
        """The ledger's, oldest first."""
        return [fields for _, fields in self._redis.xrange(self._key("ledger"))]

    def total(self, name: str) -> int:
        """The sum of a field over the ledger."""
        return sum(int(entry[name] or 0) for entry in self.entries())

    def leases(self) -> int:
        """Reservations that have not been settled."""
        return int(self._redis.zcard(self._key("leases")))

    def _key(self, part: str) -> str:
        return f"inferway:{{{self._tenant}}}:{part}"
