"""`triptych demo`: a private cluster, a handful of prompts, one picture."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...client.client import Client
from ...client.result import Result
from ..config import cluster_settings
from ..launcher.cluster import LocalCluster, local_cluster
from .logs import LogPrinter
from .outputs import check_output
from .progress import StageBars
from .running import run_cancellable
from .tables import stage_table, transfer_table

PROMPTS = (
    "a fox on a blue background",
    "a sunflower on a purple background",
    "a rocket on a black background",
    "a penguin on a yellow background",
    "a large red heart on a white background",
    "a strawberry on a green background",
)
SEED = 7
#: free ports of the loopback interface, and nothing that `triptych admin` would find
PRIVATE = {"service_endpoint": "tcp://127.0.0.1:0", "client_endpoint": "tcp://127.0.0.1:0", "admin_endpoint": ""}


def run_demo(output: Path, *, verbose: bool) -> None:
    """Draw the prompts on a cluster of one service per role, write them as a grid, and say where the time went."""
    check_output(output)
    from .grid import save_grid  # noqa: PLC0415  (Pillow, an extra)

    console = Console()
    started = time.monotonic()
    results = run_cancellable(_draw_all(console, verbose=verbose))
    pictures = [(prompt, result.images[0].to_pil()) for prompt, result in zip(PROMPTS, results, strict=True)]
    save_grid(pictures, output)
    console.print(stage_table(results), transfer_table(results), sep="\n")
    told = f"wrote {output}; everything is stopped again; {time.monotonic() - started:.1f} s in all"
    console.print(told, highlight=False, markup=False, soft_wrap=True)


async def _draw_all(console: Console, *, verbose: bool) -> Sequence[Result]:
    started = time.monotonic()
    console.print("starting a broker, an encoder, a denoiser and a decoder …", highlight=False)
    printer = LogPrinter(Console(stderr=True), shown=verbose)
    settings = cluster_settings({}, {}, PRIVATE)
    async with local_cluster(settings, printer.show, colours=printer.colours) as cluster:
        endpoint = cluster.endpoints.client_endpoint
        console.print(f"ready at {endpoint} after {time.monotonic() - started:.1f} s", highlight=False)
        results = await _while_alive(cluster, endpoint)
        console.print("stopping …", highlight=False)
    return results


async def _while_alive(cluster: LocalCluster, endpoint: str) -> Sequence[Result]:
    """Return the results, or raise what ended a process before they were there."""
    async with asyncio.TaskGroup() as tasks:
        death = tasks.create_task(_raise_death(cluster))
        async with Client(endpoint) as client:
            with StageBars(Console(stderr=True), len(PROMPTS)) as bars:
                results = await _ask(client, bars)
        death.cancel()
    return results


async def _ask(client: Client, bars: StageBars) -> Sequence[Result]:
    async with asyncio.TaskGroup() as requests:
        streams = [client.stream(prompt, seed=SEED) for prompt in PROMPTS]
        tasks = [requests.create_task(bars.follow(stream)) for stream in streams]
    return [task.result() for task in tasks]


async def _raise_death(cluster: LocalCluster) -> None:
    raise await cluster.wait_death()
