"""Streams one completion from a mesh and prints a JSON line about it; exits with 1 when there was none.

Needs nothing but Python. PROBE_URL, PROBE_MODEL (empty: the first listed model that takes chats), PROBE_API_KEY,
PROBE_TIMEOUT_S; PROBE_CERTIFICATE is the file with the only certificate that is trusted, whatever name it is for.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

_BAD_REQUEST = 400
_WORST_ANSWER_BYTES = 500


class Failed(Exception):
    pass


class Mesh:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._url = environ["PROBE_URL"].rstrip("/")
        self._key = environ.get("PROBE_API_KEY", "")
        self._timeout_s = float(environ.get("PROBE_TIMEOUT_S", "60"))
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if certificate := environ.get("PROBE_CERTIFICATE"):
            # Inside the cluster the front has another name than its certificate; so it must be this very one.
            context = ssl.create_default_context(cafile=certificate)
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers=headers)
        return self._opener.open(request, timeout=self._timeout_s)

    def models(self) -> list[str]:
        with self.open("/v1/models") as answer:
            return [model["id"] for model in json.load(answer)["data"]]

    def stream(self, model: str) -> dict[str, Any]:
        """What came, and when. Raises Failed for a stream that is not whole, HTTPError for a refusal."""
        ask = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True}
        started = time.monotonic()
        first_s, pieces, is_done = None, 0, False
        with self.open("/v1/chat/completions", ask) as answer:
            request_id = answer.headers.get("x-request-id", "")
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                data = line[len(b"data: ") :].strip()
                if data == b"[DONE]":
                    is_done = True
                    break
                event = json.loads(data)
                if "error" in event:
                    raise Failed(event["error"].get("message", "the stream had an error"))
                pieces += sum(bool(choice["delta"].get("content")) for choice in event["choices"])
                if pieces and first_s is None:
                    first_s = time.monotonic() - started
        if first_s is None or not is_done:
            raise Failed("the stream ended without [DONE]" if first_s is not None else "no text came")
        total_s = time.monotonic() - started
        return {
            "model": model,
            "request_id": request_id,
            "time_to_first_token_s": round(first_s, 4),
            "duration_s": round(total_s, 4),
            "pieces": pieces,
        }


def main() -> int:
    try:
        mesh = Mesh(os.environ)
        models = [os.environ["PROBE_MODEL"]] if os.environ.get("PROBE_MODEL") else mesh.models()
        print(json.dumps({"status": "ok", **_first_chat(mesh, models)}))
    except urllib.error.HTTPError as error:
        text = error.read(_WORST_ANSWER_BYTES).decode(errors="replace")
        print(json.dumps({"status": "failed", "reason": f"{error.code}: {text}"}))
    except (OSError, ValueError, KeyError, Failed) as error:
        print(json.dumps({"status": "failed", "reason": f"{type(error).__name__}: {error}"}))
    else:
        return 0
    return 1


def _first_chat(mesh: Mesh, models: list[str]) -> dict[str, Any]:
    """Models for embeddings alone refuse a chat; the next one is asked then."""
    for number, model in enumerate(models, 1):
        try:
            return mesh.stream(model)
        except urllib.error.HTTPError as error:
            if error.code != _BAD_REQUEST or number == len(models):
                raise
    raise Failed("the mesh has no model")


if __name__ == "__main__":
    sys.exit(main())
