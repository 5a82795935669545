"""Stands in for torchvision where there is no accelerator; used by worker/engines/sglang/cpu.py.

SGLang imports it for all models and uses it for images only, which this engine does not take.
"""

from . import io, transforms

__all__ = ["io", "transforms"]
__version__ = "0.0.0+cpu"
