"""A long random life, always the same one."""

from random import Random

import pytest

from .world_model import World

#: what happens, and how often
WEIGHTS = {
    "submit": 8,
    "cancel": 2,
    "client_noise": 2,
    "to_broker": 60,
    "to_a_service": 50,
    "act": 50,
    "tick": 4,
    "jump": 0.05,
    "vanish": 0.2,
    "hang": 0.3,
    "lose_writer": 0.5,
    "stick": 0.3,
    "wake": 1.0,
    "die": 0.2,
    "restart_in_order": 0.3,
    "restart_broker": 0.05,
    "ping": 1.0,
}


def drive(seed: int, events: int) -> World:
    random = Random(seed)
    world = World(random.randrange)
    while world.events < events:
        what = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        getattr(world, what)()
    world.settle()
    return world


#: a run in which each of these was sent at least once has been everywhere
EVERYWHERE = {
    "ErrorMsg CANCELLED",
    "ErrorMsg FAILED",
    "ErrorMsg TIMED_OUT",
    "ResultMsg",
    "TransferAbortMsg",
    "TransferAbortMsg writer lost",
    "TransferAllocMsg",
    "TransferExpectMsg",
    "TransferForgetMsg",
    "in place",
    "RetryingMsg",
    "restart",
    "again",
    "TransferRegisterAgainMsg",
}


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_leaked_in_a_long_life() -> None:
    """100,000 random events among services that are late, die, hang and come back leave nothing behind."""
    world = drive(2, 100_000)
    assert EVERYWHERE - world.sent.keys() == set()
    assert world.sent["ResultMsg"] > 100
