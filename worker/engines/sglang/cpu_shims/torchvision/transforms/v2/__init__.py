"""As its package: names, without what they do."""

from . import functional

__all__ = ["functional"]
