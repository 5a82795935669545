"""What callers are told of their limits: headers in OpenAI's formats, and the error where one is reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from inferway.errors import ApiError, Reason

from .books import HELD_WAIT_MS, MINUTE_MS
from .calls import Standing, Verdict
from .policy import UNITS_A_TOKEN, Bound, Kind

# Those who wait equally long come back over a tenth of that time, a second at most, instead of all at once.
_JITTER_SHARE = 0.1
_MOST_JITTER_MS = 1_000
_STORE_RETRY_S = 1.0


class Rng(Protocol):
    def random(self) -> float: ...


def rate_headers(bounds: Sequence[Bound], standings: Sequence[Standing]) -> dict[str, str]:
    """x-ratelimit-* of the tightest limit of requests and of tokens, the one with least left; none where there is none.

    Requests in parallel are no rate: they are told only where they are what failed.
    """
    pairs = list(zip(bounds, standings, strict=True))
    requests = [pair for pair in pairs if pair[0].kind is Kind.REQUESTS_PER_MINUTE]
    tokens = [pair for pair in pairs if pair[0].kind.counts_tokens]
    return {**_told(requests, "requests"), **_told(tokens, "tokens")}


def limit_error(bounds: Sequence[Bound], verdict: Verdict, *, rng: Rng) -> ApiError:
    """The 429 for a verdict that refuses: headers of the limit that failed, and of the tightest of the other kind."""
    assert verdict.failed is not None, "nothing has failed"
    bound, standing = bounds[verdict.failed], verdict.standings[verdict.failed]
    headers = rate_headers(bounds, verdict.standings)
    headers |= _told([(bound, standing)], "tokens" if bound.kind.counts_tokens else "requests")
    said = f"{_name(bound)} is {_whole(bound.most, bound)}, and {_whole(standing.used, bound)} are used or reserved."
    # A budget that is only held by requests under way comes back with them, not with the next day.
    if bound.kind.is_budget and verdict.wait_ms > HELD_WAIT_MS:
        headers["x-should-retry"] = "false"
        resets = f"It begins anew in {duration(verdict.wait_ms)}."
        return ApiError(Reason.INSUFFICIENT_QUOTA, f"The budget is spent: {said} {resets}", extra_headers=headers)
    wait_ms = _with_jitter(verdict.wait_ms, rng)
    message = f"Rate limit reached: {said} Try again in {duration(wait_ms)}."
    return ApiError(Reason.RATE_LIMITED, message, retry_after_s=wait_ms / 1000, extra_headers=headers)


def store_away_error(*, rng: Rng) -> ApiError:
    """The 503 of a tenant that is to wait while the store of quotas is away."""
    message = "Quotas cannot be checked at the moment. Try again shortly."
    return ApiError(Reason.QUOTA_UNAVAILABLE, message, retry_after_s=_STORE_RETRY_S * (1 + rng.random()))


def duration(milliseconds: int) -> str:
    """As OpenAI writes it: 17ms, 1s, 1.5s, 6m0s, 26h3m0.25s."""
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    seconds, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}.{rest:03d}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _told(pairs: Iterable[tuple[Bound, Standing]], what: str) -> dict[str, str]:
    tightest = min(pairs, key=lambda pair: (pair[0].most - pair[1].used, pair[0].most), default=None)
    if tightest is None:
        return {}
    bound, standing = tightest
    return {
        f"x-ratelimit-limit-{what}": str(_whole(bound.most, bound)),
        f"x-ratelimit-remaining-{what}": str(max(0, _whole(bound.most - standing.used, bound))),
        f"x-ratelimit-reset-{what}": duration(standing.reset_ms),
    }


def _with_jitter(wait_ms: int, rng: Rng) -> int:
    later = wait_ms + round(rng.random() * min(_MOST_JITTER_MS, wait_ms * _JITTER_SHARE))
    return max(wait_ms, min(later, MINUTE_MS))


def _whole(amount: int, bound: Bound) -> int:
    return amount // UNITS_A_TOKEN if bound.kind.counts_tokens else amount


def _name(bound: Bound) -> str:
    what = bound.kind.field.replace("_", " ")
    scope, _, name = bound.scope.partition(":")
    of = {"t": "the tenant", "k": "this API key", "m": f"the tenant for models '{name}'"}[scope]
    return f"the limit of {what} of {of}"
