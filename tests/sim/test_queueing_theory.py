"""What queueing theory proves, the simulator finds: the machine queues and the clock counts as they should."""

from math import factorial

import pytest

from triptych.schemas.roles import Role
from triptych.sim.distributions import Constant, Exponential
from triptych.sim.plan import Closed, Poisson, Run, Traffic
from triptych.sim.report import report_of
from triptych.sim.simulation import Simulation

from .kit import plan, pool, run

REQUESTS = 7_000
RATE = 0.6
#: of each stage, at one instance each
BUSY = {Role.ENCODER: 0.6, Role.DENOISER: 0.48, Role.DECODER: 0.66}


@pytest.fixture(scope="module")
def tandem() -> Simulation:
    """Three single servers in a row; by Burke's theorem each sees Poisson arrivals, as M/M/1 lets them out."""
    return run(
        plan(
            encoder=pool(Exponential(1.0)),
            denoiser=pool(Exponential(0.8)),
            decoder=pool(Constant(1.1)),
            traffic=(Traffic(Poisson(RATE)),),
            run=Run(requests=REQUESTS, heartbeats=False, progress_every=0, seed=5),
        )
    )


def test_instances_are_busy_for_as_long_as_the_work_takes(tandem: Simulation) -> None:
    """Utilisation is the arrival rate times the mean time, over the instances."""
    found = {pool.role: pool.utilisation for pool in report_of(tandem).pools}
    assert found == pytest.approx(BUSY, rel=0.03)


@pytest.mark.parametrize("role", [Role.ENCODER, Role.DENOISER])
def test_an_exponential_server_has_the_waits_of_m_m_1(tandem: Simulation, role: Role) -> None:
    """The mean wait is ρ/(1 - ρ) times the mean time, and no wait at all has the probability 1 - ρ."""
    stage, busy = tandem.seen.stages[role], BUSY[role]
    assert stage.queue.mean == pytest.approx(busy / (1 - busy) * stage.compute.mean, rel=0.08)
    assert stage.queue.quantile(1 - busy - 0.03) == 0
    assert stage.queue.quantile(1 - busy + 0.03) > 0


def test_a_server_of_constant_time_has_the_waits_of_m_d_1(tandem: Simulation) -> None:
    """The mean wait is half of that of M/M/1."""
    stage, busy = tandem.seen.stages[Role.DECODER], BUSY[Role.DECODER]
    assert stage.queue.mean == pytest.approx(busy / (1 - busy) / 2 * 1.1, rel=0.08)


def test_littles_law_holds_to_the_last_bit(tandem: Simulation) -> None:
    """What the machine says each request waited adds up to what was seen waiting, over time; so do whole lives."""
    seen = tandem.seen
    for stage in seen.stages.values():
        assert stage.queue.count == REQUESTS
        assert stage.waiting.area(seen.last_end) == pytest.approx(stage.queue.total, rel=1e-9)
    assert seen.live.area(seen.last_end) == pytest.approx(seen.sojourn_s, rel=1e-9)
    assert seen.latency.total == pytest.approx(seen.sojourn_s, rel=1e-9)


def test_several_instances_share_one_queue_as_m_m_c_does() -> None:
    """The mean wait is that of Erlang's C: no request waits while an instance is free."""
    servers, busy = 4, 0.6
    load = servers * busy
    delayed = load**servers / factorial(servers) / (1 - busy)
    waits = delayed / (sum(load**n / factorial(n) for n in range(servers)) + delayed)
    stage = run(
        plan(
            denoiser=pool(Exponential(1.0), servers),
            traffic=(Traffic(Poisson(load)),),
            run=Run(requests=REQUESTS, heartbeats=False, progress_every=0, seed=2),
        )
    ).seen.stages[Role.DENOISER]
    assert stage.queue.mean == pytest.approx(waits / (servers * (1 - busy)), rel=0.08)
    assert stage.queue.quantile(1 - waits - 0.03) == 0
    assert stage.queue.quantile(1 - waits + 0.03) > 0


def test_closed_clients_are_as_many_as_they_are() -> None:
    """In a closed loop throughput × (latency + thinking) is how many they are, and the slowest pool sets the pace."""
    shown = report_of(
        run(
            plan(
                denoiser=pool(Exponential(1.0), 2),
                traffic=(Traffic(Closed(10, Exponential(3.0))),),
                run=Run(duration_s=2000, warm_up_s=100, heartbeats=False, progress_every=0),
            )
        )
    )
    assert shown.throughput_per_s * (shown.latency.mean_s + 3.0) == pytest.approx(10, rel=0.02)
    assert shown.bottleneck is Role.DENOISER
    assert shown.throughput_per_s == pytest.approx(2.0 * shown.pools[1].utilisation, rel=0.03)
