"""The text of one choice: token ids in, text that may be shown and token counts out.

Detokenizer, then stop matcher; the matcher is left out where a request has no stop strings. Completion tokens are
counted up to the one that completed a stop string. Stop strings are looked for in the text of token number
`min_tokens` and of those after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferway.errors import ApiError

from ..engine import FinishReason, Output, TokenLogprob
from .detokenize import Detokenizer, TokenTable
from .logprobs import HeldLogprobs, ScoredToken, scored
from .stop import StopMatcher, StopStrings


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one choice, as types.proto has them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


@dataclass(slots=True)
class Delta:
    """What one choice gained; ends its choice when it has `finish_reason` or `error`."""

    text: str = ""
    completion_tokens: int = 0
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: ApiError | None = None
    # The engine still runs this choice and has to be told to stop.
    must_abort: bool = False
    # Where asked for: of the tokens whose text is shown up to here, and, on the first delta, of the prompt's.
    logprobs: Sequence[ScoredToken] = ()
    prompt_logprobs: Sequence[ScoredToken] = ()


class Choice:
    """Owned by one key of a session. Feed it every output of that key in order; after the last delta, none."""

    __slots__ = (
        "_cached",
        "_counted",
        "_detokenizer",
        "_held",
        "_matcher",
        "_min_tokens",
        "_prompt",
        "_reasoning",
        "_started",
        "_table",
    )

    def __init__(
        self,
        table: TokenTable,
        prompt_tokens: int,
        stops: StopStrings | None = None,
        min_tokens: int = 0,
        *,
        logprobs: bool = False,
    ) -> None:
        self._table = table
        self._detokenizer = Detokenizer(table)
        self._held = HeldLogprobs(table) if logprobs else None
        self._matcher = StopMatcher(stops) if stops is not None else None
        self._min_tokens = min_tokens
        self._prompt = prompt_tokens
        self._cached = 0
        self._reasoning = 0
        self._counted = 0
        self._started = False

    @property
    def prompt_tokens(self) -> int:
        return self._prompt

    @property
    def completion_tokens(self) -> int:
        """Tokens so far, up to the one that completed a stop string."""
        return self._counted

    @property
    def cached_tokens(self) -> int:
        return self._cached

    @property
    def usage(self) -> Usage:
        """As the next delta would tell it."""
        return Usage(self._prompt, self._counted, min(self._cached, self._prompt), min(self._reasoning, self._counted))

    def feed(self, output: Output) -> Delta | None:
        """The next delta, or None when there is nothing to tell."""
        if output.cached_tokens is not None:
            self._cached = output.cached_tokens
        if output.prompt_tokens is not None:
            self._prompt = output.prompt_tokens
        if output.reasoning_tokens is not None:
            self._reasoning = output.reasoning_tokens
        token_ids, hidden = output.token_ids, 0
        if output.ends_with_stop_token and token_ids:
            token_ids, hidden = token_ids[:-1], 1
        matcher, held = self._matcher, self._held
        before = self._counted
        if matcher is None and held is None:
            text = self._detokenizer.feed(token_ids) if token_ids else ""
            self._counted += len(token_ids) + hidden
        else:
            text = self._feed_each(token_ids, output.logprobs)
            if matcher is None or not matcher.matched:
                self._counted += hidden
        finish, ended = output.finish_reason, output.finish_reason is not None or output.error is not None
        if ended and (matcher is None or not matcher.matched):
            text += self._flush()
        stopped = matcher is not None and matcher.matched
        if output.completion_tokens is not None and not stopped:
            self._counted = output.completion_tokens
        if stopped:
            delta = Delta(text, self._counted, FinishReason.STOP, self.usage, must_abort=not ended)
        elif ended:
            delta = Delta(text, self._counted, finish, self.usage, output.error)
        elif not self._started:
            delta = Delta(text, self._counted, usage=self.usage)
        elif not text and self._counted == before:
            return None
        else:
            delta = Delta(text, self._counted)
        self._started = True
        if held is not None:
            is_last = stopped or ended
            delta.logprobs = held.finish(len(text), stopped=stopped) if is_last else held.take(len(text))
        if output.prompt_logprobs:
            delta.prompt_logprobs = [scored(score, self._table) for score in output.prompt_logprobs]
        return delta

    def _feed_each(self, token_ids: Sequence[int], scores: Sequence[TokenLogprob]) -> str:
        """Token by token: the count stops at the one that completes a match, and a score belongs to a text."""
        matcher, held = self._matcher, self._held
        shown = []
        for place, token_id in enumerate(token_ids):
            piece = self._detokenizer.feed((token_id,))
            self._counted += 1
            if held is not None and place < len(scores):
                held.add(scores[place], len(piece), has_begun=self._detokenizer.held_bytes > 0)
            if matcher is None or self._counted < self._min_tokens:
                shown.append(piece)
                continue
            shown.append(matcher.feed(piece))
            if matcher.matched:
                break
        return "".join(shown)

    def _flush(self) -> str:
        rest = self._detokenizer.finish()
        matcher = self._matcher
        if matcher is None:
            return rest
        shown = matcher.feed(rest)
        return shown if matcher.matched else shown + matcher.finish()
