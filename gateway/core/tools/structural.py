"""Strict tools under a free choice: text stays free, and where the model begins a call, a grammar holds from there on.

The document is xgrammar's structural tag (JSON); engines that have the capability `constraint.structural_tag` take it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ..constraints import Constraint, arguments, list_of_calls

_NAME = "NAME"
# Of the arguments of a tool that is not strict.
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How one family writes a call: `begin`, in which NAME is the tool's, the arguments, and `end`.

    From `trigger` on, with which `begin` begins, a text is a call; it may have a NAME as well. A `style` other than
    JSON is one that engines report as capability `structural_tag.STYLE`. With `index_end` the number of the call and
    this stand before the arguments. With `is_list` a list of objects with `name` and `arguments` stands between.
    """

    trigger: str
    begin: str
    end: str = ""
    style: Literal["json", "qwen_xml", "glm_xml"] = "json"
    index_end: str = ""
    is_list: bool = False


def can_enforce(forms: Sequence[CallForm], capabilities: Collection[str]) -> bool:
    """Whether an engine can hold a model to its tools' schemas while the choice is free."""
    needed = {"constraint.structural_tag", *(f"structural_tag.{form.style}" for form in forms if form.style != "json")}
    return bool(forms) and needed <= set(capabilities)


def strict_calls(
    forms: Sequence[CallForm],
    tools: Mapping[str, Mapping[str, Any]],
    strict: Collection[str],
    *,
    param: str,
    most: int | None,
) -> Constraint:
    """Free text and calls of some tools, the arguments of those in `strict` by their schemas."""
    schemas = {name: arguments(schema) if name in strict else _ANY_OBJECT for name, schema in tools.items()}
    tags = []
    for form in forms:
        if form.is_list:
            whole = list_of_calls(schemas, arguments_key="arguments", most=most)
            tags.append(_tag(form, form.begin, {"type": "json_schema", "json_schema": whole}))
            continue
        for name, schema in schemas.items():
            content: dict[str, Any] = {"type": "json_schema", "json_schema": schema}
            if form.style != "json":
                content["style"] = form.style
            if form.index_end:
                index = {"type": "regex", "pattern": "[0-9]{1,3}"}
                end = {"type": "const_string", "value": form.index_end}
                content = {"type": "sequence", "elements": [index, end, content]}
            tags.append(_tag(form, form.begin.replace(_NAME, name), content))
    triggers = list(dict.fromkeys(form.trigger.replace(_NAME, name) for form in forms for name in schemas))
    inner = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
    document = {"type": "structural_tag", "format": inner}
    return Constraint("structural_tag", msgspec.json.encode(document).decode(), param)


def _tag(form: CallForm, begin: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": form.end}
