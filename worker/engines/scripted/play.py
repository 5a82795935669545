"""A script as one choice plays it: a sequence of beats, each due some time after the one before it.

A beat is one output of the engine. Items of other workers and of other choices are left out. A script that ends
without finish, error or eof is ended with `stop`; one in which nothing is meant for this choice is played as an
echo. An echo says the tokens of the last user message, one a beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from ...engine import FinishReason, TokenLogprob
from .script import COUNTED, Counts, Failure, Item, Script, Token


@dataclass(frozen=True, slots=True)
class Beat:
    # Seconds after the beat before; for the first, after the prompt pass.
    delay_s: float = 0.0
    token_ids: Sequence[int] = ()
    finish: FinishReason | None = None
    # The script did not say `finish`; a length limit that is reached at the same time counts more.
    is_implied: bool = False
    ends_with_stop_token: bool = False
    counts: Counts = COUNTED
    failure: Failure | None = None
    # One for each of token_ids, where the script says so.
    scores: Sequence[TokenLogprob] = ()

    @property
    def is_plain(self) -> bool:
        """Tokens and nothing else."""
        return self.finish is None and self.failure is None and self.counts is COUNTED and not self.ends_with_stop_token


@dataclass(frozen=True, slots=True)
class Part:
    """What a choice knows when it plays. The callables are asked only when an item needs them."""

    worker: str
    choice_index: int
    # Tokens of the last user message, or of the whole prompt where there is no such thing; and their text.
    message_ids: Callable[[], Sequence[int]]
    message_text: Callable[[], str]
    token_id: Callable[[Token], int]
    # An echo goes on from the start until a limit ends it.
    is_endless: bool = False


class Play:
    """The beats of one choice with the next one in view."""

    __slots__ = ("_beats", "first_counts", "input_logprobs", "next")

    def __init__(self, script: Script | None, part: Part) -> None:
        items = [item for item in script or () if _is_for(item, part)]
        self._beats = _perform(items, part) if any(_says(item) for item in items) else _echo(part)
        self.first_counts = _known_from_the_start(items)
        # What the script says of the prompt's tokens, from the first on.
        self.input_logprobs = next((item.input_logprobs for item in items if item.input_logprobs), ())
        self.next: Beat | None = next(self._beats, None)

    def advance(self) -> None:
        self.next = next(self._beats, None)


def planned_tokens(script: Script | None) -> int | None:
    """Tokens that a script can say at most; None when that hangs on the prompt."""
    if script is None or any(item.echo or item.per_prompt for item in script) or not any(map(_says, script)):
        return None
    return sum(len(item.tokens) * item.repeat for item in script)


def _is_for(item: Item, part: Part) -> bool:
    return item.worker in (None, part.worker) and item.index in (None, part.choice_index)


def _says(item: Item) -> bool:
    return bool(item.is_output or item.failure or item.echo or item.per_prompt or item.sleep_s)


def _known_from_the_start(items: Sequence[Item]) -> Counts:
    """Prompt and cached counts are known before the first token, wherever the script writes them."""
    prompt = next((item.counts.prompt for item in items if item.counts.prompt is not None), None)
    cached = next((item.counts.cached for item in items if item.counts.cached is not None), None)
    return Counts(prompt=prompt, cached=cached)


def _perform(items: Sequence[Item], part: Part) -> Iterator[Beat]:
    waited_s = 0.0
    for item in items:
        waited_s += item.sleep_s
        beats = _beats_of(item, part) if item.repeat else ()
        if not beats:
            waited_s += item.gap_s * max(item.repeat - 1, 0)
            continue
        yield from _after(waited_s, beats)
        waited_s = 0.0
        if beats[-1].finish is not None or beats[-1].failure is not None:
            return
        again = _after(item.gap_s, beats)
        for _ in range(item.repeat - 1):
            yield from again
    yield Beat(waited_s, finish=FinishReason.STOP, is_implied=True)


def _after(delay_s: float, beats: Sequence[Beat]) -> Sequence[Beat]:
    return (replace(beats[0], delay_s=delay_s), *beats[1:])


def _beats_of(item: Item, part: Part) -> Sequence[Beat]:
    """What the item says once; only its last beat can be the end."""
    if item.per_prompt:
        texts = item.per_prompt.get(part.message_text(), ())
        return [Beat(token_ids=(part.token_id(texts[part.choice_index % len(texts)].encode()),))] if texts else []
    if item.echo:
        return [Beat(token_ids=part.message_ids())]
    if not item.is_output and item.failure is None:
        return []
    token_ids = tuple(part.token_id(token) for token in item.tokens)
    scores = [
        TokenLogprob(token_id, score.logprob, [(part.token_id(other), value) for other, value in score.top])
        for token_id, score in zip(token_ids, item.scores, strict=False)
    ]
    if item.failure is not None and (token_ids or item.counts != COUNTED):
        return [Beat(token_ids=token_ids, counts=item.counts, scores=scores), Beat(failure=item.failure)]
    stop_token = item.matched_token and bool(token_ids)
    return [Beat(0.0, token_ids, item.finish, False, stop_token, item.counts, item.failure, scores)]


def _echo(part: Part) -> Iterator[Beat]:
    message_ids = part.message_ids()
    for token_id in cycle(message_ids) if part.is_endless else message_ids:
        yield Beat(token_ids=(token_id,))
    yield Beat(finish=FinishReason.STOP, is_implied=True)
