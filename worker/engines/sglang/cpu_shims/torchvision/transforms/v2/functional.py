"""As its package: names, without what they do."""

from .. import InterpolationMode
from .. import missing as __getattr__

__all__ = ["InterpolationMode", "__getattr__"]
