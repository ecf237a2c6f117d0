"""Where the time went, as tables."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from rich.table import Table

from ...client.result import Result
from ...schemas.roles import Role
from ...schemas.timing import StageTiming, TransferTiming


def stage_table(results: Sequence[Result]) -> Table:
    """Return the mean time of each part of each stage, in milliseconds."""
    table = Table(title="per stage, mean in ms", title_justify="left")
    table.add_column("stage")
    for column in ("requests", "queue", "load", "wait", "compute", "output"):
        table.add_column(column, justify="right")
    for role in Role:
        timings = [timing for result in results for timing in result.stages if timing.role is role]
        if timings:
            table.add_row(role, str(len(timings)), *_means(timings))
    return table


def transfer_table(results: Sequence[Result]) -> Table:
    """Return how many payloads went between each pair of roles, read in place or moved, with the mean size and time."""
    table = Table(title="per transfer, mean of those moved", title_justify="left")
    table.add_column("from → to")
    for column in ("transfers", "in place", "bytes", "ms", "MB/s"):
        table.add_column(column, justify="right")
    for hop, timings in _by_hop(results).items():
        moved = [timing for timing in timings if not timing.in_place]
        table.add_row(hop, str(len(timings)), str(len(timings) - len(moved)), *_moving(moved))
    return table


def _moving(moved: Sequence[TransferTiming]) -> list[str]:
    if not moved:
        return ["-", "-", "-"]
    nbytes, duration_s = fmean(timing.nbytes for timing in moved), fmean(timing.duration_s for timing in moved)
    rate = nbytes / duration_s / 1e6 if duration_s else 0.0
    return [f"{nbytes:,.0f}", f"{duration_s * 1e3:.2f}", f"{rate:,.0f}"]


def _means(timings: Iterable[StageTiming]) -> list[str]:
    rows = [(each.queue_s, each.load_s, each.wait_s, each.compute_s, each.output_s) for each in timings]
    return [f"{fmean(column) * 1e3:.1f}" for column in zip(*rows, strict=True)]


def _by_hop(results: Iterable[Result]) -> dict[str, list[TransferTiming]]:
    hops: dict[str, list[TransferTiming]] = {}
    for result in results:
        roles = {timing.instance_id: timing.role for timing in result.stages}
        for transfer in result.transfers:
            ends = (roles.get(end, end) for end in (transfer.sender, transfer.receiver))
            hops.setdefault(" → ".join(ends), []).append(transfer)
    return hops
