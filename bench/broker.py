"""What the broker's control plane costs, beside a forwarder without logic: `make bench-broker`.

The broker runs as people run it: a process of its own with every default but a longer queue, listening on TCP, its
log at level info in a file. This process has the null services, which answer at once what a service answers,
and the clients, in a closed loop: each result brings the next request. A request is the shortest real one:

    client    SUBMIT                       → QUEUED, and WORK to an encoder
    encoder   STARTED, STAGED              → STAGE_STARTED, STAGE_FINISHED, and READY to a denoiser on the same host
    denoiser  STARTED, STAGED              → the same, READY to a decoder, and RELEASE to the encoder
    decoder   STARTED, DONE with a picture → STAGE_STARTED, STAGE_FINISHED, RESULT, and RELEASE to both

The forwarder (`forwarder.py`) is the upper bound: the same two ROUTERs with the same options, synchronous pyzmq, no
logic. One request is recorded at the broker, message by message; at the forwarder each message that comes in brings
about as many messages, of as many bytes and frames and to the same kinds of peers, as it does at the broker. Its load
is the same too: this process and its plain connections (`zmtp_peer.py`), which cost much less than sockets of ZeroMQ,
so that the server is what is measured. Broker and forwarder are measured in turn, round by round; medians are compared.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import msgspec
from msgspec import Struct

from triptych.broker.machine.settings import DispatchSettings
from triptych.broker.shell.settings import BrokerSettings
from triptych.schemas.roles import Role

from .control_load import Load, PeerLoop, Round
from .control_scripts import BrokerScript, ForwarderScript, Recorded, Shape, forwarder_plan
from .forwarder import Bound
from .report import Disturbance, Metric, write_report

ROOT = Path(__file__).parent.parent
SHAPES = {"2": Shape((2, 2, 2)), "64": Shape((64, 64, 64))}
THOUSAND = Shape((334, 333, 333))
IN_FLIGHT = (1, 16, 256)
#: requests that wait for an encoder beside those that the services of 2:2:2 have
QUEUED = (10, 10_000)
IN_POOLS = 12
BROKER = BrokerSettings(
    service_endpoint="tcp://127.0.0.1:0",
    client_endpoint="tcp://127.0.0.1:0",
    admin_endpoint="",
    dispatch=DispatchSettings(max_queued=20_000),
)


class Pace(Struct, frozen=True):
    """How long all takes."""

    #: broker and forwarder in turn, so many times
    rounds: int = 7
    #: of one round, in seconds
    round_s: float = 1.5
    warm_up_s: float = 0.3


Rounds = dict[str, list[Round]]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="measure what the broker costs, beside a forwarder")
    parser.add_argument("--rounds", type=int, default=Pace().rounds, help="of broker and forwarder in turn")
    parser.add_argument("--round-s", type=float, default=Pace().round_s, help="of one of them, in seconds")
    given = parser.parse_args()
    print("the broker's control plane beside a forwarder; takes some minutes …", flush=True)
    disturbance = Disturbance()
    metrics, notes = measure(Pace(given.rounds, given.round_s))
    notes.append(f"others kept {disturbance.cores():.2f} cores busy meanwhile; above 0.1 it distorts the numbers")
    write_report("broker", metrics, notes)


def measure(pace: Pace) -> tuple[dict[str, Metric], list[str]]:
    """Run everything."""
    with tempfile.TemporaryDirectory() as folder:
        rounds, recorded = measure_beside_forwarder(pace, Path(folder))
        queued = measure_queued(pace, Path(folder))
        many, worked = measure_thousand(pace, Path(folder))
    metrics = compared(rounds)
    metrics["rate_10000_queued_vs_10"] = Metric(_rate(queued[10_000]) / _rate(queued[10]), 0.9, "higher")
    metrics["instances_of_1000_that_served"] = Metric(worked, 1000, "higher", "instances")
    metrics["rate_1000_instances_vs_6"] = Metric(_rate([many]) / _rate(rounds["broker_256_at_2"]), None, "higher")
    metrics["requests_per_s_1000_instances"] = Metric(many.rate, None, "higher", "1/s")
    for count, found in queued.items():
        metrics[f"requests_per_s_{count}_queued"] = Metric(_rate(found), None, "higher", "1/s")
    return metrics, [_recorded_note(recorded), f"medians of {pace.rounds} rounds of {pace.round_s:g} s each"]


# ------------------------------------------------------------------------------------------ what is run


def measure_beside_forwarder(pace: Pace, folder: Path) -> tuple[Rounds, list[Recorded]]:
    """Run each number in flight at each shape, at the broker and at the forwarder in turn."""
    rounds: Rounds = {}
    with ExitStack() as stack:
        loop = PeerLoop()
        loads: dict[str, Load] = {}
        recorded: list[Recorded] = []
        for name, shape in SHAPES.items():
            log = folder / f"{name}.log"
            loads[f"broker_{name}"], recorded = stack.enter_context(broker_load(loop, shape, log))
            loads[f"forwarder_{name}"] = stack.enter_context(forwarder_load(loop, shape, recorded, log))
            loads[f"lean_{name}"] = stack.enter_context(forwarder_load(loop, shape, recorded, log, lean=True))
        for in_flight in IN_FLIGHT:
            for _ in range(pace.rounds):
                for name, load in loads.items():
                    kind, _, shape_name = name.partition("_")
                    measured = load.run(in_flight, pace.round_s, pace.warm_up_s)
                    rounds.setdefault(f"{kind}_{in_flight}_at_{shape_name}", []).append(measured)
    return rounds, recorded


def measure_queued(pace: Pace, folder: Path) -> dict[int, list[Round]]:
    """Run with a short queue and with a long one in turn."""
    found: dict[int, list[Round]] = {count: [] for count in QUEUED}
    with broker_load(PeerLoop(), SHAPES["2"], folder / "broker-queued.log") as (load, _):
        for _ in range(pace.rounds):
            for count in QUEUED:
                found[count].append(load.run(count + IN_POOLS, pace.round_s, pace.warm_up_s))
    return found


def measure_thousand(pace: Pace, folder: Path) -> tuple[Round, int]:
    """Run 1,000 services, and count those that were given work."""
    with broker_load(PeerLoop(), THOUSAND, folder / "broker-1000.log") as (load, _):
        return load.run(256, 2 * pace.round_s, pace.warm_up_s), len(load.worked)


@contextmanager
def broker_load(loop: PeerLoop, shape: Shape, log: Path) -> Generator[tuple[Load, list[Recorded]]]:
    """Run a broker and its load; give that and what the broker sent for one request."""
    script, recorded = BrokerScript(), list[Recorded]()

    def record(role: Role | None, msg_type: str, size: int) -> None:
        if msg_type not in {"transfer_heartbeat_ack", "transfer_register_ack", "welcome"}:
            recorded.append(Recorded(role, msg_type, size))

    with (
        _process("bench.broker_process", BROKER, log) as (pid, at),
        Load(loop, script, shape, at.service_endpoint, at.client_endpoint, pid) as load,
    ):
        overhear, script.notice = script.notice, record
        load.one()
        loop.turn_until(perf_counter() + 0.1)  # for what comes after the result
        script.notice = overhear
        yield load, recorded


@contextmanager
def forwarder_load(
    loop: PeerLoop, shape: Shape, recorded: Sequence[Recorded], log: Path, *, lean: bool = False
) -> Generator[Load]:
    """Run a forwarder and its load."""
    with (
        _process("bench.forwarder", forwarder_plan(shape, recorded, lean=lean), log) as (pid, at),
        Load(loop, ForwarderScript(shape), shape, at.service_endpoint, at.client_endpoint, pid) as load,
    ):
        yield load


@contextmanager
def _process(module: str, told: Struct, log: Path) -> Generator[tuple[int, Bound]]:
    """Run a module that is told something and says where it listens; give its id, and that."""
    argv = (sys.executable, "-m", module)
    with log.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, cwd=ROOT
        )
    with process:
        try:
            if process.stdin is None or process.stdout is None:
                raise RuntimeError(f"{module} has no pipes")
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                raise RuntimeError(f"{module} ended: {log.read_text(encoding='utf-8')}")
            yield process.pid, msgspec.json.decode(answer, type=Bound)
        finally:
            process.terminate()


# ------------------------------------------------------------------------------------------ what came out


def compared(rounds: Rounds) -> dict[str, Metric]:
    """Return the metrics of the broker beside the forwarder, and of 64 instances of each role beside 2."""
    metrics: dict[str, Metric] = {}
    for shape in SHAPES:
        for in_flight in IN_FLIGHT:
            at = f"{in_flight}_at_{shape}"
            broker, forwarder = rounds[f"broker_{at}"], rounds[f"forwarder_{at}"]
            alone = in_flight == 1
            metrics |= {
                f"rate_vs_forwarder_{at}": Metric(_rate(broker) / _rate(forwarder), None if alone else 0.5, "higher"),
                f"rate_vs_lean_forwarder_{at}": Metric(_rate(broker) / _rate(rounds[f"lean_{at}"]), None, "higher"),
                f"p50_vs_forwarder_{at}": Metric(_p50(broker) / _p50(forwarder), 1.5 if alone else None, "lower"),
                f"broker_cpu_{at}": Metric(_cpu(broker), 0.3, "lower", "ms"),
                f"forwarder_cpu_{at}": Metric(_cpu(forwarder), None, "lower", "ms"),
                f"requests_per_s_{at}": Metric(_rate(broker), None, "higher", "1/s"),
                f"forwarder_requests_per_s_{at}": Metric(_rate(forwarder), None, "higher", "1/s"),
                f"p50_{at}": Metric(_p50(broker) * 1e3, None, "lower", "ms"),
                f"p99_{at}": Metric(_p99(broker) * 1e3, None, "lower", "ms"),
                f"forwarder_p50_{at}": Metric(_p50(forwarder) * 1e3, None, "lower", "ms"),
                f"forwarder_p99_{at}": Metric(_p99(forwarder) * 1e3, None, "lower", "ms"),
            }
    for in_flight in IN_FLIGHT:
        few, many = rounds[f"broker_{in_flight}_at_2"], rounds[f"broker_{in_flight}_at_64"]
        metrics[f"rate_64_vs_2_{in_flight}"] = Metric(_rate(many) / _rate(few), 0.9, "higher")
    return metrics


def _rate(rounds: Sequence[Round]) -> float:
    return median(measured.rate for measured in rounds)


def _cpu(rounds: Sequence[Round]) -> float:
    return median(measured.cpu_ms for measured in rounds)


def _p50(rounds: Sequence[Round]) -> float:
    return median(median(measured.latencies) for measured in rounds)


def _p99(rounds: Sequence[Round]) -> float:
    return median(quantiles(measured.latencies, n=100)[98] for measured in rounds)


def _recorded_note(recorded: Sequence[Recorded]) -> str:
    size = sum(message.size for message in recorded)
    return f"a request is 7 messages to the broker and {len(recorded)} from it, of {size} bytes without the picture"


if __name__ == "__main__":
    main()
