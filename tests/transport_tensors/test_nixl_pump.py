"""The thread around NIXL, over an agent that does what the test says."""

import threading
from time import perf_counter, sleep

import pytest
import torch

from triptych.schemas.errors import TransferError, WriteOverdue
from triptych.schemas.memory import NixlAddress
from triptych.transport.tensors.engines.nixl_agent import Region
from triptych.transport.tensors.engines.nixl_pump import AT_ONCE_BYTES, Flight, NixlPump

SOURCE = torch.zeros(8, dtype=torch.uint8)
TARGET = Region(4096, 8)
LARGE = Region(4096, AT_ONCE_BYTES + 1)


class FakeAgent:
    """Notes what is asked of it, on which thread; its transfers pass or fail as the test says."""

    metadata = b"mine"
    name = "me"

    def __init__(self):
        self.calls = []
        self.threads = []
        #: whether two threads called at once
        self.overlapped = False
        self._calling = threading.Lock()
        self.progressed = 0
        #: by peer, what posting to it raises
        self.refused = {}
        #: what each handle (peer, number) is: False under way, True over, an error
        self.state = {}
        self.close_error = None
        self.done_when_posted = False

    def __call__(self):
        return self

    def _note(self, *call):
        self.overlapped |= not self._calling.acquire(blocking=False)
        self.threads.append(threading.current_thread().name)
        self.calls.append(call)
        self._calling.release()

    def add_peer(self, metadata):
        self._note("add", metadata)
        return metadata.decode().split("@")[0]

    def remove_peer(self, name):
        self._note("remove", name)
        assert all(over for (peer, _), over in self.state.items() if peer == name)

    def post(self, source, target, peer):
        self._note("post", peer, target.size)
        if self.refused.get(peer):
            raise self.refused[peer].pop()
        handle = peer, len(self.state)
        self.state[handle] = self.done_when_posted
        return handle

    def passed(self, handle):
        if isinstance(self.state[handle], Exception):
            raise self.state[handle]
        return self.state[handle]

    def release(self, handle):
        self._note("release", handle[0])

    def progress(self):
        self.progressed += 1

    def close(self):
        self._note("close")
        if self.close_error:
            raise self.close_error


@pytest.fixture
def agent():
    return FakeAgent()


@pytest.fixture
def pump(agent):
    made = NixlPump(agent)
    assert made.opened.result(5) == b"mine"
    yield made
    for handle in agent.state:
        agent.state[handle] = True
    made.close()
    made.thread.join(10)
    assert not made.thread.is_alive()
    assert not agent.overlapped


class Told:
    """What a flight was told, each time."""

    def __init__(self):
        self.outcomes = []
        self._came = threading.Semaphore(0)

    def __call__(self, outcome):
        self.outcomes.append(outcome)
        self._came.release()

    def wait(self):
        assert self._came.acquire(timeout=10)
        return self.outcomes[-1]


def start(pump, peer="peer", metadata=b"peer@1", timeout_s=10.0):
    told = Told()
    pump.start(Flight(SOURCE, TARGET, NixlAddress(peer, metadata, 0), timeout_s, told))
    return told


def until(condition):
    deadline = perf_counter() + 10
    while not condition():
        assert perf_counter() < deadline
        sleep(0.001)


def pass_all(agent):
    for handle in agent.state:
        agent.state[handle] = True


def test_write_ends_when_nixl_says_so(pump, agent):
    """A peer is introduced once; each write is posted once, and its handle released when it is over, not before."""
    for count in (1, 2):
        told = start(pump)
        until(lambda count=count: len(agent.state) == count)
        assert told.outcomes == []
        pass_all(agent)
        assert told.wait()[1:] == (None, True)
    once = [("post", "peer", 8), ("release", "peer")]
    assert agent.calls == [("add", b"peer@1"), *once, *once]


def test_small_write_to_a_known_peer_is_posted_at_once(pump, agent):
    """The thread introduces the peer; after that a small write is posted by its starter, a large one by the thread."""
    for target, thread in ((TARGET, "triptych-nixl"), (TARGET, "MainThread"), (LARGE, "triptych-nixl")):
        agent.threads.clear()
        agent.done_when_posted = True
        told = Told()
        pump.start(Flight(SOURCE, target, NixlAddress("peer", b"peer@1", 0), 10.0, told))
        assert told.wait()[1:] == (None, True)
        assert set(agent.threads) == {thread}
        sleep(0.01)  # the thread goes to sleep


def test_small_write_that_takes_its_time_is_left_to_the_thread(pump, agent):
    """A write posted at once that is not over at once ends when NIXL says so."""
    agent.done_when_posted = True
    start(pump).wait()
    agent.done_when_posted = False
    sleep(0.01)  # the thread goes to sleep
    told = start(pump)
    assert (len(agent.state), told.outcomes) == (2, [])
    pass_all(agent)
    assert told.wait()[1:] == (None, True)


