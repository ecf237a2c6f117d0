"""Plans in few words. Times are in seconds; without further words a stage takes no time and nothing is ever short."""

from msgspec.structs import replace

from triptych.sim.distributions import Constant, Distribution
from triptych.sim.plan import Network, Plan, Poisson, PoolPlan, Run, Traffic
from triptych.sim.report import MachineReport, Report, report_of
from triptych.sim.simulation import Simulation

NOTHING = Constant(0.0)
#: messages take no time, and all instances are on one host, where they read in place
AT_ONCE = Network(latency_s=0.0, setup_s=0.0, copy_bytes_per_s=1e18, bytes_per_s=1e18, hosts=1)


def pool(time: Distribution = NOTHING, instances: int = 1, capacity: int = 1, **fields: object) -> PoolPlan:
    return PoolPlan(time, instances, capacity=capacity, **fields)


def plan(**fields: object) -> Plan:
    """Return a plan with one instance for each role and one request a second, but for what is given."""
    known = {
        "encoder": pool(),
        "denoiser": pool(),
        "decoder": pool(),
        "traffic": (Traffic(Poisson(1.0)),),
        "run": Run(requests=100, heartbeats=False, progress_every=0),
        "network": AT_ONCE,
    }
    return Plan(**(known | fields))


def check(simulation: Simulation) -> None:
    """Check the machine's invariants."""
    simulation.server.check()


def run(wanted: Plan, check_each: int = 5000) -> Simulation:
    """Let the plan come true, and check what is true of every run: each request ended once, and nothing is left."""
    simulation = Simulation(wanted)
    simulation.run(check, check_each)
    check(simulation)
    status = simulation.server.status()
    assert (status.requests, status.settling) == ({}, 0)
    assert sum(simulation.seen.outcomes.values()) == simulation.submitted
    assert simulation.seen.live.now == simulation.live == 0
    assert simulation.cluster.holdings() == 0
    assert all(stage.waiting.now == 0 for stage in simulation.seen.stages.values())
    return simulation


def report(wanted: Plan) -> Report:
    return report_of(run(wanted))


def without_costs(shown: Report) -> Report:
    """Return what does not depend on the computer."""
    machine = shown.machine
    counts = tuple(replace(each, cost_us=0.0) for each in sorted(machine.by_message, key=lambda each: each.kind))
    return replace(
        shown, machine=MachineReport(machine.events, machine.events_per_request, machine.ignored, 0.0, counts)
    )


def events_of(shown: Report) -> dict[str, int]:
    """Return how many messages of each kind the machine was told."""
    return {each.kind.removeprefix("Transfer").removesuffix("Msg"): each.events for each in shown.machine.by_message}
