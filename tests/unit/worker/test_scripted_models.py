"""The scripted engine's models: real tokenizers, templates that render, words that scripts use."""

from __future__ import annotations

import hashlib
from typing import Any

import minijinja
import pytest
from tokenizers import Tokenizer

from worker.core.detokenize import Detokenizer, token_table
from worker.engine import ModelInfo
from worker.engines.scripted.lexicon import Interned, Lexicon
from worker.engines.scripted.models import FAMILIES, build_model
from worker.engines.scripted.script import Special

NAMES = sorted(FAMILIES)
CHAT_NAMES = [name for name in NAMES if FAMILIES[name].template]
TEXT = "Größe 👋 über\n\n  it's 3.14 o'clock, 中文 \x00 <tool_call> weather in Paris"
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris", "n": 1}}}
BROKEN = {"id": "c2", "type": "function", "function": {"name": "get_time", "arguments": '{"ci'}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def model(name: str) -> ModelInfo:
    return build_model(name, context_length=100, capabilities=())


def lexicon(name: str) -> Lexicon:
    return Lexicon(model(name), FAMILIES[name], Interned())


def render(name: str, messages: list[dict[str, Any]], **context: Any) -> str:
    def refuse(sentence: str) -> None:
        raise ValueError(sentence)

    info = model(name)
    environment = minijinja.Environment(trim_blocks=True, lstrip_blocks=True, templates={"t": info.chat_template})
    environment.add_function("raise_exception", refuse)  # type: ignore[attr-defined]
    environment.add_filter("tojson", lambda value: str(value).replace("'", '"'))
    return environment.render_template(
        "t",
        messages=messages,
        add_generation_prompt=True,
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        **context,
    )


@pytest.mark.parametrize("name", NAMES)
def test_tokenizers_are_whole_and_text_comes_back(name: str) -> None:
    """Every id is a token of its own, and what is encoded is decoded to the same text, token by token."""
    info = model(name)
    tokenizer = Tokenizer.from_str(info.tokenizer_json.decode())
    assert tokenizer.get_vocab_size() == info.vocab_size
    machine = Detokenizer(token_table(info.tokenizer_json, shown=info.structural_marks))
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert max(ids) < info.vocab_size
    assert "".join(machine.feed([token_id]) for token_id in ids) + machine.finish() == TEXT


def test_a_model_is_the_same_in_every_process() -> None:
    """Workers that serve one model report one tokenizer digest."""
    digest = hashlib.sha256(model("m-hermes").tokenizer_json).hexdigest()
    assert digest == hashlib.sha256(model("m-hermes").tokenizer_json).hexdigest()
    assert model("m-text").tokenizer_json == model("m-chatml").tokenizer_json


def test_the_two_vocabularies_share_no_ids_for_a_text() -> None:
    """Text that was tokenized for the wrong model cannot pass unnoticed."""
    first, second = (
        Tokenizer.from_str(model(name).tokenizer_json.decode()).encode(TEXT, add_special_tokens=False).ids
        for name in ("m-text", "m-hermes")
    )
    assert first != second


@pytest.mark.parametrize("name", NAMES)
def test_flagged_tokens_are_single_and_marks_are_shown(name: str) -> None:
    """Each added token is one id; flagged ones have no text, marks have theirs."""
    info, family = model(name), FAMILIES[name]
    tokenizer = Tokenizer.from_str(info.tokenizer_json.decode())
    table = token_table(info.tokenizer_json, shown=info.structural_marks)
    for content in (*family.flagged, *family.marks):
        (token_id,) = tokenizer.encode(content, add_special_tokens=False).ids
        assert table[token_id] == (content.encode() if content in family.marks else b"")


@pytest.mark.parametrize("name", CHAT_NAMES)
def test_templates_render_and_the_echo_finds_the_last_message(name: str) -> None:
    """What lies between the marks of the last user turn is exactly what the user wrote."""
    messages = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "answer"}]
    last = "\n\n then Größe? \n"
    text = render(name, [*messages, {"role": "user", "content": last}])
    words = lexicon(name)
    ids = Tokenizer.from_str(model(name).tokenizer_json.decode()).encode(text, add_special_tokens=False).ids
    assert words.decode(ids) == text
    assert words.text(words.last_message(ids)) == last


