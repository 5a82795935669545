"""Names that are looked up; whoever calls one learns what is missing."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

__all__ = ["InterpolationMode", "functional", "missing", "v2"]


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def missing(name: str) -> Callable[..., Any]:
    """A function for a name of this package. Raises AttributeError for names that Python itself asks for."""
    if name.startswith("__"):
        raise AttributeError(name)

    def function(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"torchvision's {name} is not available without torchvision")

    return function


def __getattr__(name: str) -> Callable[..., Any]:
    return missing(name)


from . import functional, v2  # noqa: E402  both need the names above
