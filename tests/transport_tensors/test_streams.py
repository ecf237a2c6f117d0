import asyncio
import gc
import threading
import weakref

import pytest
import torch

from triptych.schemas.errors import TransferError
from triptych.transport.tensors.streams import HostTransferStream, open_transfer_stream

from .conftest import LARGE, until

HERE = threading.current_thread


async def turns(count=5):
    """Let everything that is ready on the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_small_job_runs_at_once(stream):
    """With nothing ahead of it a small job is done when submit returns, on the calling thread, and starts no other."""
    threads = threading.enumerate()
    event = stream.submit(HERE, nbytes=100)
    assert event.passed()
    assert (await event, threading.enumerate()) == (HERE(), threads)


async def test_large_job_runs_beside_the_loop(stream):
    """A large job runs on the worker, and the loop goes on meanwhile."""
    running = threading.Event()
    seen = threading.Event()

    def job():
        running.set()
        assert seen.wait(60)
        return HERE()

    event = stream.submit(job, nbytes=LARGE)
    await until(running.is_set)
    assert not event.passed()
    seen.set()
    assert await event != HERE()


async def test_jobs_keep_their_order(stream):
    """Small jobs behind a held one wait for their turn, and all run in the order they came."""
    done = []
    stream.hold()
    events = [stream.submit(lambda n=n: done.append(n), nbytes=(n % 2) * LARGE) for n in range(20)]
    await turns()
    assert (done, any(event.passed() for event in events)) == ([], False)
    stream.let_go()
    await events[-1]
    assert (done, all(event.passed() for event in events)) == (list(range(20)), True)


async def test_recorded_event_passes_after_all_before_it(stream):
    """An event recorded behind jobs passes when they are complete; with nothing ahead it has passed already."""
    assert stream.record().passed()
    stream.hold()
    before = stream.submit(lambda: None, nbytes=LARGE)
    recorded = stream.record()
    assert not recorded.passed()
    stream.let_go()
    await recorded
    assert before.passed()


async def test_what_a_job_raises_reaches_its_awaiters_only(stream):
    """A job's error is raised to everyone who awaits its event, each time; the jobs around it are untouched."""
    stream.hold()
    fine = stream.submit(lambda: 1, nbytes=LARGE)
    broken = stream.submit(lambda: torch.empty(2).copy_(torch.empty(3)), nbytes=LARGE)
    also_fine = stream.submit(lambda: 2, nbytes=LARGE)
    stream.let_go()
    assert await asyncio.gather(fine, also_fine) == [1, 2]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must match"):
            await broken
    at_once = stream.submit(lambda: {}["missing"], nbytes=0)
    assert at_once.passed()
    with pytest.raises(KeyError):
        await at_once.wait()
    await stream.record()


async def test_cancelled_awaiter_leaves_job_and_event(stream):
    """Cancelling one of two tasks that await an event changes nothing for the other, nor for who comes later."""
    stream.hold()
    event = stream.submit(lambda: 7, nbytes=LARGE)
    first, second = (asyncio.create_task(event.wait()) for _ in range(2))
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not event.passed()
    stream.let_go()
    assert (await second, await event) == (7, 7)


async def test_settling_is_cancelled_only_after_the_event(stream):
    """A task that settles an event ends, however often it is cancelled, once the event has passed, as cancelled."""
    stream.hold()
    event = stream.submit(lambda: 7, nbytes=LARGE)
    task = asyncio.create_task(event.settle())
    for _ in range(3):
        await turns()
        task.cancel()
    await turns()
    assert (task.done(), event.passed()) == (False, False)
    stream.let_go()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert event.passed()


async def test_event_tells_when(stream):
    """An event carries when its job began and ended; they follow each other in order."""
    stream.hold()
    first, second = (stream.submit(lambda: None, nbytes=LARGE) for _ in range(2))
    assert (first.started_s, first.finished_s, first.duration_s) == (None, None, 0.0)
    stream.let_go()
    await second
    assert first.started_s <= first.finished_s <= second.started_s <= second.finished_s
    assert second.duration_s == second.finished_s - second.started_s


async def test_sources_live_until_the_job_has_run_and_no_longer(stream):
    """What a job refers to stays alive while it waits its turn, and is let go when it is done."""
    source, target = torch.arange(1000), torch.zeros(1000, dtype=torch.int64)
    alive = weakref.ref(source)
    stream.hold()
    event = stream.submit(lambda source=source: target.copy_(source), nbytes=LARGE)
    del source
    gc.collect()
    assert alive() is not None
    stream.let_go()
    await event
    assert torch.equal(target, torch.arange(1000))
    await stream.submit(lambda: None, nbytes=LARGE)
    assert alive() is None


async def test_closing_finishes_what_was_submitted_and_joins():
    """Closing lets every job run, leaves no thread, may be repeated, and refuses what comes after."""
    threads = threading.enumerate()
    stream = HostTransferStream()
    done = []
    for n in range(10):
        stream.submit(lambda n=n: done.append(n), nbytes=LARGE)
    await stream.aclose()
    await stream.aclose()
    assert (done, threading.enumerate()) == (list(range(10)), threads)
    with pytest.raises(TransferError, match="closed"):
        stream.submit(lambda: None, nbytes=0)


async def test_cancelled_closing_still_closes(stream):
    """A task cancelled while it closes a stream ends as cancelled, with the stream closed and its thread joined."""
    threads = [thread for thread in threading.enumerate() if thread.name != "triptych-held"]
    stream.hold()
    task = asyncio.create_task(HostTransferStream.aclose(stream))
    await turns()
    task.cancel()
    await turns()
    assert not task.done()
    stream.let_go()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threading.enumerate() == threads


def test_loop_that_is_gone_harms_nobody():
    """A job that completes after its loop was closed is simply complete; its thread goes on."""
    gate = threading.Event()

    async def leave():
        stream = HostTransferStream()
        return stream, stream.submit(lambda: gate.wait(60), nbytes=LARGE)

    async def close(stream):
        await stream.aclose()

    stream, event = asyncio.run(leave())
    gate.set()
    asyncio.run(close(stream))
    assert event.passed()


async def test_factory_gives_the_host_stream_for_the_cpu():
    """The stream for the CPU is the host's; its copies are done, not launched, by its jobs."""
    stream = open_transfer_stream("cpu")
    assert (type(stream), stream.launches) == (HostTransferStream, False)
    await stream.aclose()