def test_overdue_write_is_let_go_only_when_over(pump, agent):
    """Past its time a write fails; its handle is kept until NIXL says that it is over, then memory is quiet."""
    told = start(pump, timeout_s=0.01)
    outcome = told.wait()
    assert (type(outcome.error), outcome.quiet) == (WriteOverdue, False)
    pump.forget("peer")
    sleep(0.05)
    assert agent.calls == [("add", b"peer@1"), ("post", "peer", 8)]
    pass_all(agent)
    assert told.wait()[1:] == (None, True)
    until(lambda: agent.calls[2:] == [("release", "peer"), ("remove", "peer")])


@pytest.mark.parametrize("when", ["posted", "under way"])
def test_failing_write_drops_its_peer(pump, agent, when):
    """A write that NIXL refuses or gives up ends with its error, quiet; the peer is introduced again for the next."""
    error = TransferError("broken")
    if when == "posted":
        agent.refused["peer"] = [error]
    told = start(pump)
    if when == "under way":
        until(lambda: agent.state)
        agent.state["peer", 0] = error
    assert told.wait()[1:] == (error, True)
    until(lambda: agent.calls[-1] == ("remove", "peer"))
    told = start(pump)
    until(lambda: agent.calls[-1] == ("post", "peer", 8))
    agent.state = dict.fromkeys(agent.state, True)
    assert told.wait().error is None


def test_broken_connection_of_long_ago_is_made_anew(pump, agent):
    """A known peer that cannot be posted to is introduced again at once, and the write goes out."""
    told = start(pump)
    until(lambda: agent.state)
    pass_all(agent)
    told.wait()
    agent.refused["peer"] = [TransferError("stale")]
    agent.calls.clear()
    told = start(pump)
    until(lambda: len(agent.state) == 2)
    pass_all(agent)
    assert told.wait().error is None
    post = ("post", "peer", 8)
    assert agent.calls == [post, ("remove", "peer"), ("add", b"peer@1"), post, ("release", "peer")]


def test_other_metadata_replaces_a_peer_once_it_is_idle(pump, agent):
    """A name with new metadata is a new peer: the former one goes first, and not under its own writes."""
    under_way = start(pump)
    until(lambda: agent.state)
    assert "still under way" in str(start(pump, metadata=b"peer@2").wait().error)
    pass_all(agent)
    under_way.wait()
    told = start(pump, metadata=b"peer@2")
    until(lambda: len(agent.state) == 2)
    pass_all(agent)
    assert told.wait().error is None
    assert [call for call in agent.calls if call[0] in {"add", "remove"}] == [
        ("add", b"peer@1"),
        ("remove", "peer"),
        ("add", b"peer@2"),
    ]


def test_metadata_of_somebody_else_is_refused(pump, agent):
    """An agent that comes under another's name is an error, and is not kept."""
    assert "is of 'other'" in str(start(pump, metadata=b"other@1").wait().error)
    assert agent.calls == [("add", b"other@1"), ("remove", "other")]


def test_expecting_keeps_the_thread_at_it(pump, agent):
    """While a write to here is expected NIXL moves on, all the time; when it is over, once more and no longer."""
    pump.expect("a")
    pump.expect("b")
    pump.expected_over("a")
    until(lambda: agent.progressed > 20)
    pump.expected_over("b")
    until(pump._jobs.empty)
    sleep(0.01)
    before = agent.progressed
    sleep(0.05)
    assert agent.progressed == before
    pump.expected_over("never")
    until(lambda: agent.progressed == before + 1)


def test_closing_ends_the_agent_under_its_writes(agent):
    """Writes under way are told at once, and are quiet once the agent is gone."""
    pump = NixlPump(agent)
    told = start(pump)
    until(lambda: agent.state)
    pump.close()
    first, last = told.wait(), told.wait()
    assert pump.closed.result(5) is None
    assert (told.outcomes[0].quiet, first is last or last.quiet, agent.calls[-1]) == (False, True, ("close",))
    assert "closed its engine" in str(told.outcomes[0].error)
    pump.thread.join(5)


def test_agent_that_does_not_close_is_an_error(agent):
    """Where NIXL does not let go, closing says so, and the writes under way are never called quiet."""
    agent.close_error = TransferError("not now")
    pump = NixlPump(agent)
    told = start(pump)
    until(lambda: agent.state)
    pump.close()
    with pytest.raises(TransferError, match="not now"):
        pump.closed.result(5)
    assert [outcome.quiet for outcome in told.outcomes] == [False]


def test_agent_that_does_not_open_is_an_error():
    """What opening the agent raises is raised to whoever opens the engine, and no thread stays."""

    def fail():
        raise TransferError("no")

    pump = NixlPump(fail)
    with pytest.raises(TransferError, match="no"):
        pump.opened.result(5)
    pump.thread.join(5)
    assert not pump.thread.is_alive()
