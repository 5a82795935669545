"""One choice of a request while it runs on a worker, and where its text goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferway.errors import ApiError, Reason

from .core.logprobs import ScoredToken
from .core.sse import FinishReason, Usage
from .metrics import Metrics


class Sink(Protocol):
    """Where the text of a request goes. Called on the path of a token: must not block or raise."""

    def on_text(self, index: int, text: str, tokens: int) -> None:
        """`tokens` is how many the text was made of."""

    def on_scores(self, index: int, scores: Sequence[ScoredToken]) -> None:
        """Log-probabilities that belong to the text that comes next, or with the finish."""

    def on_finish(self, index: int, text: str, tokens: int, reason: FinishReason) -> None: ...
    def on_silence(self) -> None:
        """Nothing has come for a heartbeat's time."""

    def on_tick(self) -> None:
        """A few times a second, whatever comes."""


class Owner(Protocol):
    """The request that a choice belongs to, moved by what comes of it."""

    # When the caller last got something, or was last told that there is nothing yet; monotonic seconds.
    spoke_at: float

    def first_output(self, cached_tokens: int) -> None: ...
    def choice_finished(self, choice: Choice) -> None: ...
    def choice_failed(self, choice: Choice, error: ApiError, *, session_broke: bool = False) -> None: ...
    def choice_counted(self) -> None: ...


class Choice:
    """One choice on a worker: hands text to the sink, and counts."""

    __slots__ = (
        "_gaps",
        "_owner",
        "_sink",
        "_told_tokens",
        "completion_tokens",
        "index",
        "is_refused",
        "key",
        "last_at",
        "usage",
        "wants_scores",
    )

    def __init__(
        self, owner: Owner, index: int, sink: Sink, metrics: Metrics, now: float, *, wants_scores: bool
    ) -> None:
        self.wants_scores = wants_scores
        self._owner = owner
        self._sink = sink
        self._gaps = metrics.inter_token_latency
        self.index = index
        self.key = 0
        self.last_at = now
        self.completion_tokens = 0
        # Of those, the ones that the sink has been given with their text.
        self._told_tokens = 0
        # None where nothing is known of it.
        self.usage: Usage | None = None
        # The worker has never taken it.
        self.is_refused = False

    def on_first(self, usage: Usage) -> None:
        self.usage = usage
        self._owner.first_output(usage.cached_tokens)

    def on_text(self, text: str, completion_tokens: int, now: float) -> None:
        fresh = completion_tokens - self.completion_tokens
        if fresh > 0:
            if self.completion_tokens:
                self._gaps.observe((now - self.last_at) / fresh, fresh)
            self.completion_tokens = completion_tokens
        self.last_at = now
        if text:
            self._owner.spoke_at = now
            tokens, self._told_tokens = completion_tokens - self._told_tokens, completion_tokens
            self._sink.on_text(self.index, text, tokens)

    def on_scores(self, scores: Sequence[ScoredToken]) -> None:
        self._sink.on_scores(self.index, scores)

    def on_finish(self, text: str, reason: FinishReason, usage: Usage, now: float) -> None:
        self.last_at = now
        self.usage = usage
        self.completion_tokens = usage.completion_tokens
        self._owner.first_output(usage.cached_tokens)
        self._sink.on_finish(self.index, text, max(0, usage.completion_tokens - self._told_tokens), reason)
        self._owner.choice_finished(self)

    def on_error(self, error: ApiError, usage: Usage | None = None) -> None:
        self._stopped(usage or Usage(0, 0))
        self._owner.choice_failed(self, error)

    def on_counted(self, usage: Usage | None) -> None:
        """After an abort: the final count, unless the session broke."""
        if usage is not None:
            self._stopped(usage)
        self._owner.choice_counted()

    def _stopped(self, usage: Usage) -> None:
        """It did not come to its end. Before its first token, what it says of its prompt may not be so yet."""
        self.is_refused = not usage.prompt_tokens and not self.completion_tokens
        if usage.prompt_tokens:
            self.completion_tokens = usage.completion_tokens
            self.usage = usage if usage.completion_tokens else None

    def on_lost(self) -> None:
        error = ApiError(Reason.WORKER_FAILED, "The worker that answered this request was lost.")
        self._owner.choice_failed(self, error, session_broke=True)


def sum_usage(choices: Sequence[Choice], prompt_tokens: int) -> Usage:
    """The prompt once, as the engine counted it; completions of all choices."""
    known = [choice.usage for choice in choices if choice.usage is not None]
    return Usage(
        prompt_tokens=max((usage.prompt_tokens for usage in known), default=prompt_tokens),
        completion_tokens=sum(choice.completion_tokens for choice in choices),
        cached_tokens=min((usage.cached_tokens for usage in known), default=0),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in known),
    )
