"""Whose turn it is: classes, tenants, deadlines, models, and which instance a request goes to."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.broker.machine.costs import cost_of
from triptych.broker.machine.estimates import UNKNOWN_S, Estimates
from triptych.broker.machine.queues import FairQueue
from triptych.broker.machine.records import Request, Tenant
from triptych.broker.machine.settings import TenantSettings
from triptych.schemas.client import ErrorMsg, PingMsg, QueuedMsg, SubmitMsg
from triptych.schemas.context import Priority
from triptych.schemas.errors import RequestCancelled
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingLimits, SamplingParams
from triptych.schemas.states import RequestState as S
from triptych.schemas.transfer import (
    TransferHeartbeatMsg,
    TransferProgressMsg,
    TransferReadyMsg,
    TransferStartedMsg,
    TransferWorkMsg,
)

from .kit import CLIENT, PARAMS, Bench, names, record_of, told, two_way_pool_of


def queue_of(*requests: Request, ageing_s: float = 60.0) -> FairQueue:
    queue = FairQueue(ageing_s, lambda tenant: not tenant.full)
    for request in requests:
        queue.put(request)
    return queue


def served(queue: FairQueue, count: int, cost: float = 1.0) -> list[Request]:
    """Take so many requests out, in their order."""
    taken: list[Request] = []
    for _ in range(count):
        request = queue.first()
        if request is not None:
            queue.take(request, cost)
            taken.append(request)
    return taken


def test_a_queue_keeps_the_order_of_arrival() -> None:
    """Requests of one tenant come out by arrival, whenever they were put back; parked ones wait aside but count."""
    requests = [record_of(f"r{number}", number) for number in range(4)]
    queue = queue_of(*reversed(requests))
    queue.park(requests[0])
    queue.discard(requests[1])
    assert (queue.first(), queue.first_parked(), len(queue)) == (requests[2], requests[0], 3)
    queue.put(requests[0])
    assert (queue.first(), queue.first_parked(), len(queue)) == (requests[0], None, 3)


def test_urgent_requests_come_first() -> None:
    """A better class is served before those that came earlier."""
    order = [Priority.LOW, Priority.NORMAL, Priority.HIGH]
    requests = [record_of(f"r{place}", place, priority=priority) for place, priority in enumerate(order)]
    assert [one.priority for one in served(queue_of(*requests), 3)] == order[::-1]


def test_no_class_starves() -> None:
    """Among urgent requests without end, one of a low class has its turn when it has waited two ageing times longer."""
    low = record_of("low", 0, priority=Priority.LOW, accepted_at=0.0)
    queue = queue_of(low, ageing_s=10.0)
    for second in range(60):
        queue.put(record_of(f"r{second}", second + 1, priority=Priority.HIGH, accepted_at=float(second)))
        if served(queue, 1) == [low]:
            assert second == 21
            return
    pytest.fail("it starved")


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=4), st.data())
def test_tenants_share_the_work_by_weight(weights: list[float], data: st.DataObject) -> None:
    """While all have requests waiting, each gets work in proportion to its weight, within the cost of one request."""
    tenants = [Tenant(f"t{place}", TenantSettings(weight)) for place, weight in enumerate(weights)]
    costs = {tenant.name: data.draw(st.sampled_from([1.0, 10.0, 100.0])) for tenant in tenants}
    queue = queue_of()
    arrival = 0
    for tenant in tenants:
        for _ in range(100):
            arrival += 1
            queue.put(record_of(f"r{arrival}", arrival, tenant=tenant))
    given_work = Counter[str]()
    while all(given_work[tenant.name] < 75 * costs[tenant.name] for tenant in tenants):
        request = queue.first()
        assert request is not None
        queue.take(request, costs[request.tenant.name])
        given_work[request.tenant.name] += costs[request.tenant.name]
    shares = [given_work[tenant.name] / tenant.settings.weight for tenant in tenants]
    largest = max(costs[tenant.name] / tenant.settings.weight for tenant in tenants)
    assert max(shares) - min(shares) <= 2 * largest


def test_an_idle_tenant_saves_nothing_up() -> None:
    """One that comes late gets its share from then on, not what it did not ask for before."""
    busy, late = Tenant("busy", TenantSettings()), Tenant("late", TenantSettings())
    queue = queue_of(*(record_of(f"b{number}", number, tenant=busy) for number in range(100)))
    served(queue, 50)
    for number in range(50):
        queue.put(record_of(f"l{number}", 200 + number, tenant=late))
    assert Counter(one.tenant.name for one in served(queue, 20)) == {"busy": 10, "late": 10}


def test_a_tenant_has_no_more_in_the_pools_than_it_may() -> None:
    """Its others wait, and those of other tenants pass them; each end lets the next one in."""
    bench = Bench("d1", "v1", tenants={"small": TenantSettings(max_running=1)})
    bench.register("e1", capacity=4)
    for number in range(3):
        bench.submit(f"s{number}", tenant="small")
    bench.submit("r1")
    assert bench.states() == {"ENCODER_RUNNING": 2, "ENCODER_WAITING": 2}
    bench.cancel("s0")
    assert bench.states() == {"ENCODER_RUNNING": 2, "ENCODER_WAITING": 1, "settling": 1}


def test_a_tenant_may_have_only_so_many_waiting() -> None:
    """One more is refused, with when to ask again; others are not."""
    bench = Bench(tenants={"small": TenantSettings(max_queued=1)})
    bench.submit("s0", tenant="small")
    refused = told(bench.submit("s1", tenant="small"))[0][1]
    assert (refused.error.code, refused.error.details["waiting"]) == ("tenant_limit", 1)
    assert names(bench.submit("r1")) == [("client", "queued")]


# ----------------------------------------------------------------------------------------------- deadlines


def known_times(**settings: object) -> Bench:
    """Return a bench that has seen a request take 1 s in each stage."""
    bench = Bench("e1", "d1", "v1", **settings)
    bench.submit("r0")
    for name in ("e1", "d1", "v1"):
        if name != "e1":
            bench.pushed({"d1": "e1", "v1": "d1"}[name], "r0")
        bench.say(name, TransferStartedMsg("r0", 1))
        bench.now += 1.0
        bench.done(name, "r0") if name == "v1" else bench.staged(name, "r0")
    return bench


def test_what_cannot_be_done_in_time_is_refused() -> None:
    """The stages take 3 s, and somebody gives 1."""
    refused = told(known_times().submit("r1", timeout_s=1.0))[0][1]
    assert refused.error.code == "deadline_unreachable"
    assert (refused.state, refused.error.details["needed_s"]) == (None, 3.0)


def test_ten_times_the_steps_take_ten_times_as_long() -> None:
    """The estimate is by cost: steps × pixels for the denoiser, pixels for the decoder."""
    estimates = Estimates()
    assert estimates.stage_s(PARAMS, Role.DENOISER) == UNKNOWN_S
    estimates.observe(PARAMS, Role.DENOISER, 2.0)
    longer = SamplingParams("a fox", num_inference_steps=10 * PARAMS.num_inference_steps, width=128)
    assert estimates.stage_s(longer, Role.DENOISER) == pytest.approx(40.0)
    assert cost_of(longer, Role.DECODER) == 2 * cost_of(PARAMS, Role.DECODER)


def test_what_cannot_be_done_in_time_any_more_is_dropped_as_soon_as_that_is_so() -> None:
    """It waits behind a long one, and ends before its time is over: when too little is left for its three stages."""
    bench = known_times()
    bench.submit("long")
    bench.submit("r1", timeout_s=10.0)
    assert told(bench.after(7.0, "e1", "d1", "v1")) == []
    ended = told(bench.after(1.0, "e1", "d1", "v1"))
    assert [(to, msg.state, msg.error.code) for to, msg in ended] == [("client", S.TIMED_OUT, "deadline_unreachable")]


def test_one_that_runs_has_all_its_time() -> None:
    """It is not stopped because the stages before it usually take longer."""
    bench = known_times()
    bench.submit("r1", timeout_s=4.0)
    assert told(bench.after(3.9, "e1", "d1", "v1")) == []
    assert told(bench.after(0.2, "e1", "d1", "v1"))[-1][1].error.code == "timed_out"


def test_the_time_that_is_left_goes_with_the_work() -> None:
    """An instance knows by when its work is of no use any more."""
    bench = Bench("e1", "d1")
    work = told(bench.submit("r1", timeout_s=20.0))[-1][1]
    bench.staged("e1")
    bench.now += 5.0
    ready = told(bench.pushed("e1"))[-1][1]
    assert isinstance(work, TransferWorkMsg)
    assert isinstance(ready, TransferReadyMsg)
    assert (work.context.left_s, ready.context.left_s) == (20.0, 15.0)


@pytest.mark.parametrize("own_limit_s", [None, 2.0])
def test_a_stage_that_takes_too_long_is_stopped(own_limit_s: float | None) -> None:
    """By the broker's limit or the request's own, the shorter one, though its instance sends heartbeats."""
    limits = {} if own_limit_s is None else {Role.ENCODER: own_limit_s}
    bench = Bench("e1", "e2", stage_timeout_s={Role.ENCODER: 4.0}, max_attempts=2)
    bench.submit("r1", stage_timeout_s=limits)
    limit_s = own_limit_s or 4.0
    assert told(bench.after(limit_s - 0.1, "e1", "e2")) == []
    assert names(bench.after(0.2, "e1", "e2")) == [("e1", "abort"), ("client", "retrying"), ("e2", "work")]


# ------------------------------------------------------------------------------------------------- models


def test_requests_go_to_the_pools_of_their_model() -> None:
    """Each model has queues and instances of its own; without a name, two models are one too many."""
    bench = Bench()
    bench.register("e1", models=("flux",))
    bench.register("e2", models=("wan", "sdxl"))
    assert names(bench.submit("r1", model="wan")) == [("client", "queued"), ("e2", "work")]
    assert names(bench.submit("r2", model="flux")) == [("client", "queued"), ("e1", "work")]
    for model in ("", "fluxx"):
        refused = told(bench.submit("r3", model=model))[0][1]
        assert (refused.error.details["field"], refused.error.details["allowed"]) == ("model", "one of flux, sdxl, wan")


def test_a_default_model_can_be_set() -> None:
    """It is what a request gets that names none."""
    bench = Bench(default_model="wan")
    bench.register("e1", models=("flux",))
    bench.register("e2", models=("wan",))
    assert names(bench.submit("r1")) == [("client", "queued"), ("e2", "work")]


def test_a_request_may_come_before_the_first_model() -> None:
    """Services and clients start in any order: who names no model gets the first one there is."""
    bench = Bench()
    assert names(bench.submit("r1")) == [("client", "queued")]
    registered = bench.register("e1", models=("flux",))
    assert ("e1", "work") in names(registered)
    assert bench.states() == {"ENCODER_RUNNING": 1}


def test_a_client_is_told_what_each_model_allows() -> None:
    """The limits of each come with the WELCOME, and the request is checked against its own model's."""
    bench = Bench()
    bench.register("e1", models=("flux",), limits=SamplingLimits(max_images=1))
    bench.register("e2", models=("wan",), limits=SamplingLimits(max_images=8))
    many = SamplingParams("a fox", num_images=4)
    assert names(bench.ask(SubmitMsg("r1", many, model="flux"))) == [("client", "error")]
    assert names(bench.ask(SubmitMsg("r2", many, model="wan"))) == [("client", "queued"), ("e2", "work")]


