"""How a request goes through the three pools: every command, in order."""

from triptych.broker.machine.commands import ReportIgnored, ReportTransition, TellClient, TellService
from triptych.schemas.client import (
    ProgressMsg,
    QueuedMsg,
    ResultMsg,
    StageFinishedMsg,
    StageStartedMsg,
)
from triptych.schemas.errors import PayloadTooLarge, PoolExhausted
from triptych.schemas.manifest import EMPTY_MANIFEST, TensorEntry, TensorManifest
from triptych.schemas.memory import Slot
from triptych.schemas.roles import Role
from triptych.schemas.states import RequestState as S
from triptych.schemas.timing import StageTiming, TransferTiming
from triptych.schemas.transfer import (
    MediaInfo,
    TransferAllocMsg,
    TransferAllocRefusedMsg,
    TransferDoneMsg,
    TransferFailedMsg,
    TransferLoadedMsg,
    TransferProgressMsg,
    TransferPushMsg,
    TransferReadyMsg,
    TransferReleaseMsg,
    TransferStartedMsg,
    TransferWorkMsg,
)

from .kit import (
    BROKEN,
    CLIENT,
    DYNAMIC,
    FIXED,
    MANIFEST,
    SIZE,
    Bench,
    context,
    expect_from,
    in_context,
    names,
    peer_of,
    pool_of,
    push_to,
    timing,
    told,
)

EXHAUSTED = PoolExhausted(SIZE, 0).info()
TOO_LARGE = PayloadTooLarge(SIZE, 10, "pool").info()


def moved(start: S, finish: S, cause: str, name: str = "") -> ReportTransition:
    return ReportTransition("r1", 1, start, finish, cause, name)


def finished(name: str, queue_s: float = 0.0) -> StageTiming:
    return StageTiming(timing(name).role, name, compute_s=1.0, queue_s=queue_s)


def test_submit_sends_work_to_a_free_encoder() -> None:
    """A submit is acknowledged with its position, and a free encoder is given the work."""
    bench = Bench("e1", "d1", "v1")
    assert bench.submit() == [
        moved(S.PENDING, S.ENCODER_WAITING, "submitted"),
        TellClient(CLIENT, QueuedMsg("r1", 0)),
        moved(S.ENCODER_WAITING, S.ENCODER_RUNNING, "work sent", "e1"),
        TellService(peer_of("e1"), TransferWorkMsg("r1", 1, context())),
    ]
    assert (bench.states(), bench.instance("e1")) == ({"ENCODER_RUNNING": 1}, {"running": 1})


def test_a_staged_output_is_pushed_into_a_free_receive_slot() -> None:
    """STAGED frees the encoder and, on the fast path, starts the push at once; the receiver is told to expect it."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    assert bench.staged("e1") == [
        moved(S.ENCODER_RUNNING, S.ENCODER_DONE, "output staged", "e1"),
        TellClient(CLIENT, StageFinishedMsg("r1", finished("e1"))),
        moved(S.ENCODER_DONE, S.DENOISING_WAITING, "output staged"),
        TellService(peer_of("d1"), expect_from("e1")),
        TellService(peer_of("e1"), push_to("d1")),
    ]
    assert (bench.instance("e1"), bench.instance("d1")) == ({"staged": 1, "pushes": 1}, {"pushing": 1, "taken": 1})


def test_the_receiver_is_told_when_everything_is_written() -> None:
    """PUSHED makes the receiver load: READY brings manifest, scalars and slot."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    bench.staged("e1")
    assert bench.pushed("e1") == [
        moved(S.DENOISING_WAITING, S.DENOISING_RUNNING, "input arrived", "d1"),
        TellService(peer_of("d1"), TransferReadyMsg("r1", 1, FIXED, MANIFEST, in_context(bench), {"guidance": 4.0})),
    ]
    assert (bench.instance("e1"), bench.instance("d1")) == ({"staged": 1}, {"running": 1, "taken": 1})


