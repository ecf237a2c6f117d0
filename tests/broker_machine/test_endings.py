"""How attempts fail and requests end early, in every phase of a lease: what is stopped, and when what comes back."""

from collections.abc import Callable

import pytest

from triptych.broker.machine.commands import ReportIgnored, ReportInstance
from triptych.schemas.client import ErrorMsg
from triptych.schemas.errors import PoolExhausted, TransferError, WriteOverdue
from triptych.schemas.manifest import TensorEntry, TensorManifest
from triptych.schemas.memory import Slot
from triptych.schemas.roles import Role
from triptych.schemas.states import RequestState as S
from triptych.schemas.transfer import (
    MediaInfo,
    TransferAbortMsg,
    TransferAllocatedMsg,
    TransferAllocRefusedMsg,
    TransferDoneMsg,
    TransferFailedMsg,
    TransferLoadedMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
)

from .kit import (
    BROKEN,
    DYNAMIC,
    MANIFEST,
    OUTPUT,
    POOL_BYTES,
    SIZE,
    Bench,
    error_of,
    ignored,
    names,
    timing,
    told,
    without_forget,
)

#: brings a request to some phase
Reach = Callable[[], Bench]


def waiting() -> Bench:
    bench = Bench("d1", "v1")
    bench.submit(timeout_s=1.0)
    return bench


def encoding() -> Bench:
    bench = Bench("e1", "d1", "v1")
    bench.submit(timeout_s=1.0)
    return bench


def staged() -> Bench:
    bench = Bench("e1", "v1")
    bench.submit(timeout_s=1.0)
    bench.staged("e1")
    return bench


def allocating() -> Bench:
    bench = staged()
    bench.register("d1", receive_slots=())
    return bench


def pushing() -> Bench:
    bench = encoding()
    bench.staged("e1")
    return bench


def pushing_dynamic() -> Bench:
    bench = allocating()
    bench.allocated("d1")
    return bench


def denoising() -> Bench:
    bench = pushing()
    bench.pushed("e1")
    return bench


def denoising_loaded() -> Bench:
    bench = denoising()
    bench.say("d1", TransferLoadedMsg("r1", 1))
    return bench


def decoding() -> Bench:
    bench = denoising()
    bench.staged("d1")
    bench.pushed("d1")
    return bench


