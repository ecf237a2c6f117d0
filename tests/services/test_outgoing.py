"""What goes to the broker, and when."""

import pytest

from triptych.schemas.memory import PoolAddress
from triptych.schemas.roles import Role
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    ServiceMsg,
    TransferHeartbeatMsg,
    TransferLoadedMsg,
    TransferRegisterMsg,
    TransferStartedMsg,
)
from triptych.services.outgoing import Outgoing

REGISTRATION = TransferRegisterMsg(PROTOCOL_VERSION, "0", "x", 7, Role.ENCODER, 2, PoolAddress("here", "segment", 4096))
FIRST, SECOND = TransferLoadedMsg("r1", 1), TransferStartedMsg("r1", 1)


@pytest.fixture
def said() -> list[tuple[ServiceMsg, tuple[bytes, ...]]]:
    return []


@pytest.fixture
def outgoing(said: list[tuple[ServiceMsg, tuple[bytes, ...]]]) -> Outgoing:
    return Outgoing(lambda message, attachments=(): said.append((message, attachments)))


def test_all_waits_behind_a_registration(outgoing: Outgoing, said: list[object]) -> None:
    """In order, with its attachments, and however often the registration is said."""
    outgoing.register(REGISTRATION)
    outgoing.send(FIRST, (b"x",))
    outgoing.register(REGISTRATION)
    outgoing.send(SECOND)
    assert (said, outgoing.registered) == ([(REGISTRATION, ())] * 2, False)
    outgoing.acknowledged()
    assert (said[2:], outgoing.registered) == ([(FIRST, (b"x",)), (SECOND, ())], True)


def test_what_is_said_now_does_not_wait(outgoing: Outgoing, said: list[object]) -> None:
    """A heartbeat is for the loop's sake."""
    outgoing.register(REGISTRATION)
    outgoing.send_now(TransferHeartbeatMsg())
    assert said == [(REGISTRATION, ()), (TransferHeartbeatMsg(), ())]


def test_once_registered_nothing_waits(outgoing: Outgoing, said: list[object]) -> None:
    """And an acknowledgement more says nothing twice."""
    outgoing.send(FIRST)
    outgoing.acknowledged()
    outgoing.send(SECOND)
    outgoing.acknowledged()
    assert said == [(FIRST, ()), (SECOND, ())]
