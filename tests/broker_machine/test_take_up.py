"""A broker that restarted: services say what they hold, in any order, and nothing is computed again."""

from itertools import permutations

import pytest

from triptych.broker.machine.commands import Command
from triptych.schemas.client import CancelMsg, PingMsg, PongMsg, ResultMsg
from triptych.schemas.context import Priority
from triptych.schemas.errors import RegistrationRefused
from triptych.schemas.holdings import HeldJob, HeldOutput
from triptych.schemas.memory import Slot
from triptych.schemas.transfer import (
    TransferAbortMsg,
    TransferDoneMsg,
    TransferHeartbeatMsg,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterRefusedMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
)

from .kit import CLIENT, DYNAMIC, FIXED, MANIFEST, OUTPUT, Bench, context, names, shared_pool_of, timing, told

GRACE_S = 3.0


def restarted(**settings: object) -> Bench:
    return Bench(take_up_s=GRACE_S, max_attempts=3, **settings)


def job(request_id: str = "r1", attempt: int = 1, slot: Slot | None = None, **fields: object) -> HeldJob:
    return HeldJob(request_id, attempt, context(), slot, **fields)


def output(name: str, request_id: str = "r1", attempt: int = 1) -> HeldOutput:
    return HeldOutput(request_id, attempt, context(), OUTPUT, MANIFEST, timing(name), {"guidance": 4.0})


#: who holds what of a request that is being denoised, its input read in place
READING = {
    "e1": {"pool": shared_pool_of("e1"), "outputs": (output("e1"),)},
    "d1": {"pool": shared_pool_of("d1"), "jobs": (job(slot=OUTPUT, segment="/e1", started=True),)},
    "v1": {"pool": shared_pool_of("v1")},
}


def aborted(commands: list[Command]) -> list[str]:
    return [to for to, msg in told(commands) if isinstance(msg, TransferAbortMsg)]


def test_a_stranger_is_asked_for_what_it_holds() -> None:
    """It comes as the incarnation it is; one whose lease ran out must come as a new one, with nothing."""
    bench = restarted()
    assert told(bench.say("d1", TransferHeartbeatMsg())) == [("d1", TransferRegisterAgainMsg(0))]
    bench.register("d1")
    bench.lose("d1")
    assert told(bench.say("d1", TransferHeartbeatMsg())) == [("d1", TransferRegisterAgainMsg(1))]


@pytest.mark.parametrize("order", list(permutations(READING)))
def test_what_runs_goes_on_whoever_comes_first(order: tuple[str, ...]) -> None:
    """The denoiser's work counts as running, the encoder keeps the input, and the result is the client's."""
    bench = restarted()
    for name in order:
        commands = bench.register(name, **READING[name])
        assert names(commands) == [(name, "register_ack")]
    assert (bench.instance("e1"), bench.instance("d1")) == ({"staged": 1}, {"running": 1, "free": 1})
    bench.after(GRACE_S + 0.1, *READING)
    assert bench.states() == {"DENOISING_RUNNING": 1}
    staged = told(bench.say("d1", TransferStagedMsg("r1", 1, OUTPUT, MANIFEST, timing("d1"))))
    assert ("e1", TransferReleaseMsg("r1", 1)) in staged
    done = told(bench.say("v1", TransferDoneMsg("r1", 1, timing("v1"))))
    result = done[-1][1]
    assert isinstance(result, ResultMsg)
    assert [stage.instance_id for stage in result.stages] == ["d1", "v1"] or [
        stage.instance_id for stage in result.stages
    ] == ["e1", "d1", "v1"]


def test_an_output_waits_for_whoever_computes_with_it() -> None:
    """Nobody has come until the time is over: then it goes to the next role."""
    bench = restarted()
    bench.register("d1")
    assert names(bench.register("e1", outputs=(output("e1"),))) == [("e1", "register_ack")]
    assert bench.states() == {"DENOISING_WAITING": 1}
    assert names(bench.after(GRACE_S + 0.1, "e1", "d1"))[-2:] == [("d1", "expect"), ("e1", "push")]


def test_receive_slots_that_are_still_read_are_taken() -> None:
    """A pre-allocated one and one that ALLOC brought come back with LOADED."""
    bench = restarted()
    bench.register("d1", capacity=2, jobs=(job("r1", slot=FIXED), job("r2", slot=DYNAMIC)))
    assert bench.instance("d1") == {"running": 2, "taken": 2}


