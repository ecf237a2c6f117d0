"""The broker over real sockets, in the test's own loop."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing

import msgspec
import pytest
import zmq
import zmq.asyncio

from triptych.broker.machine.settings import DispatchSettings
from triptych.broker.shell.app import BrokerEndpoints, run_broker
from triptych.broker.shell.settings import BrokerSettings
from triptych.schemas.client import (
    CancelMsg,
    ClientMsg,
    ClientReplyMsg,
    ErrorMsg,
    HelloMsg,
    PingMsg,
    PongMsg,
    QueuedMsg,
    SubmitMsg,
    WelcomeMsg,
)
from triptych.schemas.errors import ConfigError
from triptych.schemas.identifiers import routing_id
from triptych.schemas.memory import PoolAddress
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingLimits, SamplingParams
from triptych.schemas.states import RequestState
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    BrokerMsg,
    ServiceMsg,
    TransferErrorMsg,
    TransferHeartbeatAckMsg,
    TransferHeartbeatMsg,
    TransferRegisterAckMsg,
    TransferRegisterAgainMsg,
    TransferRegisterMsg,
    TransferWorkMsg,
)
from triptych.transport.link.channels import client_to_broker, service_to_broker
from triptych.transport.link.dealer import DealerLink

Client = DealerLink[ClientReplyMsg, ClientMsg]
Service = DealerLink[BrokerMsg, ServiceMsg]
SETTINGS = BrokerSettings(
    service_endpoint="tcp://127.0.0.1:0",
    client_endpoint="tcp://127.0.0.1:0",
    dispatch=DispatchSettings(heartbeat_s=0.05, lease_s=0.5, max_attempts=1),
)
POOL = PoolAddress("host", "segment", 2**20)


class Cluster:
    """A running broker and links to it."""

    def __init__(self, endpoints: BrokerEndpoints, stack: AsyncExitStack) -> None:
        self.endpoints = endpoints
        self._stack = stack

    async def client(self, identity: bytes = b"client-1") -> Client:
        link = DealerLink(client_to_broker(2**20), self.endpoints.clients, identity, 2**20)
        return await self._stack.enter_async_context(aclosing(link))

    async def service(self, identity: bytes) -> Service:
        link = DealerLink(service_to_broker(), self.endpoints.services, identity, 2**20)
        return await self._stack.enter_async_context(aclosing(link))

    async def encoder(self) -> Service:
        """Return a registered encoder."""
        service = await self.service(routing_id("encoder-0", 1))
        service.send_nowait(TransferRegisterMsg(PROTOCOL_VERSION, "0", "encoder-0", 1, Role.ENCODER, 1, POOL))
        assert await service.receive() == (TransferRegisterAckMsg(PROTOCOL_VERSION, 0.05, 0.5), ())
        return service


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    stop = asyncio.Event()
    ready: asyncio.Future[BrokerEndpoints] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        tasks.create_task(run_broker(SETTINGS, stop, ready.set_result))
        yield Cluster(await ready, stack)
        stop.set()


async def ping(client: Client) -> None:
    """Show that the broker still answers."""
    client.send_nowait(PingMsg())
    assert await client.receive() == (PongMsg(), ())


async def test_a_request_is_queued_and_given_to_an_encoder(cluster: Cluster) -> None:
    """SUBMIT from a client becomes WORK at a service."""
    client, encoder = await cluster.client(), await cluster.encoder()
    client.send_nowait(SubmitMsg("r1", SamplingParams("a fox", seed=3)))
    assert await client.receive() == (QueuedMsg("r1", 0, (Role.DENOISER, Role.DECODER)), ())
    work, _ = await encoder.receive()
    assert isinstance(work, TransferWorkMsg)
    assert (work.request_id, work.attempt) == ("r1", 1)
    assert (work.context.client, work.context.params) == (b"client-1", SamplingParams("a fox", seed=3))


async def test_heartbeats_are_answered_and_silence_ends_the_lease(cluster: Cluster) -> None:
    """A service that falls silent is lost: its request fails, and it must register again."""
    client, encoder = await cluster.client(), await cluster.encoder()
    encoder.send_nowait(TransferHeartbeatMsg())
    assert await encoder.receive() == (TransferHeartbeatAckMsg(), ())
    client.send_nowait(SubmitMsg("r1", SamplingParams("a fox")))
    await client.receive()
    failed, _ = await client.receive()
    assert isinstance(failed, ErrorMsg)
    assert (failed.request_id, failed.state, failed.error.code) == ("r1", RequestState.FAILED, "failed")
    assert isinstance((await encoder.receive())[0], TransferWorkMsg)
    encoder.send_nowait(TransferHeartbeatMsg())
    assert await encoder.receive() == (TransferRegisterAgainMsg(exceed=1), ())


async def test_a_request_times_out_without_any_service(cluster: Cluster) -> None:
    """The client is told in time, by the broker's own timer."""
    client = await cluster.client()
    client.send_nowait(SubmitMsg("r1", SamplingParams("a fox"), timeout_s=0.05))
    assert isinstance((await client.receive())[0], QueuedMsg)
    ended, _ = await client.receive()
    assert isinstance(ended, ErrorMsg)
    assert (ended.state, ended.error.code) == (RequestState.TIMED_OUT, "timed_out")


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"nonsense"],
        [b"__client__", b"\xc1"],
        [b"__client__", b"\x81\xa8msg_type\xa6subm"],
        [b"__client__", b"\x91" * 100_000],
        [b"__client__", b"\x00" * 300_000],
        [b"__client__", msgspec.msgpack.encode({"msg_type": "ping"}), b"attached"],
        [b"__transfer__", msgspec.msgpack.encode(TransferHeartbeatMsg())],
    ],
    ids=["empty", "word", "garbage", "truncated", "nested", "oversized", "attachment", "other channel"],
)
async def test_a_client_that_sends_no_message_is_told_and_others_are_served(
    cluster: Cluster, frames: list[bytes]
) -> None:
    """ERROR comes back to the sender; the next message of anybody is answered."""
    other = await cluster.client(b"other")
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        raw.connect(cluster.endpoints.clients)
        await raw.send_multipart(frames)
        _, answer = await raw.recv_multipart()
        message = msgspec.msgpack.decode(answer, type=ErrorMsg)
        assert message.error.code == "malformed_message"
    await ping(other)


