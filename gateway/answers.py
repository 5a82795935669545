"""Sinks: where the text of a request goes, streamed or gathered.

Both run on the path of a token and neither waits. Reasoning is split off here when the model has a splitter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from inferway.errors import ApiError, Reason

from .core.answer_events import Content, Reasoning, Text
from .core.logprobs import ScoredToken
from .core.reasoning import ThinkSplitter
from .core.sse import DONE, HEARTBEAT, ChoiceText, Encoder, FinishReason, Usage, error_event
from .generation import Sink
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
        splitters: Sequence[ThinkSplitter | None],
        *,
        limit_bytes: int,
        on_too_slow: Callable[[], None],
        scored: bool = False,
        continuous_usage: Callable[[], Usage] | None = None,
    ) -> None:
        self._stream = stream
        self._encoder = encoder
        self._splitters = splitters
        self._limit_bytes = limit_bytes
        self._on_too_slow = on_too_slow
        self._continuous_usage = continuous_usage
        # The common case, in which a delta is one frame and nothing else.
        self._plain = continuous_usage is None and not scored and not any(splitters)
        # Of each choice, those that the next text takes along.
        self._scores: dict[int, list[ScoredToken]] = {}
        self._held_texts: dict[int, list[str]] = {}
        self._held_finishes: dict[int, FinishReason] = {}
        self._held_size = 0

    def on_text(self, index: int, text: str) -> None:
        stream = self._stream
        if not stream.ready:
            self._hold(index, text)
            return
        if self._held_texts or self._held_finishes:
            self._release()
        if self._plain:
            stream.write(self._encoder.content(index, text))
        else:
            self._emit(index, text)

    def on_scores(self, index: int, scores: Sequence[ScoredToken]) -> None:
        self._scores.setdefault(index, []).extend(scores)
        if not self._stream.ready:
            self._held_size += sum(_SCORE_BYTES * (1 + len(score.top)) for score in scores)

    def on_finish(self, index: int, text: str, reason: FinishReason) -> None:
        if self._stream.ready:
            self._release()
            self._emit(index, text)
            self._emit_finish(index, reason)
        else:
            self._hold(index, text)
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
        for index in range(len(self._splitters)):
            if opening := self._encoder.opening(index):
                self._stream.write(opening)
        self._release()

    async def complete(self, usage: Usage | None, *, timeout_s: float) -> None:
        """Write what is held, the usage chunk if asked for, and DONE, as fast as the client reads.

        Raises ApiError (CLIENT_TOO_SLOW) when the client has not read it all within the time; it is cut then.
        """
        await self._close([self._encoder.usage(usage)] if usage is not None else [], timeout_s, finishes=True)

    async def fail(self, error: ApiError, *, timeout_s: float) -> None:
        """The status is spent: say the error in-band and close the stream in order. Raises as `complete` does."""
        await self._close([error_event(error.body())], timeout_s, finishes=False)

    async def _close(self, frames: Sequence[bytes], timeout_s: float, *, finishes: bool) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream.drained()
                self._release(finishes=finishes)
                for frame in (*frames, DONE):
                    self._stream.write(frame)
                await self._stream.drained()
        except TimeoutError:
            self._stream.cut()
            raise ApiError(Reason.CLIENT_TOO_SLOW, "The client did not read its answer in time.") from None

    def _hold(self, index: int, text: str) -> None:
        self._held_texts.setdefault(index, []).append(text)
        self._held_size += len(text.encode())
        if self._held_size + self._stream.backlog_bytes > self._limit_bytes:
            self._held_texts.clear()
            self._held_size = 0
            self._on_too_slow()

    def _release(self, *, finishes: bool = True) -> None:
        texts, self._held_texts, self._held_size = self._held_texts, {}, 0
        for index, parts in texts.items():
            self._emit(index, "".join(parts))
        if finishes:
            for index, reason in self._held_finishes.items():
                self._emit_finish(index, reason)
        self._held_finishes.clear()

    def _emit(self, index: int, text: str) -> None:
        splitter = self._splitters[index]
        if splitter is not None:
            self._write(index, splitter.feed(text))
        elif text or self._scores.get(index):
            self._write(index, [Content(text)])

    def _emit_finish(self, index: int, reason: FinishReason) -> None:
        splitter = self._splitters[index]
        if splitter is not None:
            events = splitter.finish()
            # Tokens without any text of their own still have scores.
            self._write(index, events or ([Content("")] if self._scores.get(index) else []))
        self._stream.write(self._encoder.finish(index, reason))

    def _write(self, index: int, events: Sequence[Text]) -> None:
        usage = self._continuous_usage() if self._continuous_usage is not None else None
        for event in events:
            encode = self._encoder.reasoning if isinstance(event, Reasoning) else self._encoder.content
            self._stream.write(encode(index, event.text, usage, self._scores.pop(index, None)))


class GatheredAnswer:
    """Keeps the text of each choice for an answer in one piece."""

    def __init__(self, splitters: Sequence[ThinkSplitter | None], *, scored: bool = False) -> None:
        self._splitters = splitters
        self._scores: list[list[ScoredToken]] | None = [[] for _ in splitters] if scored else None
        self._texts: list[list[str]] = [[] for _ in splitters]
        self._reasons: dict[int, FinishReason] = {}

    def on_text(self, index: int, text: str) -> None:
        self._texts[index].append(text)

    def on_scores(self, index: int, scores: Sequence[ScoredToken]) -> None:
        assert self._scores is not None
        self._scores[index] += scores

    def on_finish(self, index: int, text: str, reason: FinishReason) -> None:
        self._texts[index].append(text)
        self._reasons[index] = reason

    def on_silence(self) -> None:
        """A client that waits for one piece gets none early."""

    def on_tick(self) -> None:
        """Nothing is held for a client that waits for one piece."""

    def choices(self) -> list[ChoiceText]:
        return [self._choice(index) for index in range(len(self._splitters))]

    def _choice(self, index: int) -> ChoiceText:
        text = "".join(self._texts[index])
        splitter = self._splitters[index]
        scores = self._scores[index] if self._scores is not None else None
        if splitter is None:
            return ChoiceText(text, self._reasons[index], scores=scores)
        events = [*splitter.feed(text), *splitter.finish()]
        reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
        content = "".join(event.text for event in events if not isinstance(event, Reasoning))
        return ChoiceText(content, self._reasons[index], reasoning or None, scores)


class Part:
    """A sink for some of the choices of another one: those from `first` on."""

    def __init__(self, sink: Sink, first: int) -> None:
        self._sink = sink
        self._first = first

    def on_text(self, index: int, text: str) -> None:
        self._sink.on_text(self._first + index, text)

    def on_scores(self, index: int, scores: Sequence[ScoredToken]) -> None:
        self._sink.on_scores(self._first + index, scores)

    def on_finish(self, index: int, text: str, reason: FinishReason) -> None:
        self._sink.on_finish(self._first + index, text, reason)

    def on_silence(self) -> None:
        self._sink.on_silence()

    def on_tick(self) -> None:
        self._sink.on_tick()
