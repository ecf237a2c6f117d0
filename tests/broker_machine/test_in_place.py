"""Hops on one host: the receiver reads the sender's slot where it lies, and the sender keeps it until then."""

from collections.abc import Callable

import pytest

from triptych.broker.machine.commands import TellClient, TellService
from triptych.schemas.client import ResultMsg, StageFinishedMsg
from triptych.schemas.memory import EngineName, PoolAddress
from triptych.schemas.states import RequestState as S
from triptych.schemas.timing import TransferTiming
from triptych.schemas.transfer import (
    TransferAbortMsg,
    TransferDoneMsg,
    TransferFailedMsg,
    TransferForgetMsg,
    TransferLoadedMsg,
    TransferReadyMsg,
    TransferReleaseMsg,
)

from .kit import (
    BROKEN,
    MANIFEST,
    OUTPUT,
    Bench,
    in_context,
    names,
    peer_of,
    pool_of,
    shared_pool_of,
    told,
    two_way_pool_of,
    without_forget,
)
from .test_paths import finished, moved

NIXL = EngineName.NIXL


def on_one_host(*services: str) -> Bench:
    bench = Bench()
    for name in services:
        bench.register(name, pool=shared_pool_of(name))
    return bench


def reading() -> Bench:
    """d1 computes r1 from what e1 has staged."""
    bench = on_one_host("e1", "d1", "v1")
    bench.submit(timeout_s=1.0)
    bench.staged("e1")
    return bench


def aborting() -> Bench:
    """r1 is cancelled, and d1 has not answered yet."""
    bench = reading()
    bench.cancel()
    return bench


def ready(bench: Bench, sender: str, request_id: str = "r1") -> TransferReadyMsg:
    pool = shared_pool_of(sender)
    return TransferReadyMsg(request_id, 1, OUTPUT, MANIFEST, in_context(bench), {"guidance": 4.0}, pool)


def test_a_staged_output_is_read_in_place() -> None:
    """READY follows STAGED at once, with the sender's slot and pool; no slot is taken, nothing is allocated."""
    bench = on_one_host("e1", "d1", "v1")
    bench.submit()
    assert bench.staged("e1") == [
        moved(S.ENCODER_RUNNING, S.ENCODER_DONE, "output staged", "e1"),
        TellClient(b"client", StageFinishedMsg("r1", finished("e1"))),
        moved(S.ENCODER_DONE, S.DENOISING_WAITING, "output staged"),
        moved(S.DENOISING_WAITING, S.DENOISING_RUNNING, "input read in place from encoder e1", "d1"),
        TellService(peer_of("d1"), ready(bench, "e1")),
    ]
    assert (bench.instance("e1"), bench.instance("d1")) == ({"staged": 1}, {"running": 1, "free": 1})


def test_the_sender_is_released_when_the_reader_has_staged() -> None:
    """STAGED ends the reading: the sender's RELEASE comes before the next reader's READY."""
    bench = reading()
    assert told(bench.staged("d1")) == [
        ("e1", TransferReleaseMsg("r1", 1)),
        ("client", StageFinishedMsg("r1", finished("d1"))),
        ("v1", ready(bench, "d1")),
    ]
    assert (bench.instance("e1"), bench.instance("d1")) == ({}, {"staged": 1, "free": 1})


def test_nothing_moved_is_what_the_result_says() -> None:
    """The timings of hops that were read in place have no bytes and no time; DONE releases the last sender."""
    bench = reading()
    bench.staged("d1")
    done = told(bench.done("v1"))
    assert done[:2] == [("v1", TransferReleaseMsg("r1", 1)), ("d1", TransferReleaseMsg("r1", 1))]
    result = done[-1][1]
    assert isinstance(result, ResultMsg)
    assert result.transfers == (
        TransferTiming("e1", "d1", 0, 0.0, in_place=True),
        TransferTiming("d1", "v1", 0, 0.0, in_place=True),
    )


@pytest.mark.parametrize("end", [Bench.cancel, lambda bench: bench.after(1.0)], ids=["cancelled", "timed out"])
def test_a_request_that_ends_early_lets_the_reader_stop_first(end: Callable[[Bench], list[object]]) -> None:
    """ABORT goes to the reader at once, RELEASE to the sender only when the reader has answered."""
    bench = reading()
    assert names(end(bench)) == [("d1", "abort"), ("client", "error")]
    assert (bench.instance("e1"), bench.states()) == ({"staged": 1}, {"settling": 1})
    assert told(bench.released("d1")) == [("e1", TransferReleaseMsg("r1", 1))]
    assert (bench.instance("e1"), bench.instance("d1"), bench.states()) == ({}, {"free": 1}, {})


