"""From a conversation to token ids: chat template, tokenizer, and the wall between user text and control tokens.

Text that callers supply can never become a control token. Where none of it spells one, the rendered text is
encoded whole. Where some does, each such spelling is swapped before rendering for a placeholder made of
noncharacters, and put back after rendering as a segment of its own that is encoded as ordinary text. Marks that
the tokenizer knows as text only (such as </think>) are cut after their first character, so that the ids of the
template's own mark cannot arise from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import minijinja
from fastokens import Tokenizer as FastTokenizer
from tokenizers import Tokenizer as ReferenceTokenizer

from inferway.errors import ApiError, Reason, invalid

# Noncharacters: no text of a caller may contain them, so a placeholder cannot be forged.
_START, _END = "\ufdd0", "\ufdd1"
_NONCHARACTERS = re.compile("[\ufdd0\ufdd1]")
_PLACEHOLDER = re.compile(f"{_START}(\\d+){_END}")
_TAG = re.compile(r"[<\[]\S+[>\]]")
_GENERATION_BLOCK = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")

# Steps of the template engine: a template that loops without end stops here.
_TEMPLATE_FUEL = 50_000_000
_SEGMENT_CACHE_BYTES = 64 << 20
# Strings on which the fast tokenizer must agree with the reference before it serves.
_SAMPLE = (
    "Hello, world! It's 3.14159 o'clock.\n\n  def f(x):\n\treturn x**2  # squared\r\n",
    "Größe über naïve façade, Ελληνικά, русский текст, עברית, العربية, हिन्दी",
    "中文字符和日本語のテキスト、한국어 👩‍👩‍👧‍👦 🇩🇪 👍🏽 e\u0301 \u200b\ufeff",
    "a" * 300 + " " * 40 + "0123456789" * 8 + "\x00\x07\x1b[0m",
)


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


class _Fast:
    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = FastTokenizer.from_json_str(tokenizer_json)
        self._tokenizer.enable_segment_cache(_SEGMENT_CACHE_BYTES)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class _Reference:
    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = ReferenceTokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def frame(self) -> tuple[list[int], list[int]]:
        """What the tokenizer's post-processor puts before and after a text."""
        framed = self._tokenizer.encode("a")
        inner = [place for place, is_special in enumerate(framed.special_tokens_mask) if not is_special]
        return framed.ids[: inner[0]], framed.ids[inner[-1] + 1 :]


class Tokenizer:
    """Token ids of trusted text, and of segments that callers wrote.

    The fast tokenizer serves where it gives the ids of the reference on a fixed sample and on the model's own
    added tokens; otherwise the reference does. `encode` may take milliseconds for long text and is safe to call
    from threads.
    """

    # What the tokenizer itself puts before and after a text that is not rendered by a template, such as BOS.
    prefix_ids: Sequence[int]
    suffix_ids: Sequence[int]

    def __init__(self, tokenizer_json: bytes) -> None:
        text = tokenizer_json.decode()
        reference = _Reference(text)
        parsed = json.loads(text)
        added = parsed.get("added_tokens", ())
        self.prefix_ids, self.suffix_ids = reference.frame()
        self.control_tokens = tuple(entry["content"] for entry in added if _is_control(entry))
        self._reference = reference
        self._encoder: _Encoder = _fast_if_equal(text, reference, [entry["content"] for entry in added])
        # Spellings of control tokens, of which there are few.
        self._as_text: dict[str, list[int]] = {}
        parsed["added_tokens"] = []
        parsed["post_processor"] = None
        self._ordinary = _Reference(json.dumps(parsed))

    @property
    def is_fast(self) -> bool:
        return isinstance(self._encoder, _Fast)

    def encode(self, text: str) -> list[int]:
        """Ids of text in which control tokens are meant."""
        return self._encoder.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens written out; those that the tokenizer does not know have none."""
        return self._reference.decode(ids)

    def encode_as_text(self, text: str) -> list[int]:
        """Ids of text that spells a control token or a structural mark and must not become one."""
        if text not in self._as_text:
            self._as_text[text] = self._ordinary.encode(text[:1]) + self._ordinary.encode(text[1:])
        return self._as_text[text]


def _is_control(added_token: Mapping[str, Any]) -> bool:
    """Flagged special, or shaped like a tag; other added tokens (runs of spaces, words) are ordinary text."""
    return bool(added_token.get("special")) or _TAG.fullmatch(added_token["content"]) is not None


def _fast_if_equal(tokenizer_json: str, reference: _Reference, added_tokens: Sequence[str]) -> _Encoder:
    try:
        fast = _Fast(tokenizer_json)
        samples = (*_SAMPLE, "x" + " y ".join(added_tokens) + "\nz")
        if all(fast.encode(text) == reference.encode(text) for text in samples):
            return fast
    except (ValueError, RuntimeError, NotImplementedError):
        pass
    return reference


class ChatTemplate:
    """A model's Jinja chat template. Sandboxed: it sees plain data and has no way out of the engine."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises minijinja.TemplateError for a template that does not parse."""
        self._environment = minijinja.Environment(
            trim_blocks=True, lstrip_blocks=True, pycompat=True, fuel=_TEMPLATE_FUEL, debug=False
        )
        self._environment.add_global("raise_exception", _refuse)
        self._environment.add_filter("tojson", _to_json)
        self._environment.add_template("chat", _GENERATION_BLOCK.sub("", source))
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.uses_tools = "tools" in self._environment.undeclared_variables_in_template("chat")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, with the generation prompt at its end.

        Raises ApiError (CONVERSATION_NOT_SUPPORTED) with the template's own sentence, never with its source.
        """
        context = {**(template_kwargs or {}), **self._tokens, "add_generation_prompt": True}
        try:
            return self._environment.render_template("chat", messages=messages, tools=tools, **context)
        except TemplateRefusal as refusal:
            message = str(refusal)
        except minijinja.TemplateError as error:
            message = f"The chat template of this model cannot render the conversation ({error.kind})."
        except (TypeError, RecursionError):
            message = "The chat template of this model cannot render the conversation."
        raise ApiError(Reason.CONVERSATION_NOT_SUPPORTED, message, "messages")


class TemplateRefusal(Exception):
    """What a template says through raise_exception."""


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)


def _to_json(value: Any, indent: int | None = None, **_options: Any) -> str:
    """Templates expect plain JSON: not ASCII only, and without HTML escapes."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


