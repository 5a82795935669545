"""Constraints in real llguidance with the bundled model's vocabulary: what compiles, what matches, what is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from inferway.errors import ApiError, Reason
from worker.engine import Constraint
from worker.engines.llamacpp.gguf import read_metadata
from worker.engines.llamacpp.grammar import STACK_BYTES, Compiler, GrammarFailed
from worker.engines.llamacpp.grammars import start_thread
from worker.engines.llamacpp.model import source
from worker.engines.llamacpp.tokenizer import export

from ...support.tool_forms import CALLS as CALLS_BY_FORMAT
from ...support.tool_forms import document, format_of, samples

VOCAB = 49152
END = [2, 0]
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def tokenizer_json() -> bytes:
    return export(read_metadata(source(None, None).path))


@pytest.fixture(scope="module")
def compiler(tokenizer_json: bytes) -> Compiler:
    return Compiler(tokenizer_json, vocab_size=VOCAB, end_tokens=END)


@pytest.fixture(scope="module")
def encode(tokenizer_json: bytes) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def matches(compiler: Compiler, encode: Callable[[str], list[int]]) -> Callable[[Constraint, str], bool]:
    """Whether a text is possible, token by token, and may end there."""

    def match(constraint: Constraint, text: str) -> bool:
        matcher = compiler.compile(constraint).matcher()
        for token in encode(text):
            if not matcher.allowed()[token]:
                return False
            matcher.take(token)
        return bool(matcher.allowed()[END].all())

    return match


def schema(document: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(document))


PERSON = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("constraint", "text", "expected"),
    [
        (schema(PERSON), '{"a":[1,2],"b":"x"}', True),
        (schema(PERSON), '{"a": [1, 2], "b": "x"}', True),
        (schema(PERSON), '{"a":  [1], "b": "x"}', False),
        (schema(PERSON), '{\n"a": [1], "b": "x"}', False),
        (schema(PERSON), ' {"a": [1], "b": "x"}', False),
        (schema(PERSON), '{"a": [1], "b": "z"}', False),
        (schema({**PERSON, "x-guidance": {"whitespace_flexible": True}}), '{\n"a": [1], "b": "x"}', False),
        (schema(True), "[1]", True),
        (Constraint("regex", "yes|no"), "yes", True),
        (Constraint("regex", "yes|no"), "maybe", False),
        (Constraint("regex", "^yes$"), "yes", True),
        (Constraint("regex", "a/b"), "a/b", True),
        (Constraint("regex", '(?i)YES "now"'), 'yes "NOW"', True),
        (Constraint("ebnf", 'start: "<" /[a-c]+/ ">"'), "<abc>", True),
        (Constraint("ebnf", 'start: "<" /[a-c]+/ ">"'), "<abd>", False),
        (Constraint("ebnf", 'root ::= "<" letters ">"\nletters ::= [a-c]+'), "<abc>", True),
        (Constraint("ebnf", '# a comment\n  root ::= "<" [a-c]+ ">"'), "<>", False),
        (Constraint("ebnf", f"start: %json {json.dumps(PERSON)}"), '{"a":[],"b":"y"}', True),
    ],
    ids=str,
)
def test_matches(matches: Callable[[Constraint, str], bool], constraint: Constraint, text: str, expected: bool) -> None:
    """JSON is compact or has one space behind each comma and colon; expressions match as a whole."""
    assert matches(constraint, text) is expected


NOT_SUPPORTED = {
    "a keyword": (
        schema({"properties": {"a": {"items": {"uniqueItems": True}}}}),
        "'uniqueItems' at '#/properties/a/items'",
    ),
    "two keywords": (schema({"$defs": {"x/y": {"if": {}, "then": {}}}, "$ref": "#/$defs/x~1y"}), "'#/$defs/x~1y'"),
    "a property of its name": (
        schema({"properties": {"not": {"type": "string"}, "b": {"not": {}}}}),
        "'not' at '#/properties/b'",
    ),
    "a format": (schema({"items": {"format": "iri", "type": "string"}}), "'format' at '#/items' with the value 'iri'"),
    "a remote reference": (schema({"items": {"$ref": "http://x/y"}}), "'$ref' at '#/items' to another document"),
    "alternatives that overlap": (schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "'oneOf' at '#'"),
    "a look-around in a pattern": (schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
    "a look-around": (Constraint("regex", "(?!a)b"), "look-around"),
    "a back reference": (Constraint("regex", r"(a)\1"), "backreferences"),
    "a keyword in a grammar": (Constraint("ebnf", 'start: %json {"not": {}}'), "'not'"),
    "a large multiple": (schema({"items": {"type": "integer", "multipleOf": 99991}}), "'multipleOf' at '#/items'"),
    "many multiples": (
        schema({"properties": {f"a{i}": {"type": "integer", "multipleOf": 4000 + i} for i in range(3)}}),
        "'multipleOf' at '#/properties/a2'",
    ),
    "a depth that nobody reads": (Constraint("json_schema", '{"items":' * 40_000 + "{}" + "}" * 40_000), "too complex"),
    "an expression too complex": (
        Constraint("ebnf", "start: A\nA: " + " & ".join(f"/(.*{chr(97 + i)}.*){{{i + 2}}}/" for i in range(20))),
        "too complex",
    ),
    "many rules": (Constraint("ebnf", "start: R0\n" + "".join(f'R{i}: R{i + 1} "b"\n' for i in range(9000))), "4096"),
    "many rules in GBNF": (Constraint("ebnf", "root ::= r0\n" + 'r0 ::= "a"\n' * 300), "256 rules"),
    "parentheses": (Constraint("ebnf", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000), "too complex"),
}
WRONG = {
    "no JSON": (Constraint("json_schema", "{"), "it is no JSON"),
    "no number": (Constraint("json_schema", '{"minimum": NaN}'), "it is no JSON"),
    "no schema": (Constraint("json_schema", "[]"), "it must be an object"),
    "nothing is allowed": (Constraint("json_schema", "false"), "it must be an object"),
    "no such type": (schema({"type": "no such type"}), "Invalid type: no such type"),
    "a keyword of a wrong type": (schema({"type": "integer", "minimum": "a"}), "'minimum'"),
    "no value can match": (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum (5) is greater"),
    "no place to refer to": (schema({"$ref": "#/$defs/x"}), "'/$defs/x' does not exist"),
    "a circle": (schema({"$ref": "#"}), "no text can match it"),
    "an open group": (Constraint("regex", "(a"), "The regular expression is not valid: unclosed group."),
    "an empty expression": (Constraint("regex", ""), "nothing but the empty text"),
    "an empty grammar": (Constraint("ebnf", "root ::="), "nothing but the empty text"),
    "no rule to begin with": (Constraint("ebnf", 'a: "b"'), "The grammar is not valid"),
    "an unknown rule": (Constraint("ebnf", "start: x"), "unknown name"),
    "an unknown rule in GBNF": (Constraint("ebnf", "root ::= x"), "Rule 'x' not found"),
    "a rule that is itself": (Constraint("ebnf", "start: start"), "no text can match it"),
    "another format": (Constraint("ebnf", '{"grammars": []}'), "Lark grammar"),
}


@pytest.mark.parametrize(
    ("constraint", "reason", "part"),
    [
        *((constraint, Reason.SCHEMA_NOT_SUPPORTED, part) for constraint, part in NOT_SUPPORTED.values()),
        *((constraint, Reason.INVALID_SCHEMA, part) for constraint, part in WRONG.values()),
    ],
    ids=[*NOT_SUPPORTED, *WRONG],
)
def test_refusals(compiler: Compiler, constraint: Constraint, reason: Reason, part: str) -> None:
    """What is wrong is told from what is too much, and the sentence is short and says where."""
    with pytest.raises(ApiError) as caught:
        compiler.compile(constraint)
    error = caught.value
    assert (error.reason, error.param) == (reason, "constraint")
    assert part in error.message
    assert len(error.message) < 500
    assert "\n" not in error.message


CHAINS = {
    "references": schema(
        {
            "$ref": "#/$defs/0",
            "$defs": {**{str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(6000)}, "6000": {"type": "null"}},
        }
    ),
    "objects": schema(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                **{str(i): {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(3000)},
                "3000": {"type": "null"},
            },
        }
    ),
    "rules": Constraint("ebnf", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(4000)) + 'r4000: "a"\n'),
    "terminals": Constraint(
        "ebnf", "start: R0\n" + "".join(f'R{i}: R{i + 1} "b"\n' for i in range(4000)) + 'R4000: "a"\n'
    ),
}


@pytest.mark.parametrize("constraint", CHAINS.values(), ids=CHAINS.keys())
def test_long_chains(compiler: Compiler, constraint: Constraint) -> None:
    """On the engine's threads they compile and can be followed; a common stack would end the process."""
    sizes: list[int] = []
    thread = start_thread(
        lambda: sizes.append(int(compiler.compile(constraint).matcher().allowed().sum())), "deep", STACK_BYTES
    )
    thread.join(LIMIT_S)
    assert sizes
    assert sizes[0] >= 1