async def test_an_unknown_parameter_is_refused_with_the_request_id(cluster: Cluster) -> None:
    """The client can tell which request was meant."""
    client = await cluster.client()
    params = {"prompt": "a fox", "widht": 64}
    frames = [b"__client__", msgspec.msgpack.encode({"msg_type": "submit", "request_id": "r1", "params": params})]
    client._socket.send_nowait(frames)
    refused, _ = await client.receive()
    assert isinstance(refused, ErrorMsg)
    assert (refused.request_id, refused.state) == ("r1", None)
    assert "widht" in refused.error.message
    await ping(client)


@pytest.mark.parametrize("frames", [[b"nonsense"], [b"__transfer__", b"\xc1"], [b"__transfer__", b"\x91" * 100_000]])
async def test_a_service_that_sends_no_message_is_told_and_others_are_served(
    cluster: Cluster, frames: list[bytes]
) -> None:
    """TRANSFER_ERROR comes back; a registered service goes on."""
    encoder = await cluster.encoder()
    stranger = await cluster.service(b"stranger")
    stranger._socket.send_nowait(frames)
    assert isinstance((await stranger.receive())[0], TransferErrorMsg)
    encoder.send_nowait(TransferHeartbeatMsg())
    assert await encoder.receive() == (TransferHeartbeatAckMsg(), ())


async def test_a_client_is_welcomed_with_the_limits_of_the_pipeline(cluster: Cluster) -> None:
    """HELLO is answered, before and after an encoder has registered."""
    client = await cluster.client()
    hello = HelloMsg(PROTOCOL_VERSION, "0")
    client.send_nowait(hello)
    welcome, _ = await client.receive()
    assert isinstance(welcome, WelcomeMsg)
    assert welcome.limits is None
    await cluster.encoder()
    client.send_nowait(hello)
    welcome, _ = await client.receive()
    assert isinstance(welcome, WelcomeMsg)
    assert welcome.limits is not None


