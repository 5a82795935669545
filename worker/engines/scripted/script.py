"""The script language: what an engine says, written as a list of items (docs/scripted-engine.md).

Reading is strict: an unknown key, a wrong type or a value out of range is a ScriptError that names the script, the
item and the key. A file is either a mapping from names to scripts, or a list of entries with `id` and
`engine_script`; a script is a list of items, or a mapping from variants to such lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferway.errors import ApiError, Reason

from ...engine import FinishReason


class ScriptError(ValueError):
    """A script that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Special:
    """One token by its name in the vocabulary."""

    name: str


# A token is its bytes, or a special one by name.
Token = bytes | Special


@dataclass(frozen=True, slots=True)
class Counts:
    """What a script reports instead of what is counted; None: counted."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    reasoning: int | None = None


COUNTED = Counts()


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the engine. `detail` is for the worker's own log only."""

    error: ApiError
    detail: str


@dataclass(frozen=True, slots=True)
class Score:
    """A token, its log-probability, and the most likely ones in its place, best first."""

    token: bytes
    logprob: float
    top: Sequence[tuple[bytes, float]] = ()


@dataclass(frozen=True, slots=True)
class Item:
    tokens: tuple[Token, ...] = ()
    # Also an item without tokens is an output when it says something else.
    is_output: bool = False
    finish: FinishReason | None = None
    matched_token: bool = False
    counts: Counts = COUNTED
    failure: Failure | None = None
    sleep_s: float = 0.0
    repeat: int = 1
    gap_s: float = 0.0
    index: int | None = None
    worker: str | None = None
    echo: bool = False
    per_prompt: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Of `tokens`, one each.
    scores: Sequence[Score] = ()
    # Of the prompt's tokens, from the first on; of those beyond them nothing is known.
    input_logprobs: Sequence[float | None] = ()
    # Read and kept; nothing plays it yet.
    embedding: Sequence[float] | None = None
    capability: Mapping[str, Any] = field(default_factory=dict)


Script = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Scripts:
    """All scripts of a file. `variants[name]` has the key "" when the script is a plain list."""

    variants: Mapping[str, Mapping[str, Script]] = field(default_factory=dict)

    def find(self, request_id: str) -> Script | None:
        """The script for a request: its id up to the first dot, then a variant if the next part names one.

        A script of variants of which none is named plays its first; a name without a script plays "*", if there is
        one; None otherwise.
        """
        name, _, rest = request_id.partition(".")
        variants = self.variants.get(name) or self.variants.get("*")
        if not variants:
            return None
        variant = rest.partition(".")[0]
        return variants[variant] if variant in variants else next(iter(variants.values()))


_REASONS = {
    "INVALID_ARGUMENT": (Reason.INVALID_REQUEST, "The engine refused this request as invalid."),
    "OUT_OF_RANGE": (Reason.INVALID_REQUEST, "The engine refused this request as invalid."),
    "FAILED_PRECONDITION": (Reason.INVALID_REQUEST, "The engine refused this request as invalid."),
    "UNIMPLEMENTED": (Reason.UNSUPPORTED_VALUE, "The engine does not support what this request asks for."),
    "NOT_FOUND": (Reason.MODEL_NOT_FOUND, "The engine does not know this model."),
    "RESOURCE_EXHAUSTED": (Reason.OVERLOADED, "The engine is at its capacity."),
    "DEADLINE_EXCEEDED": (Reason.UPSTREAM_TIMEOUT, "The engine did not answer in time."),
}
_FAILED = (Reason.WORKER_FAILED, "The engine failed on this request.")
_FAILURE_CODES = (
    "UNAVAILABLE",
    "INTERNAL",
    "UNKNOWN",
    "ABORTED",
    "CANCELLED",
    "DATA_LOSS",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "ALREADY_EXISTS",
)
_OVERLOAD_RETRY_S = 1.0
_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def read_scripts(document: Any) -> Scripts:
    """Read a parsed YAML or JSON document. Raises ScriptError."""
    if isinstance(document, Mapping):
        named = {str(name): script for name, script in document.items()}
    elif isinstance(document, Sequence) and not isinstance(document, str):
        named = {}
        for place, entry in enumerate(document):
            if not isinstance(entry, Mapping) or "id" not in entry:
                raise ScriptError(f"entry {place}: must be a mapping with an id")
            named[str(entry["id"])] = entry.get("engine_script")
    else:
        raise ScriptError("a script file must be a mapping from names to scripts, or a list of entries")
    variants: dict[str, Mapping[str, Script]] = {}
    for name, script in named.items():
        if script is None:
            continue
        if isinstance(script, Mapping):
            if not script:
                raise ScriptError(f"{name}: must have at least one variant")
            variants[name] = {str(key): _read_script(f"{name}.{key}", items) for key, items in script.items()}
        else:
            variants[name] = {"": _read_script(name, script)}
    return Scripts(variants)


def _read_script(name: str, items: Any) -> Script:
    if not isinstance(items, list):
        raise ScriptError(f"{name}: must be a list of items")
    return tuple(read_item(item, f"{name}[{place}]") for place, item in enumerate(items))


