"""The engine `llamacpp`: GGUF models on the CPU through llama.cpp. docs/design/cpu-engine.md says why so."""

from __future__ import annotations

from .engine import LlamaCppEngine

__all__ = ["LlamaCppEngine"]
