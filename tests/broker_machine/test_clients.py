"""What clients ask for, and what they are told."""

import pytest

from triptych.broker.machine.commands import ReportIgnored, TellClient
from triptych.broker.machine.events import ClientVanished
from triptych.schemas.client import (
    CancelMsg,
    ErrorMsg,
    HelloMsg,
    PingMsg,
    PongMsg,
    QueuedMsg,
    SubmitMsg,
    WelcomeMsg,
)
from triptych.schemas.errors import InvalidRequest, Overloaded, RequestCancelled, RequestTimedOut, VersionMismatch
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingLimits, SamplingParams
from triptych.schemas.states import RequestState as S
from triptych.schemas.transfer import PROTOCOL_VERSION

from .kit import CLIENT, PARAMS, Bench, names, told


def test_a_client_is_welcomed_with_what_the_encoder_allows() -> None:
    """HELLO is answered with the limits of the encoder that registered first, or none while there is none."""
    bench = Bench()
    hello = HelloMsg(PROTOCOL_VERSION, "0.1.0")
    assert bench.ask(hello) == [TellClient(CLIENT, WelcomeMsg(PROTOCOL_VERSION, "0.1.0", None))]
    limits = SamplingLimits(max_images=3)
    bench.register("e1", limits=limits)
    bench.register("e2")
    assert bench.ask(hello) == [TellClient(CLIENT, WelcomeMsg(PROTOCOL_VERSION, "0.1.0", limits, {"default": limits}))]


def test_a_client_of_another_version_is_told_both() -> None:
    """HELLO with another protocol version is answered by an error that names both."""
    error = VersionMismatch(PROTOCOL_VERSION, 7).info()
    assert Bench().ask(HelloMsg(7, "9")) == [TellClient(CLIENT, ErrorMsg(error))]


def test_a_queued_request_knows_its_position_and_what_is_missing() -> None:
    """QUEUED says how many wait before, and which roles have no instance."""
    bench = Bench("d1")
    bench.submit("r1")
    queued = told(bench.submit("r2"))
    assert queued == [("client", QueuedMsg("r2", 1, (Role.ENCODER, Role.DECODER)))]


def test_a_request_is_checked_against_the_limits_of_the_encoder() -> None:
    """A parameter outside the limits is refused before it is queued; the next request works."""
    bench = Bench()
    bench.register("e1", limits=SamplingLimits(max_images=3))
    bad = SubmitMsg("r1", SamplingParams("a fox", num_images=4))
    error = InvalidRequest("num_images", 4, "a whole number from 1 to 3").info()
    assert bench.ask(bad) == [TellClient(CLIENT, ErrorMsg(error, "r1"))]
    assert names(bench.submit("r1")) == [("client", "queued"), ("e1", "work")]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(""),
        SamplingParams("x" * 100_000),
        SamplingParams("a fox", width=65),
        SamplingParams("a fox", num_inference_steps=10**9),
        SamplingParams("a fox", guidance_scale=float("nan")),
        SamplingParams("a fox", seed=2**64),
        SamplingParams("\ud800"),
    ],
)
def test_without_an_encoder_the_general_limits_hold(params: SamplingParams) -> None:
    """Nonsense is refused even while no encoder is registered."""
    bench = Bench()
    assert names(bench.ask(SubmitMsg("r1", params))) == [("client", "error")]
    assert bench.states() == {}


def test_a_timeout_must_be_one() -> None:
    """A timeout that is no number of seconds is refused: it would never come."""
    bench = Bench()
    for timeout_s in (float("nan"), -1.0, float("inf")):
        assert told(bench.submit(timeout_s=timeout_s))[0][1].error.details["field"] == "timeout_s"


def test_a_request_id_is_used_once() -> None:
    """A second submit under a live id is refused to another client, and the first is not disturbed."""
    bench = Bench("e1")
    bench.submit("r1")
    error = InvalidRequest("request_id", "r1", "an id that was not used before").info()
    assert bench.ask(SubmitMsg("r1", PARAMS), b"other") == [TellClient(b"other", ErrorMsg(error, "r1"))]
    assert bench.states() == {"ENCODER_RUNNING": 1}