#: phase: how to get there, and what is sent when the request ends there
PHASES = {
    "waiting": (waiting, []),
    "encoding": (encoding, [("e1", "abort")]),
    "staged": (staged, [("e1", "release")]),
    "allocating": (allocating, [("d1", "abort"), ("e1", "release")]),
    "pushing": (pushing, [("e1", "release")]),
    "pushing_dynamic": (pushing_dynamic, [("e1", "release")]),
    "denoising": (denoising, [("d1", "abort"), ("e1", "release")]),
    "denoising_loaded": (denoising_loaded, [("d1", "abort"), ("e1", "release")]),
    "decoding": (decoding, [("v1", "abort"), ("d1", "release")]),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancel_stops_what_runs(phase: str) -> None:
    """CANCEL aborts the instance that holds the lease and releases the staged bytes, and the client is told."""
    reach, expected = PHASES[phase]
    bench = reach()
    assert names(bench.cancel()) == [*expected, ("client", "error")]


@pytest.mark.parametrize("phase", PHASES)
def test_a_timeout_stops_what_runs(phase: str) -> None:
    """A request that has no time left is stopped in the same way."""
    reach, expected = PHASES[phase]
    bench = reach()
    ended = bench.after(1.0)
    assert names(ended) == [*expected, ("client", "error")]
    assert told(ended)[-1][1].state is S.TIMED_OUT


@pytest.mark.parametrize(
    ("reach", "name"),
    [(encoding, "e1"), (allocating, "d1"), (denoising, "d1"), (denoising_loaded, "d1"), (decoding, "v1")],
)
def test_an_aborted_lease_comes_back_with_released(reach: Reach, name: str) -> None:
    """Until RELEASED the lease is held and whatever else is said of the attempt is ignored; then all is free."""
    bench = reach()
    bench.cancel()
    assert bench.instance(name).pop("aborting") == 1
    for crossing in (
        TransferStagedMsg("r1", 1, OUTPUT, MANIFEST, timing(name)),
        TransferDoneMsg("r1", 1, timing(name)),
        TransferAllocatedMsg("r1", 1, DYNAMIC),
        TransferAllocRefusedMsg("r1", 1, BROKEN),
        TransferLoadedMsg("r1", 1),
        TransferFailedMsg("r1", 1, BROKEN),
    ):
        assert ignored(bench.say(name, crossing))
    assert bench.states() == {"settling": 1}
    assert bench.released(name) == []
    assert (bench.states(), bench.instance(name).keys() - {"free"}) == ({}, set())
    assert ignored(bench.released(name))


@pytest.mark.parametrize("reach", [pushing, pushing_dynamic])
@pytest.mark.parametrize(
    "answer", [TransferPushedMsg("r1", 1, SIZE, 0.1), TransferPushFailedMsg("r1", 1, BROKEN)], ids=["pushed", "failed"]
)
def test_a_slot_that_is_written_is_quarantined(reach: Reach, answer: TransferPushedMsg | TransferPushFailedMsg) -> None:
    """An attempt that ends during its push keeps slot and lease until writer and owner have answered."""
    bench = reach()
    bench.cancel()
    assert bench.instance("d1").items() >= {"quarantined": 1, "taken": 1}.items()
    assert ignored(bench.released("d1"))
    assert told(bench.say("e1", answer)) == [("d1", TransferAbortMsg("r1", 1))]
    assert bench.instance("d1").items() >= {"aborting": 1, "taken": 1}.items()
    bench.released("d1")
    assert bench.instance("d1") == ({"free": 1} if reach is pushing else {})


def test_the_next_request_waits_for_the_quarantine() -> None:
    """A quarantined slot and its lease are not handed out; the next request starts when they are back."""
    bench = pushing()
    bench.submit("r2")
    bench.staged("e1", "r2")
    assert names(bench.cancel("r1")) == [("e1", "release"), ("client", "error")]
    assert names(bench.pushed("e1", "r1")) == [("d1", "abort")]
    assert names(bench.released("d1", "r1")) == [("d1", "expect"), ("e1", "push")]


def test_a_lost_writer_retires_the_slot() -> None:
    """A writer lost in the middle of a push may write again: the owner retires the slot, which never comes back."""
    bench = pushing()
    lost = bench.lose("e1")
    reason = "encoder e1 is lost: gone"
    assert told(lost)[0] == ("d1", TransferAbortMsg("r1", 1, writer_lost=True))
    assert told(lost)[1][1].error.details == {"reasons": [reason]}
    bench.released("d1", slot_retired=True)
    assert bench.instance("d1") == {"retired": 1}


def test_a_writer_lost_after_the_end_retires_the_slot_too() -> None:
    """A quarantined slot whose writer is lost is aborted at once, with the warning that it may be written again."""
    bench = pushing()
    bench.cancel()
    assert told(without_forget(bench.lose("e1"))) == [("d1", TransferAbortMsg("r1", 1, writer_lost=True))]
    bench.released("d1", slot_retired=True)
    assert (bench.instance("d1"), bench.states()) == ({"retired": 1}, {})


def test_an_owner_that_knows_better_keeps_the_slot() -> None:
    """RELEASED without `slot_retired` after a lost writer frees the slot: its owner says that it is quiet."""
    bench = pushing()
    bench.lose("e1")
    bench.released("d1")
    assert bench.instance("d1") == {"free": 1}


# ------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize(("reach", "name"), [(encoding, "e1"), (denoising, "d1"), (decoding, "v1"), (allocating, "d1")])
def test_a_failure_ends_the_request_with_its_reason(reach: Reach, name: str) -> None:
    """FAILED frees lease and slot at once, and the client reads who said what."""
    bench = reach()
    failed = bench.say(name, TransferFailedMsg("r1", 1, error_of("out of memory")))
    role = {"e1": "encoder", "d1": "denoiser", "v1": "decoder"}[name]
    error = told(failed)[-1][1]
    assert (error.state, error.error.details) == (
        S.FAILED,
        {"reasons": [f"{role} {name}: the transfer failed: out of memory"]},
    )
    assert (bench.instance(name).keys() - {"free"}, bench.states()) == (set(), {})


def test_a_receiver_that_fails_while_it_is_written_is_quarantined() -> None:
    """FAILED during the push ends the request, but the slot waits for its writer all the same."""
    bench = pushing()
    failed = bench.say("d1", TransferFailedMsg("r1", 1, BROKEN))
    assert names(failed) == [("e1", "release"), ("client", "error")]
    assert bench.instance("d1") == {"quarantined": 1, "taken": 1}
    assert names(bench.pushed("e1")) == [("d1", "abort")]


def test_a_failed_push_ends_the_attempt() -> None:
    """PUSH_FAILED aborts the receiver, releases the sender and tells the client why."""
    bench = pushing()
    failed = bench.say("e1", TransferPushFailedMsg("r1", 1, error_of("no route")))
    assert names(failed) == [("d1", "abort"), ("e1", "release"), ("client", "error")]
    reasons = ["encoder e1 could not write to denoiser d1: the transfer failed: no route"]
    assert told(failed)[-1][1].error.details == {"reasons": reasons}


def test_a_write_that_is_overdue_keeps_its_slot() -> None:
    """PUSH_FAILED of a write that goes on ends the attempt, but the slot waits until the engine has let go."""
    bench = pushing()
    overdue = TransferPushFailedMsg("r1", 1, WriteOverdue("nothing moved", 54.0).info())
    failed = bench.say("e1", overdue)
    assert names(failed) == [("e1", "release"), ("client", "error")]
    assert "nothing moved within 54 s" in told(failed)[-1][1].error.message
    assert bench.say("e1", overdue) == []
    assert bench.instance("d1") == {"quarantined": 1, "taken": 1}
    assert names(bench.say("e1", TransferPushFailedMsg("r1", 1, BROKEN))) == [("d1", "abort")]
    bench.released("d1")
    assert (bench.instance("d1"), bench.states()) == ({"free": 1}, {})


def test_a_push_of_other_bytes_ends_the_attempt() -> None:
    """A sender that wrote more or less than it should is not believed."""
    bench = pushing()
    failed = bench.pushed("e1", nbytes=SIZE - 1)
    assert names(failed) == [("d1", "abort"), ("e1", "release"), ("client", "error")]
    assert str(TransferError("1023 bytes were written, not 1024")) in told(failed)[-1][1].error.message


@pytest.mark.parametrize(
    ("slot", "problem"),
    [
        (Slot(9, 0, SIZE - 1), "slot 9 has 1023 bytes, 1024 were asked for"),
        (Slot(9, POOL_BYTES - 512, SIZE), f"slot 9 is {POOL_BYTES - 512}+{SIZE} bytes of a pool of {POOL_BYTES}"),
        (Slot(3, 0, SIZE), "slot 3 exists already"),
        (Slot(9, 8, SIZE), "slot 9 overlaps another receive slot"),
    ],
)
def test_a_wrong_slot_ends_the_attempt(slot: Slot, problem: str) -> None:
    """ALLOCATED with a slot too small, outside the pool or not its own aborts the receiver; the slot is not taken."""
    bench = staged()
    bench.register("d1", receive_slots=(Slot(3, 0, 512),))
    failed = bench.allocated("d1", slot=slot)
    assert names(failed) == [("d1", "abort"), ("e1", "release"), ("client", "error")]
    assert problem in told(failed)[-1][1].error.message
    assert bench.instance("d1") == {"aborting": 1, "free": 1}


def entry(offset: int, nbytes: int, shape: tuple[int, ...] | None = None) -> TensorEntry:
    return TensorEntry("x", None, "uint8", (nbytes,) if shape is None else shape, offset, nbytes)


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (TensorManifest(2048), "2048 bytes lie in slot 7, which has 1024"),
        (TensorManifest(1024, (entry(8, 8),)), "'x' at 8 is not aligned to 512"),
        (TensorManifest(1024, (entry(512, 513),)), "'x' at 512 reaches 1536, past the 1024 bytes of the payload"),
        (TensorManifest(1024, (entry(0, 513), entry(512, 8))), "'x' at 512 begins inside the tensor before it"),
        (TensorManifest(1024, (entry(0, 8, (3,)),)), "'x' at 0 has 8 bytes for 3 elements"),
        (TensorManifest(1024, (entry(0, 8, (0, 2**48)),)), "'x' at 0 has 8 bytes for 0 elements"),
        (TensorManifest(1024, (entry(0, 8, (2**48,) * 16),)), f"'x' at 0 has 8 bytes for {2**768} elements"),
        (TensorManifest(1024, (entry(0, 0, (2,)),)), "'x' at 0 has 0 bytes for 2 elements"),
        (TensorManifest(1024, (entry(2**48, 0),)), f"'x' at {2**48} reaches {2**48}, past the 1024 bytes"),
    ],
)
def test_a_wrong_manifest_ends_the_attempt(manifest: TensorManifest, problem: str) -> None:
    """A manifest that does not fit its slot aborts its sender before anybody reads a byte by it."""
    bench = encoding()
    failed = bench.say("e1", TransferStagedMsg("r1", 1, Slot(7, 0, 1024), manifest, timing("e1")))
    assert names(failed) == [("e1", "abort"), ("client", "error")]
    assert problem in told(failed)[-1][1].error.message
    assert bench.instance("e1") == {"aborting": 1}


