"""`triptych sim`: a plan comes true in a moment, and what it shows is printed."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import msgspec
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from ...sim.report import PoolReport, Quantiles, Report, TenantReport, report_of
from ...sim.simulation import Simulation
from ..plans import load_plan, parse_instances, parse_override

#: between two lines of progress, in seconds
PROGRESS_S = 2.0


def simulate_plan(
    plan: Path, instances: Sequence[str], changes: Sequence[str], seed: int | None, *, as_json: bool
) -> None:
    """Run the plan, changed as the options say, and print its report."""
    overrides = dict([*map(parse_instances, instances), *map(parse_override, changes)])
    if seed is not None:
        overrides["run.seed"] = seed
    simulation = Simulation(load_plan(plan, overrides))
    simulation.run(_Progress())
    report = report_of(simulation)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    else:
        Console(highlight=False, soft_wrap=True).print(report_view(report))


class _Progress:
    """Says to standard error, now and then, how far a run is; nothing of a short one."""

    def __init__(self) -> None:
        self._begun = self._told = monotonic()

    def __call__(self, simulation: Simulation) -> None:
        """Tell how far it is, if it is time again."""
        now = monotonic()
        if now - self._told < PROGRESS_S:
            return
        self._told = now
        most = simulation.plan.run.requests
        of = "" if most is None else f" of {most:,}"
        print(  # noqa: T201
            f"{now - self._begun:.0f} s: {simulation.submitted:,}{of} requests, {simulation.live:,} live, "
            f"{simulation.agenda.now:,.1f} s simulated",
            file=sys.stderr,
            flush=True,
        )


def report_view(report: Report) -> Group:
    """Return the report for people."""
    parts: list[Table | str] = [_summary(report), _pool_table(report.pools), _bottleneck(report)]
    if len(report.tenants) > 1:
        parts += [_tenant_table(report.tenants), _fairness(report)]
    return Group(*parts, _machine(report))


def _summary(report: Report) -> str:
    ends = ", ".join(f"{count:,} {outcome}" for outcome, count in report.outcomes.items())
    return (
        f"[bold]{report.throughput_per_s:.4g}[/] results/s over {report.window_s:,.0f} s "
        f"of {report.simulated_s:,.0f} simulated; {report.submitted:,} requests: {ends}; {report.retries:,} retries\n"
        f"latency: {_times(report.latency)}"
    )


def _pool_table(pools: tuple[PoolReport, ...]) -> Table:
    table = Table(title="pools; times in seconds", title_justify="left")
    table.add_column("")
    for pool in pools:
        table.add_column(pool.role, justify="right")
    for name, cells in _POOL_ROWS.items():
        table.add_row(name, *map(cells, pools))
    return table


_POOL_ROWS: Mapping[str, Callable[[PoolReport], str]] = {
    "instances": lambda pool: f"{pool.instances:,}",
    "busy": lambda pool: f"{pool.utilisation:.1%}",
    "compute, mean": lambda pool: f"{pool.compute.mean_s:.3g}",
    "in the broker's queue, p50": lambda pool: f"{pool.queue.p50_s:.3g}",
    "p95": lambda pool: f"{pool.queue.p95_s:.3g}",
    "p99": lambda pool: f"{pool.queue.p99_s:.3g}",
    "on the instance, p50": lambda pool: f"{pool.wait.p50_s:.3g}",
    " p95": lambda pool: f"{pool.wait.p95_s:.3g}",
    " p99": lambda pool: f"{pool.wait.p99_s:.3g}",
    "requests waiting, mean": lambda pool: f"{pool.mean_waiting:.1f}",
    "requests waiting, peak": lambda pool: f"{pool.peak_waiting:,}",
    "instances that would be enough": lambda pool: f"{pool.enough:,}",
}


def _bottleneck(report: Report) -> str:
    tight = next(pool for pool in report.pools if pool.role is report.bottleneck)
    if not tight.instances:
        return f"bottleneck: there is no [bold]{tight.role}[/]\n"
    others = " and ".join(
        f"{pool.enough:,} {pool.role}{'s' * (pool.enough != 1)}" for pool in report.pools if pool is not tight
    )
    return f"bottleneck: [bold]{tight.role}s[/], {tight.utilisation:.1%} busy; at this throughput {others} would do\n"


def _tenant_table(tenants: tuple[TenantReport, ...]) -> Table:
    table = Table(title="tenants; latency in seconds, shares of the work", title_justify="left")
    table.add_column("tenant")
    for column in ("weight", "done", "not done", "p50", "p95", "share", "if short", "fair"):
        table.add_column(column, justify="right")
    for tenant in tenants:
        done = tenant.outcomes.get("DONE", 0)
        table.add_row(
            escape(tenant.name or "(no name)"),
            f"{tenant.weight:g}",
            f"{done:,}",
            f"{sum(tenant.outcomes.values()) - done:,}",
            f"{tenant.latency.p50_s:.3g}",
            f"{tenant.latency.p95_s:.3g}",
            f"{tenant.share:.1%}",
            "-" if tenant.contended_share is None else f"{tenant.contended_share:.1%}",
            f"{tenant.fair_share:.1%}",
        )
    return table


def _fairness(report: Report) -> str:
    if report.fairness is None:
        return "fairness: there was no time at which every tenant had requests waiting\n"
    return f"fairness while every tenant had requests waiting: Jain's index {report.fairness:.4f}\n"


def _machine(report: Report) -> str:
    machine = report.machine
    return (
        f"machine: {machine.events:,} events ({machine.events_per_request:.1f} a request), "
        f"{machine.cost_us:.1f} µs each; {machine.ignored:,} changed nothing"
    )


def _times(times: Quantiles) -> str:
    named = (("mean", times.mean_s), ("p50", times.p50_s), ("p95", times.p95_s), ("p99", times.p99_s))
    return ", ".join(f"{name} {value:.3g} s" for name, value in named)
