"""The command line, as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRIPTYCH = [sys.executable, "-P", "-m", "triptych.ops.cli"]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `triptych` to its end."""
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [*TRIPTYCH, *arguments], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )


def test_version() -> None:
    """One line."""
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "triptych 0.1.0\n", "")


COMMANDS = ["up", "generate", "demo", "admin", "broker", "encoder", "denoiser", "decoder", "sim"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    """And each is named in the general help."""
    assert command in run("--help").stdout
    done = run(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"triptych.ops.cli {command}" in done.stdout or f"triptych {command}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        ([], 2, "Missing command"),
        (["denoise"], 2, "No such command 'denoise'. Did you mean 'denoiser'?"),
        (["generate"], 2, "Missing argument"),
        (["generate", "a fox"], 2, "Missing option '--output'"),
        (["generate", "a fox", "-o", "fox.bmp"], 2, "--output is 'fox.bmp'; allowed: a file that ends in .png"),
        (["generate", "a fox", "-o", "no/fox.png"], 2, "make no first"),
        (["generate", "a fox", "-o", "folder.png"], 2, "this is a directory"),
        (["generate", "a fox", "-o", "fox.png", "--steps", "many"], 2, "Invalid value for '--steps'"),
        (["generate", "a fox", "-o", "fox.png", "--broker", "there"], 2, "--broker is 'there'; allowed: "),
        (["admin"], 2, "Missing command"),
        (["admin", "statsu"], 2, "No such command 'statsu'. Did you mean 'status'?"),
        (["admin", "drain"], 2, "Missing argument 'INSTANCE'"),
        (["admin", "status", "--watch", "0"], 2, "Invalid value for '--watch'"),
        (["admin", "status"], 1, "no broker answers at ipc://"),
        (["admin", "status", "--endpoint", "there"], 2, "--endpoint is 'there'; allowed: "),
        (["admin", "status", "--endpoint", "ipc://admin"], 1, "no broker answers at ipc://admin; start one with"),
        (["admin", "status", "--endpoint", "ipc://folder.png"], 1, "no broker answers at ipc://folder.png; start"),
        (["admin", "status", "--endpoint", f"ipc://{'a' * 200}"], 2, "AF_UNIX path too long"),
        (["broker", "--admin-endpoint", "there"], 2, "admin_endpoint is 'there'; allowed: "),
        (["broker", "--tenants", "many"], 2, "'many' is no JSON object"),
        (
            ["broker", "--tenants", '{"a b": {}}'],
            2,
            "broker.dispatch.tenants.a b is {}; allowed: expected str matching",
        ),
        (["demo", "-o", "no/demo.png"], 2, "make no first"),
        (["up", "--shape", "1:2"], 2, "--shape is '1:2'; allowed: three numbers such as 1:2:1"),
        (["up", "--config", "none.toml"], 2, "--config is 'none.toml'; allowed: a file that can be read"),
        (["broker", "--lease-s", "0"], 2, "broker.dispatch.lease_s is 0.0; allowed: expected float >= 0.001"),
        (["broker", "--policy", "best"], 2, "Invalid value for '--policy'"),
        (["broker", "--service-endpoint", "there"], 2, "service_endpoint is 'there'; allowed: "),
        (["broker", "--client-endpoint", "there"], 2, "client_endpoint is 'there'; allowed: "),
        (["encoder", "--instance-id", "a b"], 2, "encoder.instance_id is 'a b'; allowed: "),
        (["encoder", "--device", "abacus"], 2, "device is 'abacus'; allowed: cpu"),
        (["encoder", "--device", "cuda:99"], 2, "device is 'cuda:99'; allowed: cpu"),
        (["encoder", "--device", "meta"], 2, "device is 'meta'; allowed: cpu"),
        (["encoder", "--broker", "there"], 2, "broker is 'there'; allowed: "),
        (["encoder", "--compute-threads", "3000000000"], 2, "encoder.compute_threads is 3000000000; allowed: "),
        (["encoder", "--pipeline", "none"], 2, "pipeline is 'none'; allowed: reference"),
        (["encoder", "--pipeline", ".foo:bar"], 2, "pipeline is '.foo:bar'; allowed: reference"),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(
    tmp_path: Path, arguments: list[str], status: int, complaint: str
) -> None:
    """No traceback, no half-made file."""
    (tmp_path / "folder.png").mkdir()
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert complaint in last
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_no_broker_is_said_with_the_way_out(tmp_path: Path) -> None:
    """The command that starts one is named."""
    done = run("generate", "a fox", "-o", str(tmp_path / "fox.png"), "--broker", "tcp://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr == (
        "error: no broker answers at tcp://127.0.0.1:9 (waited 5 s); start one with `triptych up`, or name another\n"
    )


def test_the_command_line_starts_without_torch() -> None:
    """Neither the client's commands nor the launcher's need it, nor Pillow, nor NumPy."""
    code = """
import sys
from triptych.broker.shell import app
from triptych.ops.cli import admin, app, commands, demo, generate, serve, up
print({"torch", "numpy", "PIL", "safetensors"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