def test_matchers_of_one_grammar_do_not_share(compiler: Compiler, encode: Callable[[str], list[int]]) -> None:
    """Each goes its own way, and the grammar stays at its beginning."""
    grammar = compiler.compile(Constraint("regex", "(a|b)c"))
    first, second = grammar.matcher(), grammar.matcher()
    first.take(encode("a")[0])
    assert second.allowed()[encode("b")[0]]
    assert not first.allowed()[encode("b")[0]]
    assert grammar.matcher().allowed()[encode("a")[0]]


def test_the_end(compiler: Compiler, encode: Callable[[str], list[int]]) -> None:
    """A text that can go on may end; one that cannot is over, and only end tokens are left."""
    matcher = compiler.compile(Constraint("regex", "ab?")).matcher()
    assert not matcher.allowed()[END].any()
    matcher.take(encode("a")[0])
    assert matcher.allowed()[END].all()
    assert not matcher.is_over
    matcher.take(encode("b")[0])
    assert matcher.is_over
    assert sorted(np.flatnonzero(matcher.allowed())) == sorted(END)
    ended = compiler.compile(Constraint("regex", "ab?")).matcher()
    ended.take(encode("a")[0])
    ended.take(END[0])
    assert ended.is_over


def test_a_token_that_was_not_allowed(compiler: Compiler, encode: Callable[[str], list[int]]) -> None:
    """It ends the choice, and no other one of the same grammar."""
    grammar = compiler.compile(Constraint("regex", "ab"))
    matcher = grammar.matcher()
    with pytest.raises(GrammarFailed):
        matcher.take(encode("x")[0])
    with pytest.raises(GrammarFailed):
        matcher.allowed()
    assert grammar.matcher().allowed().any()


