"""The forward pass of a BERT that embeds texts: token ids in, one vector of length 1 a text out. Pure.

A pass takes several texts at once. Their tokens stand one after another as the rows of one matrix, so that each weight
is read from memory once a pass; only attention, which must not cross from one text into another, goes text by text.
Nothing is padded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

# Abramowitz and Stegun, 7.1.26: erf within 1.5e-7, about what a 32-bit float can tell.
_ERF_P = 0.3275911
_ERF_A = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
# Rows whose intermediate results stay in the processor's cache; many more at once take longer each.
_GELU_ROWS = 32


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Matrix
    bias: Matrix
    eps: float

    def apply(self, x: Matrix) -> Matrix:
        """Each row with mean 0 and variance 1, then scaled and shifted; `x` is changed."""
        x -= x.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1])
        x /= np.sqrt(variance + np.float32(self.eps))
        x *= self.weight
        x += self.bias
        return x


@dataclass(frozen=True, slots=True)
class Dense:
    # Rows are outputs, as the file has them.
    weight: Matrix
    bias: Matrix

    def apply(self, x: Matrix) -> Matrix:
        y = x @ self.weight.T
        y += self.bias
        return y


@dataclass(frozen=True, slots=True)
class Layer:
    # Queries, keys and values side by side.
    qkv: Dense
    attention: Dense
    attention_norm: Norm
    inner: Dense
    outer: Dense
    outer_norm: Norm


class Bert:
    """Holds its weights, and nothing between two calls: threads may share it."""

    def __init__(self, weights: Mapping[str, Matrix], *, layers: int, heads: int, eps: float) -> None:
        """`weights` by the names that BertModel gives them. Raises KeyError for one that is missing."""

        def dense(name: str) -> Dense:
            return Dense(weights[f"{name}.weight"], weights[f"{name}.bias"])

        def norm(name: str) -> Norm:
            return Norm(weights[f"{name}.weight"], weights[f"{name}.bias"], eps)

        def layer(name: str) -> Layer:
            parts = [dense(f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
            return Layer(
                Dense(np.concatenate([part.weight for part in parts]), np.concatenate([part.bias for part in parts])),
                dense(f"{name}.attention.output.dense"),
                norm(f"{name}.attention.output.LayerNorm"),
                dense(f"{name}.intermediate.dense"),
                dense(f"{name}.output.dense"),
                norm(f"{name}.output.LayerNorm"),
            )

        self._words = weights["embeddings.word_embeddings.weight"]
        # A text alone is of type 0 throughout.
        self._positions = (
            weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
        )
        self._norm = norm("embeddings.LayerNorm")
        self._layers = [layer(f"encoder.layer.{number}") for number in range(layers)]
        self._heads = heads

    @property
    def vocab_size(self) -> int:
        return int(self._words.shape[0])

    @property
    def max_length(self) -> int:
        """Tokens that a text may have, by the positions that the model knows."""
        return int(self._positions.shape[0])

    def embed(self, texts: Sequence[Sequence[int]]) -> Matrix:
        """A row for each text: the mean of its tokens' last states, of length 1. No text is empty."""
        lengths = [len(text) for text in texts]
        starts = np.cumsum([0, *lengths[:-1]])
        ids = np.concatenate([np.asarray(text, np.int64) for text in texts])
        x = self._words[ids] + self._positions[np.concatenate([np.arange(length) for length in lengths])]
        x = self._norm.apply(x)
        spans = [slice(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        for layer in self._layers:
            x = layer.attention_norm.apply(x + layer.attention.apply(self._attend(layer.qkv.apply(x), spans)))
            x = layer.outer_norm.apply(x + layer.outer.apply(gelu(layer.inner.apply(x))))
        # The sum has the direction of the mean, and only that is left.
        pooled: Matrix = np.add.reduceat(x, starts, axis=0)
        pooled /= np.sqrt(np.einsum("ij,ij->i", pooled, pooled))[:, None]
        return pooled

    def _attend(self, qkv: Matrix, spans: Sequence[slice]) -> Matrix:
        rows, width = qkv.shape[0], qkv.shape[1] // 3
        size = width // self._heads
        q, k, v = qkv.reshape(rows, 3, self._heads, size).transpose(1, 2, 0, 3)
        out = np.empty((rows, self._heads, size), np.float32)
        scale = np.float32(1 / math.sqrt(size))
        for span in spans:
            scores = q[:, span] @ k[:, span].transpose(0, 2, 1)
            scores *= scale
            scores -= scores.max(axis=2, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=2, keepdims=True)
            out[span] = (scores @ v[:, span]).transpose(1, 0, 2)
        return out.reshape(rows, width)


def gelu(x: Matrix) -> Matrix:
    """x times the probability that a normal number is below x; `x` is changed."""
    for first in range(0, len(x), _GELU_ROWS):
        _gelu(x[first : first + _GELU_ROWS])
    return x


def _gelu(x: Matrix) -> None:
    size = np.abs(x)
    t = size * np.float32(_ERF_P * math.sqrt(0.5))
    t += 1
    np.reciprocal(t, out=t)
    beyond = t * np.float32(_ERF_A[0] / 2)
    for a in _ERF_A[1:]:
        beyond += np.float32(a / 2)
        beyond *= t
    np.multiply(size, size, out=t)
    t *= -0.5
    np.exp(t, out=t)
    beyond *= t  # the probability of a number above |x|
    size *= beyond
    np.maximum(x, 0, out=x)
    x -= size
