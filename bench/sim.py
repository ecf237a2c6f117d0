"""What the broker's machine costs as a cluster grows: 10 to 10,000 instances, 1,000,000 requests.

The load of each instance is the same at all sizes, and so is what a request says: hops between hosts, progress,
heartbeats, two tenants. Each size is a process of its own. `python -m bench.sim 100000` makes less of it.
"""

import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import process_time

from msgspec import Struct

from triptych.broker.machine.settings import DispatchSettings, TenantSettings
from triptych.sim.distributions import Exponential, Lognormal
from triptych.sim.plan import MixEntry, Network, Plan, Poisson, PoolPlan, Run, Traffic
from triptych.sim.report import Report, report_of
from triptych.sim.simulation import Simulation

from .report import Disturbance, Metric, write_report

SIZES = (10, 100, 1_000, 10_000)
REQUESTS = 1_000_000
#: the smaller ones see as much as they need for a steady state
SMALLER_REQUESTS = 50_000
MOST_GROWTH = 1.5
#: requests between two lines of progress
TOLD_EACH = 50_000
DENOISE_S = 4.0
BUSY = 0.85


class Seen(Struct, frozen=True):
    """One run."""

    report: Report
    #: processor time of all of it
    spent_s: float
    peak_bytes: int


def plan_of(instances: int, requests: int) -> Plan:
    """Return a cluster of one encoder and one decoder for each three denoisers, which are the bottleneck."""
    sides = instances // 5
    denoisers = instances - 2 * sides
    rate = BUSY * denoisers / DENOISE_S
    side_s = 0.6 * sides / rate
    mix = (MixEntry(steps=20), MixEntry(steps=30, weight=0.5))
    return Plan(
        encoder=PoolPlan(Exponential(side_s), sides),
        denoiser=PoolPlan(Lognormal(DENOISE_S, p99_s=3 * DENOISE_S), denoisers),
        decoder=PoolPlan(Exponential(side_s), sides),
        traffic=(Traffic(Poisson(rate / 2), "one", mix=mix), Traffic(Poisson(rate / 2), "other", mix=mix)),
        run=Run(requests=requests, progress_every=5),
        broker=DispatchSettings(heartbeat_s=10.0, lease_s=30.0, max_queued=100_000, tenants={"one": TenantSettings(2)}),
        network=Network(hosts=0),
    )


def measure(instances: int, requests: int) -> Seen:
    """Run one size, in this process."""
    begun = process_time()
    simulation = Simulation(plan_of(instances, requests))
    simulation.run(_progress(instances))
    simulation.server.check()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Seen(report_of(simulation), process_time() - begun, peak_bytes)


def _progress(instances: int) -> Callable[[Simulation], None]:
    """Return what says to standard error how far a run is, now and then."""
    told = 0

    def tell(simulation: Simulation) -> None:
        nonlocal told
        if simulation.submitted >= told + TOLD_EACH:
            told = simulation.submitted
            print(f"{instances:,} instances: {told:,} requests", file=sys.stderr, flush=True)

    return tell


def main(requests: int) -> None:
    """Run all sizes, the smallest before and after the others, and write the report."""
    disturbance = Disturbance()
    order = (*SIZES, SIZES[0])
    counts = (*[min(requests, SMALLER_REQUESTS)] * (len(SIZES) - 1), requests, min(requests, SMALLER_REQUESTS))
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        runs = [pool.submit(measure, size, count).result() for size, count in zip(order, counts, strict=True)]
    *growing, again = runs
    smallest = min(growing[0].report.machine.cost_us, again.report.machine.cost_us)
    largest = growing[-1]
    ended = largest.report.outcomes.get("DONE", 0)
    metrics = {
        "cost_10000_vs_10_instances": Metric(largest.report.machine.cost_us / smallest, MOST_GROWTH, "lower"),
        "requests_done_of_submitted": Metric(ended / largest.report.submitted, 1.0, "higher"),
        **{
            f"cost_{size}_instances": Metric(seen.report.machine.cost_us, None, "lower", "µs/event")
            for size, seen in zip(SIZES, growing, strict=True)
        },
        "cost_10_instances_again": Metric(again.report.machine.cost_us, None, "lower", "µs/event"),
        "events_a_request": Metric(largest.report.machine.events_per_request, None, "lower", "events"),
        "simulated_requests_a_second": Metric(requests / largest.spent_s, None, "higher", "1/s"),
        "peak_memory": Metric(largest.peak_bytes / 2**20, None, "lower", "MiB"),
    }
    kinds = {cost.kind: cost.cost_us for cost in growing[0].report.machine.by_message}
    growth = ", ".join(
        f"{cost.kind} {kinds[cost.kind]:.1f} → {cost.cost_us:.1f}"
        for cost in largest.report.machine.by_message
        if cost.kind in kinds
    )
    write_report(
        "sim",
        metrics,
        [
            f"{requests:,} requests on {SIZES[-1]:,} instances; the others had {min(requests, SMALLER_REQUESTS):,}",
            f"µs from {SIZES[0]} to {SIZES[-1]:,} instances: {growth}",
            f"others kept {disturbance.cores():.1f} cores busy",
        ],
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS)
