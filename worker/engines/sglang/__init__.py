"""The engine `sglang`: a real SGLang in this process, with its scheduler and detokenizer in processes of their own.

SGLang itself is imported when the engine starts, not with this package.
"""

from .engine import SglangEngine

__all__ = ["SglangEngine"]
