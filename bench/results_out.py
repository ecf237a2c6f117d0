"""Results on their way out: `make bench-results`.

A result as large as a decoded video is fetched from its service, side by side with one raw pyzmq hop of the same bytes;
and small requests are timed with and without every 200th result being that large. Real processes on this host; the
small requests, the large ones and the raw hop have a process each.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Self

import zmq
import zmq.asyncio

from triptych.broker.shell.settings import BrokerSettings
from triptych.client import Client, Finished, StageFinished
from triptych.client.fetch import FetchSettings, Pace
from triptych.ops.config import ClusterSettings
from triptych.ops.launcher.cluster import LocalCluster, local_cluster
from triptych.schemas.roles import Role
from triptych.services.settings import ServiceSettings

from .pipelines import LARGE_PROMPT, VIDEO_BYTES
from .report import Metric, write_report

ROOT = Path(__file__).parent.parent
#: as if no service could be reached
BROKER_ALONE = FetchSettings(direct=Pace(2**20, 1, first_s=0.0, next_s=0.0))
EVERY = 200


def main() -> None:
    """Measure, print a table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helper", choices=["hop", "direct", "relayed"], help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=15, help="large results fetched, and raw hops")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of small requests, each with and without large")
    parser.add_argument("--rate", type=float, default=40.0, help="small requests a second")
    given = parser.parse_args()
    if given.helper is None:
        asyncio.run(measure(given.repeats, given.rounds, given.rate))
    elif given.helper == "hop":
        help_hop(given.endpoint)
    else:
        asyncio.run(help_fetch(given.endpoint, BROKER_ALONE if given.helper == "relayed" else FetchSettings()))


