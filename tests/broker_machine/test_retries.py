"""An attempt fails and another follows, from the last output that exists; and instances that keep failing."""

import pytest

from triptych.broker.machine.commands import Command
from triptych.schemas.client import ErrorMsg, RetryingMsg
from triptych.schemas.errors import InvalidRequest, PayloadTooLarge
from triptych.schemas.roles import Role
from triptych.schemas.states import RequestState as S
from triptych.schemas.transfer import (
    TransferDoneMsg,
    TransferFailedMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferPushMsg,
    TransferReadyMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferWorkMsg,
)

from .kit import BROKEN, MANIFEST, OUTPUT, SIZE, Bench, names, shared_pool_of, timing, told


def denoising(*others: str, **settings: object) -> Bench:
    """Return a bench with r1 on d1."""
    bench = Bench("e1", "v1", "d1", **{"max_attempts": 3, **settings})
    bench.submit()
    bench.staged("e1")
    bench.pushed("e1")
    for name in others:
        bench.register(name)
    return bench


def last(commands: list[Command], kind: type) -> object:
    return next(msg for _, msg in reversed(told(commands)) if isinstance(msg, kind))


def fail(bench: Bench, name: str, attempt: int = 1, request_id: str = "r1") -> list[Command]:
    return bench.say(name, TransferFailedMsg(request_id, attempt, BROKEN))


def test_a_lost_denoiser_costs_no_new_encoding() -> None:
    """The encoder's output is still there: it is pushed to another one under the next attempt, and the client told."""
    bench = denoising("d2")
    lost = bench.lose("d1")
    reason = "denoiser d1 is lost: gone"
    assert last(lost, RetryingMsg) == RetryingMsg("r1", 2, Role.DENOISER, reason)
    push = last(lost, TransferPushMsg)
    assert isinstance(push, TransferPushMsg)
    assert (push.receiver, push.attempt, push.staged_attempt) == ("d2", 2, 1)
    assert bench.states() == {"DENOISING_WAITING": 1}


def test_a_request_whose_output_is_lost_begins_anew() -> None:
    """The encoder goes while its output is pushed: another encodes the request again."""
    bench = Bench("e1", "e2", "d1", "v1", max_attempts=3)
    bench.submit()
    bench.staged("e1")
    lost = bench.lose("e1")
    assert last(lost, RetryingMsg) == RetryingMsg("r1", 2, Role.ENCODER, "encoder e1 is lost: gone")
    work = last(lost, TransferWorkMsg)
    assert isinstance(work, TransferWorkMsg)
    assert (work.attempt, bench.states()) == (2, {"ENCODER_RUNNING": 1})


def test_messages_of_a_failed_attempt_change_nothing() -> None:
    """What a slow instance says of attempt 1 is ignored once attempt 2 runs, and its lease comes back with RELEASED."""
    bench = denoising("d2", stage_timeout_s={Role.DENOISER: 5.0})
    bench.after(6.0, "e1", "d1", "d2", "v1")
    before = bench.states()
    assert bench.instance("d1") == {"aborting": 1, "taken": 1}
    late = bench.say("d1", TransferStagedMsg("r1", 1, OUTPUT, MANIFEST, timing("d1")))
    assert told(late) == []
    assert bench.states() == before
    bench.say("d1", TransferReleasedMsg("r1", 1))
    assert bench.instance("d1") == {"free": 1}


def test_another_instance_is_tried_first() -> None:
    """One on which the request failed gets it again only when there is no other."""
    bench = denoising()
    fail(bench, "d1")
    assert bench.instance("d1")["pushing"] == 1
    bench = denoising("d2")
    fail(bench, "d1")
    assert (bench.instance("d1"), bench.instance("d2")) == ({"free": 1}, {"pushing": 1, "taken": 1})


def test_attempts_are_capped_and_their_reasons_kept() -> None:
    """After max_attempts the request FAILS with the reason of each."""
    bench = denoising(max_attempts=2)
    bench.register("d2")
    fail(bench, "d1")
    ended = last(bench.say("e1", TransferPushFailedMsg("r1", 2, BROKEN)), ErrorMsg)
    assert isinstance(ended, ErrorMsg)
    assert ended.error.details == {
        "reasons": [
            "denoiser d1: the transfer failed: broken",
            "encoder e1 could not write to denoiser d2: the transfer failed: broken",
        ]
    }


@pytest.mark.parametrize("error", [InvalidRequest("prompt", "", "text"), PayloadTooLarge(2, 1, "pool_bytes")])
def test_what_would_fail_everywhere_is_not_tried_again(error: InvalidRequest | PayloadTooLarge) -> None:
    """Where the request itself is at fault, or its size, the first attempt is the last."""
    bench = denoising("d2")
    ended = bench.say("d1", TransferFailedMsg("r1", 1, error.info()))
    assert isinstance(told(ended)[-1][1], ErrorMsg)
    assert bench.states() == {}


