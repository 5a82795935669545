from __future__ import annotations

import asyncio

from gateway.turns import Turns


async def test_a_crowd_is_let_on_in_its_order_some_in_a_turn() -> None:
    turns = Turns(3)
    on: list[int] = []
    by_turn: list[list[int]] = []

    async def caller(number: int) -> None:
        await turns.take()
        on.append(number)

    crowd = [asyncio.create_task(caller(number)) for number in range(10)]
    while not all(task.done() for task in crowd):
        await asyncio.sleep(0)
        by_turn.append(on.copy())
        on.clear()
    together = [some for some in by_turn if some]
    assert [number for some in together for number in some] == list(range(10))
    assert max(map(len, together)) == 3
    assert len(together) == 4


async def test_callers_that_come_one_by_one_do_not_wait() -> None:
    turns = Turns(1)
    for _ in range(5):
        taking = turns.take()
        try:
            taking.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("waited")
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_a_caller_that_has_gone_takes_nobodys_place() -> None:
    turns = Turns(1)
    first, gone, last = [asyncio.ensure_future(turns.take()) for _ in range(3)]
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(last, 5)
    assert first.done()
    assert gone.cancelled()


async def test_who_comes_while_others_wait_goes_behind_them() -> None:
    turns = Turns(2)
    on: list[str] = []

    async def caller(name: str) -> None:
        await turns.take()
        on.append(name)

    early = [asyncio.create_task(caller(f"early {number}")) for number in range(6)]
    await asyncio.sleep(0)
    late = asyncio.create_task(caller("late"))
    await asyncio.gather(*early, late)
    assert on[-1] == "late"
