"""SGLang on a machine without an accelerator: for tests and trials, at some tokens a second.

The published packages assume one at import time; the two packages that cannot be had without it are replaced by the
stand-ins in cpu_shims/, if nothing of their name is installed. What then runs is SGLang itself: scheduler, radix cache,
grammars, LoRA, KV events; only attention and sampling are torch's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

_SHIMS = Path(__file__).with_name("cpu_shims")

# Tokens of the KV cache at most, unless a flag says otherwise: SGLang would take most of the machine's memory.
MAX_TOTAL_TOKENS = 32_768

# What SGLang would not choose by itself here. float32: faster than bfloat16 on most CPUs, and near ties stay apart.
_FLAGS = (
    # Models whose imports need an accelerator are worth a warning each.
    "--log-level=error",
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--lora-backend=torch_native",
    "--dtype=float32",
    "--disable-cuda-graph",
    "--disable-overlap-schedule",
    # Choices go on while another one's prompt is computed.
    "--enable-mixed-chunk",
)
# So a step with a part of a prompt takes a few hundred milliseconds with a small model, and aborts come through.
_CHUNK_TOKENS = 128


def is_needed(given: Sequence[str]) -> bool:
    """Whether SGLang has to run on the CPU here. Imports torch: seconds."""
    import torch

    asked = "--device=cpu" in given or any(pair == ("--device", "cpu") for pair in pairwise(given))
    return asked or not torch.accelerator.is_available()


def flags(*, max_running: int, page_size: int) -> list[str]:
    """What SGLang is given here before the operator's own flags."""
    # A mixed step takes the tokens of running choices off the chunk. With less than a page left, nobody would enter.
    pages = -(-(max_running + page_size) // page_size)
    return [*_FLAGS, f"--chunked-prefill-size={max(_CHUNK_TOKENS, pages * page_size)}"]


def prepare() -> None:
    """Make SGLang importable here and in the processes that it spawns, which inherit path and environment."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    if str(_SHIMS) not in sys.path:
        sys.path.append(str(_SHIMS))