def test_a_reader_that_breaks_the_protocol_is_stopped_first() -> None:
    """DONE from a denoiser fails the attempt; what it reads is kept until it has stopped."""
    bench = reading()
    assert names(bench.done("d1")) == [("d1", "abort"), ("client", "error")]
    assert names(bench.released("d1")) == [("e1", "release")]


def test_a_reader_that_failed_reads_no_more() -> None:
    """FAILED ends the reading: the sender is released with it."""
    assert names(reading().say("d1", TransferFailedMsg("r1", 1, BROKEN))) == [("e1", "release"), ("client", "error")]


@pytest.mark.parametrize(("reach", "client"), [(reading, [("client", "error")]), (aborting, [])])
def test_a_lost_reader_reads_no_more(reach: Callable[[], Bench], client: list[tuple[str, str]]) -> None:
    """With its reader lost, whether it ran or was being stopped, the sender is released."""
    bench = reach()
    assert names(bench.lose("d1")) == [("e1", "release"), *client]
    assert bench.instance("e1") == {}


def test_a_lost_sender_ends_the_attempt_that_reads_it() -> None:
    """A sender that only hangs may write there again when it wakes: the reader is stopped, and the request fails."""
    bench = reading()
    lost = told(without_forget(bench.lose("e1")))
    assert lost[0] == ("d1", TransferAbortMsg("r1", 1))
    assert lost[1][1].error.details == {"reasons": ["encoder e1 is lost: gone"]}
    assert bench.instance("d1") == {"aborting": 1, "free": 1}
    assert bench.released("d1") == []
    assert bench.states() == {}


def test_a_sender_lost_after_the_end_leaves_nothing() -> None:
    """With the request over and its reader being stopped, nobody need be told but to forget the pool."""
    bench = aborting()
    assert told(without_forget(bench.lose("e1"))) == []
    assert bench.released("d1") == []
    assert bench.states() == {}


def test_a_reader_with_a_copy_needs_the_sender_no_more() -> None:
    """LOADED ends the reading in place: the sender may go, and an early end releases it at once."""
    bench = reading()
    bench.say("d1", TransferLoadedMsg("r1", 1))
    assert bench.instance("e1") == {"staged": 1}
    assert names(bench.cancel()) == [("d1", "abort"), ("e1", "release"), ("client", "error")]
    bench = reading()
    bench.say("d1", TransferLoadedMsg("r1", 1))
    assert told(without_forget(bench.lose("e1"))) == []
    assert names(bench.staged("d1"))[0] == ("client", "stage_finished")


def test_a_copy_made_while_it_is_stopped_changes_nothing() -> None:
    """LOADED that crosses ABORT is late; RELEASED ends the reading."""
    bench = aborting()
    bench.say("d1", TransferLoadedMsg("r1", 1))
    assert bench.instance("e1") == {"staged": 1}
    assert names(bench.released("d1")) == [("e1", "release")]


def test_what_is_larger_than_the_reader_s_pool_is_read_all_the_same() -> None:
    """An input read in place needs no room at the receiver; it waits for one on the host if that is the only way."""
    bench = Bench("v1")
    bench.register("e1", pool=two_way_pool_of("e1"))
    bench.register("d1", pool=pool_of("d1", 512), receive_slots=())
    bench.register("d2", pool=two_way_pool_of("d2", size=512), receive_slots=())
    for request_id in ("r1", "r2"):
        bench.submit(request_id)
        bench.staged("e1", request_id)
    assert (bench.instance("d1"), bench.instance("d2")) == ({}, {"running": 1})
    freed = bench.say("d2", TransferFailedMsg("r1", 1, BROKEN))
    assert [(name, msg.request_id) for name, msg in told(freed) if isinstance(msg, TransferReadyMsg)] == [("d2", "r2")]


# ------------------------------------------------------------------------------------------ which engine


