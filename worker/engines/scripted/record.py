"""A line of JSON for every Generate and Abort: how a test sees from outside what the engine was asked and made."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TextIO

import msgspec

from ...engine import EmbedRequest, GenerateRequest, Sampling


class Recorder:
    """Appends to a file, each line at once. Raises OSError when the file cannot be opened."""

    def __init__(self, path: str, worker: str) -> None:
        self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        self._worker = worker
        self._encode = msgspec.json.Encoder().encode

    def generate(self, request: GenerateRequest, prompt: str) -> None:
        self._write(
            "generate",
            request,
            token_ids=list(request.prompt_token_ids),
            prompt=prompt,
            sampling=_given(request.sampling),
            priority=request.priority,
            cache_salt=request.cache_salt.hex(),
            traceparent=request.traceparent,
            lease_id=request.lease_id,
            adapter=request.adapter,
            constraint=request.constraint,
        )

    def embed(self, request: EmbedRequest, prompt: str) -> None:
        self._append(
            {
                "event": "embed",
                "time": time.time(),
                "worker": self._worker,
                "request_id": request.request_id,
                "model": request.model,
                "token_ids": list(request.prompt_token_ids),
                "prompt": prompt,
                "dimensions": request.dimensions,
            }
        )

    def abort(self, request: GenerateRequest, tokens: int) -> None:
        """`tokens` are all that were made for it: nothing more comes."""
        self._write("abort", request, tokens=tokens)

    def end(self, request: GenerateRequest, tokens: int) -> None:
        """It came to its own end, good or bad."""
        self._write("end", request, tokens=tokens)

    def step(self, keys: Sequence[int]) -> None:
        """The choices that gained tokens in this step; without any, no line."""
        if keys:
            self._append({"event": "step", "time": time.time(), "worker": self._worker, "keys": keys})

    def close(self) -> None:
        self._file.close()

    def _write(self, event: str, request: GenerateRequest, **more: Any) -> None:
        line = {
            "event": event,
            "time": time.time(),
            "worker": self._worker,
            "request_id": request.request_id,
            "key": request.key,
            "model": request.model,
            "choice_index": request.choice_index,
            **more,
        }
        self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        self._file.write(self._encode(line).decode() + "\n")
        self._file.flush()


def _given(sampling: Sampling) -> dict[str, Any]:
    """Only what the request set. `max_tokens` is always there: the worker sets it to what the context leaves."""
    values = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    return {name: value for name, value in values.items() if value is not None and value is not False and value != {}}
