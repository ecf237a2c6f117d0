"""`triptych demo`, `up` and `generate` as a person runs them: whole clusters of real processes."""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
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

    def processes(self) -> dict[int, list[str]]:
        """Return the command lines of the processes that still run."""
        pids = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if self._is_ours(path)]
        return {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in pids}

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


def dead_segments() -> list[str]:
    """Return the shared memory whose owner is dead; a living one holds a lock on it."""
    dead: list[str] = []
    for path in Path("/dev/shm").glob("triptych-*coder-0-*"):  # noqa: S108  (where Linux has shared memory)
        with suppress(FileNotFoundError), path.open("rb") as segment:
            try:
                fcntl.flock(segment, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            dead.append(path.name)
    return dead


@pytest.fixture(scope="module")
def shared_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return the shell of the tests that share one cluster."""
    yield from _shell(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell in an empty folder; what it started must be gone in the end."""
    yield from _shell(tmp_path)


def _shell(folder: Path) -> Iterator[Shell]:
    made = Shell(folder)
    yield made
    assert (made.processes(), dead_segments()) == ({}, [])


@pytest.fixture(scope="module")
def shared(shared_shell: Shell) -> Iterator[Up]:
    """Return a cluster for the tests that disturb nothing; it stops with status 0 on Ctrl-C."""
    for running in _up(shared_shell):
        yield running
        assert running.stop() == 0
        assert "everything is stopped" in running.said
        assert "Traceback" not in running.said


@pytest.fixture
def up(shell: Shell) -> Iterator[Up]:
    """Return a cluster of one service per role on free ports."""
    yield from _up(shell)


def _up(shell: Shell) -> Iterator[Up]:
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


def test_a_running_cluster_is_watched_without_any_option(shared_shell: Shell, shared: Up) -> None:
    """The only broker of this user is found, and shows who has registered."""
    status, text = shared_shell.run("admin", "status")
    assert status == 0, text
    assert f"clients {shared.endpoint}, " in text
    assert all(f"│ {name} " in text for name in ("encoder-0", "denoiser-0", "decoder-0")), text


def test_a_running_cluster_draws_what_is_asked(shared_shell: Shell, shared: Up) -> None:
    """One picture, several, two mistakes, and the first again, equal to the last bit."""
    shell, broker = shared_shell, f"--broker={shared.endpoint}"
    status, text = shell.run("generate", "a fox on a blue background", "-o", "fox.png", "--seed=5", broker)
    assert (status, text.split(",")[:2]) == (0, ["fox.png  64 × 64", " seed 5"]), text
    status, text = shell.run("generate", "🦊 ثعلب", "-o", "two.png", "--num-images=2", "--steps=4", broker)
    assert status == 0, text
    status, text = shell.run("generate", "a fox", "-o", "none.png", "--width=65", broker)
    assert (status, text.split(";")[0]) == (2, "error: --width is 65")
    status, text = shell.run("generate", "a fox", "-o", "late.png", "--timeout=1", "--steps=1000", broker)
    assert status == 1, text
    assert re.match("error: (not done after|it cannot be done within its) [01]", text), text
    status, text = shell.run("generate", "a fox on a blue background", "-o", "again.png", "--seed=5", broker)
    assert status == 0, text
    files = {path.name: path.read_bytes() for path in shell.folder.iterdir()}
    assert set(files) == {"fox.png", "two-0.png", "two-1.png", "again.png"}
    assert files["fox.png"] == files["again.png"]


def test_the_example_draws(shared_shell: Shell, shared: Up) -> None:
    """Two pictures at once, with their steps told."""
    example = Path(__file__).parents[2] / "examples" / "generate.py"
    argv = [sys.executable, "-P", example, shared.endpoint]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=shared_shell.folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a whale on a pink background: step 20 of 20\n" in done.stdout
    assert {"fox.png", "whale.png"} <= {path.name for path in shared_shell.folder.iterdir()}


def test_ctrl_c_in_generate_cancels_the_request(shared_shell: Shell, shared: Up) -> None:
    """The broker hears of it, and the status is the shell's for an interrupt."""
    arguments = ("generate", "a fox", "-o", "fox.png", "--steps=1000", f"--broker={shared.endpoint}")
    with shared_shell.start(*arguments, FORCE_COLOR="1") as process:
        assert process.stdout
        assert any("step" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate()
    assert process.returncode == 130
    assert text.endswith("interrupted\n")
    assert shared.wait_for(r"finish=(CANCELLED)")


def test_a_taken_port_is_said_before_anything_starts(shared_shell: Shell, shared: Up) -> None:
    """The cluster that has it is not disturbed."""
    status, text = shared_shell.run(
        "up", "--service-endpoint=tcp://127.0.0.1:0", f"--client-endpoint={shared.endpoint}"
    )
    assert status == 2
    assert f"error: --client-endpoint is '{shared.endpoint}'; allowed: an address that is free" in text


def test_a_service_that_dies_is_said_and_the_rest_goes_on(shell: Shell, up: Up) -> None:
    """With the signal that killed it; its shared memory is taken away in the end."""
    (decoder,) = [pid for pid, argv in shell.processes().items() if "decoder" in argv]
    os.kill(decoder, signal.SIGKILL)
    assert up.wait_for(r"(decoder-0 was killed by SIGKILL)")
    assert len(dead_segments()) == 1
    assert up.stop() == 0


def test_what_runs_may_finish_when_the_cluster_stops(shell: Shell, up: Up) -> None:
    """The roles stop one after another, so that a request in the first still passes through the last."""
    arguments = ("generate", "a fox", "-o", "fox.png", "--steps=100", f"--broker={up.endpoint}")
    with shell.start(*arguments, FORCE_COLOR="1") as process:
        assert process.stdout
        assert any("step" in line for line in process.stdout)
        assert up.stop() == 0
        text, _ = process.communicate()
    assert process.returncode == 0, text
    assert (shell.folder / "fox.png").is_file()


def test_a_dead_launcher_takes_its_cluster_along(shell: Shell, up: Up) -> None:
    """Nothing survives it, even where it had no time to say goodbye."""
    descriptors = [os.pidfd_open(pid) for pid in shell.processes()]
    assert len(descriptors) == 5
    up.process.kill()
    up.process.communicate()
    for descriptor in descriptors:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        os.close(descriptor)