def test_a_slot_outside_the_pool_ends_the_attempt() -> None:
    """An output that lies outside the sender's pool is not believed."""
    bench = encoding()
    failed = bench.say("e1", TransferStagedMsg("r1", 1, Slot(7, POOL_BYTES, SIZE), MANIFEST, timing("e1")))
    assert f"slot 7 is {POOL_BYTES}+{SIZE} bytes of a pool of {POOL_BYTES}" in told(failed)[-1][1].error.message


def test_scalars_and_empty_tensors_are_no_problem() -> None:
    """A manifest of a 0-dimensional and of zero-size tensors, also at the end, is accepted."""
    bench = encoding()
    manifest = TensorManifest(512, (entry(0, 1, ()), entry(0, 0, (3, 0)), entry(512, 0)))
    assert names(bench.staged("e1", manifest=manifest))[-1] == ("e1", "push")


@pytest.mark.parametrize(
    ("reach", "name", "msg", "problem"),
    [
        (denoising, "d1", TransferDoneMsg("r1", 1, timing("d1")), "denoisers end with STAGED, not with DONE"),
        (decoding, "v1", TransferStagedMsg("r1", 1, OUTPUT, MANIFEST, timing("v1")), "decoders end with DONE"),
        (
            decoding,
            "v1",
            TransferDoneMsg("r1", 1, timing("v1"), (MediaInfo("image/png", 8, 8, 0),)),
            "DONE names 1 media and",
        ),
    ],
)
def test_the_wrong_end_of_a_stage_ends_the_attempt(reach: Reach, name: str, msg: TransferDoneMsg, problem: str) -> None:
    """An instance that ends its stage as another role does, or with media missing, is aborted."""
    failed = reach().say(name, msg)
    assert names(failed)[0] == (name, "abort")
    assert problem in told(failed)[-1][1].error.message


