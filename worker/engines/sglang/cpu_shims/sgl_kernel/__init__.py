"""Stands in for SGLang's kernel library where there is no accelerator; used by worker/engines/sglang/cpu.py.

The published library needs CUDA to be imported. On a CPU, SGLang only looks up names in it: what it calls are torch's
own operations, because the kernels for CPUs are behind a test for operators that are not registered here. So every
name exists, and whoever calls one learns what is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__version__ = "0.0.0+cpu"

_PINNING = ("arange", "empty", "empty_like", "full", "ones", "tensor", "zeros", "zeros_like")


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} is not available without an accelerator")

    return missing


def _unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs)

    return wrapper


def _ignore_pinning() -> None:
    """Pinned memory is for copies to an accelerator: without one torch refuses it, and SGLang's LoRA code asks."""
    for name in _PINNING:
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_, **__: self


if not torch.accelerator.is_available():
    _ignore_pinning()
