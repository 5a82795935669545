"""The engine `minilm`: embeddings on the CPU by all-MiniLM-L6-v2, or another BERT made for sentences, in numpy."""

from __future__ import annotations

from .engine import MiniLmEngine

__all__ = ["MiniLmEngine"]
