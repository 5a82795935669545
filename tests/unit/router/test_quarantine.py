"""Which prompts are kept from further workers, and which are not."""

from __future__ import annotations

import pytest

from router.core.quarantine import PromptKey, Quarantine

POISON, INNOCENT = PromptKey("m", 1), PromptKey("m", 2)


def play(events: str) -> tuple[Quarantine, float]:
    """A second between events: "A1" died on that incarnation with the prompt, "a1" failed it, "+" it ended well."""
    quarantine, now = Quarantine(60.0), 0.0
    for event in events.split():
        now += 1.0
        if event == "+":
            quarantine.finished(POISON, now=now)
        else:
            quarantine.failed(POISON, event.lower(), died=event[0].isupper(), now=now)
    return quarantine, now


@pytest.mark.parametrize(
    ("events", "held", "why"),
    [
        ("A1", False, "one death may have any cause"),
        ("A1 A1 A1", False, "the same incarnation dies once"),
        ("A1 B1", True, "two workers"),
        ("A1 A2", True, "a worker that was started anew is another one"),
        ("a1 b1 c1", False, "workers that say themselves that it failed live on"),
        ("a1 B1", False, "one death"),
        ("A1 + B1", False, "it has come to its end in between"),
        ("+ A1 B1", False, "it has come to its end just before: it does not kill"),
        ("A1 B1 +", False, "one that was still running came to its end"),
    ],
)
def test_the_rule(events: str, held: bool, why: str) -> None:
    quarantine, now = play(events)
    assert quarantine.held_for_s(POISON, now=now) == (60.0 if held else 0.0), why
    assert quarantine.num_held(now=now) == held
    assert quarantine.holds_any(now=now) or not held
    assert quarantine.held_for_s(INNOCENT, now=now) == 0.0


def test_whoever_was_beside_it_once_is_not_held() -> None:
    """Of a hundred on the first worker, the ninety that went elsewhere end well or die with nobody."""
    quarantine = Quarantine(60.0)
    crowd = [PromptKey("m", number) for number in range(100)]
    for key in crowd:
        quarantine.failed(key, "a1", died=True, now=1.0)
    for key in crowd[10:]:
        quarantine.finished(key, now=2.0)
    for key in (*crowd[:10], *(PromptKey("m", number) for number in range(200, 300))):
        quarantine.failed(key, "b1", died=True, now=3.0)
    held = [key for key in crowd if quarantine.held_for_s(key, now=3.0)]
    assert held == crowd[:10]
    assert quarantine.num_held(now=3.0) == 10


def test_time_ends_it_and_one_more_death_renews_it() -> None:
    quarantine, now = play("A1 B1")
    assert quarantine.held_for_s(POISON, now=now + 59.0) == 1.0
    assert quarantine.held_for_s(POISON, now=now + 60.0) == 0.0
    assert not quarantine.holds_any(now=now + 60.0)
    quarantine.failed(POISON, "c1", died=True, now=now + 61.0)
    assert quarantine.held_for_s(POISON, now=now + 61.0) == 60.0


def test_deaths_far_apart_are_forgotten() -> None:
    quarantine = Quarantine(60.0)
    quarantine.failed(POISON, "a1", died=True, now=0.0)
    quarantine.failed(POISON, "b1", died=True, now=601.0)
    assert quarantine.held_for_s(POISON, now=601.0) == 0.0


def test_a_prompt_that_failed_elsewhere_is_suspect() -> None:
    """On the worker where it has failed it tells of that worker; on another one it may be to blame itself."""
    quarantine, now = play("a1")
    assert not quarantine.is_suspect(POISON, "a1", now=now)
    assert quarantine.is_suspect(POISON, "b1", now=now)
    assert not quarantine.is_suspect(INNOCENT, "b1", now=now)
    quarantine.finished(POISON, now=now)
    assert not quarantine.is_suspect(POISON, "b1", now=now)


def test_a_period_of_zero_is_off() -> None:
    quarantine = Quarantine(0.0)
    for instance_id in ("a", "b", "c"):
        quarantine.failed(POISON, instance_id, died=True, now=1.0)
    assert quarantine.held_for_s(POISON, now=1.0) == 0.0
    assert not quarantine.is_suspect(POISON, "z", now=1.0)


def test_memory_is_bounded() -> None:
    """The oldest are forgotten, and among a flood the one that matters is still held."""
    quarantine = Quarantine(60.0)
    for number in range(20_000):
        quarantine.failed(PromptKey("m", number + 10), "a1", died=True, now=float(number) / 1_000)
        quarantine.finished(PromptKey("n", number), now=float(number) / 1_000)
    assert len(quarantine) <= 4_096 + 16_384
    quarantine.failed(POISON, "a1", died=True, now=20.0)
    quarantine.failed(POISON, "b1", died=True, now=20.0)
    assert quarantine.held_for_s(POISON, now=20.0) == 60.0