def test_the_sender_keeps_its_output_until_the_receiver_is_done() -> None:
    """RELEASE goes to the encoder when the denoiser has staged, whose own push follows."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    bench.staged("e1")
    bench.pushed("e1")
    assert bench.staged("d1") == [
        TellService(peer_of("e1"), TransferReleaseMsg("r1", 1)),
        moved(S.DENOISING_RUNNING, S.DENOISING_DONE, "output staged", "d1"),
        TellClient(CLIENT, StageFinishedMsg("r1", finished("d1"))),
        moved(S.DENOISING_DONE, S.DECODER_WAITING, "output staged"),
        TellService(peer_of("v1"), expect_from("d1")),
        TellService(peer_of("d1"), push_to("v1")),
    ]
    assert bench.instance("e1") == {}


def test_the_result_reaches_the_client_with_its_media() -> None:
    """DONE gives the client its media and timings, once, and everything is free again."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    for step in (bench.staged, bench.pushed):
        step("e1")
    for step in (bench.staged, bench.pushed):
        step("d1")
    bench.now += 2.0
    media = (MediaInfo("image/png", 64, 64, 0),)
    transfers = (TransferTiming("e1", "d1", SIZE, 0.5), TransferTiming("d1", "v1", SIZE, 0.5))
    stages = (finished("e1"), finished("d1"), finished("v1"))
    assert bench.say("v1", TransferDoneMsg("r1", 1, timing("v1"), media), b"png") == [
        TellService(peer_of("v1"), TransferReleaseMsg("r1", 1)),
        TellService(peer_of("d1"), TransferReleaseMsg("r1", 1)),
        moved(S.DECODER_RUNNING, S.DONE, "result arrived", "v1"),
        TellClient(CLIENT, StageFinishedMsg("r1", finished("v1"))),
        TellClient(CLIENT, ResultMsg("r1", media, stages, transfers, 2.0), (b"png",)),
    ]
    assert [bench.instance(name) for name in ("e1", "d1", "v1")] == [{}, {"free": 1}, {"free": 1}]
    assert bench.states() == {}


def test_the_client_hears_how_far_a_stage_is() -> None:
    """STARTED (once) and PROGRESS are passed on, with the role."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    bench.staged("e1")
    bench.pushed("e1")
    started = [TellClient(CLIENT, StageStartedMsg("r1", Role.DENOISER, "d1"))]
    assert [bench.say("d1", TransferStartedMsg("r1", 1)) for _ in range(2)] == [started, []]
    progress = bench.say("d1", TransferProgressMsg("r1", 1, 3, 20))
    assert progress == [TellClient(CLIENT, ProgressMsg("r1", Role.DENOISER, 3, 20))]


def test_a_loaded_slot_is_free_before_the_request_is_done() -> None:
    """LOADED frees the receive slot while the lease is held, and what follows does not free it again."""
    bench = Bench("e1", "d1", "v1")
    bench.register("d1", incarnation=2, capacity=2)
    bench.submit()
    bench.staged("e1")
    bench.pushed("e1")
    bench.say("d1", TransferLoadedMsg("r1", 1), incarnation=2)
    assert bench.instance("d1") == {"running": 1, "free": 1}
    assert bench.say("d1", TransferLoadedMsg("r1", 1), incarnation=2) == []
    bench.submit("r2")
    assert names(bench.staged("e1", "r2"))[-1] == ("e1", "push")
    assert bench.instance("d1") == {"running": 1, "pushing": 1, "taken": 1}


def test_without_a_fitting_slot_the_receiver_allocates_one() -> None:
    """On the slow path ALLOC comes first; its slot is written, loaded and forgotten."""
    bench = Bench("e1", "v1")
    bench.register("d1", receive_slots=(Slot(0, 0, SIZE - 1),))
    bench.submit()
    assert told(bench.staged("e1"))[-1] == ("d1", TransferAllocMsg("r1", 1, SIZE))
    assert bench.instance("d1") == {"allocating": 1, "free": 1}
    assert told(bench.allocated("d1")) == [("d1", expect_from("e1", slot=DYNAMIC)), ("e1", push_to("d1", slot=DYNAMIC))]
    assert bench.instance("d1") == {"pushing": 1, "free": 1, "taken": 1}
    assert names(bench.pushed("e1")) == [("d1", "ready")]
    bench.say("d1", TransferLoadedMsg("r1", 1))
    assert bench.instance("d1") == {"running": 1, "free": 1}


def test_the_smallest_slot_that_fits_is_taken() -> None:
    """Large receive slots are kept for large payloads."""
    bench = Bench("e1", "v1")
    slots = (Slot(0, 0, 4096), Slot(1, 4096, 512), Slot(2, 8192, SIZE), Slot(3, 12_288, 2048))
    bench.register("d1", receive_slots=slots)
    bench.submit()
    assert told(bench.staged("e1"))[-1][1].slot == slots[2]


def test_an_empty_payload_takes_the_same_way() -> None:
    """A stage without output tensors still hands over its scalars, through a slot like any other."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    assert names(bench.staged("e1", manifest=EMPTY_MANIFEST))[-1] == ("e1", "push")
    ready = told(bench.pushed("e1", nbytes=0))
    assert ready == [("d1", TransferReadyMsg("r1", 1, FIXED, EMPTY_MANIFEST, in_context(bench), {"guidance": 4.0}))]