def read_item(item: Any, where: str) -> Item:
    """One item of a script; `where` names it in the error."""
    if not isinstance(item, Mapping):
        raise ScriptError(f"{where}: must be a mapping")
    values: dict[str, Any] = {}
    tokens: list[Token] = []
    counts: dict[str, int] = {}
    for key, value in item.items():
        at = f"{where}.{key}"
        match key:
            case "text":
                tokens.append(_typed(value, str, at).encode())
            case "pieces":
                tokens += [_typed(piece, str, at).encode() for piece in _typed(value, list, at)]
            case "bytes":
                tokens.append(_hex(value, at))
            case "special":
                tokens.append(Special(_typed(value, str, at)))
            case "tokens":
                values["scores"] = tuple(_score(_typed(token, Mapping, at), at) for token in _typed(value, list, at))
                tokens += [score.token for score in values["scores"]]
            case "finish":
                if value not in _FINISH_REASONS:
                    raise ScriptError(f"{at}: must be one of {', '.join(_FINISH_REASONS)}, got {value!r}")
                values["finish"] = _FINISH_REASONS[value]
            case "matched_token" | "echo_nonce" | "meta_only" | "eof":
                if _typed(value, bool, at):
                    values |= _FLAGS[key]()
            case "usage":
                for part, count in _typed(value, Mapping, at).items():
                    if part not in ("prompt", "completion", "cached", "reasoning"):
                        raise ScriptError(f"{at}.{part}: is no count; use prompt, completion, cached, reasoning")
                    counts[part] = _whole(count, f"{at}.{part}")
            case "cached" | "reasoning":
                counts[key] = _whole(value, at)
            case "grpc_error":
                values["failure"] = _grpc_error(_typed(value, Mapping, at), at)
            case "sleep_ms" | "gap_ms":
                values[key.removesuffix("ms") + "s"] = _number(value, at) / 1000
            case "repeat":
                values["repeat"] = _whole(value, at)
            case "index":
                values["index"] = _whole(value, at)
            case "worker":
                values["worker"] = _typed(value, str, at)
            case "per_prompt":
                values["per_prompt"] = {
                    str(prompt): tuple(_typed(text, str, at) for text in _typed(texts, list, at))
                    for prompt, texts in _typed(value, Mapping, at).items()
                }
            case "capability":
                values["capability"] = dict(_typed(value, Mapping, at))
            case "embedding":
                values["embedding"] = tuple(_embedding_value(number, at) for number in _typed(value, list, at))
            case "input_logprobs":
                values["input_logprobs"] = tuple(
                    None if number is None else _logprob(number, at) for number in _typed(value, list, at)
                )
            case _:
                raise ScriptError(f"{at}: no such key")
    is_output = values.pop("is_output", False) or bool(tokens) or bool(counts) or "finish" in values
    return Item(tokens=tuple(tokens), counts=Counts(**counts), is_output=is_output, **values)


def _lost() -> Failure:
    reason, message = _FAILED
    return Failure(ApiError(reason, message), "the engine lost the choice (eof)")


_FLAGS: dict[str, Callable[[], dict[str, Any]]] = {
    "matched_token": lambda: {"matched_token": True},
    "echo_nonce": lambda: {"echo": True},
    "meta_only": lambda: {"is_output": True},
    "eof": lambda: {"failure": _lost()},
}


def _grpc_error(value: Mapping[str, Any], at: str) -> Failure:
    code = value.get("code")
    if code not in _REASONS and code not in _FAILURE_CODES:
        raise ScriptError(f"{at}.code: must be a gRPC status code, got {code!r}")
    reason, message = _REASONS.get(code, _FAILED)
    retry_after_s = _OVERLOAD_RETRY_S if reason is Reason.OVERLOADED else None
    return Failure(ApiError(reason, message, retry_after_s=retry_after_s), f"{code}: {value.get('details', '')}")


def _score(token: Mapping[str, Any], at: str) -> Score:
    top = []
    for entry in _typed(token.get("top", []), list, f"{at}.top"):
        if not isinstance(entry, list) or len(entry) not in (2, 3):
            raise ScriptError(f"{at}.top: must hold lists of token, log-probability and, if need be, bytes")
        text, logprob, *raw = entry
        top.append((_token_bytes(text, raw[0] if raw else None, f"{at}.top"), _logprob(logprob, f"{at}.top")))
    own = _token_bytes(token.get("token"), token.get("bytes"), at)
    return Score(own, _logprob(token.get("logprob", 0.0), f"{at}.logprob"), top)


def _token_bytes(text: Any, raw: Any, at: str) -> bytes:
    if raw is None:
        return bytes(_typed(text, str, f"{at}.token").encode())
    try:
        return bytes(raw)
    except (TypeError, ValueError):
        raise ScriptError(f"{at}.bytes: must be a list of numbers from 0 to 255") from None


def _logprob(value: Any, at: str) -> float:
    """YAML writes the infinite as .inf; JSON has no word for it, so its name is taken as well."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ScriptError(f"{at}: must be a log-probability, got {value!r}") from None


def _typed(value: Any, kind: Any, at: str) -> Any:
    if not isinstance(value, kind):
        raise ScriptError(f"{at}: must be a {kind.__name__.lower()}, got {value!r}")
    return value


def _whole(value: Any, at: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ScriptError(f"{at}: must be a whole number of at least 0, got {value!r}")
    return value


def _number(value: Any, at: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise ScriptError(f"{at}: must be a number of at least 0, got {value!r}")
    return float(value)


def _embedding_value(value: Any, at: str) -> float:
    """Scripts write "nan" and "inf" as text, as JSON has no such numbers."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ScriptError(f"{at}: must hold numbers, got {value!r}") from None


def _hex(value: Any, at: str) -> bytes:
    try:
        return bytes.fromhex(_typed(value, str, at))
    except ValueError:
        raise ScriptError(f"{at}: must be bytes in hex, got {value!r}") from None
