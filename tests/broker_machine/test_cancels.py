"""Cancelling, wherever the request stands, at a capacity of one."""

from collections.abc import Callable
from random import Random

from triptych.schemas.states import RequestState as S
from triptych.schemas.transfer import (
    TransferAbortMsg,
    TransferLoadedMsg,
    TransferProgressMsg,
    TransferStartedMsg,
    TransferWorkMsg,
)

from .kit import Bench, told

CANCELS = 1000


def steps_of(bench: Bench, name: str) -> list[Callable[[], object]]:
    """Return what happens to a request, step by step, until its result."""

    def loads(instance: str) -> list[Callable[[], object]]:
        return [lambda: bench.say(instance, TransferLoadedMsg(name, 1)), lambda: starts(instance)]

    def starts(instance: str) -> None:
        bench.say(instance, TransferStartedMsg(name, 1))
        bench.say(instance, TransferProgressMsg(name, 1, 1, 2))

    return [
        lambda: starts("e1"),
        lambda: bench.staged("e1", name),
        lambda: bench.pushed("e1", name),
        *loads("d1"),
        lambda: bench.staged("d1", name),
        lambda: bench.pushed("d1", name),
        *loads("v1"),
    ]


def test_after_any_cancel_the_next_request_starts() -> None:
    """Each is cancelled at a random step: its client is told once, who computes stops, and the next gets its place."""
    random, bench = Random(5), Bench("e1", "d1", "v1")
    for number in range(CANCELS):
        name = f"r{number}"
        assert TransferWorkMsg in {type(msg) for _, msg in told(bench.submit(name))}, f"{name} does not start"
        steps = steps_of(bench, name)
        reached = random.randrange(len(steps) + 1)
        for step in steps[:reached]:
            step()
        commands = bench.cancel(name)
        assert [msg.state for to, msg in told(commands) if to == "client"] == [S.CANCELLED]
        for instance in ("e1", "d1"):
            if bench.instance(instance).get("pushes"):
                commands += bench.pushed(instance, name)  # the sender lets go, and only then the receiver is asked
        for to, msg in told(commands):
            if isinstance(msg, TransferAbortMsg):
                bench.released(to, name)
        assert bench.states() == {}, f"{name}, cancelled after step {reached}"
    assert [bench.instance(name) for name in ("e1", "d1", "v1")] == [{}, {"free": 1}, {"free": 1}]
