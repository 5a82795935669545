"""Chat chunks as server-sent events: one `data:` line of JSON and a blank line each.

The constant parts of a chunk are encoded once a stream; a token costs the escaping of its text and one join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from .logprobs import LegacyLogprobs, ScoredToken, chat_logprobs

HEARTBEAT = b": heartbeat\n\n"
DONE = b"data: [DONE]\n\n"

# As workers say it, and as callers are told.
FinishReason = Literal["stop", "length"]
ToldReason = Literal["stop", "length", "tool_calls", "function_call"]
Scores = Sequence[ScoredToken] | None

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole answer: the prompt once, completions summed over the choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What every chunk, and the whole answer, of one request say alike."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    # In which the request was served; "": the shape of the answer has no place for it. Last chunks say it.
    service_tier: str = ""

    def head(self, kind: str, *, with_tier: bool = True) -> dict[str, Any]:
        tier = {"service_tier": self.service_tier} if self.service_tier and with_tier else {}
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            **tier,
        }


class ChunkEncoder:
    """Encodes the chunks of one streamed answer with `n` choices.

    With `include_usage` every chunk but the usage chunk carries `"usage": null`. With `is_legacy` a call is told as
    function_call, of which an answer has one.
    """

    def __init__(self, answer: Answer, *, n: int = 1, include_usage: bool = False, is_legacy: bool = False) -> None:
        self.is_legacy = is_legacy
        # The object is left open: what follows is `,"choices":...}`.
        kind = "chat.completion.chunk"
        self._head = b"data: " + _encode(answer.head(kind))[:-1]
        self._token_head = b"data: " + _encode(answer.head(kind, with_tier=False))[:-1]
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._opened = [_open_choice(self._token_head, index) for index in range(n)]
        self._content = [opened + b'{"content":' for opened in self._opened]
        self._content_tail = b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def opening(self, index: int) -> bytes:
        """The first chunk of a choice: its role."""
        return self._opened[index] + b'{"role":"assistant","content":""' + self._content_tail

    def content(self, index: int, text: str, usage: Usage | None = None, scores: Scores = None) -> bytes:
        tail = self._content_tail if usage is None and scores is None else self._tail_of(usage, scores)
        return b"".join((self._content[index], _encode(text), tail))

    def reasoning(self, index: int, text: str, usage: Usage | None = None, scores: Scores = None) -> bytes:
        tail = self._content_tail if usage is None and scores is None else self._tail_of(usage, scores)
        return b"".join((self._opened[index], b'{"reasoning_content":', _encode(text), tail))

    def call_start(self, index: int, call: int, call_id: str, name: str) -> bytes:
        """Everything about a call but its arguments."""
        function = {"name": name, "arguments": ""}
        told = {"index": call, "id": call_id, "type": "function", "function": function}
        return self._delta(index, {"function_call": function} if self.is_legacy else {"tool_calls": [told]})

    def call_arguments(self, index: int, call: int, text: str) -> bytes:
        if self.is_legacy:
            return self._delta(index, {"function_call": {"arguments": text}})
        opened = b'{"tool_calls":[{"index":%d,"function":{"arguments":' % call
        return b"".join((self._opened[index], opened, _encode(text), b"}}]", self._content_tail))

    def call_mistake(self, index: int, call: int, mistake: str) -> bytes:
        """What is wrong with the arguments of a call that has been told as the model wrote it."""
        marked = {"index": call, "inferway": {"arguments_error": mistake}}
        return b"" if self.is_legacy else self._delta(index, {"tool_calls": [marked]})

    def _delta(self, index: int, delta: Mapping[str, Any]) -> bytes:
        return b"".join((self._opened[index], _encode(delta)[:-1], self._content_tail))

    def _tail_of(self, usage: Usage | None, scores: Scores) -> bytes:
        logprobs = _encode(chat_logprobs(scores) if scores is not None else None)
        return b'},"logprobs":%b,"finish_reason":null}]%b' % (logprobs, _end(self._tail, usage))

    def finish(self, index: int, reason: ToldReason) -> bytes:
        opened = _open_choice(self._head, index)
        return b'%b{},"logprobs":null,"finish_reason":"%b"}]%b' % (opened, reason.encode(), self._tail)

    def usage(self, usage: Usage) -> bytes:
        return b'%b,"choices":[],"usage":%b}\n\n' % (self._head, _encode(usage.as_json()))


def _open_choice(head: bytes, index: int) -> bytes:
    return b'%b,"choices":[{"index":%d,"delta":' % (head, index)


class CompletionEncoder:
    """Encodes the events of one streamed text completion; all have the shape of the answer in one piece.

    `echoes` are the texts that choices begin with: their prompts, where the caller wants them back.
    """

    def __init__(self, answer: Answer, *, echoes: Sequence[str], include_usage: bool = False) -> None:
        self._head = b"data: " + _encode(answer.head("text_completion"))[:-1]
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._echoes = echoes
        self._text = [b'%b,"choices":[{"index":%d,"text":' % (self._head, index) for index in range(len(echoes))]
        self._text_tail = b',"logprobs":null,"finish_reason":null}]' + self._tail
        self._logprobs = [LegacyLogprobs() for _ in echoes]

    def opening(self, index: int) -> bytes:
        """The echo of the prompt; empty without one."""
        return self.content(index, self._echoes[index]) if self._echoes[index] else b""

    def content(self, index: int, text: str, usage: Usage | None = None, scores: Scores = None) -> bytes:
        tail = self._text_tail
        if usage is not None or scores is not None:
            logprobs = _encode(self._logprobs[index].feed(scores) if scores is not None else None)
            tail = b',"logprobs":%b,"finish_reason":null}]%b' % (logprobs, _end(self._tail, usage))
        return b"".join((self._text[index], _encode(text), tail))

    # A completion is one text: what a model thinks is a part of it.
    reasoning = content

    def finish(self, index: int, reason: ToldReason) -> bytes:
        return b'%b"","logprobs":null,"finish_reason":"%b"}]%b' % (self._text[index], reason.encode(), self._tail)

    def usage(self, usage: Usage) -> bytes:
        return b'%b,"choices":[],"usage":%b}\n\n' % (self._head, _encode(usage.as_json()))


class Encoder(Protocol):
    """What a streamed answer is made with, whatever its endpoint: whole events, choices by index."""

    def opening(self, index: int) -> bytes: ...
    def content(self, index: int, text: str, usage: Usage | None = None, scores: Scores = None) -> bytes: ...
    def reasoning(self, index: int, text: str, usage: Usage | None = None, scores: Scores = None) -> bytes: ...
    def finish(self, index: int, reason: ToldReason) -> bytes: ...
    def usage(self, usage: Usage) -> bytes: ...


def _end(tail: bytes, usage: Usage | None) -> bytes:
    """The end of a chunk, with the usage so far where that is wanted."""
    return tail if usage is None else b',"usage":%b}\n\n' % _encode(usage.as_json())


def error_event(body: Mapping[str, Any]) -> bytes:
    """A failure after the first byte: the error object as one event; DONE follows it."""
    return b"data: %b\n\n" % _encode(body)


@dataclass(frozen=True, slots=True)
class ChoiceText:
    """One choice of an answer that is not streamed."""

    content: str
    finish_reason: ToldReason
    reasoning: str | None = None
    # None: not asked for.
    scores: Scores = None
    calls: Sequence[ToolCall] = ()


@dataclass(slots=True)
class ToolCall:
    """One call of an answer. `arguments` are JSON as the model wrote it; `mistake` is what is wrong with them."""

    id: str
    name: str
    arguments: str = ""
    mistake: str | None = None

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }
        return told if self.mistake is None else {**told, "inferway": {"arguments_error": self.mistake}}


def whole_answer(answer: Answer, choices: Sequence[ChoiceText], usage: Usage, *, is_legacy: bool = False) -> bytes:
    """The body of an answer that is not streamed, choices in the order given; `is_legacy` as for ChunkEncoder."""
    rendered = []
    for index, choice in enumerate(choices):
        content = choice.content if choice.content or not choice.calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if choice.calls and is_legacy:
            message["function_call"] = choice.calls[0].as_json()["function"]
        elif choice.calls:
            message["tool_calls"] = [call.as_json() for call in choice.calls]
        if choice.reasoning is not None:
            message["reasoning_content"] = choice.reasoning
        logprobs = chat_logprobs(choice.scores) if choice.scores is not None else None
        rendered.append(
            {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}
        )
    return _encode({**answer.head("chat.completion"), "choices": rendered, "usage": usage.as_json()})


def whole_completion(answer: Answer, choices: Sequence[ChoiceText], usage: Usage, *, echoes: Sequence[str]) -> bytes:
    """The body of a text completion that is not streamed, choices in the order given, each behind its echo."""
    rendered = [
        {
            "index": index,
            "text": echo + choice.content,
            "logprobs": LegacyLogprobs().feed(choice.scores) if choice.scores is not None else None,
            "finish_reason": choice.finish_reason,
        }
        for index, (choice, echo) in enumerate(zip(choices, echoes, strict=True))
    ]
    return _encode({**answer.head("text_completion"), "choices": rendered, "usage": usage.as_json()})