def test_a_refused_request_goes_to_another_receiver() -> None:
    """ALLOC_REFUSED gives the lease back; the request keeps its place and another instance is asked."""
    bench = Bench("e1", "v1")
    for name in ("d1", "d2"):
        bench.register(name, receive_slots=())
    bench.submit()
    bench.staged("e1")
    refused = bench.say("d1", TransferAllocRefusedMsg("r1", 1, EXHAUSTED))
    assert told(refused) == [("d2", TransferAllocMsg("r1", 1, SIZE))]
    assert (bench.instance("d1"), bench.instance("d2")) == ({}, {"allocating": 1})


def test_an_instance_without_room_rests_before_it_is_asked_again() -> None:
    """After a refusal an instance is passed over for `alloc_backoff_s`, then asked again, oldest request first."""
    bench = Bench("e1", "v1", alloc_backoff_s=0.5)
    bench.register("d1", receive_slots=())
    bench.submit("r1")
    bench.staged("e1", "r1")
    bench.submit("r2")
    bench.staged("e1", "r2")
    assert told(bench.say("d1", TransferAllocRefusedMsg("r1", 1, EXHAUSTED))) == []
    assert bench.server.next_deadline() == bench.now + 0.5
    assert bench.after(0.4) == []
    assert told(bench.after(0.1)) == [("d1", TransferAllocMsg("r1", 1, SIZE))]


def test_the_queue_time_counts_every_wait_for_the_stage() -> None:
    """The stage's timing says how long the request waited, the time after a refusal included, hops excluded."""
    bench = Bench("e1", "v1", alloc_backoff_s=0.5)
    bench.submit()
    bench.staged("e1")
    bench.after(2.0, "e1", "v1")
    bench.register("d1", receive_slots=())
    bench.now += 0.25
    bench.say("d1", TransferAllocRefusedMsg("r1", 1, EXHAUSTED))
    bench.after(0.5, "e1", "v1")
    bench.allocated("d1")
    bench.pushed("e1")
    bench.now += 9.0
    assert told(bench.staged("d1"))[1] == ("client", StageFinishedMsg("r1", finished("d1", queue_s=2.5)))


def test_what_fits_nowhere_fails_with_the_reason() -> None:
    """An input larger than the pool of every receiver ends the request at once, naming both sizes."""
    bench = Bench("e1")
    for name in ("d1", "d2"):
        bench.register(name, pool=pool_of(name, 512), receive_slots=())
    bench.submit()
    error = told(bench.staged("e1"))[-1][1]
    assert (error.state, error.error.details) == (
        S.FAILED,
        {
            "reasons": [
                "no denoiser can take its input: 1024 bytes do not fit into 512; raise the pool size of a denoiser"
            ]
        },
    )


def test_what_every_receiver_calls_too_large_fails() -> None:
    """A request fails when the last of its receivers has said that it can never hold the input."""
    bench = Bench("e1")
    for name in ("d1", "d2"):
        bench.register(name, receive_slots=())
    bench.submit()
    bench.staged("e1")
    assert names(bench.say("d1", TransferAllocRefusedMsg("r1", 1, TOO_LARGE))) == [("d2", "alloc")]
    failed = bench.say("d2", TransferAllocRefusedMsg("r1", 1, TOO_LARGE))
    assert names(failed) == [("e1", "release"), ("client", "error")]
    assert told(failed)[-1][1].error.details == {"reasons": [f"denoiser d2: {TOO_LARGE.message}"]}


