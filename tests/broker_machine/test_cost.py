"""What a message costs does not depend on how many instances and requests there are: counted, not timed."""

import sys
from collections.abc import Callable
from math import log2
from types import FrameType

import pytest

from triptych.broker.machine.settings import PolicyName
from triptych.schemas.memory import PoolAddress
from triptych.schemas.transfer import TransferHeartbeatMsg, TransferProgressMsg, TransferStartedMsg

from .kit import Bench, pool_of, registration, shared_pool_of


def count_steps(call: Callable[[], object]) -> int:
    """Return how many bytecodes run in `call`, all functions included; a loop over everything shows here."""
    steps = 0

    def trace(frame: FrameType, event: str, _arg: object) -> object:
        nonlocal steps
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


class Unchecked(Bench):
    """A machine that is not checked after every event: that would cost O(n)."""

    def handle(self, event: object) -> list[object]:
        return self.server.handle(event, self.now)


def life_of_one(bench: Bench, services: list[str]) -> int:
    """Count the steps of one request from submit to result, with heartbeats and progress, and of one cancelled."""

    def holder(role: str) -> str:
        """Return the service that holds the lease; looking for it is not counted."""
        return next(name for name in services if name[0] == role and ("new", 1) in leases_of(bench, name))

    steps = count_steps(lambda: bench.submit("new"))
    encoder = holder("e")
    steps += count_steps(lambda: bench.staged(encoder, "new"))
    denoiser = holder("d")
    steps += count_steps(lambda: bench.pushed(encoder, "new"))
    for msg in (TransferStartedMsg("new", 1), TransferProgressMsg("new", 1, 1, 2), TransferHeartbeatMsg()):
        steps += count_steps(lambda msg=msg: bench.say(denoiser, msg))
    steps += count_steps(lambda: bench.staged(denoiser, "new"))
    decoder = holder("v")
    steps += count_steps(lambda: bench.pushed(denoiser, "new"))
    steps += count_steps(lambda: bench.done(decoder, "new"))
    return steps


def leases_of(bench: Bench, name: str) -> object:
    return bench.server._tables.by_id[name].leases


def cluster(
    instances: int, policy: PolicyName, pool: Callable[[str], PoolAddress] = pool_of
) -> tuple[Unchecked, list[str]]:
    """Return a cluster at work: every instance holds some requests, all in their denoising stage or before."""
    bench = Unchecked(policy=policy)
    services = [f"{role}{number}" for role in "edv" for number in range(instances)]
    for name in services:
        bench.say(name, registration(name, capacity=4, pool=pool(name)))
    for number in range(instances):
        bench.submit(f"r{number}")
    return bench, services


@pytest.mark.parametrize("pool", [pool_of, shared_pool_of], ids=["moved", "in place"])
@pytest.mark.parametrize("policy", PolicyName)
def test_a_thousand_instances_cost_no_more_than_ten(policy: PolicyName, pool: Callable[[str], PoolAddress]) -> None:
    """A request's whole life takes about as many steps among 3,000 instances as among 30, whatever its hops are."""
    few, many = (life_of_one(*cluster(instances, policy, pool)) for instances in (10, 1000))
    assert many <= few * log2(1000) / log2(10) / 2, (few, many)


def queued(requests: int) -> Unchecked:
    """Return a machine with one instance per role, busy, and `requests` more that wait."""
    bench = Unchecked(max_queued=requests + 10)
    for name in ("e1", "d1", "v1"):
        bench.register(name)
    for number in range(requests):
        bench.submit(f"r{number}")
    return bench


def turn(bench: Bench) -> int:
    """Count the steps of a submit, a cancel in the middle of the queue, and of the next request getting its turn."""
    return count_steps(
        lambda: (bench.submit("new"), bench.cancel("r5"), bench.staged("e1", "r0"), bench.submit("newer"))
    )


def test_ten_thousand_queued_requests_cost_no_more_than_ten() -> None:
    """Submitting, cancelling and taking the next one take about as many steps with 10,000 waiting as with 10."""
    few, many = (turn(queued(requests)) for requests in (10, 10_000))
    assert many <= 1.5 * few, (few, many)


def lose_one(instances: int) -> int:
    """Count the steps of losing one instance among many, each of which has requests."""
    bench, _ = cluster(instances, PolicyName.LEAST_LOADED)
    return count_steps(lambda: bench.lose("e3"))


def test_a_loss_costs_what_the_lost_instance_held() -> None:
    """Losing an instance touches its own requests, not those of others."""
    few, many = lose_one(10), lose_one(1000)
    assert many <= 1.5 * few, (few, many)


def idle(bench: Bench) -> int:
    """Count the steps of an event of time with nothing due."""
    return count_steps(lambda: bench.after(0.01))


def test_waiting_for_a_deadline_looks_at_what_is_due() -> None:
    """An event of time with nothing due takes the same few steps whatever is waiting."""
    few, many = (idle(queued(requests)) for requests in (10, 10_000))
    assert many == few