def test_an_unanswered_alloc_ends_the_attempt() -> None:
    """After `alloc_timeout_s` the receiver is aborted; it still has to release."""
    bench = Bench("e1", "v1", alloc_timeout_s=2.0)
    bench.submit()
    bench.staged("e1")
    bench.register("d1", receive_slots=())
    ended = bench.after(2.0)
    assert names(ended) == [("d1", "abort"), ("e1", "release"), ("client", "error")]
    assert told(ended)[-1][1].error.details == {"reasons": ["denoiser d1: no answer to ALLOC for 2 s"]}
    assert bench.instance("d1") == {"aborting": 1}


def test_a_sender_that_does_not_answer_push_is_lost() -> None:
    """After `push_timeout_s` it is as good as silent: the request fails, the receiver hears of the lost writer."""
    bench = Bench("e1", "d1", "v1", push_timeout_s=2.0)
    bench.submit()
    bench.staged("e1")
    ended = bench.after(2.0)
    assert names(ended) == [("d1", "abort"), ("client", "error"), ("d1", "forget")]
    reasons = ["encoder e1 is lost: it did not answer PUSH of r1 in time"]
    assert told(ended)[1][1].error.details == {"reasons": reasons}
    assert bench.instance("d1") == {"aborting": 1, "taken": 1}


def test_a_push_that_outlives_its_request_is_still_answered_for() -> None:
    """A request that timed out before leaves no slot quarantined for ever: the sender that is silent is lost."""
    bench = Bench("e1", "d1", "v1", push_timeout_s=4.0, request_timeout_s=2.0)
    bench.submit()
    bench.staged("e1")
    bench.after(2.0)
    assert bench.instance("d1") == {"quarantined": 1, "taken": 1}
    assert ("d1", "abort") in names(bench.after(2.0))


def test_a_question_with_more_time_does_not_prolong_another() -> None:
    """An encoder asked to ABORT one request and to PUSH another is lost at the first of the two deadlines."""
    bench = Bench(push_timeout_s=4.0, abort_timeout_s=30.0, request_timeout_s=3.0)
    bench.register("e1", capacity=2)
    bench.submit("r1")
    bench.after(3.0)
    bench.submit("r2")
    bench.staged("e1", "r2")
    bench.register("d1")
    lost = ReportInstance("e1", Role.ENCODER, "lost", "it did not answer PUSH of r2 in time")
    assert lost in bench.after(4.0, "e1")