def test_a_live_request_may_be_submitted_again() -> None:
    """A client that does not know whether its submit arrived says it again, and is told that it is queued; no more."""
    bench = Bench("e1")
    bench.submit("r1")
    assert bench.submit("r1") == [TellClient(CLIENT, QueuedMsg("r1", 0))]
    assert bench.states() == {"ENCODER_RUNNING": 1}


def test_the_id_of_an_ended_request_is_not_free() -> None:
    """An id stays used while something of the request is in use, and while its story is kept."""
    bench = Bench("e1")
    bench.submit("r1")
    bench.cancel("r1")
    settling = names(bench.submit("r1"))
    bench.released("e1", "r1")
    assert (settling, names(bench.submit("r1"))) == ([("client", "error")], [("client", "error")])


def test_a_full_queue_refuses() -> None:
    """Beyond `max_queued` waiting requests a submit is refused, and each refused one is sent further away."""
    bench = Bench(max_queued=2)
    for number in (1, 2):
        bench.submit(f"r{number}")
    refused = [bench.submit(f"r{number}") for number in (3, 4)]
    assert refused == [
        [TellClient(CLIENT, ErrorMsg(Overloaded(2, 1.0).info(), "r3"))],
        [TellClient(CLIENT, ErrorMsg(Overloaded(2, 2.0).info(), "r4"))],
    ]


def test_the_owner_cancels() -> None:
    """CANCEL ends a waiting request, and its terminal message is the answer."""
    bench = Bench()
    bench.submit()
    error = ErrorMsg(RequestCancelled("client").info(), "r1", S.CANCELLED)
    assert told(bench.cancel()) == [("client", error)]
    assert bench.states() == {}


def test_nobody_else_cancels() -> None:
    """CANCEL from another client, of an ended or of an unknown request, is ignored."""
    bench = Bench("e1")
    bench.submit("r1")
    ignored = bench.ask(CancelMsg("r1"), b"other")
    assert ignored == [ReportIgnored(b"other", "cancel", "it has no live request r1")]
    bench.cancel("r1")
    for request_id in ("r1", "r2"):
        assert bench.cancel(request_id) == [ReportIgnored(CLIENT, "cancel", f"it has no live request {request_id}")]


def test_a_ping_names_what_is_not_known() -> None:
    """PONG lists the requests that are not live for this client: unknown, ended, or another's."""
    bench = Bench("e1")
    for request_id in ("r1", "r2"):
        bench.submit(request_id)
    bench.ask(SubmitMsg("r3", PARAMS), b"other")
    bench.cancel("r1")
    pong = bench.ask(PingMsg(("r1", "r2", "r3", "r4")))
    assert pong == [TellClient(CLIENT, PongMsg(("r1", "r3", "r4")))]


def test_a_request_survives_its_client() -> None:
    """A client that vanishes leaves its requests running."""
    bench = Bench("e1")
    bench.submit()
    assert bench.handle(ClientVanished(CLIENT, "gone")) == []
    assert bench.states() == {"ENCODER_RUNNING": 1}


def test_a_request_times_out() -> None:
    """After its own timeout, or the broker's, a request ends as TIMED_OUT, saying where it stood."""
    bench = Bench(request_timeout_s=20.0)
    bench.submit("r1", timeout_s=3.0)
    bench.submit("r2")
    assert bench.after(2.9) == []
    first, second = bench.after(0.1), bench.after(17.0)
    assert told(first) == [
        ("client", ErrorMsg(RequestTimedOut(3.0, "ENCODER_WAITING").info(), "r1", S.TIMED_OUT)),
    ]
    assert told(second) == [
        ("client", ErrorMsg(RequestTimedOut(20.0, "ENCODER_WAITING").info(), "r2", S.TIMED_OUT)),
    ]


def test_time_does_not_go_back() -> None:
    """An event with an earlier time counts as happening at the latest time seen."""
    bench = Bench()
    bench.now = 1000.0
    bench.submit("r1", timeout_s=5.0)
    bench.now = 1.0
    bench.submit("r2", timeout_s=5.0)
    assert bench.server.next_deadline() == 1005.0
    bench.now = 1005.0
    assert names(bench.after(0.0)) == [("client", "error"), ("client", "error")]
