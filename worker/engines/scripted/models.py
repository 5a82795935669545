"""The models that the scripted engine serves: one for each family of templates and formats.

`flagged` tokens are special and give no text. `marks` are single tokens that parsers and templates rely on and that
are shown as text; they are reported as structural marks, so that nobody's message can contain them. `turn` is what
the template writes before and after a user's message: between the last such pair lies what an echo repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...engine import ModelInfo
from .vocabulary import tokenizer_json

# Large enough for the largest body that a gateway takes by default.
CONTEXT_LENGTH = 4_194_304
BLOCK_SIZE = 64
# 2025-01-01: scripted models have no date of their own.
_CREATED = 1_735_689_600
_TEMPLATES = Path(__file__).with_name("templates")

# Request fields that scripts and echoes live with. The values of most change nothing: what comes is written.
CAPABILITIES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "logit_bias",
    "stop",
    "n",
    "grammar",
    "adapter",
    "logprobs",
)

EMBEDDING_CAPABILITIES = ("embeddings", "dimensions")

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>")
_CHATML_TURN = ("<|im_start|>user\n", "<|im_end|>")
_LLAMA3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|eot|>",
)
_LLAMA3_TURN = ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>")
_THINK = ("<think>", "</think>")
_TOOL_CALL = ("<tool_call>", "</tool_call>", "<tools>", "</tools>", "<tool_response>", "</tool_response>")


@dataclass(frozen=True, slots=True)
class Family:
    """How one scripted model is built; see the module's docstring."""

    template: str
    flagged: Sequence[str]
    turn: tuple[str, str]
    marks: Sequence[str] = ()
    bos: str = ""
    eos: str = "<|im_end|>"
    tokenizer_adds_bos: bool = False
    tool_parser: str = ""
    reasoning_parser: str = ""
    # The other vocabulary: fewer merges and every id shifted.
    is_second_vocabulary: bool = False
    # Makes embeddings and no text.
    is_embedding: bool = False


FAMILIES: dict[str, Family] = {
    "m-text": Family("chatml", _CHATML, _CHATML_TURN),
    "m-chatml": Family("chatml", _CHATML, _CHATML_TURN),
    "m-think": Family("chatml", _CHATML, _CHATML_TURN, _THINK, reasoning_parser="think"),
    "m-think-preopened": Family("think_preopened", _CHATML, _CHATML_TURN, _THINK, reasoning_parser="think_preopened"),
    "m-hermes": Family("hermes", _CHATML, _CHATML_TURN, _TOOL_CALL, tool_parser="hermes", is_second_vocabulary=True),
    "m-think-hermes": Family(
        "hermes",
        _CHATML,
        _CHATML_TURN,
        (*_THINK, *_TOOL_CALL),
        tool_parser="hermes",
        reasoning_parser="think",
        is_second_vocabulary=True,
    ),
    "m-qwen3coder": Family(
        "qwen3coder", _CHATML, _CHATML_TURN, _TOOL_CALL, tool_parser="qwen3_coder", is_second_vocabulary=True
    ),
    "m-llama3": Family(
        "llama3", _LLAMA3, _LLAMA3_TURN, bos="<|begin_of_text|>", eos="<|eot_id|>", tokenizer_adds_bos=True
    ),
    "m-llama3json": Family(
        "llama3json",
        _LLAMA3,
        _LLAMA3_TURN,
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        tokenizer_adds_bos=True,
        tool_parser="llama3_json",
    ),
    "m-pythonic": Family(
        "pythonic",
        _LLAMA3,
        _LLAMA3_TURN,
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        tokenizer_adds_bos=True,
        tool_parser="pythonic",
    ),
    "m-mistral": Family(
        "mistral",
        ("<s>", "</s>"),
        ("[INST]", "[/INST]"),
        (
            "[TOOL_CALLS]",
            "[INST]",
            "[/INST]",
            "[SYSTEM_PROMPT]",
            "[/SYSTEM_PROMPT]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ),
        bos="<s>",
        eos="</s>",
        tool_parser="mistral",
    ),
    "m-deepseek31": Family(
        "deepseek31",
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        ("<｜User｜>", "<｜Assistant｜>"),
        (
            *_THINK,
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜>",
        ),
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        tool_parser="deepseek_v3_1",
    ),
    "m-glm": Family(
        "glm",
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        ("<|user|>\n", "<|assistant|>"),
        (*_THINK, *_TOOL_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        eos="<|user|>",
        tool_parser="glm45",
        reasoning_parser="think",
    ),
    "m-kimi": Family(
        "kimi",
        ("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
        ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
        (
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_section_begin|>",
            "<|tool_call_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
        tool_parser="kimi_k2",
    ),
    "m-gemma": Family(
        "gemma",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        ("<start_of_turn>user\n", "<end_of_turn>"),
        bos="<bos>",
        eos="<end_of_turn>",
        tokenizer_adds_bos=True,
    ),
    "m-gemma4": Family(
        "gemma4",
        ("<bos>", "<eos>", "<|turn>", "<turn|>"),
        ("<|turn>user\n", "<turn|>"),
        ("<|tool_call>", "<tool_call|>", "<|tool>", "<tool|>", "<|tool_response>", "<tool_response|>", '<|"|>'),
        bos="<bos>",
        eos="<turn|>",
        tokenizer_adds_bos=True,
        tool_parser="gemma4",
    ),
    "m-harmony": Family(
        "harmony",
        ("<|startoftext|>", "<|endoftext|>"),
        ("<|start|>user<|message|>", "<|end|>"),
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"),
        eos="<|return|>",
        tool_parser="harmony",
        reasoning_parser="harmony",
    ),
    "m-embed": Family("", _CHATML, _CHATML_TURN, is_embedding=True),
}


def family_of(name: str) -> Family:
    """That of a model by its own name; every other name is that of one more plain model."""
    return FAMILIES.get(name, FAMILIES["m-text"])


def build_model(
    name: str, *, context_length: int, capabilities: Sequence[str], token_bytes: Callable[[int], bytes] | None = None
) -> ModelInfo:
    """`token_bytes` knows the tokens that scripts invent."""
    family = family_of(name)
    merges = 600 if family.is_second_vocabulary else 1200
    document = tokenizer_json(
        flagged=family.flagged,
        marks=family.marks,
        merges=merges,
        added_first=family.is_second_vocabulary,
        bos=family.bos if family.tokenizer_adds_bos else None,
    )
    return ModelInfo(
        name=name,
        context_length=context_length,
        tokenizer_json=document,
        vocab_size=256 + merges + len(family.flagged) + len(family.marks),
        chat_template=(_TEMPLATES / f"{family.template}.jinja").read_text(encoding="utf-8") if family.template else "",
        bos_token=family.bos,
        eos_token=family.eos,
        block_size=BLOCK_SIZE,
        created=_CREATED,
        tool_parser=family.tool_parser,
        reasoning_parser=family.reasoning_parser,
        structural_marks=tuple(family.marks),
        capabilities=EMBEDDING_CAPABILITIES if family.is_embedding else tuple(capabilities),
        token_bytes=token_bytes,
    )