class PromptBuilder:
    """Template and tokenizer of one model; `template` None: it takes no conversations."""

    def __init__(
        self, template: ChatTemplate | None, tokenizer: Tokenizer, structural_marks: Sequence[str] = ()
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        marks = sorted({*tokenizer.control_tokens, *structural_marks}, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, marks))) if marks else None

    @property
    def takes_chat(self) -> bool:
        return self._template is not None

    @property
    def uses_tools(self) -> bool:
        return self._template is not None and self._template.uses_tools

    def build_text(self, text: str, *, framed: bool = True) -> list[int]:
        """Token ids of a text that no template renders; `framed` by what the tokenizer puts around it, such as BOS."""
        spelled: list[str] = []
        inner = self._encode(self._disarm(text, spelled), spelled)
        if not framed:
            return inner
        return [*self._tokenizer.prefix_ids, *inner, *self._tokenizer.suffix_ids]

    def text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of the conversation; the model takes some. Raises ApiError (400)."""
        assert self._template is not None
        spelled: list[str] = []
        try:
            safe_messages = [self._disarm(message, spelled) for message in messages]
            safe_tools = self._disarm(tools, spelled)
            safe_kwargs = self._disarm(template_kwargs, spelled)
        except RecursionError:
            raise invalid(None, "The body is nested too deeply.") from None
        text = self._template.render(safe_messages, tools=safe_tools, template_kwargs=safe_kwargs)
        return self._encode(text, spelled)

    def _encode(self, text: str, spelled: Sequence[str]) -> list[int]:
        """Ids of text in which placeholders stand for what is `spelled`."""
        if not spelled:
            return self._tokenizer.encode(text)
        ids: list[int] = []
        # Odd pieces are the numbers of placeholders.
        for position, piece in enumerate(_PLACEHOLDER.split(text)):
            if position % 2:
                ids += self._tokenizer.encode_as_text(spelled[int(piece)])
            elif piece:
                ids += self._tokenizer.encode(piece)
        return ids

    def _disarm(self, value: Any, spelled: list[str]) -> Any:
        """A copy of plain data in which every spelling of a control token is a placeholder."""
        if isinstance(value, str):
            if _NONCHARACTERS.search(value):
                value = _NONCHARACTERS.sub("\ufffd", value)
            if self._control is None:
                return value
            return self._control.sub(lambda match: _placeholder(match.group(), spelled), value)
        if isinstance(value, Mapping):
            return {self._disarm(key, spelled): self._disarm(item, spelled) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._disarm(item, spelled) for item in value]
        return value


def _placeholder(text: str, spelled: list[str]) -> str:
    spelled.append(text)
    return f"{_START}{len(spelled) - 1}{_END}"
