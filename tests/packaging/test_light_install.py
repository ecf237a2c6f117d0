"""`pip install triptych` without extras, in an environment of its own, without a network."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

NAME = re.compile(r"[A-Za-z0-9._-]+")


def light_distributions() -> set[str]:
    """Return the names of what triptych needs without extras, and what that needs in turn."""
    found: set[str] = set()
    waiting = ["triptych"]
    while waiting:
        for requirement in importlib.metadata.requires(waiting.pop()) or []:
            match = NAME.match(requirement)
            assert match
            name = match[0].lower()
            if ";" not in requirement and name not in found:
                found.add(name)
                waiting.append(name)
    return found


@pytest.fixture(scope="session")
def light_python(wheel: ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a fresh environment that has the wheel and what it needs, copied from this one."""
    home = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    wheel.extractall(site)
    for name in light_distributions():
        for file in importlib.metadata.files(name) or []:
            if ".." not in file.parts and file.suffix != ".pyc":
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), site / file)
    return python


def run(python: Path, code: str) -> str:
    """Run `code` away from the checkout and return what it prints."""
    done = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=False, cwd=python.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_heavy_is_needed() -> None:
    """The list of what comes with `pip install triptych`."""
    assert {"torch", "numpy", "pillow", "safetensors"} & light_distributions() == set()


@pytest.mark.parametrize(
    "module",
    [
        *("triptych", "triptych.client", "triptych.broker.shell.app", "triptych.broker.machine.server"),
        *(
            "triptych.ops.cli.commands",
            "triptych.ops.launcher.cluster",
            "triptych.ops.cli.up",
            "triptych.ops.cli.generate",
            "triptych.ops.cli.admin",
        ),
    ],
)
def test_client_and_broker_import_without_torch(light_python: Path, module: str) -> None:
    """In an environment that has none."""
    code = f"import importlib.util, {module}; print(importlib.util.find_spec('torch'), {module}.__file__)"
    spec, file = run(light_python, code).split()
    assert spec == "None"
    assert Path(file).is_relative_to(light_python.parents[1])


def test_a_broker_starts_and_a_client_connects_without_torch(light_python: Path) -> None:
    """Really: two ends in one process, over a socket."""
    code = """
import asyncio
from triptych import Client
from triptych.broker.shell.app import run_broker
from triptych.broker.shell.settings import BrokerSettings

async def main():
    stop = asyncio.Event()
    ready = asyncio.get_running_loop().create_future()
    settings = BrokerSettings("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_broker(settings, stop, ready.set_result))
        async with Client((await ready).clients):
            print("welcome")
        stop.set()

asyncio.run(main())
"""
    assert "welcome\n" in run(light_python, code)


def test_a_service_without_torch_says_what_to_install(light_python: Path) -> None:
    """The extra is named."""
    code = "import sys; sys.argv = ['triptych', 'encoder']; from triptych.ops.cli.app import main; main()"
    done = subprocess.run([light_python, "-P", "-c", code], capture_output=True, text=True, check=False)
    error = "error: torch is not installed: in a checkout, pip install '.[serve]'\n"
    assert (done.returncode, done.stderr) == (1, error)