async def test_a_client_that_is_gone_disturbs_nobody(cluster: Cluster) -> None:
    """What cannot be delivered is dropped, and the broker goes on."""
    gone, stays = await cluster.client(b"gone"), await cluster.client(b"stays")
    gone.send_nowait(SubmitMsg("r1", SamplingParams("a fox"), timeout_s=0.05))
    await gone.receive()
    await gone.aclose()
    stays.send_nowait(SubmitMsg("r2", SamplingParams("a fox"), timeout_s=0.1))
    await stays.receive()
    ended, _ = await stays.receive()
    assert isinstance(ended, ErrorMsg)
    assert ended.state is RequestState.TIMED_OUT


async def test_a_taken_port_is_said(cluster: Cluster) -> None:
    """A second broker on the same port ends with an error that names it."""
    settings = msgspec.structs.replace(SETTINGS, client_endpoint=cluster.endpoints.clients)
    with pytest.raises(ConfigError, match="Address already in use"):
        await run_broker(settings, asyncio.Event(), print)


async def test_a_broker_that_was_held_up_loses_nobody(cluster: Cluster) -> None:
    """Heartbeats that waited in its socket count as in time, however long its loop stood still."""
    encoder = await cluster.encoder()
    encoder.send_nowait(TransferHeartbeatMsg())
    assert await encoder.receive() == (TransferHeartbeatAckMsg(), ())
    encoder.send_nowait(TransferHeartbeatMsg())
    time.sleep(1.0)  # noqa: ASYNC251  (twice the lease: this is the hold-up)
    assert await encoder.receive() == (TransferHeartbeatAckMsg(), ())
    encoder.send_nowait(TransferHeartbeatMsg())
    assert await encoder.receive() == (TransferHeartbeatAckMsg(), ())


async def test_a_held_up_broker_keeps_its_deadlines_however_busy_it_is(cluster: Cluster) -> None:
    """The grace after a hold-up ends: the oldest request being cancelled again and again does not prolong it."""
    client = await cluster.client()
    ids = [str(number) for number in range(200)]
    for request_id in ids:
        client.send_nowait(SubmitMsg(request_id, SamplingParams("a fox"), timeout_s=0.2))
    for _ in ids:
        assert isinstance((await client.receive())[0], QueuedMsg)
    time.sleep(0.5)  # noqa: ASYNC251  (the hold-up)
    states: list[RequestState | None] = []
    for request_id in ids:
        client.send_nowait(CancelMsg(request_id))
        ended, _ = await client.receive()
        assert isinstance(ended, ErrorMsg)
        states.append(ended.state)
        await asyncio.sleep(0.005)
    assert states[0] is RequestState.CANCELLED
    assert RequestState.TIMED_OUT in states


async def test_limits_that_are_none_are_refused(cluster: Cluster) -> None:
    """A service whose pipeline allows multiples of 0 cannot register, and nobody else notices."""
    service, client = await cluster.service(routing_id("encoder-0", 1)), await cluster.client()
    limits = SamplingLimits(size_multiple=0)
    service.send_nowait(
        TransferRegisterMsg(PROTOCOL_VERSION, "0", "encoder-0", 1, Role.ENCODER, 1, POOL, limits=limits)
    )
    refused, _ = await service.receive()
    assert isinstance(refused, TransferErrorMsg)
    assert "size_multiple" in refused.error.message
    client.send_nowait(SubmitMsg("r1", SamplingParams("a fox")))
    assert isinstance((await client.receive())[0], QueuedMsg)


async def test_a_frame_above_max_result_bytes_is_answered_and_the_link_stays() -> None:
    """Given a broker with a small limit and a service that sends more, the service is told, and heard again after."""
    settings = msgspec.structs.replace(SETTINGS, max_result_bytes=2**20)
    stop = asyncio.Event()
    ready: asyncio.Future[BrokerEndpoints] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        tasks.create_task(run_broker(settings, stop, ready.set_result))
        encoder = await Cluster(await ready, stack).encoder()
        encoder._socket.send_nowait([b"__transfer__", b"\x80", bytes(8 * 2**20)])
        refused, _ = await encoder.receive()
        assert isinstance(refused, TransferErrorMsg)
        assert refused.error.message == "not a message: 8388608 attached bytes; at most 1048576 are taken"
        encoder.send_nowait(TransferHeartbeatMsg())
        assert await encoder.receive() == (TransferHeartbeatAckMsg(), ())
        stop.set()
