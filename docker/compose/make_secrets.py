"""Random secrets of a mesh on one machine: `make_secrets.py FOLDER`. What is there already is kept.

`token` is shown by the services to each other; `cache-secret` and `key-secret` are the gateways'; `api-key` is the
first key of callers, of which `tenants.yaml` has only the hash. A file of tenants that was changed by hand stays.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from pathlib import Path


def make(folder: Path) -> list[str]:
    """Write what is missing, readable by this user only, and return the names of it."""
    made = [name for name in ("token", "cache-secret", "key-secret", "api-key") if not (folder / name).exists()]
    for name in made:
        _write(folder / name, ("sk-" if name == "api-key" else "") + secrets.token_urlsafe(36))
    if not (folder / "tenants.yaml").exists():
        digest = hashlib.sha256((folder / "api-key").read_bytes()).hexdigest()
        # JSON is YAML.
        _write(folder / "tenants.yaml", json.dumps({"tenants": {"default": {"keys": {"first": {"sha256": digest}}}}}))
        made.append("tenants.yaml")
    return made


def _write(path: Path, text: str) -> None:
    # In one step: a half-written secret would be kept for ever.
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.rename(path)


if __name__ == "__main__":
    print("made:", ", ".join(make(Path(sys.argv[1]))) or "nothing: all of it was there")
