"""gateway/core/marks.py"""

from __future__ import annotations

import pytest

from gateway.core.marks import marks_of_template


@pytest.mark.parametrize(
    ("source", "marks"),
    [
        ("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>", {"<|im_start|>", "<|im_end|>"}),
        ("{{ '<|im_start|>' + role + \"<|im_end|>\" }}", {"<|im_start|>", "<|im_end|>"}),
        ("{%- if '</think>' in content %}{% set x = content.split('<think>') %}{% endif %}", {"<think>", "</think>"}),
        ("{{ '<｜User｜>' }}<｜tool▁calls▁begin｜>", {"<｜User｜>", "<｜tool▁calls▁begin｜>"}),
        ("<|turn>user<turn|>{{ '<|\"|>' }}", {"<|turn>", "<turn|>", '<|"|>'}),
        ("{{ '[INST] ' }}[/INST] [gMASK] [SYSTEM_PROMPT]", {"[INST]", "[/INST]", "[gMASK]", "[SYSTEM_PROMPT]"}),
        ("[INST] <<SYS>>\n{{ s }}\n<</SYS>>", {"[INST]", "<<SYS>>", "<</SYS>>"}),
        ("<s>{{ m }}</s><bos><tool_call></tool_call><arg_key>", {"<s>", "</s>", "<bos>", "<tool_call>", "</tool_call>"}
         | {"<arg_key>"}),
        ("{{ '<function=' + name + '>' }}</function>", {"<function=", "</function>"}),
        ('<|tool|>{{ t }}<|/tool|>\n<invoke name="{{ n }}">', {"<|tool|>", "<|/tool|>", "<invoke name="}),
        ("{{ '\\u003c|a|\\x3e' }}{{ 'it\\'s <b>' }}", {"<|a|>", "<b>"}),
        ("{% raw %}<|x|>{{ '<|y|>' }}{% endraw %}", {"<|x|>", "<|y|>"}),
    ],
)  # fmt: skip
def test_tags_of_the_literal_text_are_marks(source: str, marks: set[str]) -> None:
    """In data and in string constants, whatever the style of the family."""
    assert marks_of_template(source) == marks


@pytest.mark.parametrize(
    "source",
    [
        "{# <|comment|> [INST] #}{#- open <b>",
        "{{ a < b and c > d }}{% if x<y %}{{ m[INST] }}{% endif %}",
        "### Instruction:\n{{ m.content }}\nUSER: {{ x }} ASSISTANT:",
        "Answer with [name(argument=value)], [optional], [1, 2] or [] and [A].",
        "{{ '{\"name\": ' + name + ', \"arguments\": [' }} a < b, 1<2>1, x <- y, <= >= <> << >> => < tag >",
        "{{ messages[0]['role'] }}{{ '{{' }} {{ '%}' }} user assistant system",
        "{{ 'unfinished <",
        "",
    ],
)
def test_words_and_operators_are_none(source: str) -> None:
    """What people write in prose, mathematics, lists and code keeps its ordinary ids."""
    assert not marks_of_template(source)
