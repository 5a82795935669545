"""Constraints as llguidance enforces them: a source becomes a grammar, and a grammar a matcher for each choice.

Compiling is bounded: by the limits below, by the sizes that are checked before, and by llguidance's own. What cannot be
compiled is told in the terms of its source (diagnosis.py). Nothing here is thread-safe but `Grammar.matcher`.

JSON is written compactly or with one space behind each comma and colon. With white space at will, a small model that is
held to a schema may write nothing else until its tokens are spent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from inferway.errors import ApiError, Reason

from ...core.schemas import schemas_of_tags, subschemas
from ...engine import Constraint
from .diagnosis import PARAM, cannot_enforce, not_valid, refusal, too_complex
from .structural_tags import LarkWriter

KINDS = ("json_schema", "regex", "ebnf", "structural_tag")

# Recursion in llguidance follows chains of references: in a quarter of a MiB of source, as deep as this holds.
STACK_BYTES = 256 << 20
# 20 ms of work on one lexer, and 40 MB of its states.
_LIMITS = LLParserLimits(initial_lexer_fuel=300_000, max_lexer_states=20_000, verbose_errors=False)
# Compiling takes time with the square of each of these: some 100 ms at the limit.
_MAX_RULES = 4096
_MAX_GBNF_RULES = 256
_MAX_MULTIPLES = 10_000

_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
# A member of a schema by which it would choose these options itself.
_OPTIONS_KEY = "x-guidance"
_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)


class GrammarFailed(Exception):
    """A choice that cannot go on under its grammar; `error` is for its caller."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class Compiler:
    """Makes grammars for one vocabulary. Takes 0.3 s and 34 MB with the bundled model's."""

    def __init__(self, tokenizer_json: bytes, *, vocab_size: int, end_tokens: Sequence[int]) -> None:
        """Raises ValueError for a tokenizer that llguidance cannot read."""
        self._vocab_size = vocab_size
        self._end_tokens = list(end_tokens)
        self._tokenizer = LLTokenizer(tokenizer_json.decode(), n_vocab=vocab_size, eos_token=self._end_tokens)
        special = {
            token["content"]: token["id"]
            for token in json.loads(tokenizer_json).get("added_tokens", ())
            if token["special"] and token["id"] not in self._end_tokens
        }
        self._tags = LarkWriter(special, lambda schema: {**_schema(schema), _OPTIONS_KEY: _JSON_OPTIONS})

    def compile(self, constraint: Constraint) -> Grammar:
        """Raises ApiError (INVALID_SCHEMA, SCHEMA_NOT_SUPPORTED)."""
        is_json = constraint.kind in ("json_schema", "structural_tag")
        document = _json(constraint) if is_json else None
        matcher = LLMatcher(self._tokenizer, self._source(constraint, document), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            if constraint.kind == "structural_tag":
                # One of its schemas alone says best what is wrong with it.
                for schema in schemas_of_tags(document):
                    self.compile(Constraint("json_schema", json.dumps(schema)))
            raise refusal(constraint.kind, matcher.get_error(), document if isinstance(document, dict) else None)
        grammar = Grammar(matcher, self._vocab_size)
        try:
            allowed = grammar.matcher().allowed()
        except GrammarFailed as failure:
            if "NoExtension" in str(failure.__cause__):
                raise not_valid(constraint.kind, "no text can match it") from failure
            raise
        allowed[self._end_tokens] = False
        if not allowed.any():
            raise not_valid(constraint.kind, "nothing but the empty text matches it")
        return grammar

    def _source(self, constraint: Constraint, document: Any) -> str:
        """In llguidance's terms. Raises ApiError."""
        text = constraint.text
        match constraint.kind:
            case "json_schema":
                schema = json.dumps(_schema(document))
                return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS)  # type: ignore[arg-type]
            case "regex":
                return LLMatcher.grammar_from_regex(text)
            case "ebnf":
                return LLMatcher.grammar_from_lark(_lark(text))
            case "structural_tag":
                return LLMatcher.grammar_from_lark(self._tags.write(document))
            case _:
                raise AssertionError(f"no capability says {constraint.kind}")


class Grammar:
    """What one constraint allows at its beginning."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def matcher(self) -> Matcher:
        """For one choice; 20 microseconds."""
        return Matcher(self._matcher.deep_copy(), self._vocab_size)


class Matcher:
    """Follows the tokens of one choice."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._bits = np.zeros((vocab_size + 31) // 32, np.uint32)

    @property
    def is_over(self) -> bool:
        """No token can follow; true behind an end token as well."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> NDArray[np.bool_]:
        """The tokens that may come next, at least one; end tokens where the text is whole. Raises GrammarFailed.

        0.1 ms for most grammars, some 15 ms at most.
        """
        try:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        except BaseException as error:  # a panic inside llguidance is no Exception
            raise GrammarFailed(too_complex()) from error
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._vocab_size]
        allowed = bits.view(np.bool_)
        if not allowed.any():
            raise GrammarFailed(too_complex())
        return allowed

    def take(self, token: int) -> None:
        """One of those that were allowed has been chosen. Raises GrammarFailed."""
        try:
            self._matcher.consume_token(token)
        except BaseException as error:
            raise GrammarFailed(too_complex()) from error
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFailed(too_complex()) from RuntimeError(self._matcher.get_error())


def _json(constraint: Constraint) -> Any:
    """Raises ApiError."""
    try:
        document = json.loads(constraint.text)
        json.dumps(document, allow_nan=False)
    except RecursionError:
        raise too_complex() from None
    except ValueError as error:
        raise not_valid(constraint.kind, f"it is no JSON ({error})") from None
    return document


def _schema(document: Any) -> dict[str, Any]:
    """A JSON schema as llguidance is to enforce it. Raises ApiError."""
    if document is True:
        return {}
    if not isinstance(document, dict):
        raise not_valid("json_schema", "it must be an object")
    schema = {name: value for name, value in document.items() if name != _OPTIONS_KEY}
    multiples = 0.0
    for pointer, part in subschemas(schema):
        multiple = part.get("multipleOf")
        if isinstance(multiple, int | float) and not isinstance(multiple, bool):
            multiples += abs(multiple)
            if multiples > _MAX_MULTIPLES:
                raise cannot_enforce("multipleOf", pointer, f"with numbers above {_MAX_MULTIPLES} in all")
    return schema


def _lark(text: str) -> str:
    """A Lark grammar as it is; GBNF, which begins at `root ::=`, translated. Raises ApiError."""
    if text.lstrip().startswith("{"):
        # llguidance would read a document of its own format.
        raise not_valid("ebnf", "it must be a Lark grammar with the rule 'start', or GBNF with the rule 'root'")
    if _GBNF.search(text):
        if text.count("::=") > _MAX_GBNF_RULES:
            raise _too_long(f"A GBNF grammar can have {_MAX_GBNF_RULES} rules at most.")
        try:
            return gbnf_to_lark(text)
        except RecursionError:
            raise too_complex() from None
        except Exception as error:
            raise not_valid("ebnf", str(error)) from None
    if text.count("\n") > _MAX_RULES:
        raise _too_long(f"A grammar can have {_MAX_RULES} lines at most.")
    return text


def _too_long(message: str) -> ApiError:
    return ApiError(Reason.SCHEMA_NOT_SUPPORTED, message, PARAM)
