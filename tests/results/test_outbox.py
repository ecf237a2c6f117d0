"""What is kept, for whom, and for how long. Time is a number."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.schemas.errors import MalformedMessage, PayloadTooLarge, ResultGone, TriptychError
from triptych.schemas.transfer import Claim, Piece
from triptych.services.results.outbox import IN_USE_S, Outbox, OutboxLimits

TOKEN, OTHER, READER = b"t" * 16, b"o" * 16, b"r" * 16
CLAIM = Claim("r1", TOKEN, READER)
ALL = Piece(0, 0, 10)


@pytest.fixture
def outbox() -> Outbox:
    """Return an outbox for 30 bytes that keeps the ten of `r1` for 100 seconds."""
    outbox = Outbox(OutboxLimits(max_bytes=30, ttl_s=100.0))
    outbox.put("r1", TOKEN, (b"0123456789",), 0.0)
    return outbox


def refusal(outbox: Outbox, claim: Claim, now: float = 1.0) -> str:
    with pytest.raises(ResultGone) as refused:
        outbox.read(claim, ALL, now)
    return str(refused.value)


def test_a_piece_is_read(outbox: Outbox) -> None:
    """It has just the bytes that were asked for."""
    assert bytes(outbox.read(CLAIM, Piece(0, 3, 4), 1.0)) == b"3456"


def test_the_first_reader_is_the_only_one(outbox: Outbox) -> None:
    """The token alone is worth nothing once somebody has shown it."""
    outbox.read(CLAIM, Piece(0, 0, 1), 1.0)
    refusal(outbox, Claim("r1", TOKEN, OTHER))
    assert bytes(outbox.read(CLAIM, ALL, 1.0)) == b"0123456789"


def test_without_the_right_nothing_is_learnt(outbox: Outbox) -> None:
    """A wrong token, a used one and a result that never was sound the same, and take nothing from its reader."""
    outbox.put("used", TOKEN, (b"0123456789",), 0.0)
    outbox.end(Claim("used", TOKEN, READER))
    told = {
        refusal(outbox, Claim(name, token, READER)).replace(name, "…")
        for name, token in [("r1", OTHER), ("r1", b"t" * 17), ("used", TOKEN), ("r404", TOKEN)]
    }
    assert len(told) == 1
    assert bytes(outbox.read(CLAIM, ALL, 1.0)) == b"0123456789"


def test_the_end_drops_it(outbox: Outbox) -> None:
    """After END it is gone, and its room is free."""
    outbox.end(CLAIM)
    assert (len(outbox), outbox.held_bytes) == (0, 0)
    refusal(outbox, CLAIM)


def test_only_its_reader_ends_it(outbox: Outbox) -> None:
    """A stranger's END drops nothing."""
    with pytest.raises(ResultGone):
        outbox.end(Claim("r1", OTHER, READER))
    assert len(outbox) == 1


def test_it_ages_out(outbox: Outbox) -> None:
    """Its time counts from when it was last read."""
    outbox.read(CLAIM, ALL, 60.0)
    assert (outbox.next_deadline(), outbox.expire(159.0)) == (160.0, [])
    assert (outbox.expire(160.0), outbox.held_bytes, outbox.next_deadline()) == (["r1"], 0, None)


def test_reading_does_not_keep_it_for_ever() -> None:
    """A reader that takes a byte now and then has four times as long, and no longer."""
    outbox = Outbox(OutboxLimits(30, 100.0))
    outbox.put("r1", TOKEN, (b"0123456789",), 0.0)
    for now in range(90, 400, 90):
        outbox.read(CLAIM, Piece(0, 0, 1), float(now))
    assert outbox.expire(400.0) == ["r1"]


def test_nothing_is_read_for_ever(outbox: Outbox) -> None:
    """Every byte can be had twice, over the data link and through the broker; then it is gone."""
    for _ in range(2):
        outbox.read(CLAIM, ALL, 1.0)
    refusal(outbox, CLAIM)
    assert len(outbox) == 0


@pytest.mark.parametrize("piece", [Piece(0, 0, 11), Piece(0, 10, 1), Piece(1, 0, 1), Piece(0, 2**40, 1)])
def test_a_piece_that_it_does_not_have_is_refused(outbox: Outbox, piece: Piece) -> None:
    """Its reader is told so, and can go on."""
    with pytest.raises(MalformedMessage, match="has no bytes"):
        outbox.read(CLAIM, piece, 1.0)
    assert len(outbox) == 1


def test_what_nobody_wants_makes_room(outbox: Outbox) -> None:
    """The one used longest ago is dropped first, and no more than must be."""
    outbox.put("r2", OTHER, (b"x" * 15,), 1.0)
    outbox.read(CLAIM, ALL, 2.0)
    assert outbox.make_room(20, 2.0 + IN_USE_S)
    assert (len(outbox), outbox.held_bytes) == (1, 10)


def test_what_is_in_use_is_not_dropped(outbox: Outbox) -> None:
    """A new result waits for room until the reader of an older one has been silent for a while."""
    outbox.read(CLAIM, Piece(0, 0, 1), 10.0)
    assert not outbox.make_room(25, 11.0)
    assert outbox.room_at(11.0) == 10.0 + IN_USE_S
    assert outbox.make_room(25, 10.0 + IN_USE_S)


def test_what_can_never_fit_is_refused(outbox: Outbox) -> None:
    """The error names the setting."""
    with pytest.raises(PayloadTooLarge, match="31 bytes do not fit into 30; raise outbox_bytes"):
        outbox.make_room(31, 0.0)


def test_a_newer_result_of_the_request_takes_its_place(outbox: Outbox) -> None:
    """An attempt that was repeated leaves nothing of the first."""
    outbox.put("r1", OTHER, (b"new",), 1.0)
    assert outbox.held_bytes == 3
    refusal(outbox, CLAIM)


async def test_its_changes_can_be_waited_for(outbox: Outbox) -> None:
    """Whoever waits for room wakes when something goes."""
    waiting = asyncio.create_task(outbox.wait_changed())
    await asyncio.sleep(0)
    outbox.drop("r1")
    await waiting


names = st.sampled_from(["r1", "r2", "r3", "r4"])
steps = st.lists(
    st.tuples(st.sampled_from(["put", "read", "end", "drop", "expire"]), names, st.integers(0, 30), st.integers(0, 60))
)


@given(steps)
def test_it_never_holds_more_than_it_may(steps: list[tuple[str, str, int, int]]) -> None:
    """Whatever happens, what is kept is within the bounds, and what is counted is what is kept."""
    outbox, now = Outbox(OutboxLimits(30, 100.0)), 0.0
    for action, name, size, seconds in steps:
        now += seconds
        claim = Claim(name, TOKEN, READER)
        try:
            if action == "put" and outbox.make_room(size, now):
                outbox.put(name, TOKEN, (b"x" * size,), now)
            elif action == "read":
                outbox.read(claim, Piece(0, 0, max(size, 1)), now)
            elif action == "end":
                outbox.end(claim)
            elif action == "drop":
                outbox.drop(name)
            elif action == "expire":
                outbox.expire(now)
                assert (outbox.next_deadline() or now + 1) > now
        except TriptychError:
            pass
        assert outbox.held_bytes == sum(entry.size for entry in outbox._entries.values()) <= 30
