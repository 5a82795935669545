"""Structural tags (JSON, as xgrammar defines them) as a Lark grammar for llguidance. Pure.

What is understood: `triggered_tags`, that is free text, and from each trigger on one of its tags; within tags, and
instead of them, `json_schema` in the style of JSON, `regex`, `const_string` and `sequence`.

A special token is no text to llguidance: where a text of the document spells one, the token itself is meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .diagnosis import cannot_enforce_format, not_valid

# Makes a schema one that llguidance is to enforce. Raises ApiError.
Prepare = Callable[[Any], dict[str, Any]]

_KIND = "structural_tag"
# TEXT is any text; a trigger that is text is its first occurrence, for which [lazy] stands.
_HEAD = """
%llguidance {}
TEXT: /(.|\\n)*/
"""

# What ends a pattern or its line, and what is escaped already.
_SLASH = re.compile(r"\\.|/|\n", re.DOTALL)


class LarkWriter:
    """`special` are the ids of special tokens by their spelling, those that end a text not among them."""

    def __init__(self, special: Mapping[str, int], prepare: Prepare) -> None:
        self._special = special
        self._prepare = prepare
        spellings = sorted(special, key=len, reverse=True)
        self._spelling = re.compile(f"({'|'.join(map(re.escape, spellings)) or '(?!)'})")

    def write(self, document: Any) -> str:
        """Raises ApiError (INVALID_SCHEMA, SCHEMA_NOT_SUPPORTED)."""
        if not isinstance(document, Mapping) or document.get("type") != _KIND:
            raise not_valid(_KIND, f"it must be an object of type '{_KIND}'")
        inner = document.get("format")
        if isinstance(inner, Mapping) and inner.get("type") == "triggered_tags":
            return self._triggered(inner)
        return f"{_HEAD}start: {self._content(inner)}\n"

    def _triggered(self, inner: Mapping[str, Any]) -> str:
        if inner.get("at_least_one") or inner.get("stop_after_first") or inner.get("excludes"):
            raise cannot_enforce_format("triggered_tags with more than triggers and tags")
        triggers, tags = _texts(inner, "triggers"), inner.get("tags")
        if not isinstance(tags, list) or not tags:
            raise not_valid(_KIND, "'tags' must be a list of tags")
        lead = {self._split(trigger)[0] for trigger in triggers}
        others = [str(token) for text, token in self._special.items() if text not in lead]
        rules = [_HEAD, f"start: ({' | '.join(f'tag_{place}' for place in range(len(tags)))}"]
        rules.append(f" | other)* TEXT\nother: TEXT <[{','.join(others)}]>\n" if others else ")* TEXT\n")
        rules += (self._tag(place, tag, triggers) for place, tag in enumerate(tags))
        return "".join(rules)

    def _tag(self, place: int, tag: Any, triggers: Sequence[str]) -> str:
        begin, end = (tag.get(name) for name in ("begin", "end")) if isinstance(tag, Mapping) else (None, None)
        if not isinstance(begin, str) or not isinstance(end, str):
            raise not_valid(_KIND, "a tag must have 'begin' and 'end' as text")
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise not_valid(_KIND, f"'{begin}' begins with none of the triggers")
        parts = self._split(trigger)
        body = f"{self._literal(begin[len(parts[0]) :])} {self._content(tag.get('content'))} {self._literal(end)}"
        if parts[0] in self._special:
            return f"tag_{place}: TEXT {self._literal(parts[0])} {body}\n"
        if len(parts) > 1:
            raise cannot_enforce_format("a trigger in which a special token follows text")
        return f"at_{place}[lazy]: TEXT {json.dumps(trigger)}\ntag_{place}: at_{place} {body}\n"

    def _content(self, content: Any) -> str:
        kind = content.get("type") if isinstance(content, Mapping) else None
        match kind:
            case "json_schema":
                if content.get("style", "json") != "json":
                    raise cannot_enforce_format(f"arguments in the style '{content['style']}'")
                return f"%json {json.dumps(self._prepare(content.get('json_schema')))}"
            case "regex":
                return f"/{_SLASH.sub(_escaped, _text(content, 'pattern'))}/"
            case "const_string":
                return self._literal(_text(content, "value"))
            case "sequence" if isinstance(content.get("elements"), list):
                return " ".join(self._content(element) for element in content["elements"])
        raise cannot_enforce_format(f"a format of type '{kind}'")

    def _split(self, text: str) -> list[str]:
        """Text and spellings of special tokens in turn; at least one piece."""
        return [piece for piece in self._spelling.split(text) if piece] or [""]

    def _literal(self, text: str) -> str:
        pieces = (piece for piece in self._split(text) if piece)
        return " ".join(f"<[{self._special[one]}]>" if one in self._special else json.dumps(one) for one in pieces)


def _escaped(match: re.Match[str]) -> str:
    found = match.group()
    return {"/": "\\/", "\n": "\\n"}.get(found, found)


def _texts(inner: Mapping[str, Any], name: str) -> list[str]:
    found = inner.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(text, str) and text for text in found):
        raise not_valid(_KIND, f"'{name}' must be a list of texts")
    return found


def _text(inner: Mapping[str, Any], name: str) -> str:
    found = inner.get(name)
    if not isinstance(found, str):
        raise not_valid(_KIND, f"'{name}' must be a text")
    return found
