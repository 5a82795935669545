"""Reads traces: Mooncake's and the router's own decision log. docs/simulator.md describes both formats.

Neither holds text. Prompts are told apart by the hashes of their blocks alone: equal hashes mean equal prefixes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.messages import PRIORITIES

# Tokens of the blocks that Mooncake's hash_ids stand for.
MOONCAKE_BLOCK_TOKENS = 512
# Of requests whose trace names none.
DEFAULT_PRIORITY = 5


class TraceError(ValueError):
    """Names the line and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """`at_s` counts from the first request. `block_hashes` are those of the full blocks of the prompt."""

    at_s: float
    prompt_tokens: int
    completion_tokens: int
    block_hashes: Sequence[int]
    tenant_id: str = ""
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class Trace:
    """In order of arrival."""

    requests: Sequence[TraceRequest]
    # Lines of a decision log without completion tokens: those requests never ran.
    skipped: int = 0
    # What the log says was cached, as a share of its prompt tokens; None where it does not say.
    recorded_hit_ratio: float | None = None


def read_trace(lines: Iterable[str], *, block_size: int, model: str = "", limit: int | None = None) -> Trace:
    """The first `limit` requests of a trace, those of one model where it is named. Raises TraceError."""
    records = _records(lines)
    first = next(records, None)
    if first is None:
        raise TraceError("the trace is empty")
    reader: _MooncakeReader | _LogReader
    if "hash_ids" in first.values:
        reader = _MooncakeReader(block_size)
    elif "block_hashes" in first.values:
        reader = _LogReader(block_size, model)
    else:
        raise TraceError("line 1 has neither hash_ids (a Mooncake trace) nor block_hashes (a decision log)")
    requests: list[TraceRequest] = []
    record: _Record | None = first
    while record is not None and (limit is None or len(requests) < limit):
        request = reader.read(record)
        if request is not None:
            requests.append(request)
        record = next(records, None)
    if not requests:
        raise TraceError(f"the trace has no request that ran{f' on the model {model!r}' if model else ''}")
    requests.sort(key=lambda request: request.at_s)
    start = requests[0].at_s
    moved = [
        TraceRequest(r.at_s - start, r.prompt_tokens, r.completion_tokens, r.block_hashes, r.tenant_id, r.priority)
        for r in requests
    ]
    return Trace(moved, reader.skipped, reader.recorded_hit_ratio())


@dataclass(frozen=True, slots=True)
class _Record:
    line: int
    values: Mapping[str, Any]

    def number(self, name: str, *, least: float, most: float = float("inf")) -> float:
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            limits = f"at least {least}" if most == float("inf") else f"from {least} to {most}"
            raise TraceError(f"line {self.line}: {name} must be a number {limits}, got {value!r}")
        return value

    def count(self, name: str, *, least: int = 0, most: float = float("inf")) -> int:
        value = self.number(name, least=least, most=most)
        if value != int(value):
            raise TraceError(f"line {self.line}: {name} must be a whole number, got {value!r}")
        return int(value)

    def text(self, name: str) -> str:
        value = self.values.get(name, "")
        if not isinstance(value, str):
            raise TraceError(f"line {self.line}: {name} must be text, got {value!r}")
        return value

    def hashes(self, name: str, *, most: int, tokens: int) -> Sequence[int]:
        values = self.values.get(name)
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise TraceError(f"line {self.line}: {name} must be a list of whole numbers")
        if len(values) > most:
            raise TraceError(f"line {self.line}: {name} has {len(values)} blocks; {tokens} tokens have {most} at most")
        return values


def _records(lines: Iterable[str]) -> Iterator[_Record]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            raise TraceError(f"line {number} is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise TraceError(f"line {number} is no JSON object")
        yield _Record(number, values)


class _MooncakeReader:
    """Cuts the trace's blocks into the router's."""

    skipped = 0

    def __init__(self, block_size: int) -> None:
        if MOONCAKE_BLOCK_TOKENS % block_size:
            raise TraceError(f"the blocks of a Mooncake trace, 512 tokens, cannot be cut into blocks of {block_size}")
        self._block_size = block_size
        self._cuts = MOONCAKE_BLOCK_TOKENS // block_size
        # Number of each prefix, from 1, by the number of its parent (0: none) and the id of its last block.
        self._prefixes: dict[tuple[int, int], int] = {}

    def read(self, record: _Record) -> TraceRequest:
        tokens = record.count("input_length", least=1)
        ids = record.hashes("hash_ids", most=-(-tokens // MOONCAKE_BLOCK_TOKENS), tokens=tokens)
        hashes: list[int] = []
        prefix = 0
        for block in ids:
            prefix = self._prefixes.setdefault((prefix, block), len(self._prefixes) + 1)
            hashes.extend(range(prefix * self._cuts, (prefix + 1) * self._cuts))
        # The last of the trace's blocks may be a partial one.
        del hashes[tokens // self._block_size :]
        completion = max(1, record.count("output_length"))
        return TraceRequest(record.number("timestamp", least=0) / 1000, tokens, completion, hashes)

    def recorded_hit_ratio(self) -> float | None:
        return None


class _LogReader:
    def __init__(self, block_size: int, model: str) -> None:
        self._block_size = block_size
        self._model = model
        self._seen = ""
        self.skipped = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._says_cached = False

    def read(self, record: _Record) -> TraceRequest | None:
        model = record.text("model")
        if self._model and model != self._model:
            return None
        if not self._model and self._seen and model != self._seen:
            raise TraceError(f"line {record.line}: the log has several models ({self._seen}, {model}); name one")
        self._seen = model
        if record.values.get("completion_tokens") is None:
            self.skipped += 1
            return None
        tokens = record.count("prompt_tokens", least=1)
        hashes = record.hashes("block_hashes", most=tokens // self._block_size, tokens=tokens)
        priority = DEFAULT_PRIORITY
        if record.values.get("priority") is not None:
            priority = record.count("priority", most=PRIORITIES - 1)
        if record.values.get("cached_tokens") is not None:
            self._says_cached = True
            self._prompt_tokens += tokens
            self._cached_tokens += record.count("cached_tokens", most=tokens)
        return TraceRequest(
            record.number("at_ms", least=0) / 1000,
            tokens,
            max(1, record.count("completion_tokens")),
            hashes,
            record.text("tenant_id"),
            priority,
        )

    def recorded_hit_ratio(self) -> float | None:
        return self._cached_tokens / self._prompt_tokens if self._says_cached else None
