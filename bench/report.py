"""What a benchmark found: a table for people, and a file of JSON."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Literal

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Metric:
    """One number. Without a target it is there to explain others."""

    value: float
    target: float | None
    better: Literal["higher", "lower"]
    unit: str = "ratio"

    @property
    def met(self) -> bool | None:
        """Return whether the target is met, None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "higher" else self.value <= self.target


def write_report(name: str, metrics: dict[str, Metric], notes: Sequence[str] = ()) -> None:
    """Print the table, and write `results/NAME.json`."""
    print_table(metrics)
    for note in notes:
        print(note)
    RESULTS.mkdir(exist_ok=True)
    report = {
        "metrics": {name: asdict(metric) for name, metric in metrics.items()},
        "machine": machine(),
        "commit": commit(),
        "notes": list(notes),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def print_table(metrics: dict[str, Metric]) -> None:
    """Print a line for each metric."""
    width = max(map(len, metrics))
    print(f"{'':{width}}  {'measured':>10}  {'target':>10}")
    for name, metric in metrics.items():
        sign = "≥" if metric.better == "higher" else "≤"
        target = "" if metric.target is None else f"{sign} {metric.target:g}"
        verdict = {True: "", False: "  missed", None: ""}[metric.met]
        print(f"{name:{width}}  {metric.value:>10.4g}  {target:>10}  {metric.unit}{verdict}")


def machine() -> dict[str, str | int]:
    """Say what this ran on."""
    model = [line for line in Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines() if "model name" in line]
    return {
        "cpu": model[0].partition(":")[2].strip() if model else platform.processor(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


class Disturbance:
    """How busy everything but this process and its children kept the machine, from the making of this on."""

    def __init__(self) -> None:
        self._busy = _busy_s()
        self._own = sum(os.times()[:4])
        self._begun = monotonic()

    def cores(self) -> float:
        """Return how many cores' time others took."""
        others = _busy_s() - self._busy - (sum(os.times()[:4]) - self._own)
        return max(0.0, others / (monotonic() - self._begun))


def _busy_s() -> float:
    user, nice, system, _idle, _wait, irq, soft_irq = map(
        int, Path("/proc/stat").read_text(encoding="ascii").split()[1:8]
    )
    return (user + nice + system + irq + soft_irq) / os.sysconf("SC_CLK_TCK")


def commit() -> str:
    """Return the commit that is checked out, with a `+` where files differ from it."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(  # noqa: S603
            ["git", "-C", here, *words],  # noqa: S607
            check=False,
            capture_output=True,
            text=True,
        ).stdout.strip()

    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
