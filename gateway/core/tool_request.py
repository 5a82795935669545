"""What a chat request says of tools: which there are, and whether one must, may or must not be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from inferway.errors import ApiError, invalid

from .body import json_type, unsupported
from .constraints import Constraint, call, calls
from .fields import MAX_TOOLS
from .schemas import Schema, compiled

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")

Choice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`named` is the one tool that must be called; `is_legacy`: asked for and answered as functions."""

    # As templates know them: OpenAI's objects of type function.
    tools: Sequence[dict[str, Any]] = ()
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    choice: Choice = "none"
    named: str = ""
    is_parallel: bool = True
    # Tools whose arguments a grammar is to hold to their schemas, whatever the choice.
    strict: frozenset[str] = frozenset()
    is_legacy: bool = False

    @property
    def is_forced(self) -> bool:
        return self.choice == "required"

    @property
    def choice_field(self) -> str:
        """The field that says `choice`."""
        return "function_call" if self.is_legacy else "tool_choice"

    @property
    def most_calls(self) -> int | None:
        return None if self.is_parallel else 1

    def constraint(self) -> Constraint | None:
        """What forces the calls that must be made."""
        if not self.is_forced:
            return None
        if self.named:
            return call(self.schemas[self.named].schema, param=self.choice_field)
        schemas = {name: schema.schema for name, schema in self.schemas.items()}
        return calls(schemas, param=self.choice_field, most=self.most_calls)


NO_TOOLS = ToolUse()


def read_tools(tools: Sequence[Any] | None, choice: Any, *, is_parallel: bool | None) -> ToolUse:
    """Of `tools`, `tool_choice` and `parallel_tool_calls`. Raises ApiError (400)."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "'tool_choice' needs 'tools'.")
        return NO_TOOLS
    found = _schemas([_function(tool, f"tools[{place}]") for place, tool in enumerate(tools)], "tools", ".function")
    known = {tool["function"]["name"]: tool for tool in tools}
    mode, names, named = _choice(choice, known)
    return ToolUse(
        tools=[tool for name, tool in known.items() if name in names],
        schemas={name: schema for name, schema in found.items() if name in names},
        choice=mode,
        named=named,
        is_parallel=is_parallel is not False and not named,
        strict=frozenset(name for name in names if known[name]["function"].get("strict")),
    )


def read_functions(functions: Sequence[dict[str, Any]], choice: Any) -> ToolUse:
    """Of the older `functions` and `function_call`. Raises ApiError (400)."""
    schemas = _schemas(functions, "functions", "")
    named = ""
    if isinstance(choice, dict):
        named = choice.get("name", "")
        if named not in schemas:
            raise invalid("function_call", f"'function_call' names '{str(named)[:64]}', which is not in 'functions'.")
    elif choice not in (None, "auto", "none"):
        raise invalid("function_call", f"'function_call' must be auto, none or an object, got '{str(choice)[:64]}'.")
    return ToolUse(
        tools=[{"type": "function", "function": function} for function in functions],
        schemas=schemas,
        choice="required" if named else "none" if choice == "none" else "auto",
        named=named,
        is_parallel=False,
        is_legacy=True,
    )


def _function(tool: Any, path: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if isinstance(tool, dict) and tool.get("type") == "custom":
        raise unsupported(f"{path}.type", f"'{path}' is of type 'custom'; only functions are supported.")
    if not isinstance(function, dict) or tool.get("type") != "function":
        raise invalid(path, f"'{path}' must be an object of type 'function'.")
    return function


def _schemas(functions: Sequence[dict[str, Any]], param: str, inner: str) -> dict[str, Schema]:
    if len(functions) > MAX_TOOLS:
        raise invalid(param, f"'{param}' may have {MAX_TOOLS} items at most, got {len(functions)}.")
    found: dict[str, Schema] = {}
    for place, function in enumerate(functions):
        path = f"{param}[{place}]{inner}"
        name = function.get("name")
        if not isinstance(name, str):
            raise invalid(f"{path}.name", f"'{path}.name' must be a string, got {json_type(name)}.")
        if not _NAME.match(name):
            allowed = "1 to 64 letters, digits, dots, underscores and hyphens"
            raise invalid(f"{path}.name", f"'{path}.name' must be {allowed}, got '{name[:80]}'.")
        if name in found:
            raise invalid(f"{path}.name", f"'{path}.name' is '{name}', as another one is.")
        if not isinstance(strict := function.get("strict"), bool | None):
            raise invalid(f"{path}.strict", f"'{path}.strict' must be a boolean, got {json_type(strict)}.")
        parameters = function.get("parameters")
        if not isinstance(parameters, dict | None):
            raise invalid(f"{path}.parameters", f"'{path}.parameters' must be an object, got {json_type(parameters)}.")
        found[name] = compiled(parameters or {}, f"{path}.parameters")
    return found


def _choice(choice: Any, known: Mapping[str, Any]) -> tuple[Choice, frozenset[str], str]:
    """How tools are to be used, which of them, and the one that is named."""
    everything = frozenset(known)
    if choice is None or choice == "auto":
        return "auto", everything, ""
    if choice == "none":
        return "none", everything, ""
    if choice == "required":
        return "required", everything, ""
    if isinstance(choice, dict) and choice.get("type") == "function":
        name = _named(choice, known)
        return "required", frozenset({name}), name
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        # Some clients write the two members without the object around them.
        inner = choice.get("allowed_tools", choice)
        mode, tools = (inner.get("mode"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
        if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
            raise invalid("tool_choice", "'tool_choice.allowed_tools' needs 'mode' (auto or required) and 'tools'.")
        names = frozenset(_named(tool, known) for tool in tools)
        return ("auto" if mode == "auto" else "required"), names, ""
    raise _wrong_choice(choice)


def _named(tool: Any, known: Mapping[str, Any]) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in known:
        raise invalid("tool_choice", f"'tool_choice' names '{str(name)[:64]}', which is not in 'tools'.")
    return name


def _wrong_choice(choice: Any) -> ApiError:
    shown = f"'{choice[:64]}'" if isinstance(choice, str) else json_type(choice)
    return invalid(
        "tool_choice", f"'tool_choice' must be auto, none, required, a function or allowed_tools, got {shown}."
    )
