"""The compute thread."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.services.kit import one_model
from tests.services.pipelines import Gate, by_prompt, counting, failing
from triptych.schemas.sampling import SamplingParams
from triptych.services.compute import ComputeThread
from triptych.services.pipelines.interface import NO_INPUT


class Recorder:
    """What a job's callbacks were told."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.started = asyncio.Event()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def compute(gate: Gate) -> Iterator[ComputeThread]:
    thread = ComputeThread(one_model(by_prompt({"gate": gate, "count": counting, "fail": failing})), threads=1)
    yield thread
    gate.open.set()
    thread.close()


def run(compute: ComputeThread, params: SamplingParams, recorder: Recorder):
    """Start a job and return its task."""
    return asyncio.create_task(compute.run("model", params, NO_INPUT, recorder.started.set, recorder.steps.append))


async def test_steps_are_reported_and_the_output_returned(compute: ComputeThread, gate: Gate) -> None:
    """Each step is told in order before the output comes; the loop is free meanwhile."""
    recorder = Recorder()
    job = run(compute, SamplingParams("gate", num_inference_steps=3), recorder)
    await recorder.started.wait()
    gate.open.set()
    computed = await job
    assert (recorder.steps, computed.output, computed.finished >= computed.started) == ([1, 2, 3], NO_INPUT, True)


async def test_jobs_run_one_at_a_time_in_order(compute: ComputeThread, gate: Gate) -> None:
    """The second starts only after the first has ended."""
    first, second = Recorder(), Recorder()
    one = run(compute, SamplingParams("gate", num_inference_steps=1), first)
    two = run(compute, SamplingParams("count", seed=4), second)
    await first.started.wait()
    assert not second.started.is_set()
    gate.open.set()
    assert (await one).finished <= (await two).started


async def test_cancelling_takes_effect_at_the_next_step(compute: ComputeThread, gate: Gate) -> None:
    """A running job ends after the step it is in, and its task only then."""
    recorder = Recorder()
    job = run(compute, SamplingParams("gate", num_inference_steps=1000), recorder)
    await recorder.started.wait()
    job.cancel()
    await asyncio.sleep(0)
    assert not job.done()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert gate.steps_done <= 2


async def test_cancelling_again_does_not_let_go_early(compute: ComputeThread, gate: Gate) -> None:
    """However often it is cancelled, the task waits for the thread to let go of the input."""
    recorder = Recorder()
    job = run(compute, SamplingParams("gate", num_inference_steps=2), recorder)
    await recorder.started.wait()
    for _ in range(3):
        job.cancel()
        await asyncio.sleep(0)
    assert not job.done()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await job


async def test_a_job_that_waits_is_cancelled_at_once(compute: ComputeThread, gate: Gate) -> None:
    """It need not wait for the one that computes."""
    first, second = Recorder(), Recorder()
    one = run(compute, SamplingParams("gate", num_inference_steps=1), first)
    two = run(compute, SamplingParams("count", seed=4), second)
    await first.started.wait()
    two.cancel()
    with pytest.raises(asyncio.CancelledError):
        await two
    assert (one.done(), second.started.is_set()) == (False, False)
    gate.open.set()
    await one


async def test_an_error_of_the_stage_comes_out_as_it_is(compute: ComputeThread) -> None:
    """The next job runs."""
    with pytest.raises(ValueError, match="no picture in it"):
        await run(compute, SamplingParams("fail"), Recorder())
    computed = await run(compute, SamplingParams("count", seed=4), Recorder())
    assert computed.output.scalar_fields == {"seed": 4}


async def test_it_leaves_no_thread(gate: Gate) -> None:
    """Closing joins the thread."""
    before = threading.active_count()
    thread = ComputeThread(one_model(counting), threads=1)
    await run(thread, SamplingParams("count"), Recorder())
    thread.close()
    assert threading.active_count() == before
