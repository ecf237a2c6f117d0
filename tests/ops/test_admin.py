"""`triptych admin` as a person runs it, against real broker processes; the services are links of the test's own."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from triptych.ops.config import cluster_settings
from triptych.ops.launcher.argv import TRIPTYCH
from triptych.ops.launcher.cluster import local_cluster
from triptych.ops.launcher.ready import ReadyLine
from triptych.schemas.admin import AdminStatusReplyMsg
from triptych.schemas.client import ClientMsg, ClientReplyMsg, ErrorMsg, QueuedMsg, SubmitMsg
from triptych.schemas.errors import TransferError
from triptych.schemas.identifiers import routing_id
from triptych.schemas.memory import PoolAddress
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.states import RequestState
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    BrokerMsg,
    ServiceMsg,
    TransferFailedMsg,
    TransferLeaveMsg,
    TransferRegisterAckMsg,
    TransferRegisterMsg,
    TransferWorkMsg,
)
from triptych.transport.link.channels import client_to_broker, service_to_broker
from triptych.transport.link.dealer import DealerLink

#: free ports, one attempt, and nobody is lost for not sending heartbeats
PRIVATE = {
    "service_endpoint": "tcp://127.0.0.1:0",
    "client_endpoint": "tcp://127.0.0.1:0",
    "max_attempts": 1,
    "take_up_s": 0.0,
    "lease_s": 600.0,
}
POOL = PoolAddress("host", "segment", 2**20)
MAX_FRAME = 2**20

Service = DealerLink[BrokerMsg, ServiceMsg]
Client = DealerLink[ClientReplyMsg, ClientMsg]


class Running:
    """A broker process, and links to it."""

    def __init__(self, endpoints: ReadyLine, stack: AsyncExitStack) -> None:
        self.endpoints = endpoints
        self._stack = stack

    async def encoder(self, name: str = "encoder-0", incarnation: int = 1) -> Service:
        """Return a registered encoder."""
        identity = routing_id(name, incarnation)
        link = DealerLink(service_to_broker(), self.endpoints.service_endpoint, identity, MAX_FRAME)
        service: Service = await self._stack.enter_async_context(aclosing(link))
        service.send_nowait(TransferRegisterMsg(PROTOCOL_VERSION, "0", name, incarnation, Role.ENCODER, 1, POOL))
        assert isinstance((await service.receive())[0], TransferRegisterAckMsg)
        return service

    async def client(self) -> Client:
        link = DealerLink(client_to_broker(2**20), self.endpoints.client_endpoint, b"client", MAX_FRAME)
        return await self._stack.enter_async_context(aclosing(link))

    async def busy_encoder(self) -> Service:
        """Return an encoder that was given the request r1."""
        encoder, client = await self.encoder(), await self.client()
        client.send_nowait(SubmitMsg("r1", SamplingParams("a fox")))
        work, _ = await encoder.receive()
        assert isinstance(work, TransferWorkMsg)
        return encoder


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a runtime directory of the test's own, with a short path."""
    with TemporaryDirectory(prefix="triptych-") as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@asynccontextmanager
async def broker_process() -> AsyncIterator[Running]:
    """Run a broker alone; it may not have met a bug in the end."""
    settings = cluster_settings({}, dict.fromkeys(Role, 0), PRIVATE)
    lines: list[str] = []
    async with local_cluster(settings, lambda _name, line: lines.append(line)) as cluster, AsyncExitStack() as stack:
        yield Running(cluster.endpoints, stack)
    assert not [line for line in lines if "Traceback" in line], "\n".join(lines)


@pytest.fixture
async def broker(folder: Path) -> AsyncIterator[Running]:
    """Return the only broker of this user, since `folder` is empty."""
    async with broker_process() as running:
        yield running


async def start(*arguments: str) -> asyncio.subprocess.Process:
    """Start `triptych admin`."""
    environment = {**os.environ, "COLUMNS": "200"}
    pipe = asyncio.subprocess.PIPE
    argv = (*TRIPTYCH, "admin", *arguments)
    return await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe, env=environment)


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """Wait for the end; return the status and what was said since it was last read."""
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def run(*arguments: str) -> tuple[int | None, str, str]:
    """Run `triptych admin` to its end."""
    return await ended(await start(*arguments))


