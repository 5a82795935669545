"""An engine that plays scripts: for tests, load and demos (docs/scripted-engine.md)."""

from .engine import ScriptedEngine

__all__ = ["ScriptedEngine"]
