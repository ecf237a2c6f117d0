"""What moving tensors between two services of one host costs, in units of a plain copy of the same bytes.

Everything in one run, side by side: `make bench-transfer`. Writes `bench/results/transfer.json`.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import cycle
from multiprocessing.connection import Listener
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TypeVar

import msgspec
import torch

from triptych.schemas.memory import PoolAddress, Slot
from triptych.transport.tensors.engines.choice import EngineSetting
from triptych.transport.tensors.manager import DiffusionTransferManager, Staged
from triptych.transport.tensors.values import TensorValue

from .bare_nixl import BareWriter, bare_writer
from .hop_peer import (
    Allocate,
    AskCpuTime,
    Load,
    LoadAll,
    PeerStaged,
    Push,
    Read,
    ReadAll,
    ReadTimes,
    Release,
    Request,
    Stage,
)
from .idle import idle_cpu
from .overlap import Brought, overlap
from .pipe import Pipe
from .report import Disturbance, Metric, write_report

POOL_BYTES = 256 << 20
#: of image latents, text embeddings, video latents and a decoded video
SIZES = {"4KB": 4096, "131KB": 131_072, "4MB": 4 << 20, "8MB": 8 << 20, "97MB": 97_044_480}
REPEATS = {"4KB": 40, "131KB": 30, "4MB": 20, "8MB": 20, "97MB": 15}
#: hops in a row, so that the smallest are not those of processes that just woke up
BURST = {"4KB": 16, "131KB": 16, "4MB": 4, "8MB": 4, "97MB": 1}
#: what is not yet in a steady state is not counted
WARM_UP = 3

#: of a hop whose receiver reads in place
HOP_TARGETS = {"131KB": 12.0, "4MB": 1.2, "8MB": 1.2, "97MB": 1.2}

T = TypeVar("T")
Times = defaultdict[str, list[float]]


class Ends:
    """This process, which sends, and the other, which receives."""

    def __init__(self, manager: DiffusionTransferManager, pipe: Pipe) -> None:
        self.manager = manager
        self.receiver = msgspec.msgpack.decode(pipe.recv_bytes(), type=PoolAddress)
        self._pipe = pipe
        self._asking = asyncio.Lock()

    async def ask(self, request: Request, answer: type[T]) -> T:
        """Have the other process do something; it answers when done."""
        async with self._asking:
            self._pipe.send_bytes(msgspec.msgpack.encode(request))
            return msgspec.msgpack.decode(await asyncio.to_thread(self._pipe.recv_bytes), type=answer)


@asynccontextmanager
async def two_processes(engine: EngineSetting) -> AsyncGenerator[Ends]:
    """Open a sender here and a receiver in another process."""
    manager = DiffusionTransferManager.open(
        instance_id="bench-sender", incarnation=os.getpid(), pool_bytes=POOL_BYTES, engine=engine
    )
    try:
        with tempfile.TemporaryDirectory() as folder, Listener(str(Path(folder, "hop")), family="AF_UNIX") as listener:
            argv = [sys.executable, "-m", "bench.hop_peer", str(listener.address), engine, str(POOL_BYTES)]
            with subprocess.Popen(argv) as process, listener.accept() as pipe:  # noqa: ASYNC220, S603
                yield Ends(manager, pipe)
                pipe.close()
                process.wait()
    finally:
        await manager.aclose()


class Payload:
    """A tensor of so many bytes, and places to copy it to in turn, all used before."""

    def __init__(self, nbytes: int, burst: int = 1) -> None:
        self.nbytes = nbytes
        self._source = torch.randn(nbytes // 4)
        self._targets = cycle([torch.zeros_like(self._source) for _ in range(burst)])
        self.tensors: dict[str, TensorValue] = {"x": self._source}

    def copy_s(self) -> float:
        """Copy it plainly, and return the seconds."""
        target = next(self._targets)
        begun = perf_counter()
        target.copy_(self._source)
        return perf_counter() - begun


async def stage(ends: Ends, payload: Payload, times: Times) -> Staged:
    """Stage the payload, and note the seconds of that and of a plain copy, before it or after it in turn."""
    copy_first = len(times["stage"]) % 2 == 0
    if copy_first:
        times["copy"].append(payload.copy_s())
    begun = perf_counter()
    staged = await ends.manager.stage_tensors_async(payload.tensors)
    times["stage"].append(perf_counter() - begun)
    if not copy_first:
        times["copy"].append(payload.copy_s())
    return staged


async def hops_in_place(ends: Ends, payload: Payload, times: Times, burst: int) -> None:
    """Note what each part of a hop takes whose receiver reads in place, for some in a row."""
    staged = [await stage(ends, payload, times) for _ in range(burst)]
    reads = tuple(Read(one.slot, one.manifest, ends.manager.address) for one in staged)
    for took in await ends.ask(ReadAll(reads), list[ReadTimes]):
        for name, seconds in msgspec.structs.asdict(took).items():
            times[name].append(seconds)
    for one in staged:
        ends.manager.release(one.slot.slot_id)


async def hops_by_nixl(ends: Ends, payload: Payload, times: Times, bare: BareWriter, burst: int) -> None:
    """Note what each part of a hop by NIXL takes, for some in a row, and as many bare writes of the same size."""
    times["bare"] += await asyncio.to_thread(bare.write, payload.nbytes, burst)
    staged = [await stage(ends, payload, times) for _ in range(burst)]
    slots = [await ends.ask(Allocate(one.manifest.data_size, ends.manager.address), Slot) for one in staged]
    for one, slot in zip(staged, slots, strict=True):
        begun = perf_counter()
        engine_s = await ends.manager.push(one.slot, one.manifest.data_size, ends.receiver, slot)
        times["transfer"].append(perf_counter() - begun)
        times["engine"].append(engine_s)
    loads = tuple(Load(slot, one.manifest) for one, slot in zip(staged, slots, strict=True))
    times["load"] += await ends.ask(LoadAll(loads), list[float])
    for one in staged:
        ends.manager.release(one.slot.slot_id)


def medians(times: Times) -> dict[str, float]:
    """Return the median of each part, the first few repetitions left out."""
    return {name: median(seconds[WARM_UP:]) for name, seconds in times.items()}


async def measure_in_place(metrics: dict[str, Metric]) -> None:
    """Measure hops that are read in place: all parts in plain copies, and the smallest in microseconds."""
    async with two_processes("shm") as ends:
        for label, nbytes in SIZES.items():
            payload, times = Payload(nbytes, BURST[label]), Times(list)
            for _ in range(REPEATS[label]):
                await hops_in_place(ends, payload, times, BURST[label])
            took = medians(times)
            copy = took["copy"]
            read = took["open_s"] + took["close_s"]
            metrics |= {
                f"shm_stage_{label}": Metric(took["stage"] / copy, None, "lower"),
                f"shm_read_{label}": Metric(read / copy, None, "lower"),
                f"shm_hop_{label}": Metric((took["stage"] + read) / copy, HOP_TARGETS.get(label), "lower"),
                f"shm_hop_and_own_copy_{label}": Metric((took["stage"] + read + took["copy_s"]) / copy, None, "lower"),
                f"shm_first_pass_{label}": Metric(took["pass_s"] / took["warm_pass_s"], None, "lower"),
            }
            if label == "4KB":
                metrics["shm_latency_4KB"] = Metric((took["stage"] + read) * 1e6, 100, "lower", "µs")
        metrics["shm_moved"] = _moved(ends, "shm")
        metrics["shm_cpu"] = await cpu_s_per_gb(ends, _quick_read)
        metrics["shm_overlap"] = await _overlap_in_place(ends)


async def measure_nixl(metrics: dict[str, Metric]) -> None:
    """Measure hops by NIXL, each beside a bare write of the same size."""
    with bare_writer() as bare:
        async with two_processes("nixl") as ends:
            for label, nbytes in SIZES.items():
                payload, times = Payload(nbytes, BURST[label]), Times(list)
                for _ in range(REPEATS[label]):
                    await hops_by_nixl(ends, payload, times, bare, BURST[label])
                took = medians(times)
                copy, hop = took["copy"], took["stage"] + took["transfer"] + took["load"]
                metrics |= {
                    f"nixl_{part}_{label}": Metric(took[part] / copy, None, "lower")
                    for part in ("stage", "transfer", "load")
                }
                metrics[f"nixl_hop_{label}"] = Metric(hop / copy, None, "lower")
                metrics[f"nixl_rate_{label}"] = Metric(took["bare"] / took["engine"], 0.7, "higher")
                if label == "4KB":
                    metrics["nixl_latency_4KB"] = Metric(hop * 1e6, None, "lower", "µs")
            metrics["nixl_moved"] = _moved(ends, "nixl")
            metrics["nixl_cpu"] = await cpu_s_per_gb(ends, _quick_push)
            metrics["nixl_overlap"] = await _overlap_by_nixl(ends)


def _moved(ends: Ends, engine: str) -> Metric:
    """Return the bytes that were copied or written for each byte of payload, alignment counted in."""
    counted = ends.manager.statistics()
    payload = counted.staged[1]
    moved = payload + counted.pushed[1]
    return Metric(moved / (payload * (2 if engine == "nixl" else 1)), 1.0, "lower")


async def _quick_read(ends: Ends, payload: Payload) -> None:
    staged = await ends.manager.stage_tensors_async(payload.tensors)
    read = Read(staged.slot, staged.manifest, ends.manager.address, quick=True)
    await ends.ask(ReadAll((read,)), list[ReadTimes])
    ends.manager.release(staged.slot.slot_id)


async def _quick_push(ends: Ends, payload: Payload) -> None:
    staged = await ends.manager.stage_tensors_async(payload.tensors)
    slot = await ends.ask(Allocate(staged.manifest.data_size, ends.manager.address), Slot)
    await ends.manager.push(staged.slot, staged.manifest.data_size, ends.receiver, slot)
    await ends.ask(LoadAll((Load(slot, staged.manifest),)), list[float])
    ends.manager.release(staged.slot.slot_id)


async def cpu_s_per_gb(ends: Ends, hop: Callable[[Ends, Payload], Awaitable[None]]) -> Metric:
    """Return the processor time of both processes for each gigabyte that makes the hop, in payloads of 8 MB."""
    payload, count = Payload(SIZES["8MB"]), 100
    here, there = process_time(), await ends.ask(AskCpuTime(), float)
    for _ in range(count):
        await hop(ends, payload)
    spent = process_time() - here + await ends.ask(AskCpuTime(), float) - there
    return Metric(spent / (count * payload.nbytes / 1e9), None, "lower", "s/GB")


def copy_cpu() -> Metric:
    """Return the processor time of a plain copy of a gigabyte, in payloads of 8 MB."""
    payload, count = Payload(SIZES["8MB"]), 100
    begun = process_time()
    for _ in range(count):
        payload.copy_s()
    return Metric((process_time() - begun) / (count * payload.nbytes / 1e9), None, "lower", "s/GB")


async def _overlap_in_place(ends: Ends) -> Metric:
    async def bring() -> Brought:
        staged = await ends.ask(Stage(SIZES["8MB"]), PeerStaged)
        read = await ends.manager.read_in_place_async(staged.slot, staged.manifest, ends.receiver, "cpu")

        async def let_go() -> None:
            read.close()
            await ends.ask(Release(staged.slot.slot_id), float)

        return read.tensors, let_go

    return Metric(await overlap(bring), 0.97, "higher")


async def _overlap_by_nixl(ends: Ends) -> Metric:
    async def bring() -> Brought:
        staged = await ends.ask(Stage(SIZES["8MB"]), PeerStaged)
        slot = ends.manager.allocate_receive(staged.manifest.data_size)
        ends.manager.expect(slot.slot_id, ends.receiver)
        await ends.ask(Push(staged.slot, staged.manifest.data_size, ends.manager.address, slot), float)
        ends.manager.expected_over(slot.slot_id)
        loaded = await ends.manager.load_tensors_async(slot, staged.manifest, "cpu")
        ends.manager.release(slot.slot_id)

        async def let_go() -> None:
            await ends.ask(Release(staged.slot.slot_id), float)

        return loaded.tensors, let_go

    return Metric(await overlap(bring), 0.97, "higher")


async def measure() -> dict[str, Metric]:
    """Measure everything."""
    metrics: dict[str, Metric] = {}
    await measure_in_place(metrics)
    await measure_nixl(metrics)
    metrics["copy_cpu"] = copy_cpu()
    for name, share in (await idle_cpu()).items():
        metrics[f"idle_{name}"] = Metric(share, 0.01, "lower", "of a core")
    return metrics


def main() -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    print("transfers, in plain copies of the same bytes unless said otherwise; takes two minutes …", flush=True)
    disturbance = Disturbance()
    metrics = asyncio.run(measure())
    note = f"others kept {disturbance.cores():.2f} cores busy meanwhile; what is above 0.1 distorts the numbers"
    write_report("transfer", metrics, [note])


if __name__ == "__main__":
    main()
