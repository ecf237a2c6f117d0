"""What operators see of the machine, and what they make it do."""

from msgspec.structs import replace

from tests.broker_machine.kit import BROKEN, CLIENT, Bench, names
from triptych.broker.machine.admin import MOST_NEAR
from triptych.broker.machine.commands import Command, ReportInstance, TellClient, TellOperator
from triptych.broker.machine.events import OperatorSpoke
from triptych.broker.machine.settings import TenantSettings
from triptych.schemas.admin import (
    AdminCancelMsg,
    AdminDoneMsg,
    AdminDrainMsg,
    AdminErrorMsg,
    AdminInstanceMsg,
    AdminInstanceReplyMsg,
    AdminMsg,
    AdminReplyMsg,
    AdminResumeMsg,
    AdminStatusMsg,
    AdminStatusReplyMsg,
    AdminStoryMsg,
    AdminStoryReplyMsg,
)
from triptych.schemas.client import ErrorMsg, SubmitMsg
from triptych.schemas.context import Priority
from triptych.schemas.errors import InvalidRequest, RequestCancelled, TriptychError, UnknownName
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.states import RequestState
from triptych.schemas.status import InstanceStatus, LoadStatus, PoolStatus, TenantStatus
from triptych.schemas.transfer import TransferDrainMsg, TransferFailedMsg, TransferHeartbeatMsg

OPERATOR = b"operator"


def order(bench: Bench, msg: AdminMsg) -> list[Command]:
    """Let an operator say `msg`; return what the machine does besides answering."""
    *others, answer = _split(bench.handle(OperatorSpoke(OPERATOR, msg)))
    assert isinstance(answer, TellOperator)
    return others


def asked(bench: Bench, msg: AdminMsg) -> AdminReplyMsg:
    """Let an operator say `msg`; return the answer."""
    (*_, answer) = _split(bench.handle(OperatorSpoke(OPERATOR, msg)))
    assert isinstance(answer, TellOperator)
    assert answer.peer == OPERATOR
    return answer.msg


def _split(commands: list[Command]) -> list[Command]:
    """Return `commands` with the one answer at the end."""
    answers = [one for one in commands if isinstance(one, TellOperator)]
    assert len(answers) == 1
    return [*(one for one in commands if one is not answers[0]), answers[0]]


def refusal(error: TriptychError) -> AdminErrorMsg:
    return AdminErrorMsg(error.info())


def instance(bench: Bench, name: str) -> InstanceStatus:
    reply = asked(bench, AdminInstanceMsg(name))
    assert isinstance(reply, AdminInstanceReplyMsg)
    return reply.instance


# ----------------------------------------------------------------------------------------------- status


def test_the_status_of_an_idle_instance_is_what_it_said_of_itself() -> None:
    """Every field of it, a second after its heartbeat."""
    bench = Bench()
    bench.register("d1", capacity=3, models=("one", "two"))
    bench.say("d1", TransferHeartbeatMsg(jobs=1, staged=2, free_bytes=300, loop_lag_s=0.25, loaded=("two",)))
    bench.now += 1.0
    bench.after(0.0)
    assert instance(bench, "d1") == InstanceStatus(
        instance_id="d1",
        incarnation=1,
        role=Role.DENOISER,
        models=("one", "two"),
        package_version="0.1.0",
        capacity=3,
        leases={},
        free_leases=3,
        free_slots=1,
        taken_slots=0,
        retired_slots=0,
        staged=0,
        pushes=0,
        pool_bytes=65_536,
        outstanding_s=0.0,
        slowness=1.0,
        silent_s=1.0,
        failures=0,
        on_probation=False,
        resting=False,
        rests_s=0.0,
        draining=False,
        leaving=False,
        load=LoadStatus(1, 2, 300, 0.25, ("two",)),
    )


def test_what_an_instance_holds_is_counted() -> None:
    """Given an encoder whose output is being written to a denoiser, both know of it; together it is what they hold."""
    bench = Bench("e1", "d1")
    bench.submit()
    assert (instance(bench, "e1").leases, instance(bench, "e1").holds) == ({"running": 1}, 1)
    bench.staged("e1")
    encoder, denoiser = instance(bench, "e1"), instance(bench, "d1")
    assert (encoder.leases, encoder.staged, encoder.pushes, encoder.holds) == ({}, 1, 1, 2)
    assert (denoiser.leases, denoiser.taken_slots, denoiser.holds) == ({"pushing": 1}, 1, 1)


def test_an_instance_that_failed_too_often_rests_for_a_time_that_is_told() -> None:
    """After its first failure in a row, where one is too many, it rests for `back_off_s`, less what has passed."""
    bench = Bench("e1", failures_in_a_row=1, back_off_s=8.0)
    bench.submit()
    bench.say("e1", TransferFailedMsg("r1", 1, BROKEN))
    bench.now += 3.0
    bench.after(0.0, "e1")
    status = instance(bench, "e1")
    assert (status.resting, status.rests_s, status.failures, status.on_probation) == (True, 5.0, 1, True)


