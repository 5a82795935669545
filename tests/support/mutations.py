"""Damaged JSON bodies, made from good ones with the random numbers of a seed.

Damage is either of structure, in one place that is known, or of bytes, anywhere.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Keys and indexes that lead to a value.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`hit` is the one place that was damaged, as values are reached from the body; None: bytes, or several places.

    `what` names the damage, for a failing test to say.
    """

    body: bytes
    what: str
    hit: Path | None = None


class Raw(str):
    """JSON text that stands in a body as it is, valid or not."""


def dump(value: Any) -> bytes:
    """JSON with every Raw in it written out."""
    raws: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raws.append(value)
            return f"<raw {len(raws) - 1}>"
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list) else value

    text = json.dumps(marked(value))
    for number, raw in enumerate(raws):
        text = text.replace(f'"<raw {number}>"', raw)
    return text.encode("utf-8", "surrogatepass")


WRONG_TYPES: list[Any] = [None, True, False, 0, 1, -1, 1.5, "", "a", [], {}, [None], [[]], [{}], {"": ""}, [1, "a", {}]]
HUGE: list[Any] = [
    *(2**31, 2**32, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30, -(10**400), 1e308, -1e308, 5e-324),
    *map(Raw, ("1e999", "-1e999", "1" * 4301, "-" + "9" * 20_000, "0." + "1" * 5000, "1e-99999", "1E+5")),
]
NOT_JSON: list[Any] = [*map(Raw, ("NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "'a'", "nul", "True", ""))]
TEXTS: list[Any] = [
    *("\x00", "\x1b[2J", "\u202e\u2066\u200b", "\u2028\u2029", "\ufdd0 0\ufdd1", "\uffff", "\U0010fffe", "\ufeff"),
    *("é" * 200, "🙂" * 70, "👩‍👩‍👧‍👦", "e" + "\u0301" * 300, "{{ x }}", "{% for x in y %}", "<tool_call>"),
    *("<|im_end|>", "<|im_start|>system\n", "../../etc/passwd", "'; --", "%s%n", "a" * 65, "1", "true", "null"),
]
SURROGATES: list[Any] = [*map(Raw, ('"\\ud800"', '"a\\udc00b"', '"\\udfff\\ud800"', '{"\\ud800": 1}', '["\\ud83d"]'))]
LONG: list[Any] = [
    "x" * 3000,
    "x" * 40_000,
    "word " * 6000,
    "\n" * 20_000,
    "🙂" * 5000,
    "\\" * 9000,
    "<|im_end|>" * 900,
]
MANY: list[Any] = [
    *(["a"] * 2100, [1] * 2000, [{} for _ in range(500)], [[1] for _ in range(500)]),
    {str(number): number for number in range(500)},
]
_PIECES = (b"null", b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\u", b"\xff", b"\x00")
DUPLICATES: list[Any] = [*map(Raw, ('{"type": "text", "type": 1}', '{"a": 1, "a": 2}', '{"name": "f", "name": []}'))]


def _nested(rng: random.Random) -> Raw:
    depth = rng.choice((3, 40, 200, 490, 510, 900, 1100, 5000, 60_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"type":', "}]")))
    return Raw(opening * depth + "1" + closing * depth)


def _places(value: Any, path: Path = ()) -> list[Path]:
    """Of every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((*path, key), *_places(item, (*path, key)))]


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


class Mutator:
    """Mutants of some good bodies. `names` are fields that may be added to a body."""

    def __init__(self, rng: random.Random, names: Sequence[str]) -> None:
        self._rng = rng
        self._names = names
        self._pools: dict[str, Sequence[Any]] = {
            "null": [None],
            "wrong type": WRONG_TYPES,
            "huge": HUGE,
            "not JSON": NOT_JSON,
            "text": TEXTS,
            "surrogate": SURROGATES,
            "long": LONG,
            "many": MANY,
            "duplicate": DUPLICATES,
        }
        # Values that some fields take come more often than those that make every body bad.
        self._kinds = (
            *self._pools,
            "nested",
            *("null", "text", "text", "long", "many", "wrong type", "wrong type", "huge") * 2,
        )

    def _value(self, kind: str) -> Any:
        """A value of its own: what is put into a body may be damaged again."""
        return _nested(self._rng) if kind == "nested" else copy.deepcopy(self._rng.choice(self._pools[kind]))

    def mutant(self, good: dict[str, Any]) -> Mutant:
        match self._rng.randrange(20):
            case 0 | 1 | 2 | 3:
                return self._of_bytes(dump(good))
            case 4 | 5:
                return self._of_several_places(good)
            case _:
                return self._of_structure(good)

    def _of_structure(self, good: dict[str, Any]) -> Mutant:
        rng, body = self._rng, copy.deepcopy(good)
        # A body of many parts is hit at its top as often as inside.
        place = rng.choice(_places(body)) if rng.randrange(2) else (rng.choice(list(body)),)
        parent, key = _at(body, place[:-1]), place[-1]
        kind = rng.choice(("delete", "swap", "repeat", "add", "rename") * 3 + self._kinds)
        match kind:
            case "delete":
                del parent[key]
            case "swap":
                parent[key] = copy.deepcopy(_at(good, rng.choice(_places(good))))
            case "repeat" if isinstance(parent, list):
                parent[key:key] = [copy.deepcopy(parent[key]) for _ in range(rng.randint(1, 30))]
            case "rename" if isinstance(parent, dict):
                parent[rng.choice(("", "\x00", "x" * 300, "é", "a\r\nb", "__proto__", key.upper()))] = parent.pop(key)
            case "repeat" | "rename" | "add":
                place, kind = (rng.choice(self._names),), rng.choice(self._kinds)
                body[place[0]] = self._value(kind)
            case _:
                parent[key] = self._value(kind)
        return Mutant(dump(body), kind, place)

    def _of_several_places(self, good: dict[str, Any]) -> Mutant:
        rng, body = self._rng, copy.deepcopy(good)
        for _ in range(rng.randint(2, 5)):
            if places := _places(body):
                place = rng.choice(places)
                _at(body, place[:-1])[place[-1]] = self._value(rng.choice(self._kinds))
        text = dump(body)
        if rng.randrange(2):  # the same key twice, with another value
            name = rng.choice([*good, *self._names])
            text = text.replace(b"{", b"{" + dump({name: self._value("wrong type")})[1:-1] + b",", 1)
        return Mutant(text, "several")

    def _of_bytes(self, text: bytes) -> Mutant:
        rng, body = self._rng, bytearray(text)
        for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
            at = rng.randrange(len(body) + 1)
            match rng.randrange(6):
                case 0 if at < len(body):
                    body[at] ^= 1 << rng.randrange(8)
                case 1 if at < len(body):
                    body[at] = rng.randrange(256)
                case 2:
                    del body[at : at + rng.randint(1, 20)]
                case 3:
                    del body[at:]
                case 4:
                    body[at:at] = rng.choice(
                        (b"null", b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\u", b"\xff", b"\x00")
                    )
                case _:
                    other = rng.randrange(len(body) + 1)
                    body[at:at] = body[other : other + rng.randint(1, 40)]
        return Mutant(bytes(body), "bytes")
