"""A BERT of a few numbers, and the folder that sentence-transformers would write for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d")
LAYERS, HEADS, WIDTH, INNER, POSITIONS = 2, 2, 8, 12, 16
EPS = 1e-12

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "layer_norm_eps": EPS,
}
POOLING = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
TOKENIZER = {
    "version": "1.0",
    "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 4}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": None,
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token: number for number, token in enumerate(VOCABULARY)},
    },
}


def weights(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """By the names of BertModel, drawn at random."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    dense = {}
    norms = ["embeddings.LayerNorm"]
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        dense |= {f"{layer}.attention.self.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
        dense |= {
            f"{layer}.attention.output.dense": (WIDTH, WIDTH),
            f"{layer}.intermediate.dense": (INNER, WIDTH),
            f"{layer}.output.dense": (WIDTH, INNER),
        }
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name, shape in dense.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def safetensors(tensors: Mapping[str, NDArray[Any]], **changed: Any) -> bytes:
    """The file; `changed` entries replace those of the header."""
    types = {"float32": "F32", "int64": "I64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        end = len(data) + tensor.nbytes
        header[name] = {
            "dtype": types[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), end],
        }
        data += tensor.tobytes()
    text = json.dumps(header | changed).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_folder(
    folder: Path,
    *,
    config: Mapping[str, Any] = CONFIG,
    pooling: Mapping[str, Any] = POOLING,
    tensors: Mapping[str, NDArray[np.float32]] | None = None,
) -> Path:
    (folder / "1_Pooling").mkdir(parents=True)
    for name, document in (
        ("config.json", config),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": 12}),
        ("tokenizer.json", TOKENIZER),
    ):
        (folder / name).write_text(json.dumps(document))
    (folder / "model.safetensors").write_bytes(safetensors(weights() if tensors is None else tensors))
    return folder