async def measure(repeats: int, rounds: int, rate: float) -> None:
    """Run everything, and report it."""
    async with running_cluster() as cluster:
        endpoint = cluster.endpoints.client_endpoint
        hops, fetches, prepared = await time_large(endpoint, repeats)
        direct = await time_small(endpoint, rounds, rate, "direct")
        relayed = await time_small(endpoint, max(1, rounds // 2), rate, "relayed")
    hop_s, fetch_s = median(hops), median(fetches)
    metrics = {
        "large_result_vs_raw_hop": Metric(hop_s / fetch_s, 0.5, "higher"),
        "small_p99_with_large_vs_without": Metric(p99(direct["with"]) / p99(direct["without"]), 1.5, "lower"),
        "small_p99_with_relayed_vs_without": Metric(p99(relayed["with"]) / p99(relayed["without"]), None, "lower"),
        "raw_hop": Metric(hop_s, None, "lower", "s"),
        "fetch": Metric(fetch_s, None, "lower", "s"),
        "fetch_worst": Metric(max(fetches), None, "lower", "s"),
        "large_result_until_ticket": Metric(median(prepared), None, "lower", "s"),
        "small_p50_without": Metric(median(direct["without"]), None, "lower", "s"),
        "small_p50_with": Metric(median(direct["with"]), None, "lower", "s"),
        "small_p99_without": Metric(p99(direct["without"]), None, "lower", "s"),
        "small_p99_with": Metric(p99(direct["with"]), None, "lower", "s"),
    }
    notes = [
        f"a large result has {VIDEO_BYTES} bytes; {len(hops)} fetches and raw hops in turn, medians",
        f"{len(direct['with'])} small requests each, {rate:g} a second, every {EVERY}th result large",
    ]
    write_report("results", metrics, notes)


@asynccontextmanager
async def running_cluster() -> AsyncGenerator[LocalCluster]:
    """Run 1:1:1 with results of raw bytes."""
    os.environ["PYTHONPATH"] = str(ROOT)
    broker = BrokerSettings(service_endpoint="tcp://127.0.0.1:0", client_endpoint="tcp://127.0.0.1:0")
    services = tuple(
        ServiceSettings(role=role, instance_id=f"{role}-0", pipeline="bench.pipelines:RAW_VIDEO") for role in Role
    )
    async with local_cluster(ClusterSettings(broker, services), show_warnings) as cluster:
        yield cluster


def show_warnings(name: str, line: str) -> None:
    """Print what went wrong in a process."""
    if any(word in line.lower() for word in ("warning", "error", "traceback")):
        print(f"{name}: {line}", file=sys.stderr)


# ------------------------------------------------------------------------------------------ one large result


async def time_large(endpoint: str, repeats: int) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of raw hops, of fetches (ticket to result) and of a result's making, measured in turn."""
    hops: list[float] = []
    fetches: list[float] = []
    prepared: list[float] = []
    async with Helper("hop", await free_endpoint()) as sender, Client(endpoint) as client:
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.connect(sender.endpoint)
            for repeat in range(repeats + 1):
                hop = await time_hop(socket)
                made, fetched = await time_fetch(client)
                if repeat:  # the first one warms everything up
                    hops.append(hop)
                    fetches.append(fetched)
                    prepared.append(made)
            socket.setsockopt(zmq.LINGER, 0)
    return hops, fetches, prepared


async def time_hop(socket: zmq.asyncio.Socket) -> float:
    """Return how long one message with all the bytes takes, from asking for it."""
    began = time.perf_counter()
    await socket.send(b"go")
    data = await socket.recv()
    taken = time.perf_counter() - began
    assert len(data) == VIDEO_BYTES
    return taken


async def time_fetch(client: Client) -> tuple[float, float]:
    """Return how long a large result takes to be made, and then, from its ticket on, to be here."""
    began = made = time.perf_counter()
    async for event in client.stream(LARGE_PROMPT):
        if isinstance(event, StageFinished):
            made = time.perf_counter()  # the ticket comes with the end of the last stage
        if isinstance(event, Finished):
            assert len(event.result.images[0].data) == VIDEO_BYTES
    return made - began, time.perf_counter() - made


def help_hop(endpoint: str) -> None:
    """Send all the bytes as one message, as often as asked, from where they lie."""
    data = os.urandom(VIDEO_BYTES)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.bind(endpoint)
        print("ready", flush=True)
        while True:
            socket.recv()
            socket.send(data, copy=False)


# ------------------------------------------------------------------------------------------ small beside large ones


async def time_small(endpoint: str, rounds: int, rate: float, way: str) -> dict[str, list[float]]:
    """Return the seconds of small requests with and without large results among them, in alternating rounds."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    async with Client(endpoint) as client, Helper(way, endpoint) as others:
        await others.ask()
        await time_round(client, EVERY // 2, rate, lambda: None)
        for _ in range(rounds):
            times["without"] += await time_round(client, 2 * EVERY, rate, lambda: None)
            times["with"] += await time_round(client, 2 * EVERY, rate, others.ask_nowait)
            await others.wait_quiet()
    return times


async def time_round(client: Client, count: int, rate: float, ask_large: Callable[[], None]) -> list[float]:
    """Ask for small results at a steady rate, and in the midst of every 200 for a large one; return their times."""
    began = asyncio.get_running_loop().time()
    requests: list[asyncio.Task[float]] = []
    for index in range(count):
        await asyncio.sleep(began + index / rate - asyncio.get_running_loop().time())
        if index % EVERY == EVERY // 2:
            ask_large()
        requests.append(asyncio.create_task(time_one(client)))
    return list(await asyncio.gather(*requests))


async def time_one(client: Client) -> float:
    """Return how long one small request takes."""
    began = time.perf_counter()
    await client.generate("small")
    return time.perf_counter() - began


async def help_fetch(endpoint: str, settings: FetchSettings) -> None:
    """Ask for a large result for each line that comes, and say when it is there."""
    async with Client(endpoint, fetch_settings=settings) as client:
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            await client.generate(LARGE_PROMPT)
            print("done", flush=True)


class Helper:
    """Another process of this program."""

    def __init__(self, kind: str, endpoint: str) -> None:
        self.endpoint = endpoint
        self._kind = kind
        self._process: asyncio.subprocess.Process | None = None
        self._unanswered = 0

    async def __aenter__(self) -> Self:
        argv = (sys.executable, "-m", "bench.results_out", "--helper", self._kind, "--endpoint", self.endpoint)
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, cwd=ROOT)
        await self._read()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    def ask_nowait(self) -> None:
        """Ask for a large result."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(b"go\n")
            self._unanswered += 1

    async def ask(self) -> None:
        """Ask for a large result, and wait until it is there."""
        self.ask_nowait()
        await self.wait_quiet()

    async def wait_quiet(self) -> None:
        """Wait until all that was asked for is there."""
        while self._unanswered:
            await self._read()
            self._unanswered -= 1

    async def _read(self) -> None:
        if self._process is None or self._process.stdout is None or not await self._process.stdout.readline():
            raise RuntimeError(f"the helper {self._kind} ended")


async def free_endpoint() -> str:
    """Return a loopback endpoint on which nobody listens."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.bind("tcp://127.0.0.1:0")
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def p99(times: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(times, n=100)[98]


if __name__ == "__main__":
    main()