async def line_of(process: asyncio.subprocess.Process) -> str:
    """Return the next line it says."""
    assert process.stdout
    return (await process.stdout.readline()).decode()


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables' rows."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


# ----------------------------------------------------------------------------------------------- status


async def test_the_status_shows_instances_pools_and_requests(broker: Running) -> None:
    """Without any option, since there is one broker. An instance that computes is busy; nobody serves the others."""
    await broker.busy_encoder()
    status, text, errors = await run("status")
    assert (status, errors) == (0, "")
    assert f"clients {broker.endpoints.client_endpoint}, admin {broker.endpoints.admin_endpoint}" in text
    instance, *pools = rows(text)
    assert instance[:7] == ["encoder-0", "encoder", "default", "busy", "1/1", "0/0", "0"]
    assert pools == [
        ["default", "encoder", "1", "0", "0", "0", "0", "0", "0", "-"],
        ["default", "denoiser", "0", "0", "0", "0", "0", "0", "0", "-"],
        ["default", "decoder", "0", "0", "0", "0", "0", "0", "0", "-"],
    ]
    assert "requests: 1 ENCODER_RUNNING" in text.splitlines()


async def test_json_is_one_line_that_decodes_to_the_message(broker: Running) -> None:
    """For programs: all of ADMIN_STATUS_REPLY, each field there."""
    await broker.busy_encoder()
    status, text, errors = await run("status", "--json")
    assert (status, errors, text.count("\n")) == (0, "", 1)
    reply = msgspec.json.decode(text, type=AdminStatusReplyMsg, strict=False)
    assert msgspec.json.encode(reply).decode() == text.rstrip("\n")
    assert [(one.instance_id, one.leases) for one in reply.status.instances] == [("encoder-0", {"running": 1})]
    assert reply.status.requests == {RequestState.ENCODER_RUNNING: 1}
    assert reply.broker is not None
    assert reply.broker.endpoints.admin == broker.endpoints.admin_endpoint


async def test_watching_goes_on_until_ctrl_c(broker: Running) -> None:
    """Each look sees what has changed since the one before."""
    process = await start("status", "--json", "--watch", "0.1")
    first = msgspec.json.decode(await line_of(process), type=AdminStatusReplyMsg)
    await broker.encoder()
    while not (later := msgspec.json.decode(await line_of(process), type=AdminStatusReplyMsg)).status.instances:
        pass
    assert first.status.instances == ()
    assert [one.instance_id for one in later.status.instances] == ["encoder-0"]
    process.send_signal(signal.SIGINT)
    status, _, errors = await ended(process)
    assert (status, errors) == (130, "interrupted\n")


# ----------------------------------------------------------------------------------------------- drain, resume


async def test_a_drained_instance_is_shown_as_such_until_it_is_resumed(broker: Running) -> None:
    """Each order says what it did."""
    await broker.encoder()
    told = "encoder encoder-0 gets no more work; it has 0 requests and 0 outputs in its pool"
    alone = "no other encoder takes work for default"
    assert await run("drain", "encoder-0") == (0, f"{told}; {alone}\n", "")
    assert rows((await run("status"))[1])[0][3] == "drained"
    assert await run("resume", "encoder-0") == (0, "encoder encoder-0 gets work\n", "")
    assert rows((await run("status"))[1])[0][3] == "idle"


async def test_drain_waits_until_nothing_would_be_lost(broker: Running) -> None:
    """Given an encoder that computes, it returns after that has ended, and not before."""
    encoder = await broker.busy_encoder()
    process = await start("drain", "encoder-0", "--wait")
    assert (await line_of(process)).startswith("encoder encoder-0 gets no more work; it has 1 request ")
    assert process.returncode is None
    encoder.send_nowait(TransferFailedMsg("r1", 1, TransferError("broken").info()))
    assert await ended(process) == (0, "encoder-0 holds nothing any more; it may be stopped\n", "")


async def test_drain_stops_waiting_when_the_instance_is_gone(broker: Running) -> None:
    """Then there is nothing left to wait for."""
    encoder = await broker.busy_encoder()
    process = await start("drain", "encoder-0", "--wait")
    await line_of(process)
    encoder.send_nowait(TransferLeaveMsg("stopped by hand"))
    assert await ended(process) == (0, "encoder-0 is gone\n", "")