def test_a_tokenizer_that_is_none() -> None:
    """The engine then serves without grammars."""
    with pytest.raises(ValueError):
        Compiler(b"{}", vocab_size=VOCAB, end_tokens=END)


def test_grammars_move_between_threads(compiler: Compiler, encode: Callable[[str], list[int]]) -> None:
    """Compiled on one, followed on another."""
    grammar = compiler.compile(Constraint("regex", "ab"))
    found: list[bool] = []

    def follow() -> None:
        matcher = grammar.matcher()
        matcher.take(encode("a")[0])
        found.append(bool(matcher.allowed()[encode("b")[0]]))

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join(LIMIT_S)
    assert found == [True]


def call_tag(name: str, arguments: Any) -> dict[str, Any]:
    """A call in the form of Hermes."""
    begin = f'<tool_call>\n{{"name": "{name}", "arguments": '
    content = {"type": "json_schema", "json_schema": arguments}
    return {"type": "tag", "begin": begin, "content": content, "end": "}\n</tool_call>"}


def triggered(*tags: Any, triggers: Any = ("<tool_call>",), **others: Any) -> Constraint:
    inner = {"type": "triggered_tags", "triggers": list(triggers), "tags": list(tags), **others}
    return Constraint("structural_tag", json.dumps({"type": "structural_tag", "format": inner}))


CALLS = triggered(call_tag("f", PERSON), call_tag("g", {"type": "object"}))
RIGHT = '<tool_call>\n{"name": "f", "arguments": {"a": [1], "b": "y"}}\n</tool_call>'
# Between special tokens of the bundled vocabulary, as families with marks of their own write it.
MARKED = {
    "type": "tag",
    "begin": "<repo_name>f:",
    "content": {
        "type": "sequence",
        "elements": [
            {"type": "regex", "pattern": r"[0-9]/[0-9]+"},
            {"type": "const_string", "value": "<file_sep>"},
            {"type": "json_schema", "json_schema": PERSON},
        ],
    },
    "end": "<gh_stars>",
}


