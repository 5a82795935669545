"""Lookups in a store that may be away: one question a name at a time, and what is served when nobody answers."""

from __future__ import annotations

import asyncio

import pytest

from gateway.directory.lookups import Away, Lookups
from inferway.errors import ApiError, Reason


class Store:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.is_away = False
        self.is_told = True
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.lookups = Lookups(self._fetch, lambda: self.is_told)

    async def get(self, name: str) -> str | None:
        return await self.lookups.get(name)

    async def _fetch(self, name: str) -> str | None:
        self.asked.append(name)
        # The answer is that of the moment of the question.
        value, is_away = self.values.get(name), self.is_away
        await self.may_answer.wait()
        if is_away:
            raise Away
        return value


async def unavailable(store: Store, name: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await store.get(name)
    assert caught.value.reason is Reason.AUTH_UNAVAILABLE
    assert caught.value.retry_after_s
    return caught.value


async def test_an_answer_is_asked_for_once() -> None:
    """Whether there is such a name or not, and however many ask at the same time."""
    store = Store()
    store.values["a"] = "A"
    store.may_answer.clear()
    several = [asyncio.create_task(store.get(name)) for name in "aabba"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.may_answer.set()
    assert await asyncio.gather(*several) == ["A", "A", None, None, "A"]
    assert [await store.get("a"), await store.get("b")] == ["A", None]
    assert sorted(store.asked) == ["a", "b"]


async def test_one_that_leaves_takes_nothing_from_the_others() -> None:
    store = Store()
    store.values["a"] = "A"
    store.may_answer.clear()
    first, second = asyncio.create_task(store.get("a")), asyncio.create_task(store.get("a"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    store.may_answer.set()
    assert await second == "A"
    assert store.asked == ["a"]


async def test_a_change_is_in_force_at_once() -> None:
    store = Store()
    store.values["a"] = "A"
    assert await store.get("a") == "A"
    store.values["a"] = "B"
    assert await store.get("a") == "A"
    store.lookups.forget("a")
    assert await store.get("a") == "B"


async def test_an_answer_that_a_change_has_overtaken_is_not_kept() -> None:
    """It was under way when word of the change came, so it may be that of before."""
    store = Store()
    store.values["a"] = "A"
    store.may_answer.clear()
    early = asyncio.create_task(store.get("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.values["a"] = "B"
    store.lookups.forget("a")
    store.may_answer.set()
    assert await early == "A"
    assert await store.get("a") == "B"


async def test_what_is_known_serves_while_the_store_is_away() -> None:
    """What is not known, or has changed since, cannot be judged; that a name is absent is no knowledge."""
    store = Store()
    store.values |= {"a": "A", "b": "B"}
    for name in "abc":
        await store.get(name)
    store.is_away = True
    store.lookups.doubt()
    assert await store.get("a") == "A"
    await unavailable(store, "c")
    await unavailable(store, "never seen")
    store.lookups.forget("b")
    await unavailable(store, "b")
    store.is_away = False
    store.values["a"] = "changed meanwhile"
    assert await store.get("a") == "changed meanwhile"
    assert await store.get("b") == "B"


async def test_without_word_of_changes_answers_are_good_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is asked again after it, where with word of them it would not be."""
    monkeypatch.setattr("gateway.directory.lookups._UNTOLD_S", 0.0)
    store = Store()
    store.values["a"] = "A"
    await store.get("a")
    await store.get("a")
    assert len(store.asked) == 1
    store.is_told = False
    await store.get("a")
    assert len(store.asked) == 2