async def test_drain_stops_waiting_when_the_instance_has_come_anew(broker: Running) -> None:
    """The new one is not drained."""
    await broker.busy_encoder()
    process = await start("drain", "encoder-0", "--wait")
    await line_of(process)
    await broker.encoder(incarnation=2)
    status, text, _ = await ended(process)
    assert (status, text) == (0, "encoder-0 is gone; a new incarnation of it has come, which gets work\n")


async def test_drain_stops_waiting_when_somebody_resumes_the_instance(broker: Running) -> None:
    """With an error: it is not drained."""
    await broker.busy_encoder()
    process = await start("drain", "encoder-0", "--wait")
    await line_of(process)
    assert (await run("resume", "encoder-0"))[0] == 0
    status, _, errors = await ended(process)
    allowed = "one that stays drained; this one was resumed meanwhile"
    assert (status, errors) == (2, f"error: INSTANCE is 'encoder-0'; allowed: {allowed}\n")


# ----------------------------------------------------------------------------------------------- cancel, story


async def test_a_cancelled_request_ends_and_its_story_tells_it(broker: Running) -> None:
    """Its client hears that an admin did it; a second time there is nothing to cancel."""
    client = await broker.client()
    client.send_nowait(SubmitMsg("r1", SamplingParams("a fox")))
    assert isinstance((await client.receive())[0], QueuedMsg)
    assert await run("cancel", "r1") == (0, "request r1 is cancelled; it was ENCODER_WAITING\n", "")
    answer, _ = await client.receive()
    assert isinstance(answer, ErrorMsg)
    assert (answer.state, answer.error.message) == (RequestState.CANCELLED, "cancelled by admin")
    status, text, _ = await run("story", "r1")
    *_, last, now = text.splitlines()
    assert status == 0
    assert "cancelled by an operator" in last
    assert float(now.removesuffix(" now")) >= float(last.split()[0])
    refused = "error: REQUEST is 'r1'; allowed: a request that lives; this one has ended\n"
    assert await run("cancel", "r1") == (2, "", refused)


async def test_a_mistyped_name_is_answered_with_the_nearest(broker: Running) -> None:
    """Instances and requests."""
    await broker.busy_encoder()
    assert await run("drain", "encoder0") == (
        1,
        "",
        "error: no instance is called 'encoder0'; did you mean encoder-0?\n",
    )
    assert await run("cancel", "r10") == (1, "", "error: no request is called 'r10'; did you mean r1?\n")
    assert await run("story", "x") == (1, "", "error: no request is called 'x'\n")


# ----------------------------------------------------------------------------------------------- which broker


async def test_among_several_brokers_one_must_be_named(folder: Path) -> None:
    """The error has what to choose from; each of them can be named."""
    async with broker_process() as one, broker_process() as other:
        endpoints = sorted(each.endpoints.admin_endpoint for each in (one, other))
        status, _, errors = await run("status")
        assert (status, errors) == (
            2,
            f"error: --endpoint is 'auto'; allowed: one of those that run here: {', '.join(endpoints)}\n",
        )
        for endpoint in endpoints:
            text = (await run("status", "--json", "--endpoint", endpoint))[1]
            reply = msgspec.json.decode(text, type=AdminStatusReplyMsg)
            assert reply.broker is not None
            assert reply.broker.endpoints.admin == endpoint
    assert not list(sockets(folder))


async def test_a_killed_broker_is_not_taken_for_a_running_one(folder: Path) -> None:
    """Its socket is still there; the next broker of the same endpoints takes it over."""
    argv = (
        *TRIPTYCH,
        "broker",
        f"--client-endpoint=ipc://{folder}/clients",
        f"--service-endpoint=ipc://{folder}/services",
    )
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
        assert process.stderr
        while b"broker listens" not in (line := await process.stderr.readline()):
            assert line, "it ended"
        assert (await run("status"))[0] == 0
        process.kill()
        await process.wait()
        assert len(list(sockets(folder))) == 3
        status, _, errors = await run("status")
        assert (status, errors) == (
            1,
            f"error: no broker answers at ipc://{folder}/triptych/…; start one with `triptych up`, or name another\n",
        )


def sockets(folder: Path) -> Iterator[Path]:
    """Return all sockets in `folder` and below."""
    return (path for path in folder.rglob("*") if path.is_socket())
