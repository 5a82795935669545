"""Parsers of tool calls, by the name that a worker's Describe gives for its model's format."""

from __future__ import annotations

from collections.abc import Mapping

from .base import Parser
from .deepseek import DeepSeek, DeepSeekV3
from .gemma4 import Gemma4
from .glm45 import Glm45
from .harmony import Harmony
from .hermes import Hermes
from .kimi import KimiK2
from .llama3_json import Llama3Json
from .mistral import Mistral
from .pythonic import Pythonic
from .qwen3_coder import Qwen3Coder

# Of thoughts and calls together.
HARMONY = "harmony"

PARSERS: Mapping[str, type[Parser]] = {
    "deepseek_v3": DeepSeekV3,
    "deepseek_v3_1": DeepSeek,
    "gemma4": Gemma4,
    "glm45": Glm45,
    HARMONY: Harmony,
    "hermes": Hermes,
    "kimi_k2": KimiK2,
    "llama3_json": Llama3Json,
    "mistral": Mistral,
    "pythonic": Pythonic,
    "qwen3_coder": Qwen3Coder,
}
