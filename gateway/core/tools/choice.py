"""Which parser reads the text of an answer, and what holds calls to their schemas."""

from __future__ import annotations

from collections.abc import Collection

from ..constraints import Constraint
from ..history import IdStyle
from ..tool_request import ToolUse
from . import HARMONY, PARSERS, structural
from .base import Parser, Tools
from .forced import ForcedCall, ForcedCalls


def make_parser(format_name: str, use: ToolUse, *, is_constrained: bool) -> Parser | None:
    """For one choice of a request to a model with this format of calls; None: its text is read as it is."""
    tools: Tools = {name: schema.schema for name, schema in use.schemas.items()}
    if use.is_forced:
        return ForcedCall(tools, use.named) if use.named else ForcedCalls(tools)
    parser = PARSERS.get(format_name)
    if parser is None or is_constrained:
        return None
    # In harmony every answer is written, with tools or without.
    return parser(tools) if format_name == HARMONY or (tools and use.choice == "auto") else None


def id_style(format_name: str) -> IdStyle:
    """How ids of calls look in conversations with a model of this format."""
    parser = PARSERS.get(format_name)
    return parser.call_id_style if parser is not None else "openai"


def strict_calls(format_name: str, use: ToolUse, capabilities: Collection[str]) -> Constraint | None:
    """What holds a free choice to the schemas of strict tools; None: there are none, or no grammar for the format."""
    parser = PARSERS.get(format_name)
    if not use.strict or parser is None or not structural.can_enforce(parser.forms, capabilities):
        return None
    tools = {name: schema.schema for name, schema in use.schemas.items()}
    return structural.strict_calls(parser.forms, tools, use.strict, param="tools", most=use.most_calls)
