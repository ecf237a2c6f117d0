"""Clusters in good and bad times: what services say, who gets what, and that nothing is lost or left behind."""

import gc
from random import Random

import pytest
from msgspec.structs import replace

from triptych.broker.machine.settings import DispatchSettings, PolicyName, TenantSettings
from triptych.schemas.context import Priority
from triptych.schemas.roles import Role
from triptych.sim.distributions import Constant, Exponential, Lognormal
from triptych.sim.plan import (
    Burst,
    Closed,
    Diurnal,
    Failures,
    MixEntry,
    Network,
    Others,
    Plan,
    Poisson,
    Run,
    Shape,
    Traffic,
)
from triptych.sim.report import report_of
from triptych.sim.simulation import Simulation

from .kit import events_of, plan, pool, report, run, without_costs

QUIET = Run(requests=200, heartbeats=False, progress_every=0)
APART = Network(latency_s=0.001, hosts=0)


def stormy(policy: PolicyName, network: Network) -> Plan:
    """Everything that can go wrong does: crashes, attempts that fail, queues that are full, clients that give up."""
    return plan(
        encoder=pool(Exponential(0.2), 3, failures=Failures(40.0, 5.0, attempts=0.05)),
        denoiser=pool(Lognormal(1.0, p99_s=3.0), 4, 2, others=(Others(2, 0.5, 1),), failures=Failures(30.0, 5.0)),
        decoder=pool(Exponential(0.3), 2, 2, failures=Failures(50.0, 5.0, attempts=0.05), receive_slots=1),
        traffic=(
            Traffic(Poisson(4.0), "many", timeout_s=8.0, patience=Exponential(20.0)),
            Traffic(Burst(30, 10.0, 60.0), "few", Priority.HIGH, (MixEntry(width=512), MixEntry(num_images=4))),
            Traffic(Closed(5, Constant(1.0)), "loop", Priority.LOW),
        ),
        run=Run(requests=900, warm_up_s=5.0, progress_every=5, seed=3),
        network=network,
        broker=DispatchSettings(policy, max_queued=20, max_staged=4, max_attempts=2),
    )


