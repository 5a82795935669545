"""The engine minilm without its threads: the file's reader, the forward pass, what a pass takes, what is refused."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inferway.cli.core import local_mesh
from inferway.errors import ApiError, Reason
from tests.support import tiny_bert
from tests.support.tiny_bert import safetensors, write_folder
from worker.engines.minilm.bert import Bert, gelu
from worker.engines.minilm.model import PACKAGE, Source, context_length, describe, load
from worker.engines.minilm.passes import FULL_PASS_TOKENS, SMALL_PASS_TOKENS, Passes
from worker.engines.minilm.weights import read_weights

CHECKOUT = Path(__file__).parents[3]
TWO = {"a": np.array([[1, 2, 3], [4, 5, 6]], np.float32), "b": np.array([-0.5], np.float32)}


# The reader.


def test_tensors_come_back(tmp_path: Path) -> None:
    """Floats have their names, shapes and numbers; tensors of another type are left out."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors({"ids": np.arange(3, dtype=np.int64), **TWO}))
    tensors = read_weights(path)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "a": [[1, 2, 3], [4, 5, 6]],
        "b": [-0.5],
    }


def entry(*, first: int = 0, end: int = 24, shape: Sequence[Any] = (2, 3), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, end]}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "too short"),
        (b"GGUF", "too short"),
        (b"PK\x03\x04 and much more of an archive", "header would have"),
        ((40).to_bytes(8, "little") + b"{}", "header would have 40 bytes"),
        ((2).to_bytes(8, "little") + b"{]", "cannot be understood"),
        ((2).to_bytes(8, "little") + b"[]", "cannot be understood"),
        ((2).to_bytes(8, "little") + b"\xff\xfe", "cannot be understood"),
        (safetensors(TWO)[:-1], "b of shape [1]"),
        (safetensors(TWO, a=entry(end=20)), "a of shape [2, 3]"),
        (safetensors(TWO, a=entry(first=-4, end=20)), "a of shape [2, 3]"),
        (safetensors(TWO, a=entry(first=8, end=32)), "a of shape [2, 3]"),
        (safetensors(TWO, a=entry(shape=["2", 3])), "a of shape"),
        (safetensors(TWO, a={"dtype": "F32"}), "cannot be understood"),
        (safetensors(TWO, a=7), "cannot be understood"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, data: bytes, complaint: str) -> None:
    """Whatever is wrong, one sentence names the file and the place."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(OSError, match=r"model.safetensors is not a whole safetensors file") as caught:
        read_weights(path)
    assert complaint in str(caught.value)


# The forward pass.


def test_gelu() -> None:
    """As by the error function of the standard library, over more rows than are computed at once."""
    numbers = np.linspace(-12, 12, 2_000).reshape(100, 20)
    expected = [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in numbers.ravel()]
    assert gelu(numbers.astype(np.float32)).ravel().tolist() == pytest.approx(expected, abs=1e-6)


def test_the_mean_of_all_tokens_has_length_one() -> None:
    """Without layers a token's state is its normed embedding; the known mean of two is divided by its length."""
    weights = {
        # With position and type added: (3, 1, 3, 1) and (1, 1, -1, -1), whose norms are (1, -1, 1, -1), (1, 1, -1, -1).
        "embeddings.word_embeddings.weight": [[2, 0, 2, 0], [0, 0, -2, -2]],
        "embeddings.position_embeddings.weight": [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]],
        "embeddings.token_type_embeddings.weight": [[0.5, 0.5, 0.5, 0.5], [9, 9, 9, 9]],
        "embeddings.LayerNorm.weight": [1, 1, 1, 3],
        "embeddings.LayerNorm.bias": [0, 0, 0, 1],
    }
    bert = Bert({name: np.array(rows, np.float32) for name, rows in weights.items()}, layers=0, heads=1, eps=0.0)
    assert bert.embed([[0], [0, 1]]).tolist() == [
        pytest.approx([x / math.sqrt(7) for x in (1, -1, 1, -2)]),
        pytest.approx([x / math.sqrt(20) for x in (2, 0, 0, -4)]),
    ]


Rows = list[list[float]]


