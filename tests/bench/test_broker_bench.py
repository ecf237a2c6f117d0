"""The load of the broker's benchmark, against a real broker and the forwarder it is compared with."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from bench.broker import broker_load, forwarder_load
from bench.control_load import PeerLoop, Round
from bench.control_scripts import Recorded, Shape, forwarder_plan
from bench.zmtp_peer import ZmtpPeer, encode
from triptych.schemas.roles import Role

SHAPE = Shape((1, 2, 1), clients=2)
ENCODER, DENOISER, DECODER = Role


def ran(measured: Round) -> bool:
    """Say whether requests ended, each in a while of its own, at some cost."""
    return measured.rate > 0 and min(measured.latencies) > 0 and measured.cpu_ms > 0


@pytest.mark.cluster
def test_the_load_runs_at_the_broker_and_as_large_at_the_forwarder(tmp_path: Path) -> None:
    """Requests end at both, and what the broker says for one is what the forwarder is told to send."""
    loop = PeerLoop()
    with broker_load(loop, SHAPE, tmp_path / "broker.log") as (load, recorded):
        assert ran(load.run(in_flight=4, lasting_s=0.2, warm_up_s=0.0))
    said = Counter((message.role, message.msg_type) for message in recorded)
    assert said == {
        (None, "queued"): 1,
        (None, "stage_started"): 3,
        (None, "stage_finished"): 3,
        (None, "result"): 1,
        (ENCODER, "transfer_work"): 1,
        (DENOISER, "transfer_ready"): 1,
        (DECODER, "transfer_ready"): 1,
        (ENCODER, "transfer_release"): 1,
        (DENOISER, "transfer_release"): 1,
        (DECODER, "transfer_release"): 1,
    }
    for lean in (False, True):
        with forwarder_load(loop, SHAPE, recorded, tmp_path / "forwarder.log", lean=lean) as load:
            assert ran(load.run(in_flight=4, lasting_s=0.2, warm_up_s=0.0))


def test_the_forwarder_sends_what_was_recorded() -> None:
    """As many messages of the same sizes to the same peers, each brought about by the same message."""
    recorded = [Recorded(None, "queued", 70), Recorded(ENCODER, "transfer_work", 300), Recorded(None, "result", 400)]
    plan = forwarder_plan(SHAPE, recorded)
    outs = {kind: [(out.place, out.size, out.attached) for out in found] for kind, found in plan.outs.items()}
    assert {kind: found for kind, found in outs.items() if kind < 7} == {
        0: [(1, 70, False), (2, 300, False)],
        1: [],
        2: [],
        3: [],
        4: [],
        5: [],
        6: [(1, 400, True)],
    }
    assert plan.names == (
        ("client-0", "client-1"),
        ("encoder-0/1",),
        ("denoiser-0/1", "denoiser-1/1"),
        ("decoder-0/1",),
    )


@contextmanager
def router_and_peer(**options: int) -> Iterator[tuple["zmq.Socket[bytes]", ZmtpPeer]]:
    """Give a ROUTER and a plain connection to it."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            router.setsockopt(getattr(zmq, name), value)
        router.bind("tcp://127.0.0.1:0")
        peer = ZmtpPeer(router.getsockopt_string(zmq.LAST_ENDPOINT), b"peer-1")
        yield router, peer
        peer.close()


def received(peer: ZmtpPeer, count: int) -> list[list[bytes]]:
    """Wait for so many messages."""
    messages: list[list[bytes]] = []
    while len(messages) < count:
        messages += peer.receive()
    return messages


def test_a_plain_connection_is_a_dealer_to_a_router() -> None:
    """Messages of many sizes go both ways, in order, however they are cut on the way."""
    messages = [[b"__client__", bytes(size)] for size in (0, 1, 255, 256, 70_000, 2**20)] + [
        [b"one"],
        [b"a", b"", b"c"],
    ]
    with router_and_peer() as (router, peer):
        peer.send(b"".join(map(encode, messages)))
        assert [router.recv_multipart() for _ in messages] == [[b"peer-1", *frames] for frames in messages]
        for frames in messages:
            router.send_multipart([b"peer-1", *frames])
        assert received(peer, len(messages)) == messages


def test_a_plain_connection_answers_heartbeats() -> None:
    """A ROUTER that hears nothing for three heartbeats closes the connection; this one stays."""
    with router_and_peer(HEARTBEAT_IVL=20, HEARTBEAT_TIMEOUT=60) as (router, peer):
        peer.send(encode([b"hello"]))
        router.recv_multipart()
        pings = 0
        while pings < 10:
            pings += peer.receive() == []  # a command alone is no message
        router.send_multipart([b"peer-1", b"still there"])
        assert received(peer, 1) == [[b"still there"]]
