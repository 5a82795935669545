"""The structural marks of a chat template: what it writes between the texts of callers, such as <|im_start|> or [INST].

A worker may name them, but most do not, so they are read from the template's own literal text: from its data and from
the string constants in its expressions, comparisons included; comments do not count. Only what is shaped like a tag is
taken:

    <|name|>  <|/name|>  <name|>  <|name>    also with the full-width bar, and as <|"|>
    <name>  </name>  <<NAME>>                letters, digits and _ . : - without spaces
    <name=  <name name=                      the open end of <function=NAME>, which the template completes
    [NAME]  [/NAME]                          with two capitals in a row, as in [INST] or [gMASK]

So a word never is a mark ("user", "### Instruction:", "[optional]", "a < b"). The price: a template whose only borders
are words, such as "USER:", has none; there nothing tells the template's text from a caller's. Marks that a template
composes ('<|' + role + '|>') are not found either; they are control tokens of the tokenizer, which are always known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLOCK = re.compile(r"\{#.*?(?:#\}|\Z)|(?P<open>\{\{|\{%)", re.DOTALL)
# A string constant, or the end of the block that was opened by {{ or {%.
_IN_BLOCK = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\}\}|%\}""", re.DOTALL)
_RAW = re.compile(r"\{%[-+]?\s*raw\s*[-+]?%\}(.*?)\{%[-+]?\s*endraw\s*[-+]?%\}", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}

_NAME = r"[\w.:▁-]{1,48}"
_MARK = re.compile(
    rf"""
      <[|｜](?:/?{_NAME}|")[|｜]> | <[|｜]{_NAME}> | <{_NAME}[|｜]>
    | <</?{_NAME}>>
    | </?[^\W\d]{_NAME}> | </?[^\W\d]>
    | <[^\W\d][\w.:-]{{0,47}}(?:\ name)?=
    | \[/?(?=\w*[A-Z][A-Z])[A-Za-z][\w]{{1,47}}\]
    """,
    re.VERBOSE,
)


def marks_of_template(source: str) -> frozenset[str]:
    """Whatever in a template's literal text is shaped like a tag."""
    return frozenset(match.group() for text in _literals(source) for match in _MARK.finditer(text))


def _literals(source: str) -> Iterator[str]:
    """The pieces of text that a template may write or look for."""
    yield from _RAW.findall(source)
    source = _RAW.sub("", source)
    at = 0
    while (block := _BLOCK.search(source, at)) is not None:
        yield source[at : block.start()]
        at = block.end()
        if block.group("open") is None:
            continue
        while (part := _IN_BLOCK.search(source, at)) is not None:
            at = part.end()
            if part.group() in ("}}", "%}"):
                break
            yield _ESCAPE.sub(_unescaped, part.group()[1:-1])
        else:
            return
    yield source[at:]


def _unescaped(match: re.Match[str]) -> str:
    code, byte, character = match.groups()
    return chr(int(code or byte, 16)) if code or byte else _ESCAPED.get(character, character)
