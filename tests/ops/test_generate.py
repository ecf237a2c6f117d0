"""`triptych generate`, as a process, against a broker that the test plays."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.client.scripted import LIMITS, ScriptedBroker, scripted_broker
from triptych.client import Priority
from triptych.schemas.client import ErrorMsg, SubmitMsg
from triptych.schemas.errors import RequestTimedOut
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.states import RequestState

TRIPTYCH = [sys.executable, "-P", "-m", "triptych.ops.cli"]


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Return a scripted broker on a free loopback port."""
    async with scripted_broker() as running:
        running.limits = LIMITS
        yield running


async def generate(output: Path, endpoint: str, *arguments: str) -> tuple[int | None, str, str]:
    """Return the exit status of `triptych generate`, and what it wrote to both outputs."""
    argv = [*TRIPTYCH, "generate", "a fox", "-o", str(output), "--broker", endpoint, *arguments]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_its_options_reach_the_broker(broker: ScriptedBroker, tmp_path: Path) -> None:
    """And the picture its file."""
    options = ["--model", "sdxl", "--priority", "high", "--tenant", "team-a", "--seed", "7", "--steps", "8"]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(generate(tmp_path / "fox.png", broker.endpoint, *options))
        submit = await broker.take(SubmitMsg)
        broker.say_done(submit)
    params = SamplingParams("a fox", seed=7, num_inference_steps=8)
    assert submit == SubmitMsg(
        submit.request_id, params, model="sdxl", priority=Priority.HIGH, tenant="team-a", timeout_s=None
    )
    assert running.result() == (0, f"{tmp_path / 'fox.png'}  64 × 64, seed 7, 1.50 s\n", "")
    assert (tmp_path / "fox.png").read_bytes() == b"a picture"


async def test_the_time_to_connect_counts(broker: ScriptedBroker, tmp_path: Path) -> None:
    """The broker gets what is left of it, and a person reads what they asked for."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(generate(tmp_path / "fox.png", broker.endpoint, "--timeout", "60"))
        submit = await broker.take(SubmitMsg)
        assert submit.timeout_s is not None
        error = RequestTimedOut(submit.timeout_s, "DENOISING_RUNNING")
        broker.say(ErrorMsg(error.info(), submit.request_id, RequestState.TIMED_OUT))
    assert 0 < submit.timeout_s < 60
    complaint = "not done after 60 s; it was DENOISING_RUNNING; give it a longer timeout or add instances"
    assert running.result() == (1, "", f"error: {complaint}\n")


async def test_nobody_there_is_waited_for_no_longer_than_the_timeout(tmp_path: Path) -> None:
    """Where that is less than connecting may take."""
    status, out, err = await generate(tmp_path / "fox.png", "tcp://127.0.0.1:9", "--timeout", "0.25")
    assert (status, out) == (1, "")
    assert "no broker answers at tcp://127.0.0.1:9 (waited 0.25 s)" in err


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--timeout", "0", "--timeout is 0.0; allowed: a number of seconds above 0"),
        ("--tenant", "team a", "--tenant is 'team a'; allowed: at most 128 characters"),
        ("--model", "a b", "--model is 'a b'; allowed: at most 128 characters"),
        ("--priority", "urgent", "'urgent' is not one of 'high', 'normal', 'low'"),
    ],
)
async def test_an_option_that_cannot_be_is_refused_before_anybody_is_asked(
    tmp_path: Path, option: str, value: str, complaint: str
) -> None:
    """Given no broker at all."""
    status, out, err = await generate(tmp_path / "fox.png", "tcp://127.0.0.1:9", option, value)
    assert (status, out) == (2, "")
    assert complaint in err
    assert "Traceback" not in err
