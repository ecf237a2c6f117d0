"""`triptych demo`, `up` and `generate` as a person runs them: whole clusters of real processes."""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.cluster

TRIPTYCH = [sys.executable, "-P", "-m", "triptych.ops.cli"]
#: every process of a test carries this in its environment
MARK = "TRIPTYCH_TEST_MARK"


class Shell:
    """Runs commands in a folder, all marked, and knows what they left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._segments = set(Path("/dev/shm").glob("triptych-*"))  # noqa: S108  (where Linux has shared memory)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*TRIPTYCH, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={**os.environ, MARK: self._mark, "COLUMNS": "200", **environment},
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        text, _ = process.communicate()
        return process.returncode, text

    def left_behind(self) -> tuple[list[str], set[Path]]:
        """Return the processes that still run and the segments that were not there before."""
        processes = [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if self._is_ours(path)]
        segments = set(Path("/dev/shm").glob("triptych-*")) - self._segments  # noqa: S108
        return processes, segments

    def _is_ours(self, environ: Path) -> bool:
        try:
            return f"{MARK}={self._mark}".encode() in environ.read_bytes()
        except OSError:
            return False


class Up:
    """A running `triptych up`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        self.endpoint = self.wait_for(r"clients connect to (tcp://[0-9.:]+);")

    def wait_for(self, pattern: str) -> str:
        """Read on until a line holds `pattern`, and return what its group matched."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.said += line
            if match := re.search(pattern, line):
                return match[1]
        raise AssertionError(self.said)

    def stop(self) -> int:
        """Press Ctrl-C and wait for the end."""
        self.process.send_signal(signal.SIGINT)
        text, _ = self.process.communicate()
        self.said += text
        return self.process.returncode


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell in an empty folder; what it started must be gone in the end."""
    made = Shell(tmp_path)
    yield made
    assert made.left_behind() == ([], set())


@pytest.fixture
def up(shell: Shell) -> Iterator[Up]:
    """Return a cluster of one service per role on free ports."""
    process = shell.start("up", "--client-endpoint=tcp://127.0.0.1:0", "--service-endpoint=tcp://127.0.0.1:0")
    with process:
        try:
            yield Up(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


def test_the_demo_writes_a_picture_and_leaves_nothing(shell: Shell) -> None:
    """Six prompts in a grid, and tables of where the time went."""
    status, text = shell.run("demo")
    assert status == 0, text
    with Image.open(shell.folder / "demo.png") as grid:
        assert grid.size == (832, 632)
    for word in ("encoder", "denoiser", "decoder", "encoder → denoiser", "denoiser → decoder"):
        assert f" {word} " in text
    assert [path.name for path in shell.folder.iterdir()] == ["demo.png"]


def test_a_running_cluster_draws_what_is_asked_and_stops_on_ctrl_c(shell: Shell, up: Up) -> None:
    """One picture, several, a mistake, and another; then everything stops with status 0."""
    broker = f"--broker={up.endpoint}"
    status, text = shell.run("generate", "a fox on a blue background", "-o", "fox.png", "--seed=5", broker)
    assert (status, text.split(",")[:2]) == (0, ["fox.png  64 × 64", " seed 5"]), text
    status, text = shell.run("generate", "🦊 ثعلب", "-o", "two.png", "--num-images=2", "--steps=4", broker)
    assert status == 0, text
    status, text = shell.run("generate", "a fox", "-o", "none.png", "--width=65", broker)
    assert status == 2
    assert text.startswith("error: --width is 65; allowed: ")
    status, text = shell.run("generate", "a fox", "-o", "late.png", "--timeout=0.001", "--steps=200", broker)
    assert status == 1
    assert text.startswith("error: not done after 0.001 s")
    status, text = shell.run("generate", "a fox on a blue background", "-o", "again.png", "--seed=5", broker)
    assert status == 0, text
    files = {path.name: path.read_bytes() for path in shell.folder.iterdir()}
    assert set(files) == {"fox.png", "two-0.png", "two-1.png", "again.png"}
    assert files["fox.png"] == files["again.png"]
    assert up.stop() == 0
    assert "everything is stopped" in up.said
    assert "Traceback" not in up.said


def test_ctrl_c_in_generate_cancels_the_request(shell: Shell, up: Up) -> None:
    """The broker hears of it, and the status is the shell's for an interrupt."""
    arguments = ("generate", "a fox", "-o", "fox.png", "--steps=1000", f"--broker={up.endpoint}")
    with shell.start(*arguments, FORCE_COLOR="1") as process:
        assert process.stdout
        assert any("step" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate()
    assert (process.returncode, text.splitlines()[-1]) == (130, "interrupted")
    assert up.wait_for(r"finish=(CANCELLED)")
    assert up.stop() == 0


def test_a_service_that_dies_is_said_and_the_rest_goes_on(shell: Shell, up: Up) -> None:
    """With the signal that killed it; its shared memory is taken away in the end."""
    processes, segments = shell.left_behind()
    assert (len(processes), len(segments)) == (5, 3)
    os.kill(_pid_of(processes, "decoder"), signal.SIGKILL)
    assert up.wait_for(r"(decoder-0 was killed by SIGKILL)")
    assert up.stop() == 0


def test_a_dead_launcher_takes_its_cluster_along(shell: Shell, up: Up) -> None:
    """Nothing survives it, even where it had no time to say goodbye."""
    descriptors = [os.pidfd_open(int(pid)) for pid in shell.left_behind()[0]]
    up.process.kill()
    up.process.communicate()
    for descriptor in descriptors:
        _wait_gone(descriptor)


def test_a_taken_port_is_said_before_anything_starts(shell: Shell, up: Up) -> None:
    """The cluster that has it is not disturbed."""
    status, text = shell.run("up", f"--client-endpoint={up.endpoint}", "--service-endpoint=tcp://127.0.0.1:0")
    assert status == 2
    assert text.startswith(f"error: --client-endpoint is '{up.endpoint}'; allowed: an address that is free")
    assert up.stop() == 0


def _pid_of(processes: list[str], command: str) -> int:
    return next(int(pid) for pid in processes if command in Path(f"/proc/{pid}/cmdline").read_text().split("\0"))


def _wait_gone(descriptor: int) -> None:
    import select  # noqa: PLC0415

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.close(descriptor)
