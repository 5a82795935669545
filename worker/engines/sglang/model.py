"""What the worker says of the model that SGLang serves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.formats import marks_of
from ...engine import ModelInfo
from .launch import Sglang

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "logit_bias",
    "stop",
    "n",
    "logprobs",
)
CONSTRAINTS = ("constraint.json_schema", "constraint.regex", "constraint.ebnf")
# Of xgrammar alone: SGLang gives llguidance an older form of tags. Behind the kind, styles of arguments beyond JSON.
STRUCTURAL_TAGS = ("constraint.structural_tag", "structural_tag.qwen_xml", "structural_tag.glm_xml")
# What SGLang calls the formats of its flags --reasoning-parser and --tool-call-parser, and what the contract does. A
# format that is not here keeps its name, and gateways say that they do not know it.
REASONING_PARSERS = {
    "deepseek-r1": "think_preopened",
    "glm45": "think",
    "gpt-oss": "harmony",
    "qwen3": "think",
    "qwen3-thinking": "think_preopened",
}
TOOL_PARSERS = {
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v3_1",
    "glm": "glm45",
    "glm47": "glm45",
    "gpt-oss": "harmony",
    "llama3": "llama3_json",
    "qwen": "hermes",
    "qwen25": "hermes",
}


def describe(sglang: Sglang, name: str | None) -> ModelInfo:
    """`name` None: that of --served-model-name, or of the model's folder. Raises OSError without a fast tokenizer."""
    manager, settings = sglang.manager, sglang.settings
    folder = Path(settings["model_path"])
    tokenizer = manager.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise OSError(f"the tokenizer of {folder} has no tokenizer.json form, which gateways need")
    file = folder / "tokenizer.json"
    tool_parser = parser_name(settings["tool_call_parser"], TOOL_PARSERS)
    reasoning_parser = parser_name(settings["reasoning_parser"], REASONING_PARSERS)
    served = settings["served_model_name"] if settings["served_model_name"] != settings["model_path"] else None
    return ModelInfo(
        name=name or served or folder.name.lower(),
        # The longest prompt that SGLang takes is one token shorter, and with any prompt it computes what is left.
        context_length=sglang.scheduler_info["max_req_input_len"],
        tokenizer_json=file.read_bytes() if file.is_file() else backend.to_str().encode(),
        vocab_size=manager.model_config.vocab_size,
        chat_template=_template(tokenizer.chat_template),
        bos_token=tokenizer.bos_token or "",
        eos_token=tokenizer.eos_token or "",
        block_size=settings["page_size"],
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        structural_marks=marks_of(tool_parser, reasoning_parser),
        created=int(folder.stat().st_mtime) if folder.is_dir() else 0,
        capabilities=capabilities(sglang),
    )


def capabilities(sglang: Sglang) -> tuple[str, ...]:
    settings = sglang.settings
    names: list[str] = []
    if sglang.manager.is_generation:
        names += SAMPLING
        if takes_seed(settings):
            names.append("seed")
        if settings["grammar_backend"] != "none":
            names += CONSTRAINTS
        if settings["grammar_backend"] == "xgrammar":
            names += STRUCTURAL_TAGS
    else:
        names.append("embeddings")
        if sglang.manager.model_config.is_matryoshka:
            names.append("dimensions")
    if settings["enable_lora"]:
        names.append("adapter")
    return tuple(names)


def parser_name(name: str | None, ours: Mapping[str, str]) -> str:
    return ours.get(name, name) if name else ""


def takes_seed(settings: Mapping[str, Any]) -> bool:
    """SGLang takes a seed always, and keeps to it only then."""
    return bool(settings["enable_deterministic_inference"])


def publishes_events(sglang: Sglang) -> bool:
    """With data parallelism, of attention too, a worker has several caches: a block hash would not say which."""
    settings = sglang.settings
    has_cache = sglang.manager.is_generation and not settings["disable_radix_cache"]
    return bool(has_cache and settings["kv_events_config"])


def _template(template: str | Mapping[str, str] | None) -> str:
    """Some models have several by name."""
    if isinstance(template, Mapping):
        return template.get("default", "")
    return template or ""
