"""Data parallelism over single-threaded processes.

Two such processes get far more out of two shared cores than one process with two threads, whose every operation waits
for the slower thread.
"""

import os
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, distributed, multiprocessing

from .tensors import unflatten


def _begin(rank: int, ranks: int, port: int, work: Callable[[int, int], None]) -> None:
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    work(rank, ranks)
    distributed.destroy_process_group()


def launch(work: Callable[[int, int], None], ranks: int, port: int) -> None:
    """Run `work(rank, ranks)` in `ranks` processes of one thread each."""
    multiprocessing.spawn(_begin, (ranks, port, work), nprocs=ranks)  # pyright: ignore[reportPrivateImportUsage]


def average(tensors: Iterable[Tensor], ranks: int) -> None:
    """Replace each tensor by its mean over the ranks."""
    parts = list(tensors)
    flat = torch.cat([part.flatten() for part in parts])
    distributed.all_reduce(flat)
    flat /= ranks
    for old, new in zip(parts, unflatten(flat, parts), strict=True):
        old.copy_(new)