def test_an_instance_that_does_not_answer_abort_is_lost() -> None:
    """After `abort_timeout_s` its lease is given back with it, and what it says next comes from a stranger."""
    bench = Bench("e1", "d1", "v1", abort_timeout_s=3.0, request_timeout_s=2.0)
    bench.submit()
    assert names(bench.after(2.0)) == [("e1", "abort"), ("client", "error")]
    bench.after(3.0)
    assert names(bench.say("e1", TransferReleasedMsg("r1", 1))) == [("e1", "register_again")]


def test_what_a_service_says_at_length_is_cut() -> None:
    """A reason of any length reaches the client as one of a bearable length."""
    bench = encoding()
    failed = bench.say("e1", TransferFailedMsg("r1", 1, error_of("x" * 10**6)))
    assert len(told(failed)[-1][1].error.message) < 1100


# ------------------------------------------------------------------------------------------ losses


@pytest.mark.parametrize(
    ("reach", "name", "expected"),
    [
        (encoding, "e1", []),
        (staged, "e1", []),
        (allocating, "e1", [("d1", "abort")]),
        (allocating, "d1", [("e1", "release")]),
        (pushing, "e1", [("d1", "abort")]),
        (pushing, "d1", [("e1", "release")]),
        (denoising, "d1", [("e1", "release")]),
        (denoising_loaded, "d1", [("e1", "release")]),
        (decoding, "v1", [("d1", "release")]),
    ],
)
def test_a_lost_instance_ends_the_requests_that_need_it(
    reach: Reach, name: str, expected: list[tuple[str, str]]
) -> None:
    """A request fails with its instance, whether that computes it, receives it or only keeps its input."""
    bench = reach()
    lost = without_forget(bench.lose(name))
    assert names(lost) == [*expected, ("client", "error")]
    error = told(lost)[-1][1]
    assert isinstance(error, ErrorMsg)
    assert error.state is S.FAILED
    assert f"{name} is lost: gone" in error.error.message


@pytest.mark.parametrize("reach", [denoising, denoising_loaded])
def test_a_sender_whose_output_has_arrived_is_not_needed(reach: Reach) -> None:
    """Once the input was pushed, the loss of its sender costs nothing."""
    bench = reach()
    assert told(without_forget(bench.lose("e1"))) == []
    assert names(bench.staged("d1")) == [("client", "stage_finished"), ("v1", "expect"), ("d1", "push")]


@pytest.mark.parametrize("reach", [encoding, allocating, pushing, denoising, decoding])
def test_a_loss_after_the_end_leaves_nothing(reach: Reach) -> None:
    """Leases that wait for RELEASED die with their instance, and the request's record with them."""
    bench = reach()
    bench.cancel()
    for name in ("e1", "d1", "v1"):
        bench.lose(name)
    assert bench.states() == {}


def test_a_push_into_a_lost_receiver_is_waited_for() -> None:
    """A sender that still writes to a lost receiver keeps the request's record until it answers."""
    bench = pushing()
    bench.lose("d1")
    assert (bench.states(), bench.instance("e1")) == ({"settling": 1}, {"pushes": 1})
    assert bench.pushed("e1") == []
    assert (bench.states(), bench.instance("e1")) == ({}, {})


def test_stale_messages_of_a_lost_instance_change_nothing() -> None:
    """What a lost instance still says about its old requests only gets it told to register."""
    bench = denoising()
    bench.lose("d1")
    before = bench.server.status()
    for msg in (TransferLoadedMsg("r1", 1), TransferStagedMsg("r1", 1, OUTPUT, MANIFEST, timing("d1"))):
        assert names(bench.say("d1", msg)) == [("d1", "register_again")]
    assert bench.server.status() == before


def test_messages_of_another_attempt_change_nothing() -> None:
    """Messages that name another attempt than the one that runs are ignored."""
    bench = denoising()
    before = bench.server.status()
    for msg in (
        TransferLoadedMsg("r1", 2),
        TransferStagedMsg("r1", 2, OUTPUT, MANIFEST, timing("d1")),
        TransferFailedMsg("r1", 2, BROKEN),
        TransferAllocRefusedMsg("r1", 2, PoolExhausted(1, 1).info()),
    ):
        assert ignored(bench.say("d1", msg))
    assert ignored(bench.say("e1", TransferPushedMsg("r1", 1, SIZE, 0.1)))
    late = bench.say("v1", TransferDoneMsg("r1", 1, timing("v1")))
    assert isinstance(late[0], ReportIgnored)
    assert told(late) == [("v1", TransferReleaseMsg("r1", 1))]  # it need not keep its result
    assert bench.server.status() == before
    assert TransferReleaseMsg("r1", 1) == told(bench.staged("d1"))[0][1]