def by_hand(weights: Mapping[str, NDArray[np.float32]], ids: Sequence[int]) -> list[float]:
    """BERT as its paper has it, one number after another in double precision."""
    w: dict[str, Any] = {name: tensor.astype(float).tolist() for name, tensor in weights.items()}

    def dense(name: str, rows: Rows) -> Rows:
        matrix, bias = w[f"{name}.weight"], w[f"{name}.bias"]
        return [[sum(map(float.__mul__, row, out)) + b for out, b in zip(matrix, bias, strict=True)] for row in rows]

    def norm(name: str, rows: Rows) -> Rows:
        normed = []
        for row in rows:
            mean = sum(row) / len(row)
            scale = math.sqrt(sum((x - mean) ** 2 for x in row) / len(row) + tiny_bert.EPS)
            parts = zip(row, w[f"{name}.weight"], w[f"{name}.bias"], strict=True)
            normed.append([(x - mean) / scale * weight + bias for x, weight, bias in parts])
        return normed

    def add(one: Rows, other: Rows) -> Rows:
        return [list(map(float.__add__, a, b)) for a, b in zip(one, other, strict=True)]

    def attend(name: str, rows: Rows) -> Rows:
        q, k, v = (dense(f"{name}.self.{part}", rows) for part in ("query", "key", "value"))
        size = tiny_bert.WIDTH // tiny_bert.HEADS
        out: Rows = [[] for _ in rows]
        for head in range(tiny_bert.HEADS):
            own = slice(head * size, (head + 1) * size)
            for place, query in enumerate(q):
                scores = [sum(map(float.__mul__, query[own], key[own])) / math.sqrt(size) for key in k]
                shares = [math.exp(score) for score in scores]
                out[place] += [
                    sum(share * value[own][i] for share, value in zip(shares, v, strict=True)) / sum(shares)
                    for i in range(size)
                ]
        return out

    words, positions, types = (w[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type"))
    rows = [
        [a + b + c for a, b, c in zip(words[token], positions[i], types[0], strict=True)] for i, token in enumerate(ids)
    ]
    rows = norm("embeddings.LayerNorm", rows)
    for number in range(tiny_bert.LAYERS):
        layer = f"encoder.layer.{number}"
        attended = dense(f"{layer}.attention.output.dense", attend(f"{layer}.attention", rows))
        rows = norm(f"{layer}.attention.output.LayerNorm", add(rows, attended))
        inner = [
            [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in row]
            for row in dense(f"{layer}.intermediate.dense", rows)
        ]
        rows = norm(f"{layer}.output.LayerNorm", add(rows, dense(f"{layer}.output.dense", inner)))
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return [x / math.hypot(*mean) for x in mean]


TINY = tiny_bert.weights()
BERT = Bert(TINY, layers=tiny_bert.LAYERS, heads=tiny_bert.HEADS, eps=tiny_bert.EPS)


@given(
    st.lists(
        st.lists(st.integers(0, len(tiny_bert.VOCABULARY) - 1), min_size=1, max_size=tiny_bert.POSITIONS),
        min_size=1,
        max_size=6,
    )
)
def test_texts_of_a_pass_do_not_meet(texts: list[list[int]]) -> None:
    """Whatever shares a pass, each text's vector is that of the model computed by hand for this text alone."""
    for vector, text in zip(BERT.embed(texts), texts, strict=True):
        assert vector.tolist() == pytest.approx(by_hand(TINY, text), abs=1e-4)


# What a pass takes.


def passes(*texts: tuple[int, int]) -> Passes:
    """Tokens and priorities of texts 1, 2, ..."""
    waiting = Passes()
    for key, (tokens, priority) in enumerate(texts, 1):
        waiting.add(key, tokens, priority)
    return waiting


@pytest.mark.parametrize(
    ("texts", "free_threads", "expected"),
    [
        ([], 2, []),
        # What waits is shared by the free threads, unless it is hardly anything.
        ([(30, 5)] * 4, 1, [1, 2, 3, 4]),
        ([(30, 5)] * 4, 2, [1, 2]),
        ([(8, 5)] * 4, 2, [1, 2, 3, 4]),
        ([(8, 5)] * 8, 4, [1, 2, 3, 4]),
        # Full is full, but one text goes always.
        ([(50, 5)] * 4, 1, [1, 2]),
        ([(256, 5), (8, 5)], 1, [1]),
        ([(8, 5), (256, 5)], 1, [1]),
        # Higher priorities first, else in order.
        ([(60, 5), (60, 9), (60, 0), (60, 9)], 1, [2, 4]),
    ],
)
def test_what_a_pass_takes(texts: list[tuple[int, int]], free_threads: int, expected: list[int]) -> None:
    """See the cases."""
    waiting = passes(*texts)
    assert waiting.take(free_threads) == expected
    assert len(waiting) == len(texts) - len(expected)


def test_who_left_is_not_computed() -> None:
    """A text that was discarded is in no pass; a key that is not there is no mistake."""
    waiting = passes((8, 5), (8, 5), (8, 5))
    waiting.discard(2)
    waiting.discard(7)
    assert waiting.take(1) == [1, 3]


@given(st.lists(st.tuples(st.integers(1, 256), st.integers(0, 9)), max_size=40), st.integers(1, 8))
def test_every_text_leaves_once(texts: list[tuple[int, int]], free_threads: int) -> None:
    """Passes empty the queue: each has texts, within the limit unless it is one, and priorities never rise."""
    waiting, taken = passes(*texts), []
    while keys := waiting.take(free_threads):
        tokens = [texts[key - 1][0] for key in keys]
        assert len(keys) == 1 or sum(tokens) <= FULL_PASS_TOKENS
        taken += keys
    assert len(waiting) == 0
    assert taken == sorted(range(1, len(texts) + 1), key=lambda key: (-texts[key - 1][1], key))
    assert SMALL_PASS_TOKENS < FULL_PASS_TOKENS


# Models.


def test_a_model_folder(tmp_path: Path) -> None:
    """What the worker says of a model; its tokenizer neither pads nor cuts."""
    bert = load(write_folder(tmp_path / "Tiny"))
    info = describe(Source(tmp_path / "Tiny", "tiny", 7, ("t",)), bert, context_length(tmp_path / "Tiny", bert, None))
    assert (info.name, info.aliases, info.created, info.capabilities) == ("tiny", ("t",), 7, ("embeddings",))
    assert (info.vocab_size, info.context_length, info.chat_template) == (8, 12, "")
    assert json.loads(info.tokenizer_json) == {**tiny_bert.TOKENIZER, "truncation": None, "padding": None}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"config": tiny_bert.CONFIG | {"model_type": "roberta"}}, "model_type of .* is 'roberta'"),
        ({"config": tiny_bert.CONFIG | {"hidden_act": "relu"}}, "hidden_act of .* is 'relu'"),
        ({"config": tiny_bert.CONFIG | {"position_embedding_type": "relative_key"}}, "'relative_key'"),
        (
            {"config": tiny_bert.CONFIG | {"num_hidden_layers": 3}},
            "lacks 'encoder.layer.2.attention.self.query.weight'",
        ),
        ({"config": {"model_type": "bert"}}, "lacks 'num_hidden_layers'"),
        ({"config": []}, "config.json holds no JSON object"),
        ({"pooling": {"pooling_mode_cls_token": True}}, "pools by pooling_mode_cls_token; only the mean"),
        ({"pooling": tiny_bert.POOLING | {"pooling_mode_max_tokens": True}}, "pools by pooling_mode_max_tokens, "),
        ({"pooling": {}}, "pools by nothing"),
        ({"tensors": {}}, "lacks 'embeddings.word_embeddings.weight'"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(
    tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    """Another kind of model or of pooling is named, not guessed at."""
    with pytest.raises(OSError, match=complaint):
        load(write_folder(tmp_path / "model", **changed))


def test_no_such_folder(tmp_path: Path) -> None:
    """What is missing is named."""
    with pytest.raises(FileNotFoundError, match=r"nowhere.config.json"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("length", [1, 17])
def test_a_context_beyond_the_positions_is_refused(tmp_path: Path, length: int) -> None:
    """With the range that is possible."""
    with pytest.raises(ApiError, match=f"context_length is {length}; 2 to 16 is possible") as caught:
        context_length(tmp_path, BERT, length)
    assert (caught.value.reason, caught.value.param) == (Reason.INVALID_REQUEST, "context_length")
    assert context_length(tmp_path, BERT, 16) == 16


def test_the_bundled_package_is_one_and_the_same() -> None:
    """The engine, `inferway up` and the set-up mean the same package."""
    pins = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["inferway"]["minilm-no-deps"]
    assert local_mesh.EMBEDDING_PACKAGE == PACKAGE
    assert local_mesh.EMBEDDING_DISTRIBUTION.replace("-", "_") == PACKAGE
    assert [pin.partition("==")[0] for pin in pins] == [local_mesh.EMBEDDING_DISTRIBUTION]