@pytest.mark.parametrize("hosts", [0, 2], ids=["moved", "in place"])
@pytest.mark.parametrize("policy", PolicyName)
def test_in_a_storm_every_request_ends_once_and_nothing_is_left(policy: PolicyName, hosts: int) -> None:
    """`run` checks the ends, the machine and the services; here, that there was a storm at all."""
    shown = report(stormy(policy, replace(APART, hosts=hosts)))
    assert shown.outcomes.keys() >= {"DONE", "FAILED", "TIMED_OUT", "CANCELLED", "overloaded"}
    assert shown.retries > 0
    assert shown.instances["registered"] > 11
    assert events_of(shown).keys() >= {"Failed", "Released", "ServiceVanished", "Progress", "Heartbeat"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_no_storm_shakes_the_machine(seed: int) -> None:
    """Sixty clusters with latencies, restarts and bounds as they come; all is checked at each fiftieth deed."""
    pick = Random(seed).choice
    network = replace(
        APART, hosts=pick([0, 0, 1, 2, 3]), latency_s=pick([0.0, 0.001, 0.05]), setup_s=pick([0.001, 3.0])
    )
    storm = stormy(pick(list(PolicyName)), network)
    limits = pick([{}, {Role.DENOISER: 2.0}])
    broker = replace(storm.broker, max_attempts=pick([1, 2, 5]), max_staged=pick([1, 4, 50]), stage_timeout_s=limits)
    restarts = Failures(40.0, pick([0.0, 0.5, 20.0]), pick([True, False]), 0.05)
    wanted = replace(
        storm,
        broker=replace(broker, lease_s=pick([2.0, 5.0])),
        encoder=replace(storm.encoder, failures=restarts),
        denoiser=replace(storm.denoiser, failures=replace(restarts, attempts=0.1), receive_slots=pick([None, 0, 1])),
        run=replace(storm.run, seed=seed, requests=700, heartbeats=pick([True, True, False])),
    )
    assert run(wanted, check_each=50).seen.outcomes["DONE"] > 0


def test_a_run_leaves_no_cycles_behind() -> None:
    """What has ended goes at once, so neither a simulation nor a broker needs Python's collector."""
    simulation = Simulation(stormy(PolicyName.LEAST_LOADED, APART))
    gc.collect()
    simulation.run()
    assert gc.collect() == 0


def test_the_same_seed_is_the_same_run() -> None:
    """Down to the last bit of every figure but the costs; another seed is another run."""
    wanted = stormy(PolicyName.LEAST_LOADED, APART)
    first, again = (without_costs(report(wanted)) for _ in range(2))
    assert first == again
    other = without_costs(report(replace(wanted, run=replace(wanted.run, seed=4))))
    assert other.latency != first.latency


def test_in_a_rolling_update_no_request_notices_anything() -> None:
    """An instance that drains ends what it has, is dismissed and comes back; nothing is tried again."""
    rolling = Failures(20.0, 2.0, graceful=True)
    shown = report(
        plan(
            encoder=pool(Exponential(0.2), 3, failures=rolling),
            denoiser=pool(Exponential(1.0), 5, 2, failures=rolling),
            decoder=pool(Exponential(0.2), 3, failures=rolling),
            traffic=(Traffic(Poisson(2.0)),),
            run=replace(QUIET, requests=400),
            network=APART,
        )
    )
    assert (shown.outcomes, shown.retries) == ({"DONE": 400}, 0)
    assert shown.instances["left"] > 20


def test_inputs_are_read_in_place_on_one_host_and_pushed_between_hosts() -> None:
    """Two hops a request: without a push, with one each, or with a slot that is asked for first."""
    shown = [
        events_of(report(plan(run=QUIET, network=network, denoiser=pool(receive_slots=slots))))
        for network, slots in ((replace(APART, hosts=1), None), (APART, None), (APART, 0))
    ]
    assert [each.get("Pushed", 0) for each in shown] == [0, 400, 400]
    assert [each.get("Allocated", 0) for each in shown] == [0, 0, 200]


def test_a_request_takes_what_its_stages_and_hops_take() -> None:
    """Added up by hand: eight messages in turn, two writes, copies at each end, three stages."""
    nbytes = 4096
    network = Network(latency_s=0.01, setup_s=0.1, bytes_per_s=nbytes / 0.2, copy_bytes_per_s=nbytes / 0.05, hosts=0)
    shown = report(
        plan(
            encoder=pool(Constant(1.0), output_bytes=nbytes),
            denoiser=pool(Constant(5.0), output_bytes=nbytes),
            decoder=pool(Constant(2.0), output_bytes=0),
            traffic=(Traffic(Burst(1)),),
            run=replace(QUIET, requests=1),
            network=network,
        )
    )
    submit_and_result, work_and_staged = 2 * 0.01, 2 * 0.01
    hop = 4 * 0.01 + 0.1 + 0.2 + 2 * 0.05  # PUSH, PUSHED, READY and the answer; the write; out of and into a device
    assert shown.latency.max_s == pytest.approx(submit_and_result + work_and_staged + 2 * hop + 8.0)


def test_time_grows_with_steps_and_pixels() -> None:
    """A request of twice the steps and four times the pixels takes eight times as long to denoise, four to decode."""
    of = Shape(steps=10, width=64, height=64)
    seen = run(
        plan(
            encoder=pool(Constant(1.0), time_of=of),
            denoiser=pool(Constant(1.0), time_of=of),
            decoder=pool(Constant(1.0), time_of=of),
            traffic=(Traffic(Burst(1), mix=(MixEntry(steps=20, width=128, height=128),)),),
            run=replace(QUIET, requests=1),
        )
    ).seen
    assert {role: stage.compute.mean for role, stage in seen.stages.items()} == {
        Role.ENCODER: 1.0,
        Role.DENOISER: 8.0,
        Role.DECODER: 4.0,
    }


def test_a_fast_instance_takes_less_time() -> None:
    """A speed of 4 is a quarter of the time."""
    fast = run(plan(denoiser=pool(Constant(2.0), speed=4.0), run=QUIET)).seen.stages[Role.DENOISER]
    assert fast.compute.largest == 0.5


def test_prefetching_hides_the_transfer() -> None:
    """With a second place on the instance the next input loads while one computes; with one place, after it."""
    network = Network(latency_s=0.0, setup_s=1.0, hosts=0)

    def busy(capacity: int) -> float:
        wanted = plan(
            denoiser=pool(Constant(1.0), 1, capacity), traffic=(Traffic(Burst(200)),), run=QUIET, network=network
        )
        return report(wanted).pools[1].utilisation

    assert busy(1) == pytest.approx(0.5, abs=0.02)
    assert busy(2) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_tenants_share_the_work_by_weight(weight: float) -> None:
    """While both have requests waiting, each gets what its weight gives it, though one came first with all it has."""
    shown = report(
        plan(
            denoiser=pool(Constant(1.0), 2),
            traffic=(Traffic(Burst(300), "early"), Traffic(Burst(300), "late")),
            run=replace(QUIET, requests=600),
            broker=DispatchSettings(max_staged=4, tenants={"early": TenantSettings(weight)}),
        )
    )
    early, late = shown.tenants
    assert early.contended_share == pytest.approx(weight / (weight + 1), abs=0.02)
    assert late.fair_share == pytest.approx(1 / (weight + 1))
    assert shown.fairness == pytest.approx(1.0, abs=0.01)


def test_without_contention_there_is_no_fairness_to_speak_of() -> None:
    """Nobody waits, so nobody can be treated unfairly."""
    shown = report(plan(traffic=(Traffic(Poisson(1.0), "a"), Traffic(Poisson(1.0), "b")), run=QUIET))
    assert (shown.fairness, [tenant.contended_share for tenant in shown.tenants]) == (None, [None, None])


def test_the_urgent_wait_less() -> None:
    """Of the same requests at the same time, those of a better class are served first."""
    shown = report(
        plan(
            denoiser=pool(Constant(1.0), 1),
            traffic=(
                Traffic(Closed(10), "urgent", Priority.HIGH),
                Traffic(Closed(10), "patient", Priority.LOW),
            ),
            run=Run(requests=300, heartbeats=False, progress_every=0),
            broker=DispatchSettings(max_staged=1),
        )
    )
    patient, urgent = shown.tenants
    assert urgent.latency.p95_s < patient.latency.p50_s


def test_the_busiest_pool_is_the_bottleneck_and_the_others_have_too_many() -> None:
    """At the throughput that 4 denoisers of 1 s allow, 2 decoders of 0.5 s and 1 encoder of 0.1 s are enough."""
    shown = report(
        plan(
            encoder=pool(Constant(0.1), 8),
            denoiser=pool(Constant(1.0), 4),
            decoder=pool(Constant(0.45), 8),
            traffic=(Traffic(Closed(40)),),
            run=Run(duration_s=300, warm_up_s=50, heartbeats=False, progress_every=0),
        )
    )
    assert shown.bottleneck is Role.DENOISER
    assert shown.throughput_per_s == pytest.approx(4.0, rel=0.02)
    assert [pool.enough for pool in shown.pools] == [1, 4, 2]


def test_a_day_has_a_quiet_and_a_busy_half() -> None:
    """A full swing leaves about nobody at the start of the period, and twice the mean in its middle."""
    simulation = run(
        plan(
            denoiser=pool(Constant(1.0), 500),
            traffic=(Traffic(Diurnal(5.0, 1.0, 100.0)),),
            run=Run(duration_s=100, heartbeats=False, progress_every=0),
        )
    )
    shown = report_of(simulation)
    assert shown.submitted == pytest.approx(500, rel=0.1)
    assert simulation.seen.live.peak == pytest.approx(10, abs=8)


def test_bursts_come_when_they_are_planned() -> None:
    """Three bursts of 10, at 5 s, 25 s and 45 s."""
    simulation = run(
        plan(
            denoiser=pool(Constant(1.0), 100),
            traffic=(Traffic(Burst(10, 5.0, 20.0)),),
            run=Run(duration_s=50, heartbeats=False, progress_every=0),
        )
    )
    assert (simulation.submitted, simulation.seen.live.peak, simulation.seen.last_end) == (30, 10, pytest.approx(46.0))


def test_services_send_heartbeats_as_they_are_told() -> None:
    """Three instances, one each ten seconds; none where the plan wants none."""
    told = plan(
        traffic=(Traffic(Burst(1, 100.0)),),
        run=Run(requests=1),
        broker=DispatchSettings(heartbeat_s=10.0, lease_s=30.0),
    )
    silent = replace(told, run=Run(requests=1, heartbeats=False))
    assert events_of(report(told))["Heartbeat"] == pytest.approx(30, abs=3)
    assert events_of(report(silent)).get("Heartbeat", 0) <= 1


def test_without_instances_requests_run_out_of_time() -> None:
    """As they do at a true broker; and the run ends."""
    shown = report(
        plan(denoiser=pool(instances=0), traffic=(Traffic(Burst(3), timeout_s=30.0),), run=replace(QUIET, requests=3))
    )
    assert (shown.outcomes, shown.bottleneck) == ({"TIMED_OUT": 3}, Role.DENOISER)
    assert shown.simulated_s == pytest.approx(30.0)


def test_what_happens_in_the_warm_up_is_not_counted() -> None:
    """The burst at the start waits for long, and shows nowhere but in the outcomes."""
    shown = report(
        plan(
            denoiser=pool(Constant(1.0), 1),
            traffic=(Traffic(Burst(50)), Traffic(Burst(1, 100.0, 10.0))),
            run=Run(duration_s=200, warm_up_s=90, heartbeats=False, progress_every=0),
        )
    )
    assert shown.outcomes == {"DONE": 60}
    assert shown.latency.max_s == pytest.approx(1.0)
    assert shown.throughput_per_s == pytest.approx(10 / 110)
