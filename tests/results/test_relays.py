"""Pieces that pass through the broker, as its machine sees them."""

import pytest

from tests.broker_machine.kit import CLIENT, Bench, peer_of, timing
from triptych.broker.machine.commands import Command, PassPiece, ReportIgnored, TellClient, TellService
from triptych.broker.machine.results import MAX_RELAYS_PER_CLIENT
from triptych.schemas.client import RelayedChunkMsg, RelayEndMsg, RelayFailedMsg, RelayFetchMsg, ResultMsg
from triptych.schemas.errors import InvalidRequest, ResultGone
from triptych.schemas.transfer import (
    MAX_RELAYED_PIECE_BYTES,
    Claim,
    MediaInfo,
    Piece,
    ResultTicket,
    TransferChunkMsg,
    TransferDoneMsg,
    TransferFetchEndMsg,
    TransferFetchFailedMsg,
    TransferFetchMsg,
)

CLAIM = Claim("r1", b"t" * 16, b"r" * 16)
PIECE = Piece(0, 0, 4)
TICKET = ResultTicket("v1", "tcp://127.0.0.1:1", b"t" * 16, (4,), (7,))
MEDIA = (MediaInfo("image/png", 64, 64, 1),)


def fetch(bench: Bench, offset: int = 0, client: bytes = CLIENT, holder: str = "v1", length: int = 4) -> list[Command]:
    return bench.ask(RelayFetchMsg(holder, CLAIM, Piece(0, offset, length)), client)


def failure(command: Command) -> tuple[bytes, str]:
    """Return who is told that a piece does not come, and the code of the reason."""
    assert isinstance(command, TellClient)
    assert isinstance(command.msg, RelayFailedMsg)
    return command.peer, command.msg.error.code


def test_a_piece_passes_through() -> None:
    """It is asked of its holder, and passed on to the client after everything else."""
    bench = Bench("v1")
    assert fetch(bench) == [TellService(peer_of("v1"), TransferFetchMsg(1, CLAIM, PIECE))]
    assert bench.say("v1", TransferChunkMsg(1), b"data") == [
        PassPiece(CLIENT, RelayedChunkMsg("r1", PIECE), (b"data",))
    ]


def test_so_many_are_under_way_at_a_time() -> None:
    """The others wait, first come first served; each answer makes place for one."""
    bench = Bench("v1", relays_in_flight=2)
    assert [len(fetch(bench, offset, client)) for client in (b"a", b"b") for offset in (0, 4)] == [1, 1, 0, 0]
    passed, asked = bench.say("v1", TransferChunkMsg(1), b"data")
    assert passed == PassPiece(b"a", RelayedChunkMsg("r1", PIECE), (b"data",))
    assert asked == TellService(peer_of("v1"), TransferFetchMsg(3, CLAIM, PIECE))


def test_a_client_may_wait_for_a_few() -> None:
    """One more is refused, for now; other clients are not concerned."""
    bench = Bench("v1")
    for offset in range(MAX_RELAYS_PER_CLIENT):
        fetch(bench, offset)
    (refused,) = fetch(bench, 100)
    assert failure(refused) == (CLIENT, "overloaded")
    assert fetch(bench, client=b"other") == []
    bench.say("v1", TransferChunkMsg(1), b"data")
    assert not [command for command in fetch(bench, 100) if isinstance(command, TellClient)]


def test_a_piece_through_the_broker_is_small() -> None:
    """A larger one is refused with the bound."""
    bench = Bench("v1")
    error = InvalidRequest("length", 2**20, f"at most {MAX_RELAYED_PIECE_BYTES} bytes through the broker")
    told = RelayFailedMsg("r1", Piece(0, 0, 2**20), error.info())
    assert fetch(bench, length=2**20) == [TellClient(CLIENT, told)]


def test_a_holder_that_is_not_there_has_no_results() -> None:
    """The client learns that its result is gone."""
    error = ResultGone("r1", "v1 is not there any more")
    assert fetch(Bench()) == [TellClient(CLIENT, RelayFailedMsg("r1", PIECE, error.info()))]


