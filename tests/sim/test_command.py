"""`triptych sim`, as a process."""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plan.toml"
SHORT = ("--set", "run.duration_s=200", "--set", "run.warm_up_s=20")


def sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "triptych.ops.cli", "sim", *arguments], capture_output=True, text=True, check=False
    )


def test_it_says_what_the_cluster_would_do() -> None:
    """A table of the pools and one of the tenants, the bottleneck, and what an event costs the machine."""
    done = sim(str(EXAMPLE), *SHORT)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("results/s", "encoder", "bottleneck: denoisers", "studio", "Jain's index", "µs each"):
        assert words in done.stdout


def test_what_if_there_were_more_instances() -> None:
    """As JSON, the same run with more denoisers: less busy, and less waiting."""
    few, many = (
        json.loads(sim(str(EXAMPLE), *SHORT, "--instances", f"denoiser={count}", "--seed", "3", "--json").stdout)
        for count in (6, 30)
    )
    assert (few["seed"], few["pools"][1]["instances"], many["pools"][1]["instances"]) == (3, 10, 34)
    assert many["pools"][1]["utilisation"] < few["pools"][1]["utilisation"] / 2
    assert many["latency"]["p95_s"] < few["latency"]["p95_s"]


def test_a_bad_plan_is_one_line(tmp_path: Path) -> None:
    """And the status of a mistake in usage."""
    path = tmp_path / "plan.toml"
    path.write_text(EXAMPLE.read_text().replace("instances = 6", "instances = -6"))
    done = sim(str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: denoiser.instances is -6; allowed: expected int >= 0\n"
