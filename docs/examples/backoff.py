"""A client that backs off by what it is told: 429 says "you are over your quota", 503 says "we are over capacity".

A 429 is about everything that is sent with one key: it says when there is room again, and until then all requests of
that key wait, because each of them would be refused. A 503 is about one moment of ours: only the request that met it
waits, and a random time longer than it was told, so that those who were refused together do not come back together.
What comes with `x-should-retry: false` (a budget that is spent, a request that breaks workers) is not tried again.

    export OPENAI_API_KEY=any
    python docs/examples/backoff.py http://127.0.0.1:8000/v1 smollm2-135m-instruct "Give me three tips."
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import openai

# How far apart to spread, in seconds, after the first refusal for lack of capacity; doubles with each further one.
SPREAD_S = 0.5
MOST_SPREAD_S = 30.0
# Where a 429 does not say when.
UNKNOWN_S = 5.0


class Pace:
    """When requests may leave; one for everything that uses the same key. Times are monotonic seconds."""

    def __init__(self, rng: Callable[[], float] = random.random) -> None:
        self._rng = rng
        self.not_before = 0.0

    def again(self, status: int, headers: Mapping[str, str], attempt: int, *, now: float) -> float | None:
        """When a request that was refused may be sent again, None if never. A 429 holds back all others, too."""
        if headers.get("x-should-retry") == "false":
            return None
        told = _seconds(headers)
        if status == 429:
            self.not_before = max(self.not_before, now + (UNKNOWN_S if told is None else told))
            return self.not_before
        if status in (502, 503, 504):
            return now + (told or 0.0) + self._rng() * min(MOST_SPREAD_S, SPREAD_S * 2.0 ** min(attempt, 10))
        return None


def _seconds(headers: Mapping[str, str]) -> float | None:
    """Retry-After, by the milliseconds that come beside it if they do."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            return float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
    return None


class PatientClient:
    """Chat completions that wait for room, `patience_s` at most; then, and for all other errors, the client's own.

    Streams, too: a refusal comes before the first byte. What breaks off later is not begun again.
    """

    def __init__(self, client: openai.OpenAI, pace: Pace, *, patience_s: float = 120.0) -> None:
        # Its own retries do not tell a quota from capacity.
        self._create = client.with_options(max_retries=0).chat.completions.create
        self._pace = pace
        self._patience_s = patience_s

    def chat(self, **request: Any) -> Any:
        give_up = time.monotonic() + self._patience_s
        at = 0.0
        for attempt in itertools.count():
            # Others may have met the quota meanwhile.
            while (wait := max(at, self._pace.not_before) - time.monotonic()) > 0:
                time.sleep(wait)
            try:
                return self._create(**request)
            except openai.APIStatusError as error:
                again = self._pace.again(error.status_code, error.response.headers, attempt, now=time.monotonic())
                if again is None or again > give_up:
                    raise
                at = again


if __name__ == "__main__":
    url, model, question = sys.argv[1:]
    patient = PatientClient(openai.OpenAI(base_url=url), Pace())
    messages = [{"role": "user", "content": question}]
    for chunk in patient.chat(model=model, messages=messages, max_tokens=200, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()