def test_the_stages_of_the_result_are_those_that_led_to_it() -> None:
    """A stage that was computed twice is in the result once."""
    bench = Bench("e1", "d1", "v1", max_attempts=3)
    bench.submit()
    bench.staged("e1")
    bench.pushed("e1")
    bench.staged("d1")
    bench.register("d2")
    bench.lose("d1")
    bench.released("v1")
    bench.say("e1", TransferStagedMsg("r1", 2, OUTPUT, MANIFEST, timing("e1")))
    bench.say("e1", TransferPushedMsg("r1", 2, SIZE, 0.1))
    bench.say("d2", TransferStagedMsg("r1", 2, OUTPUT, MANIFEST, timing("d2")))
    bench.say("d2", TransferPushedMsg("r1", 2, SIZE, 0.1))
    result = told(bench.say("v1", TransferDoneMsg("r1", 2, timing("v1"))))[-1][1]
    assert [stage.instance_id for stage in result.stages] == ["e1", "d2", "v1"]
    assert [(hop.sender, hop.receiver) for hop in result.transfers] == [("e1", "d2"), ("d2", "v1")]


def test_a_second_reader_may_read_while_the_first_winds_down() -> None:
    """In place the output is kept until both have let go of it."""
    bench = Bench(max_attempts=3, stage_timeout_s={Role.DENOISER: 2.0})
    for name in ("e1", "d1", "d2"):
        bench.register(name, pool=shared_pool_of(name))
    bench.submit()
    bench.staged("e1")
    again = bench.after(3.0, "e1", "d1", "d2")
    ready = last(again, TransferReadyMsg)
    assert isinstance(ready, TransferReadyMsg)
    assert (ready.attempt, ready.slot, ready.pool) == (2, OUTPUT, shared_pool_of("e1"))
    staged = bench.say("d2", TransferStagedMsg("r1", 2, OUTPUT, MANIFEST, timing("d2")))
    assert ("e1", TransferReleaseMsg("r1", 1)) not in told(staged)
    assert ("e1", TransferReleaseMsg("r1", 1)) in told(bench.say("d1", TransferReleasedMsg("r1", 1)))


def failing(times: int, **settings: object) -> Bench:
    """Return a bench whose only encoder has failed so many requests."""
    bench = Bench("e1", failures_in_a_row=2, back_off_s=1.0, **settings)
    for number in range(times):
        bench.submit(f"f{number}")
        fail(bench, "e1", request_id=f"f{number}")
    return bench


def test_an_instance_that_keeps_failing_is_passed_over_for_a_while() -> None:
    """After so many failures in a row it rests, longer each time; one success forgives it all."""
    bench = failing(2)
    bench.submit("r1")
    assert bench.states() == {"ENCODER_WAITING": 1}
    bench.after(1.1, "e1")
    assert bench.states() == {"ENCODER_RUNNING": 1}
    fail(bench, "e1")
    bench.submit("r2")
    bench.after(1.1, "e1")
    assert bench.states() == {"ENCODER_WAITING": 1}
    bench.after(1.0, "e1")
    bench.staged("e1", "r2")
    bench.submit("r3")
    assert bench.states() == {"DENOISING_WAITING": 1, "ENCODER_RUNNING": 1}


def test_after_its_rest_it_is_given_one_request_at_a_time() -> None:
    """Half open: until it succeeds it has one, whatever its capacity."""
    bench = Bench(failures_in_a_row=1, back_off_s=1.0)
    bench.register("e1", capacity=4)
    bench.submit("f")
    fail(bench, "e1", request_id="f")
    for number in range(3):
        bench.submit(f"r{number}")
    bench.after(1.1, "e1")
    assert bench.states() == {"ENCODER_RUNNING": 1, "ENCODER_WAITING": 2}
    bench.staged("e1", "r0")
    assert bench.states() == {"DENOISING_WAITING": 1, "ENCODER_RUNNING": 2}


def test_an_instance_that_crashes_each_time_is_known_by_its_name() -> None:
    """It comes back as a new incarnation, and rests as if it had stayed."""
    bench = Bench(failures_in_a_row=2, back_off_s=1.0)
    for incarnation in (1, 2):
        bench.register("e1", incarnation=incarnation)
        bench.submit(f"r{incarnation}")
        bench.lose("e1", incarnation)
    bench.register("e1", incarnation=3)
    bench.submit("r3")
    assert bench.states() == {"ENCODER_WAITING": 1}


def test_a_request_that_kills_what_it_touches_stops() -> None:
    """It takes max_attempts instances with it, and no more."""
    bench = Bench("e1", "e2", "e3", "e4", max_attempts=3)
    bench.submit()
    alive = ["e1", "e2", "e3", "e4"]
    ended: list[Command] = []
    for _ in range(3):
        busy = next(name for name in alive if bench.instance(name).get("running"))
        alive.remove(busy)
        ended = bench.lose(busy)
    assert names(ended)[-1] == ("client", "error")
    assert told(ended)[-1][1].state is S.FAILED
    assert bench.states() == {}