def test_a_large_request_waits_for_the_instance_that_holds_it() -> None:
    """A request too large for the free instances lets others pass, and takes the large one when it is free."""
    bench = Bench("e1", "v1")
    bench.register("d1", pool=pool_of("d1", 512), receive_slots=())
    bench.register("d2")
    big, small = MANIFEST, TensorManifest(512, (TensorEntry("x", None, "uint8", (512,), 0, 512),))
    for request_id, manifest in (("r1", big), ("r2", big), ("r3", small)):
        bench.submit(request_id)
        bench.staged("e1", request_id, manifest)
    assert (bench.instance("d1"), bench.instance("d2")) == ({"allocating": 1}, {"pushing": 1, "taken": 1})
    bench.pushed("e1", "r1")
    freed = bench.say("d2", TransferFailedMsg("r1", 1, BROKEN))
    assert told(freed)[-1] == ("e1", push_to("d2", "r2"))


def test_a_parked_request_is_tried_again_soon() -> None:
    """A request that fitted no free instance is tried again after `alloc_backoff_s`, and fails once none is left."""
    bench = Bench("e1", "v1", alloc_backoff_s=0.5)
    bench.register("d1", pool=pool_of("d1", 512), receive_slots=())
    bench.register("d2")
    for request_id in ("r1", "r2"):
        bench.submit(request_id)
        bench.staged("e1", request_id)
    bench.lose("d2")
    assert bench.states() == {"DENOISING_WAITING": 1, "settling": 1}
    assert names(bench.after(0.5)) == [("e1", "release"), ("client", "error")]


def test_a_role_gets_no_more_work_than_the_next_one_takes() -> None:
    """With `max_staged` outputs waiting for the denoisers, the encoders are given no more work until one is taken."""
    bench = Bench("e1", max_staged=2)
    for number in (1, 2, 3):
        bench.submit(f"r{number}")
    bench.staged("e1", "r1")
    bench.staged("e1", "r2")
    assert bench.states() == {"DENOISING_WAITING": 2, "ENCODER_WAITING": 1}
    assert names(bench.register("d1")) == [
        ("d1", "register_ack"),
        ("d1", "expect"),
        ("e1", "push"),
        ("e1", "work"),
    ]


def test_requests_are_served_in_the_order_of_arrival() -> None:
    """The oldest request goes first in each role, whenever its output was staged."""
    bench = Bench("v1")
    bench.register("e1", capacity=2)
    for request_id in ("r1", "r2"):
        bench.submit(request_id)
    bench.staged("e1", "r2")
    bench.staged("e1", "r1")
    pushes = [msg.request_id for _, msg in told(bench.register("d1")) if isinstance(msg, TransferPushMsg)]
    assert pushes == ["r1"]


def test_the_story_tells_the_life_of_a_request() -> None:
    """Each step is told, with its time and the instance, even after the end."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    bench.now += 1.0
    bench.staged("e1")
    bench.cancel()
    assert bench.story() == [
        "100.000 PENDING → ENCODER_WAITING: submitted",
        "100.000 ENCODER_WAITING → ENCODER_RUNNING: work sent (e1)",
        "101.000 ENCODER_RUNNING → ENCODER_DONE: output staged (e1)",
        "101.000 ENCODER_DONE → DENOISING_WAITING: output staged",
        "101.000 push from e1 to slot 0 (d1)",
        "101.000 DENOISING_WAITING → CANCELLED: cancelled by the client",
    ]
    assert bench.story("r9") == []


def test_a_message_out_of_order_changes_nothing() -> None:
    """LOADED while the slot is still written is ignored, and says why."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    bench.staged("e1")
    late = bench.say("d1", TransferLoadedMsg("r1", 1))
    assert late == [ReportIgnored(peer_of("d1"), "transfer_loaded", "its lease of r1 is pushing")]
