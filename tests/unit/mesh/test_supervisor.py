"""The supervisor of `inferway up`: starting, starting again, stopping in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.cli.core.supervisor import (
    Action,
    Failure,
    Finish,
    Kill,
    Policy,
    Report,
    Start,
    Supervisor,
    Terminate,
    describe_exit,
)

NAMES = ("worker", "router", "gateway")


def begun() -> Supervisor:
    supervisor = Supervisor(NAMES)
    assert supervisor.begin(now=0.0) == [Start("worker"), Start("router"), Start("gateway")]
    return supervisor


def serving() -> Supervisor:
    supervisor = begun()
    supervisor.served()
    return supervisor


def test_a_process_that_ends_is_started_again_after_a_pause() -> None:
    """An end is reported in one line, and the process starts again when the pause is over, not before."""
    supervisor = serving()

    assert supervisor.exited("router", -9, now=5.0) == [
        Report("router was killed by SIGKILL; starting it again in 0.5 s")
    ]
    assert supervisor.next_deadline() == 5.5
    assert supervisor.tick(now=5.4) == []
    assert supervisor.tick(now=5.5) == [Start("router")]
    assert supervisor.next_deadline() is None


def test_pauses_double_up_to_a_bound() -> None:
    """A process that keeps ending is started again for ever, at most every ten seconds or so."""
    supervisor, now, pauses = serving(), 0.0, []
    for _ in range(8):
        supervisor.exited("gateway", 1, now=now)
        due = supervisor.next_deadline()
        assert due is not None
        pauses.append(due - now)
        now = due
        assert supervisor.tick(now=now) == [Start("gateway")]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_a_steady_run_forgives() -> None:
    """After half a minute of running, the pauses begin anew."""
    supervisor = serving()
    for now in (1.0, 2.0, 4.0):
        supervisor.exited("worker", 1, now=now)
        supervisor.tick(now=now + 4.0)
    supervisor.exited("worker", 1, now=8.0 + Policy().steady_after_s)
    assert supervisor.next_deadline() == 8.5 + Policy().steady_after_s


def test_a_process_that_gives_up_while_starting_ends_everything() -> None:
    """Before anything was served, an exit status above 0 is final: the others stop in order, then the reason comes."""
    supervisor = begun()

    assert supervisor.exited("worker", 2, now=1.0) == [Terminate("gateway")]
    assert supervisor.exited("gateway", 0, now=1.1) == [Terminate("router")]
    assert supervisor.exited("router", 0, now=1.2) == [
        Finish(Failure("worker", "worker cannot start: it exited with status 2"))
    ]


def test_a_process_killed_while_starting_gets_more_tries() -> None:
    """A kill is not the process's own verdict; the fourth in a row is taken for one."""
    supervisor, now = begun(), 0.0
    for _ in range(Policy().kills_while_starting):
        assert isinstance(supervisor.exited("worker", -11, now=now)[0], Report)
        now = supervisor.next_deadline() or 0.0
        assert supervisor.tick(now=now) == [Start("worker")]
    assert supervisor.exited("worker", -11, now=now) == [Terminate("gateway")]


def test_stopping_goes_from_the_edge_inwards() -> None:
    """Each process is asked to finish only when the one that depends on it has ended."""
    supervisor = serving()

    assert supervisor.stop(now=1.0) == [Terminate("gateway")]
    assert supervisor.exited("gateway", 0, now=2.0) == [Terminate("router")]
    assert supervisor.exited("router", 0, now=3.0) == [Terminate("worker")]
    assert supervisor.exited("worker", 0, now=4.0) == [Finish(None)]


def test_a_process_that_does_not_finish_is_killed() -> None:
    """The grace is each process's own, and the kill happens once."""
    supervisor = serving()
    supervisor.stop(now=1.0)

    assert supervisor.next_deadline() == 11.0
    assert supervisor.tick(now=10.9) == []
    assert supervisor.tick(now=11.0) == [
        Report("gateway did not finish within 10 s and was killed"),
        Kill("gateway"),
    ]
    assert supervisor.tick(now=12.0) == []
    assert supervisor.exited("gateway", -9, now=12.0) == [Terminate("router")]
    assert supervisor.next_deadline() == 22.0


def test_a_second_request_to_stop_kills_what_is_left() -> None:
    """Who presses Ctrl-C twice does not wait."""
    supervisor = serving()
    supervisor.stop(now=1.0)
    supervisor.exited("gateway", 0, now=1.5)

    assert supervisor.stop(now=2.0) == [Kill("worker"), Kill("router")]
    supervisor.exited("router", -9, now=2.0)
    assert supervisor.exited("worker", -9, now=2.0) == [Finish(None)]


def test_processes_that_wait_are_not_started_while_stopping() -> None:
    """A pause that ends during the stop starts nothing, and who waited is not waited for."""
    supervisor = serving()
    supervisor.exited("worker", 1, now=1.0)

    assert supervisor.stop(now=1.2) == [Terminate("gateway")]
    assert supervisor.tick(now=1.6) == []
    # One that ends out of its turn is not started again either.
    assert supervisor.exited("router", 1, now=1.7) == []
    assert supervisor.exited("gateway", 0, now=1.8) == [Finish(None)]


def test_giving_up_while_stopping_changes_nothing() -> None:
    """A stop that was asked for stays one, whatever is found out on the way."""
    supervisor = begun()
    supervisor.stop(now=1.0)
    assert supervisor.give_up(Failure("worker", "no model was served"), now=1.1) == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-15, "was killed by SIGTERM"),
        (-99, "was killed by signal 99"),
    ],
)
def test_describe_exit(status: int, said: str) -> None:
    """How a process ended is said in words, signals by name where they have one."""
    assert describe_exit(status) == said


class Machine:
    """Carries actions out in the simplest way, and checks that each makes sense."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.finished = False

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            assert not self.finished, "Finish is the last action"
            match action:
                case Start(name):
                    assert name not in self.running, "nothing is started twice"
                    self.running.add(name)
                case Terminate(name) | Kill(name):
                    assert name in self.running, "only what runs is signalled"
                case Finish():
                    assert not self.running, "nothing is left behind"
                    self.finished = True


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["exit", "kill", "served", "tick", "stop"]), st.sampled_from(NAMES), st.floats(0.0, 20.0)
        ),
        max_size=60,
    )
)
def test_whatever_happens_nothing_is_started_twice_or_left_behind(events: list[tuple[str, str, float]]) -> None:
    """For any order of ends, waits and requests: one instance a name, and a stop always comes to its end."""
    supervisor, machine, now = Supervisor(NAMES), Machine(), 0.0
    machine.carry_out(supervisor.begin(now=now))
    for what, name, later in events:
        now += later
        if machine.finished:
            break
        match what:
            case "exit" | "kill" if name in machine.running:
                machine.running.remove(name)
                machine.carry_out(supervisor.exited(name, 1 if what == "exit" else -9, now=now))
            case "served":
                supervisor.served()
            case "tick":
                machine.carry_out(supervisor.tick(now=now))
            case "stop":
                machine.carry_out(supervisor.stop(now=now))

    if not machine.finished:
        machine.carry_out(supervisor.stop(now=now))
    while machine.running:
        name = machine.running.pop()
        machine.carry_out(supervisor.exited(name, 0, now=now))
    assert machine.finished