def test_an_instance_that_has_the_model_in_memory_comes_first() -> None:
    """Another one, as free, would have to load it."""
    bench = Bench()
    for name, loaded in (("e1", ()), ("e2", ("wan",))):
        bench.register(name, models=("flux", "wan"))
        bench.say(name, TransferHeartbeatMsg(loaded=loaded))
    assert names(bench.submit("r1", model="wan"))[-1] == ("e2", "work")
    assert names(bench.submit("r2", model="wan"))[-1] == ("e1", "work")


# ---------------------------------------------------------------------------------------------- instances


def test_the_least_loaded_is_the_one_with_the_least_work() -> None:
    """What an instance has done of a request counts no more."""
    bench = known_times()
    bench.register("e2", capacity=3)
    bench.register("e3", capacity=3)
    bench.say("e1", TransferHeartbeatMsg())
    picks = {names(bench.submit(f"r{number}"))[-1] for number in range(1, 4)}
    assert picks == {("e1", "work"), ("e2", "work"), ("e3", "work")}
    bench.say("e3", TransferProgressMsg("r2", 1, 1, 2))
    assert names(bench.submit("r4"))[-1] == ("e3", "work")


def test_a_receiver_on_the_senders_host_comes_first_when_loads_are_about_equal() -> None:
    """Its input need not move. One that has much less to do is picked wherever it is."""
    bench = Bench()
    bench.register("e1", pool=two_way_pool_of("e1", "here"))
    bench.register("d1", pool=two_way_pool_of("d1", "there"), capacity=4, receive_slots=())
    bench.register("d2", pool=two_way_pool_of("d2", "here"), capacity=4, receive_slots=())
    bench.submit("r1")
    assert names(bench.staged("e1", "r1"))[-1] == ("d2", "ready")
    bench.submit("r2")
    assert names(bench.staged("e1", "r2"))[-1] == ("d1", "alloc")