@pytest.mark.parametrize("name", [name for name in NAMES if FAMILIES[name].tool_parser])
def test_tools_and_calls_are_rendered(name: str) -> None:
    """Tools, a call beside a null content, a call whose arguments are broken text, and a result all appear."""
    text = render(
        name,
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [CALL, BROKEN]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ],
        tools=[TOOL],
    )
    for word in ("Be brief.", "get_weather", "Paris", "sunny", "parameters"):
        assert word in text
    assert "None" not in text
    assert '{"ci' in text


def test_gemma_refuses_with_a_sentence() -> None:
    """No system role, and roles must alternate."""
    with pytest.raises(ValueError, match="takes no system message"):
        render("m-gemma", [{"role": "system", "content": "S"}, {"role": "user", "content": "x"}])
    with pytest.raises(ValueError, match="must alternate"):
        render("m-gemma", [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])


def test_llama_writes_its_bos_and_its_tokenizer_would_add_another() -> None:
    """The double BOS that a gateway has to avoid is there to be avoided."""
    text = render("m-llama3", [{"role": "user", "content": "hi"}])
    tokenizer = Tokenizer.from_str(model("m-llama3").tokenizer_json.decode())
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    assert bos is not None
    assert tokenizer.encode(text).ids[:2] == [bos, bos]
    assert tokenizer.encode(text, add_special_tokens=False).ids.count(bos) == 1
    assert tokenizer.encode("hi").ids.count(bos) == 1


@pytest.mark.parametrize(
    ("kwargs", "opened"), [({}, True), ({"enable_thinking": True}, True), ({"enable_thinking": False}, False)]
)
def test_the_thought_is_opened_by_the_template_unless_turned_off(kwargs: dict[str, Any], opened: bool) -> None:
    """m-think-preopened ends its prompt inside the thought."""
    text = render("m-think-preopened", [{"role": "user", "content": "hi"}], **kwargs)
    assert text.endswith("<think>\n") is opened


def test_a_prompt_without_turns_is_echoed_whole() -> None:
    """Plain completions echo everything but special tokens; message text that looks like a header stays text."""
    words = lexicon("m-llama3")
    tokenizer = Tokenizer.from_str(model("m-llama3").tokenizer_json.decode())
    assert words.text(words.last_message(tokenizer.encode("tell me more").ids)) == "tell me more"
    assert list(words.last_message(tokenizer.encode("hi").ids)) == tokenizer.encode("hi", add_special_tokens=False).ids


def test_tokens_of_the_vocabulary_keep_their_id_and_others_are_invented() -> None:
    """A script's word is the vocabulary's token where there is one; bytes of no token get an id beyond it."""
    info = model("m-think")
    tokenizer = Tokenizer.from_str(info.tokenizer_json.decode())
    interned = Interned()
    words = Lexicon(info, FAMILIES["m-think"], interned)
    assert words.token_id(b" the") == tokenizer.token_to_id("Ġthe")
    assert words.token_id(b"</think>") == tokenizer.token_to_id("</think>")
    assert words.token_id(Special("<|im_end|>")) == tokenizer.token_to_id("<|im_end|>")
    assert words.token_id(b"<|im_end|>") >= info.vocab_size
    for data in (b"", b"\xc3", b"one long item"):
        assert words.token_id(data) == words.token_id(data)
    invented = words.token_id(b"one long item")
    assert interned.bytes_of(invented) == b"one long item"
    assert interned.bytes_of(words.token_id(Special("<|nobody|>"))) == b""
    assert interned.bytes_of(5) == b""