def test_a_lost_holder_takes_its_results_along() -> None:
    """Those that were asked for and those that wait fail; those of another holder go on."""
    bench = Bench("v1", "v2", relays_in_flight=2)
    fetch(bench, 0)
    fetch(bench, 4)
    fetch(bench, 8)
    fetch(bench, 0, b"other", "v2")
    commands = bench.lose("v1")
    failed = [failure(command) for command in commands if isinstance(command, TellClient)]
    assert failed == [(CLIENT, "result_gone")] * 3
    assert TellService(peer_of("v2"), TransferFetchMsg(3, CLAIM, PIECE)) in commands


def test_a_holder_that_does_not_answer_holds_nothing_up() -> None:
    """After a while the piece is given up, and the next one asked for. A late answer changes nothing."""
    bench = Bench("v1", relays_in_flight=1, relay_timeout_s=3.0)
    fetch(bench)
    fetch(bench, 4)
    commands = bench.after(3.0, "v1")
    assert [failure(command) for command in commands if isinstance(command, TellClient)] == [(CLIENT, "result_gone")]
    assert TellService(peer_of("v1"), TransferFetchMsg(2, CLAIM, Piece(0, 4, 4))) in commands
    (ignored,) = bench.say("v1", TransferChunkMsg(1), b"data")
    assert isinstance(ignored, ReportIgnored)


def test_the_machine_wakes_for_it() -> None:
    """The deadline of a piece is one of the machine's."""
    bench = Bench("v1", relay_timeout_s=0.5)
    fetch(bench)
    assert bench.server.next_deadline() == bench.now + 0.5


def test_a_holders_reason_is_passed_on() -> None:
    """FETCH_FAILED becomes RELAY_FAILED."""
    bench = Bench("v1")
    fetch(bench)
    error = ResultGone("r1").info()
    assert bench.say("v1", TransferFetchFailedMsg(1, error)) == [TellClient(CLIENT, RelayFailedMsg("r1", PIECE, error))]


def test_another_service_cannot_answer() -> None:
    """A relay is its holder's."""
    bench = Bench("v1", "v2")
    fetch(bench)
    (ignored,) = bench.say("v2", TransferChunkMsg(1), b"data")
    assert isinstance(ignored, ReportIgnored)
    assert len(bench.say("v1", TransferChunkMsg(1), b"data")) == 1


@pytest.mark.parametrize("attachments", [(), (b"dat",), (b"data", b"data")])
def test_a_piece_of_another_size_is_not_passed_on(attachments: tuple[bytes, ...]) -> None:
    """The client is told, and its place is free again."""
    bench = Bench("v1")
    fetch(bench)
    (told,) = bench.say("v1", TransferChunkMsg(1), *attachments)
    assert failure(told) == (CLIENT, "malformed_message")


def test_the_end_is_passed_on() -> None:
    """The holder may drop the result; where it is gone, nobody need know."""
    bench = Bench("v1")
    assert bench.ask(RelayEndMsg("v1", CLAIM)) == [TellService(peer_of("v1"), TransferFetchEndMsg(CLAIM))]
    (ignored,) = bench.ask(RelayEndMsg("v9", CLAIM))
    assert isinstance(ignored, ReportIgnored)


def at_the_decoder() -> Bench:
    """Return a machine whose request `r1` is decoded."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    for name in ("e1", "d1"):
        bench.staged(name)
        bench.pushed(name)
    return bench


def test_a_ticket_comes_with_the_result() -> None:
    """RESULT has the media, and the ticket as the service gave it."""
    bench = at_the_decoder()
    commands = bench.say("v1", TransferDoneMsg("r1", 1, timing("v1"), MEDIA, TICKET))
    (result,) = [
        command for command in commands if isinstance(command, TellClient) and isinstance(command.msg, ResultMsg)
    ]
    assert isinstance(result.msg, ResultMsg)
    assert (result.msg.media, result.msg.ticket, result.attachments) == (MEDIA, TICKET, ())


@pytest.mark.parametrize(
    ("media", "attachments"), [(MEDIA, (b"data",)), ((), ()), (MEDIA * 2, ())], ids=["both", "none", "too many"]
)
def test_a_ticket_that_does_not_fit_its_media_fails_the_attempt(
    media: tuple[MediaInfo, ...], attachments: tuple[bytes, ...]
) -> None:
    """Bytes come with DONE or wait for their ticket, as many as there are media."""
    bench = at_the_decoder()
    bench.say("v1", TransferDoneMsg("r1", 1, timing("v1"), media, TICKET), *attachments)
    assert any("DONE" in line for line in bench.story())
