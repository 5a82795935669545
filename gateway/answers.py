"""Sinks: where the text of a request goes, streamed or gathered.

Both run on the path of a token and neither waits. Thoughts and tool calls are taken from the text here, where a choice
has a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from inferway.errors import ApiError, Reason

from .choices import Sink
from .core.answer_events import Arguments, CallEnd, CallStart, Content, Event, Reasoning
from .core.answer_reader import AnswerReader
from .core.logprobs import ScoredToken
from .core.sse import (
    DONE,
    HEARTBEAT,
    ChoiceText,
    ChunkEncoder,
    Encoder,
    FinishReason,
    ToldReason,
    Usage,
    error_event,
)
from .sse_stream import SseStream

# What one log-probability takes of a chunk, about.
_SCORE_BYTES = 80


class StreamedAnswer:
    """Turns text into chunks on an SseStream.

    While the stream is not open yet, or its client does not keep up, text is held and later merged into one chunk
    a choice. Held and unread bytes together are bounded: beyond `limit_bytes`, `on_too_slow` is called once.
    """

    def __init__(
        self,
        stream: SseStream,
        encoder: Encoder,
        readers: Sequence[AnswerReader | None],
        *,
        limit_bytes: int,
        on_too_slow: Callable[[], None],
        scored: bool = False,
        continuous_usage: Callable[[], Usage] | None = None,
    ) -> None:
        self._stream = stream
        self._encoder = encoder
        self._readers = readers
        self._limit_bytes = limit_bytes
        self._on_too_slow = on_too_slow
        self._continuous_usage = continuous_usage
        # The common case, in which a delta is one frame and nothing else.
        self._plain = continuous_usage is None and not scored and not any(readers)
        # Of each choice, those that the next text takes along.
        self._scores: dict[int, list[ScoredToken]] = {}
        # Of each choice its text, and the tokens that it was made of.
        self._held_texts: dict[int, list[tuple[str, int]]] = {}
        self._held_finishes: dict[int, FinishReason] = {}
        self._held_size = 0

    def on_text(self, index: int, text: str, tokens: int) -> None:
        stream = self._stream
        if not stream.ready:
            self._hold(index, text, tokens)
            return
        if self._held_texts or self._held_finishes:
            self._release()
        if self._plain:
            stream.write(self._encoder.content(index, text))
        else:
            self._emit(index, text, tokens)

    def on_scores(self, index: int, scores: Sequence[ScoredToken]) -> None:
        self._scores.setdefault(index, []).extend(scores)
        if not self._stream.ready:
            self._held_size += sum(_SCORE_BYTES * (1 + len(score.top)) for score in scores)

    def on_finish(self, index: int, text: str, tokens: int, reason: FinishReason) -> None:
        if self._stream.ready:
            self._release()
            self._emit(index, text, tokens)
            self._emit_finish(index, reason)
        else:
            self._hold(index, text, tokens)
            self._held_finishes[index] = reason

    def on_silence(self) -> None:
        if self._stream.ready:
            self._stream.write(HEARTBEAT)

    def on_tick(self) -> None:
        """A client that has caught up gets what was held for it, though no further text may come for long."""
        if (self._held_texts or self._held_finishes) and self._stream.ready:
            self._release()

    def opened(self) -> None:
        """The stream is open: say how the choices begin, and what was held."""
        for index in range(len(self._readers)):
            if opening := self._encoder.opening(index):
                self._stream.write(opening)
        self._release()

    async def complete(self, usage: Callable[[], Usage] | None, *, timeout_s: float) -> None:
        """Write what is held, the usage chunk if asked for, and DONE, as fast as the client reads.

        `usage` is asked for when all text has been read.

        Raises ApiError (CLIENT_TOO_SLOW) when the client has not read it all within the time; it is cut then.
        """
        last = (lambda: [self._encoder.usage(usage())]) if usage is not None else list
        await self._close(last, timeout_s, finishes=True)

    async def fail(self, error: ApiError, *, timeout_s: float) -> None:
        """The status is spent: say the error in-band and close the stream in order. Raises as `complete` does."""
        await self._close(lambda: [error_event(error.body())], timeout_s, finishes=False)

    async def _close(self, last: Callable[[], list[bytes]], timeout_s: float, *, finishes: bool) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream.drained()
                self._release(finishes=finishes)
                for frame in (*last(), DONE):
                    self._stream.write(frame)
                await self._stream.drained()
        except TimeoutError:
            self._stream.cut()
            raise ApiError(Reason.CLIENT_TOO_SLOW, "The client did not read its answer in time.") from None

    def _hold(self, index: int, text: str, tokens: int) -> None:
        self._held_texts.setdefault(index, []).append((text, tokens))
        self._held_size += len(text.encode())
        if self._held_size + self._stream.backlog_bytes > self._limit_bytes:
            self._held_texts.clear()
            self._held_size = 0
            self._on_too_slow()

    def _release(self, *, finishes: bool = True) -> None:
        texts, self._held_texts, self._held_size = self._held_texts, {}, 0
        for index, parts in texts.items():
            self._emit(index, "".join(text for text, _ in parts), sum(tokens for _, tokens in parts))
        if finishes:
            for index, reason in self._held_finishes.items():
                self._emit_finish(index, reason)
        self._held_finishes.clear()

    def _emit(self, index: int, text: str, tokens: int) -> None:
        reader = self._readers[index]
        if reader is not None:
            self._write(index, reader.feed(text, tokens))
        elif text or self._scores.get(index):
            self._write(index, [Content(text)])

    def _emit_finish(self, index: int, reason: FinishReason) -> None:
        reader = self._readers[index]
        told: ToldReason = reason
        if reader is not None:
            self._write(index, reader.finish())
            told = reader.told(reason)
            # Tokens without any text of their own still have scores.
            if self._scores.get(index):
                self._write(index, [Content("")])
        self._stream.write(self._encoder.finish(index, told))

    def _write(self, index: int, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Content | Reasoning):
                usage = self._continuous_usage() if self._continuous_usage is not None else None
                encode = self._encoder.reasoning if isinstance(event, Reasoning) else self._encoder.content
                self._stream.write(encode(index, event.text, usage, self._scores.pop(index, None)))
            else:
                self._write_call(index, event)

    def _write_call(self, index: int, event: Event) -> None:
        encoder, reader = self._encoder, self._readers[index]
        assert isinstance(encoder, ChunkEncoder), "only chats have tools"
        assert reader is not None
        match event:
            case CallStart(call):
                told = reader.calls[call]
                self._stream.write(encoder.call_start(index, call, told.id, told.name))
            case Arguments(call, text):
                self._stream.write(encoder.call_arguments(index, call, text))
            case CallEnd(call) if mistake := reader.calls[call].mistake:
                if marked := encoder.call_mistake(index, call, mistake):
                    self._stream.write(marked)


class GatheredAnswer:
    """Keeps the text of each choice for an answer in one piece."""

    def __init__(self, readers: Sequence[AnswerReader | None], *, scored: bool = False) -> None:
        self._readers = readers
        self._scores: list[list[ScoredToken]] | None = [[] for _ in readers] if scored else None
        self._contents: list[list[str]] = [[] for _ in readers]
        self._thoughts: list[list[str]] = [[] for _ in readers]
        self._reasons: dict[int, ToldReason] = {}

    def on_text(self, index: int, text: str, tokens: int) -> None:
        reader = self._readers[index]
        if reader is None:
            self._contents[index].append(text)
        else:
            self._keep(index, reader.feed(text, tokens))

    def on_scores(self, index: int, scores: Sequence[ScoredToken]) -> None:
        assert self._scores is not None
        self._scores[index] += scores

    def on_finish(self, index: int, text: str, tokens: int, reason: FinishReason) -> None:
        self.on_text(index, text, tokens)
        reader = self._readers[index]
        if reader is not None:
            self._keep(index, reader.finish())
        self._reasons[index] = reader.told(reason) if reader is not None else reason

    def on_silence(self) -> None:
        """A client that waits for one piece gets none early."""

    def on_tick(self) -> None:
        """Nothing is held for a client that waits for one piece."""

    def choices(self) -> list[ChoiceText]:
        return [self._choice(index) for index in range(len(self._readers))]

    def _keep(self, index: int, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Content):
                self._contents[index].append(event.text)
            elif isinstance(event, Reasoning):
                self._thoughts[index].append(event.text)

    def _choice(self, index: int) -> ChoiceText:
        reader = self._readers[index]
        return ChoiceText(
            "".join(self._contents[index]),
            self._reasons[index],
            "".join(self._thoughts[index]) or None,
            self._scores[index] if self._scores is not None else None,
            reader.calls if reader is not None else (),
        )


class Part:
    """A sink for some of the choices of another one: those from `first` on."""

    def __init__(self, sink: Sink, first: int) -> None:
        self._sink = sink
        self._first = first

    def on_text(self, index: int, text: str, tokens: int) -> None:
        self._sink.on_text(self._first + index, text, tokens)

    def on_scores(self, index: int, scores: Sequence[ScoredToken]) -> None:
        self._sink.on_scores(self._first + index, scores)

    def on_finish(self, index: int, text: str, tokens: int, reason: FinishReason) -> None:
        self._sink.on_finish(self._first + index, text, tokens, reason)

    def on_silence(self) -> None:
        self._sink.on_silence()

    def on_tick(self) -> None:
        self._sink.on_tick()