def test_the_pools_say_who_waits_for_them() -> None:
    """By priority; those of the model that the only encoder is busy with."""
    bench = Bench()
    bench.register("e1", models=("one",))
    for number, priority in enumerate((Priority.NORMAL, Priority.LOW, Priority.LOW, Priority.HIGH)):
        bench.submit(f"r{number}", priority=priority)
    waiting = {Priority.HIGH: 1, Priority.LOW: 2}
    assert bench.server.status().pools == (
        PoolStatus("one", Role.ENCODER, 1, 0, 3, waiting, 0, None),
        PoolStatus("one", Role.DENOISER, 0, 0, 0, {}, 0, None),
        PoolStatus("one", Role.DECODER, 0, 0, 0, {}, 0, None),
    )


def test_a_stage_that_was_seen_has_an_estimate() -> None:
    """It is for a request with default parameters: half the steps took one second, so all of them take two."""
    bench = Bench("e1", "d1")
    half = SamplingParams("a fox", num_inference_steps=SamplingParams("").num_inference_steps // 2)
    bench.ask(SubmitMsg("r1", half))
    bench.now += 1.0
    bench.staged("e1")
    bench.pushed("e1")
    bench.now += 1.0
    bench.staged("d1")
    estimates = {pool.role: pool.stage_s for pool in bench.server.status().pools}
    assert estimates == {Role.ENCODER: 1.0, Role.DENOISER: 2.0, Role.DECODER: None}


def test_requests_are_counted_by_state_and_tenant() -> None:
    """One in the pools, one that waits, each of its own tenant; bounds and weights are those of the settings."""
    bench = Bench("e1", other_tenants=TenantSettings(2.0, max_queued=9))
    bench.submit("r1", tenant="small")
    bench.submit("r2", tenant="big")
    status = bench.server.status()
    assert status.requests == {RequestState.ENCODER_RUNNING: 1, RequestState.ENCODER_WAITING: 1}
    assert status.tenants == (TenantStatus("big", 2.0, 1, 9, 0, None), TenantStatus("small", 2.0, 0, 9, 1, None))


def test_the_whole_status_comes_in_answer_without_the_process_around_it() -> None:
    """The machine alone has no process; looking changes nothing."""
    bench = Bench("e1", "d1", "v1")
    bench.submit()
    assert asked(bench, AdminStatusMsg()) == AdminStatusReplyMsg(bench.server.status(), None)
    assert [one.instance_id for one in bench.server.status().instances] == ["e1", "d1", "v1"]
    assert order(bench, AdminStatusMsg()) == []


# ----------------------------------------------------------------------------------------------- drain, resume


def test_a_drained_instance_gets_no_more_work_and_ends_what_it_has() -> None:
    """The request it computes goes on; the next one goes to the other encoder, however much that has."""
    bench = Bench()
    bench.register("e1", capacity=2)
    bench.submit("r1")
    bench.register("e2", capacity=2)
    assert order(bench, AdminDrainMsg("e1")) == [ReportInstance("e1", Role.ENCODER, "drained", "an operator's wish")]
    assert [name for name, tag in names(bench.submit("r2") + bench.submit("r3")) if tag == "work"] == ["e2", "e2"]
    status = instance(bench, "e1")
    assert (status.draining, status.leaving, status.leases, status.free_leases) == (True, False, {"running": 1}, 1)
    bench.staged("e1")
    assert bench.states()[RequestState.DENOISING_WAITING] == 1


def test_what_a_drained_instance_still_has_is_told_and_for_whom_nobody_is_left() -> None:
    """The operator reads what goes on, and that requests of these models now wait."""
    bench = Bench()
    bench.register("e1", models=("one", "two", "three"))
    bench.register("e2", models=("two",))
    bench.submit(model="one")
    assert asked(bench, AdminDrainMsg("e1")) == AdminDoneMsg(
        "encoder e1 gets no more work; it has 1 request and 0 outputs in its pool; "
        "no other encoder takes work for one, three"
    )


def test_draining_twice_is_as_draining_once() -> None:
    """The second time nothing is reported, and the answer is the same."""
    bench = Bench("e1")
    first = asked(bench, AdminDrainMsg("e1"))
    assert order(bench, AdminDrainMsg("e1")) == []
    assert asked(bench, AdminDrainMsg("e1")) == first


def test_a_resumed_instance_gets_what_waited() -> None:
    """In the same turn."""
    bench = Bench("e1")
    order(bench, AdminDrainMsg("e1"))
    assert names(bench.submit()) == [("client", "queued")]
    commands = order(bench, AdminResumeMsg("e1"))
    assert ReportInstance("e1", Role.ENCODER, "resumed", "an operator's wish") in commands
    assert ("e1", "work") in names(commands)
    assert asked(bench, AdminResumeMsg("e1")) == AdminDoneMsg("encoder e1 gets work")


def test_an_instance_that_leaves_by_itself_cannot_be_resumed() -> None:
    """It would not take the work."""
    bench = Bench("e1")
    bench.say("e1", TransferDrainMsg())
    answer = asked(bench, AdminResumeMsg("e1"))
    assert answer == refusal(InvalidRequest("instance_id", "e1", "an instance that does not leave of its own wish"))


def test_a_new_incarnation_of_a_drained_instance_gets_work() -> None:
    """That is how one is upgraded: drained, stopped, started anew."""
    bench = Bench("e1")
    order(bench, AdminDrainMsg("e1"))
    bench.register("e1", incarnation=2)
    assert ("e1", "work") in names(bench.submit())


# ----------------------------------------------------------------------------------------------- cancel


def test_a_cancelled_request_ends_and_its_client_is_told_who_did_it() -> None:
    """What runs of it is stopped, as when the client cancels it."""
    bench = Bench("e1")
    bench.submit()
    commands = order(bench, AdminCancelMsg("r1"))
    error = RequestCancelled("admin").info()
    assert TellClient(CLIENT, ErrorMsg(error, "r1", RequestState.CANCELLED)) in commands
    assert names(commands) == [("e1", "abort"), ("client", "error")]
    bench.released("e1")
    assert bench.states() == {}


def test_the_answer_says_where_the_cancelled_request_stood() -> None:
    """So that it is known what was thrown away."""
    bench = Bench()
    bench.submit()
    assert asked(bench, AdminCancelMsg("r1")) == AdminDoneMsg("request r1 is cancelled; it was ENCODER_WAITING")


def test_a_request_that_has_ended_cannot_be_cancelled() -> None:
    """Neither while something of it is still in use, nor after."""
    bench = Bench("e1")
    bench.submit()
    order(bench, AdminCancelMsg("r1"))
    ended = refusal(InvalidRequest("request_id", "r1", "a request that lives; this one has ended"))
    assert asked(bench, AdminCancelMsg("r1")) == ended
    bench.released("e1")
    assert asked(bench, AdminCancelMsg("r1")) == ended


# ----------------------------------------------------------------------------------------------- story, names


def test_a_story_is_told_while_the_request_lives_and_after() -> None:
    """Line by line, with what time it is now."""
    bench = Bench()
    bench.submit()
    lines = tuple(bench.story())
    assert len(lines) > 0
    bench.now += 1.0
    bench.after(0.0)
    assert asked(bench, AdminStoryMsg("r1")) == AdminStoryReplyMsg("r1", lines, 101.0)
    order(bench, AdminCancelMsg("r1"))
    told = asked(bench, AdminStoryMsg("r1"))
    assert isinstance(told, AdminStoryReplyMsg)
    assert told.lines == tuple(bench.story())
    assert "cancelled by an operator" in told.lines[-1]


def test_an_instance_that_does_not_exist_is_refused_with_the_nearest_names() -> None:
    """Whatever is to be done with it."""
    bench = Bench("e1", "denoiser-0", "vae-0")
    for msg in (AdminDrainMsg("denosier-0"), AdminResumeMsg("denosier-0"), AdminInstanceMsg("denosier-0")):
        assert asked(bench, msg) == refusal(UnknownName("instance", "denosier-0", ["denoiser-0"]))


def test_a_request_that_does_not_exist_is_refused_with_the_nearest_names() -> None:
    """Live ones to be cancelled; ended ones too where their story is asked for; only a few."""
    bench = Bench()
    alike = [f"request-{number}" for number in range(2 * MOST_NEAR)]
    for request_id in (*alike, "other-1"):
        bench.submit(request_id)
    order(bench, AdminCancelMsg("other-1"))
    refused = asked(bench, AdminCancelMsg("request-x"))
    assert isinstance(refused, AdminErrorMsg)
    near = refused.error.details["near"]
    assert isinstance(near, list)
    assert (len(near), set(near) - set(alike)) == (MOST_NEAR, set())
    assert asked(bench, AdminCancelMsg("other-2")) == refusal(UnknownName("request", "other-2", []))
    assert asked(bench, AdminStoryMsg("other-2")) == refusal(UnknownName("request", "other-2", ["other-1"]))


def test_nothing_that_is_refused_changes_anything() -> None:
    """The state before and after is the same."""
    bench = Bench("e1")
    bench.submit()
    before = bench.server.status()
    for msg in (
        AdminDrainMsg("x"),
        AdminResumeMsg("x"),
        AdminInstanceMsg("x"),
        AdminCancelMsg("x"),
        AdminStoryMsg("x"),
    ):
        assert order(bench, msg) == []
    assert bench.server.status() == before


def test_an_instance_under_the_eyes_of_an_operator_is_the_one_in_the_status() -> None:
    """ADMIN_INSTANCE and ADMIN_STATUS tell the same."""
    bench = Bench("e1", "e2")
    bench.submit()
    assert tuple(instance(bench, name) for name in ("e1", "e2")) == bench.server.status().instances
    assert replace(instance(bench, "e1"), leases={}) != instance(bench, "e1")