def test_of_two_that_compute_the_same_the_newer_attempt_goes_on() -> None:
    """The older one is aborted, in whichever order they come."""
    for first, second in (("d1", "d2"), ("d2", "d1")):
        bench = restarted()
        attempts = {"d1": 1, "d2": 2}
        commands = [
            command for name in (first, second) for command in bench.register(name, jobs=(job(attempt=attempts[name]),))
        ]
        assert aborted(commands) == ["d1"]
        assert bench.instance("d2") == {"running": 1, "free": 1}


def test_what_is_behind_is_dropped() -> None:
    """The decoder has it already: the encoder's output is released, the denoiser that still computes it aborted."""
    bench = restarted()
    bench.register("v1", jobs=(job(),))
    released = bench.register("e1", outputs=(output("e1"),))
    assert ("e1", TransferReleaseMsg("r1", 1)) in told(released)
    assert aborted(bench.register("d1", jobs=(job(),))) == ["d1"]
    assert bench.states() == {"DECODER_RUNNING": 1}


def test_what_was_begun_anew_meanwhile_is_not_taken_up() -> None:
    """A service that comes late finds its request submitted again: its work is aborted, and its capacity comes back."""
    bench = restarted()
    bench.register("e1")
    bench.after(GRACE_S + 0.1, "e1")
    bench.submit("r1")
    assert aborted(bench.register("d1", jobs=(job(),))) == ["d1"]
    assert bench.instance("d1") == {"aborting": 1, "free": 1}
    bench.released("d1")
    assert (bench.instance("d1"), bench.states()) == ({"free": 1}, {"ENCODER_RUNNING": 1})


def test_work_of_a_request_that_has_ended_is_aborted() -> None:
    """Its client cancelled it meanwhile."""
    bench = restarted()
    bench.register("d1", jobs=(job(),))
    bench.ask(CancelMsg("r1"))
    bench.released("d1")
    assert aborted(bench.register("d2", jobs=(job(attempt=2),))) == ["d2"]
    assert bench.states() == {"settling": 1}
    bench.say("d2", TransferReleasedMsg("r1", 2))
    assert bench.states() == {}


def test_a_request_is_what_it_was() -> None:
    """Its tenant, class, client and what is left of its time come with what is held."""
    bench = restarted()
    known = context(tenant="small", priority=Priority.LOW, left_s=5.0, timeout_s=60.0, reasons=("bad luck",))
    bench.register("d1", jobs=(HeldJob("r1", 2, known),))
    ended = told(bench.after(5.1, "d1"))
    assert [(to, msg.__struct_config__.tag) for to, msg in ended] == [("d1", "transfer_abort"), ("client", "error")]
    assert ended[-1][1].error.details["timeout_s"] == 60.0


def test_clients_are_not_told_too_early_that_a_request_is_unknown() -> None:
    """Only when those that may hold it have had their time."""
    bench = restarted()
    ping = PingMsg(("r1", "r2"))
    assert told(bench.ask(ping)) == [("client", PongMsg())]
    bench.register("d1", jobs=(job(),))
    bench.after(GRACE_S + 0.1, "d1")
    assert told(bench.ask(ping)) == [("client", PongMsg(("r2",)))]
    assert context().client == CLIENT


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"jobs": (job("r1"), job("r2"))}, "2 jobs, more than its capacity of 1"),
        ({"jobs": (job(),), "outputs": (output("d1"),)}, "an attempt is named twice"),
        ({"jobs": (job(slot=Slot(0, 1, 2)),)}, "slot 0 is named twice"),
        ({"jobs": (job(slot=Slot(5, 0, 2**40)),)}, "slot 5 is 0+1099511627776 bytes of a pool of 65536"),
    ],
)
def test_what_cannot_be_held_is_refused(fields: dict[str, object], problem: str) -> None:
    """The registration is refused with the reason, and nothing of it is taken up."""
    bench = restarted()
    refused = TransferRegisterRefusedMsg(RegistrationRefused(f"what it holds: {problem}").info())
    assert told(bench.register("d1", **fields)) == [("d1", refused)]
    assert bench.states() == {}


def test_a_registration_that_is_repeated_takes_nothing_up_twice() -> None:
    """The acknowledgement was late: it is given again."""
    bench = restarted()
    bench.register("d1", jobs=(job(),))
    again = told(bench.register("d1", jobs=()))
    assert [type(msg) for _, msg in again] == [TransferRegisterAckMsg]
    assert bench.instance("d1") == {"running": 1, "free": 1}
