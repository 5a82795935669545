"""What a store has answered: how long it is fresh, how long it serves, and that it is bounded."""

from __future__ import annotations

from gateway.core.remembered import Answer, Remembered


def remembered(most: int = 100) -> Remembered[str]:
    return Remembered(most=most, fresh_s=60, absent_s=5, oldest_s=3600)


def test_an_answer_is_fresh_then_serves_then_is_gone() -> None:
    kept = remembered()
    kept.put("a", "A", now=0)
    assert kept.get("a", now=59) == Answer("A", True)
    assert kept.get("a", now=60) == Answer("A", False)
    assert kept.get("a", now=3599) == Answer("A", False)
    assert kept.get("a", now=3600) is None
    assert len(kept) == 0


def test_an_absent_name_is_believed_only_while_that_is_fresh() -> None:
    kept = remembered()
    kept.put("a", None, now=0)
    assert kept.get("a", now=4) == Answer(None, True)
    assert kept.get("a", now=5) is None
    kept.put("a", None, now=10)
    kept.doubt()
    assert kept.get("a", now=10) is None


def test_less_may_be_trusted_than_was_agreed() -> None:
    kept = remembered()
    kept.put("a", "A", now=0)
    kept.put("b", None, now=0)
    assert kept.get("a", now=2, trust_s=1) == Answer("A", False)
    assert kept.get("b", now=2, trust_s=1) is None


def test_what_has_changed_is_gone_at_once() -> None:
    kept = remembered()
    for name, value in (("a", "A"), ("b", None)):
        kept.put(name, value, now=0)
        kept.forget(name)
        assert kept.get(name, now=0) is None
    kept.forget("never there")


def test_doubt_leaves_what_serves_when_nobody_answers() -> None:
    """Also what is asked after a doubt is fresh again, and the age goes on from when it was asked."""
    kept = remembered()
    kept.put("a", "A", now=0)
    kept.doubt()
    assert kept.get("a", now=1) == Answer("A", False)
    kept.put("a", "B", now=2)
    assert kept.get("a", now=3) == Answer("B", True)


def test_the_last_answer_holds() -> None:
    kept = remembered()
    kept.put("a", "A", now=0)
    kept.put("a", None, now=1)
    assert kept.get("a", now=1) == Answer(None, True)
    kept.put("a", "B", now=2)
    assert kept.get("a", now=2) == Answer("B", True)
    assert len(kept) == 1


def test_a_flood_of_absent_names_pushes_out_nothing_but_each_other() -> None:
    kept = remembered(most=3)
    for name in "abc":
        kept.put(name, name, now=0)
    for number in range(1000):
        kept.put(f"wrong-{number}", None, now=0)
    assert len(kept) == 6
    assert kept.get("a", now=0) == Answer("a", True)
    kept.put("d", "d", now=0)
    # "a" was used last.
    assert [name for name in "abcd" if kept.get(name, now=0)] == ["a", "c", "d"]
