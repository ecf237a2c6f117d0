"""What a run has shown, as plain values: for a table, for JSON, and for whoever compares two runs."""

from collections.abc import Iterable
from math import ceil

from msgspec import Struct

from ..schemas.roles import Role
from .histogram import Histogram
from .meter import Meter
from .observations import StageSeen, TenantSeen
from .plan import Plan
from .simulation import Simulation


class Quantiles(Struct, frozen=True):
    """Of a time, in seconds: the mean and the maximum exactly, the others to one part in a hundred."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


class PoolReport(Struct, frozen=True):
    """One role."""

    role: Role
    instances: int
    #: the part of the window in which its instances computed
    utilisation: float
    #: how many of its instances computed, on average
    load: float
    #: the fewest instances, as fast as these, that would not be busier at this throughput than the bottleneck is
    enough: int
    #: in the broker's queue, for a place on an instance
    queue: Quantiles
    #: on the instance, with the input at hand, for the compute thread
    wait: Quantiles
    compute: Quantiles
    #: requests that waited for the stage, over the whole run
    mean_waiting: float
    peak_waiting: int


class TenantReport(Struct, frozen=True):
    """One tenant."""

    name: str
    weight: float
    #: what became of its requests that came after the warm-up
    outcomes: dict[str, int]
    latency: Quantiles
    #: its part of the work of all results in the window
    share: float
    #: its part of the work that was given out while every tenant had requests waiting; None: that was never so
    contended_share: float | None
    #: what its weight gives it then
    fair_share: float


class MessageCost(Struct, frozen=True):
    """What messages of one kind cost the machine."""

    kind: str
    events: int
    #: processor time of one, in microseconds
    cost_us: float


class MachineReport(Struct, frozen=True):
    """What the machine cost. Of all this report, the costs alone depend on the computer."""

    events: int
    events_per_request: float
    #: messages that changed nothing
    ignored: int
    #: processor time of an event, in microseconds
    cost_us: float
    by_message: tuple[MessageCost, ...]


class Report(Struct, frozen=True):
    """The whole run."""

    seed: int
    submitted: int
    #: what became of all requests: a last state, or why it was not accepted
    outcomes: dict[str, int]
    retries: int
    #: until the last request had ended, in seconds
    simulated_s: float
    #: how much of that is counted, in seconds
    window_s: float
    #: results in the window
    throughput_per_s: float
    #: from submit to result, of those that came after the warm-up
    latency: Quantiles
    pools: tuple[PoolReport, ...]
    #: the role that was busiest, or has no instance at all
    bottleneck: Role
    tenants: tuple[TenantReport, ...]
    #: Jain's index of work over weight while every tenant had requests waiting, 1 is fair; None: that was never so
    fairness: float | None
    #: instances by what happened to them
    instances: dict[str, int]
    machine: MachineReport


def report_of(simulation: Simulation) -> Report:
    """Return what a simulation that is over has shown."""
    plan, seen = simulation.plan, simulation.seen
    window_s = seen.window_s
    loads = {role: _part(seen.stages[role].busy_s, window_s) for role in Role}
    used = {role: _part(loads[role], plan.pool(role).size) for role in Role}
    bottleneck = max(Role, key=lambda role: (not plan.pool(role).size, used[role]))
    pools = tuple(
        _pool_report(plan, role, seen.stages[role], (loads[role], used[role], used[bottleneck]), seen.last_end)
        for role in Role
    )
    return Report(
        seed=plan.run.seed,
        submitted=simulation.submitted,
        outcomes=_sorted(seen.outcomes),
        retries=seen.retries,
        simulated_s=seen.last_end,
        window_s=window_s,
        throughput_per_s=_part(seen.results, window_s),
        latency=_quantiles(seen.latency),
        pools=pools,
        bottleneck=bottleneck,
        tenants=_tenant_reports(seen.tenants),
        fairness=jain(tenant.contended_s / tenant.weight for tenant in seen.tenants),
        instances=_sorted(seen.instances),
        machine=_machine_report(simulation.meter, simulation.submitted, seen.ignored),
    )


def jain(values: Iterable[float]) -> float | None:
    """Return Jain's index of fairness: 1 where all are alike, 1/n where one has everything; None where nobody has."""
    given = list(values)
    squares = sum(value * value for value in given)
    return sum(given) ** 2 / (len(given) * squares) if squares else None


def _pool_report(
    plan: Plan, role: Role, stage: StageSeen, figures: tuple[float, float, float], until: float
) -> PoolReport:
    load, used, most_used = figures
    pool = plan.pool(role)
    return PoolReport(
        role=role,
        instances=pool.size,
        utilisation=used,
        load=load,
        enough=max(1, ceil(_part(load, most_used) - 1e-9)) if load else 0,
        queue=_quantiles(stage.queue),
        wait=_quantiles(stage.wait),
        compute=_quantiles(stage.compute),
        mean_waiting=_part(stage.waiting.area(until), until),
        peak_waiting=stage.waiting.peak,
    )


def _tenant_reports(tenants: list[TenantSeen]) -> tuple[TenantReport, ...]:
    work_s = sum(tenant.work_s for tenant in tenants)
    contended_s = sum(tenant.contended_s for tenant in tenants)
    weights = sum(tenant.weight for tenant in tenants)
    return tuple(
        TenantReport(
            name=tenant.name,
            weight=tenant.weight,
            outcomes=_sorted(tenant.outcomes),
            latency=_quantiles(tenant.latency),
            share=_part(tenant.work_s, work_s),
            contended_share=tenant.contended_s / contended_s if contended_s else None,
            fair_share=tenant.weight / weights,
        )
        for tenant in tenants
    )


def _machine_report(meter: Meter, submitted: int, ignored: int) -> MachineReport:
    events = meter.events
    costs = sorted(meter.by_kind.items(), key=lambda item: -item[1].spent_ns)
    return MachineReport(
        events=events,
        events_per_request=_part(events, submitted),
        ignored=ignored,
        cost_us=_part(meter.spent_s * 1e6, events),
        by_message=tuple(
            MessageCost(kind.__name__, cost.events, _part(cost.spent_ns / 1e3, cost.events)) for kind, cost in costs
        ),
    )


def _quantiles(histogram: Histogram) -> Quantiles:
    p50, p95, p99 = (histogram.quantile(part) for part in (0.5, 0.95, 0.99))
    return Quantiles(histogram.mean, p50, p95, p99, histogram.largest)


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _part(value: float, whole: float) -> float:
    return value / whole if whole else 0.0