@pytest.mark.parametrize(
    ("constraint", "text", "expected"),
    [
        (CALLS, "No call at all, a <tool, and </tool_call>.", True),
        (CALLS, RIGHT, True),
        (CALLS, f"I look it up. {RIGHT} And again: {RIGHT}\n\nDone.", True),
        (CALLS, RIGHT.replace('"y"', '"z"'), False),
        (CALLS, RIGHT.replace('"f"', '"h"'), False),
        (CALLS, RIGHT.replace("}}\n", "} }\n"), False),
        (CALLS, "<tool_call> is how calls begin", False),
        (CALLS, RIGHT[:-5], False),
        (CALLS, '<tool_call>\n{"name": "g", "arguments": {"any": ["<tool_call>"]}}\n</tool_call>', True),
        (CALLS, f"<repo_name>a {RIGHT}<file_sep>b", True),
        (triggered(MARKED, triggers=["<repo_name>"]), "free <file_sep> text", True),
        (
            triggered(MARKED, triggers=["<repo_name>"]),
            'a<repo_name>f:1/23<file_sep>{"a":[],"b":"x"}<gh_stars> b',
            True,
        ),
        (triggered(MARKED, triggers=["<repo_name>"]), 'a<repo_name>f:1/2{"a":[],"b":"x"}<gh_stars>', False),
        (triggered(MARKED, triggers=["<repo_name>"]), "a<repo_name> b", False),
    ],
)
def test_structural_tags(
    matches: Callable[[Constraint, str], bool], constraint: Constraint, text: str, expected: bool
) -> None:
    """Text is free up to a trigger; special tokens are meant where they are spelled."""
    assert matches(constraint, text) is expected


@pytest.mark.parametrize(
    ("constraint", "reason", "message"),
    [
        (
            triggered(call_tag("f", {"type": "object", "properties": {"a": {"not": {"type": "null"}}}})),
            Reason.SCHEMA_NOT_SUPPORTED,
            "The schema uses 'not' at '#/properties/a', which this model's engine cannot enforce.",
        ),
        (triggered(call_tag("f", {"type": "nothing"})), Reason.INVALID_SCHEMA, "The schema is not valid"),
        (triggered(), Reason.INVALID_SCHEMA, "The structural tag is not valid: 'tags' must be a list of tags."),
        (
            triggered(call_tag("f", PERSON), triggers=["<other>"]),
            Reason.INVALID_SCHEMA,
            "begins with none of the triggers",
        ),
        (triggered({"begin": "<tool_call>"}), Reason.INVALID_SCHEMA, "a tag must have 'begin' and 'end' as text"),
        (triggered(call_tag("f", PERSON), triggers=[]), Reason.INVALID_SCHEMA, "'triggers' must be a list of texts"),
        (triggered(call_tag("f", PERSON), at_least_one=True), Reason.SCHEMA_NOT_SUPPORTED, "more than triggers"),
        (
            triggered({**call_tag("f", PERSON), "content": {"type": "any_text"}}),
            Reason.SCHEMA_NOT_SUPPORTED,
            "a format of type 'any_text'",
        ),
        (
            triggered(
                {**MARKED, "content": {"type": "json_schema", "json_schema": PERSON, "style": "qwen_xml"}},
                triggers=["<repo_name>"],
            ),
            Reason.SCHEMA_NOT_SUPPORTED,
            "arguments in the style 'qwen_xml'",
        ),
        (
            triggered({**MARKED, "begin": "a<repo_name>"}, triggers=["a<repo_name>"]),
            Reason.SCHEMA_NOT_SUPPORTED,
            "special",
        ),
        (Constraint("structural_tag", "[]"), Reason.INVALID_SCHEMA, "it must be an object of type 'structural_tag'"),
        (Constraint("structural_tag", "{"), Reason.INVALID_SCHEMA, "it is no JSON"),
    ],
)
def test_structural_tags_that_are_refused(
    compiler: Compiler, constraint: Constraint, reason: Reason, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        compiler.compile(constraint)
    assert caught.value.reason is reason
    assert message in caught.value.message


@pytest.mark.parametrize("case", [case for case in CALLS_BY_FORMAT if format_of(case) not in ("glm45", "qwen3_coder")])
def test_strict_tools(matches: Callable[[Constraint, str], bool], case: str) -> None:
    """What gateways ask for in each format whose arguments are JSON."""
    asked = Constraint("structural_tag", document(case))
    for text, is_allowed in samples(case):
        assert matches(asked, text) is is_allowed, text


@pytest.mark.parametrize("case", ["glm45", "qwen3_coder"])
def test_arguments_in_other_styles_are_refused(compiler: Compiler, case: str) -> None:
    with pytest.raises(ApiError, match="arguments in the style"):
        compiler.compile(Constraint("structural_tag", document(case)))