def test_eight_too_small_pools_do_not_hide_a_large_one() -> None:
    """However many free instances cannot hold the input, the one that can is found."""
    bench = Bench("e1")
    for number in range(20):
        bench.register(f"d{number}", pool=two_way_pool_of(f"d{number}", "there", 512), receive_slots=())
    bench.register("d99", pool=two_way_pool_of("d99", "there"), receive_slots=())
    bench.submit("r1")
    assert names(bench.staged("e1", "r1"))[-1] == ("d99", "alloc")


# ------------------------------------------------------------------------------------------ disconnection


def test_a_request_may_end_with_its_client() -> None:
    """One that asked for it is cancelled when nothing was heard of the client for a while; others go on."""
    bench = Bench("e1", "e2", client_lease_s=10.0)
    bench.submit("r1", cancel_on_disconnect=True)
    bench.submit("r2")
    bench.after(8.0, "e1", "e2")
    bench.ask(PingMsg(("r1", "r2")))
    assert told(bench.after(8.0, "e1", "e2")) == []
    ended = bench.after(4.0, "e1", "e2")
    assert names(ended) == [("e1", "abort"), ("client", "error")]
    error = told(ended)[-1][1]
    assert isinstance(error, ErrorMsg)
    assert (error.state, error.error) == (S.CANCELLED, RequestCancelled("disconnect").info())
    assert bench.states() == {"ENCODER_RUNNING": 1, "settling": 1}


def test_a_position_counts_everybody_who_waits() -> None:
    """Those that wait for a denoiser are in front of a new request too."""
    bench = Bench("e1", "v1")
    bench.submit("r1")
    bench.staged("e1", "r1")
    bench.submit("r2")
    assert told(bench.submit("r3"))[0] == ("client", QueuedMsg("r3", 1, (Role.DENOISER,)))
    assert CLIENT == b"client"