@pytest.mark.parametrize(
    ("sender", "receiver", "way"),
    [
        (two_way_pool_of("e1"), two_way_pool_of("d1"), "ready"),
        (two_way_pool_of("e1"), two_way_pool_of("d1", first=NIXL), "ready"),
        (two_way_pool_of("e1", first=NIXL), two_way_pool_of("d1"), "push"),
        (two_way_pool_of("e1"), two_way_pool_of("d1", "elsewhere"), "push"),
        (two_way_pool_of("e1"), pool_of("d1"), "push"),
        (pool_of("e1"), two_way_pool_of("d1"), "push"),
        (shared_pool_of("e1"), two_way_pool_of("d1"), "ready"),
        (shared_pool_of("e1"), two_way_pool_of("d1", "elsewhere"), "error"),
        (shared_pool_of("e1"), pool_of("d1"), "error"),
        (pool_of("e1"), shared_pool_of("d1"), "error"),
    ],
)
def test_the_sender_s_first_engine_that_reaches_is_taken(sender: PoolAddress, receiver: PoolAddress, way: str) -> None:
    """Shared memory reaches on one host, NIXL everywhere; where both do, the sender's order of preference decides."""
    bench = Bench("v1")
    bench.register("e1", pool=sender)
    bench.register("d1", pool=receiver)
    bench.submit()
    assert names(bench.staged("e1"))[-1][1] == way


def test_no_way_is_said_and_costs_nobody_a_lease() -> None:
    """Two instances that no engine joins: the attempt fails at once, naming both, their engines and the setting."""
    bench = Bench("v1")
    bench.register("e1", pool=shared_pool_of("e1", "north"))
    bench.register("d1", pool=pool_of("d1"))
    bench.submit()
    failed = bench.staged("e1")
    assert names(failed) == [("client", "stage_finished"), ("e1", "release"), ("client", "error")]
    reason = (
        "no denoiser can take its input: no engine reaches from encoder e1 to denoiser d1: "
        "encoder e1 has shm on the host north; "
        "denoiser d1 has nixl on the host host of d1; set `engine` of both to auto or nixl"
    )
    assert told(failed)[-1][1].error.details == {"reasons": [reason]}
    assert (bench.instance("e1"), bench.instance("d1"), bench.states()) == ({}, {"free": 1}, {})


# ------------------------------------------------------------------------------------------ who knows whom


def forgets(commands: list[object]) -> list[tuple[str, PoolAddress]]:
    return [(name, msg.pool) for name, msg in told(commands) if isinstance(msg, TransferForgetMsg)]


def test_a_lost_pool_is_forgotten_by_those_who_read_it() -> None:
    """Whoever was told of a pool by READY is told once to forget it, however often it was told; nobody else is."""
    bench = on_one_host("e1", "d1", "v1")
    for request_id in ("r1", "r2"):
        bench.submit(request_id)
        bench.staged("e1", request_id)
        bench.staged("d1", request_id)
        bench.done("v1", request_id)
    lost = bench.lose("e1")
    assert forgets(lost) == [("d1", shared_pool_of("e1"))]
    assert forgets(bench.lose("v1")) == []
    assert forgets(bench.lose("d1")) == []


def test_a_push_makes_both_ends_known_to_each_other() -> None:
    """PUSH tells the sender of the receiver's pool, EXPECT the receiver of the sender's: both are to be forgotten."""
    for lost, other in (("e1", "d1"), ("d1", "e1")):
        bench = Bench("e1", "d1", "v1")
        bench.submit()
        bench.staged("e1")
        assert forgets(bench.lose(lost)) == [(other, pool_of(lost))]


def test_a_new_incarnation_is_a_stranger() -> None:
    """It is not told to forget what its predecessor knew, and the old pool is forgotten before the new one is known."""
    bench = reading()
    bench.register("d1", incarnation=2, pool=shared_pool_of("d1-again"))
    assert forgets(bench.lose("e1")) == []
    bench = reading()
    replaced = bench.register("e1", incarnation=2, pool=shared_pool_of("e1-again"))
    assert names(replaced)[-2:] == [("d1", "forget"), ("e1", "register_ack")]


def test_the_dead_are_told_nothing() -> None:
    """An instance that knew a pool and is lost itself is told nothing, and ABORT comes before FORGET."""
    bench = reading()
    assert names(bench.lose("e1")) == [("d1", "abort"), ("client", "error"), ("d1", "forget")]
    bench = reading()
    bench.lose("d1")
    assert names(bench.lose("e1")) == []


def test_a_done_that_names_missing_media_stops_the_reader_too() -> None:
    """A decoder's bad DONE is a failed attempt like any other: its sender waits for RELEASED."""
    bench = reading()
    bench.staged("d1")
    assert names(bench.say("v1", TransferDoneMsg("r1", 1, finished("v1")), b"png"))[0] == ("v1", "abort")
    assert names(bench.released("v1")) == [("d1", "release")]
