"""The admin channel over real sockets: who can reach it, and what it does."""

import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from msgspec.structs import replace

from tests.broker_shell.kit import PRIVATE, Operator, RunningBroker, running_broker
from triptych.broker.shell.admin_endpoint import auto_endpoint, make_admin_folder, running_brokers
from triptych.broker.shell.settings import BrokerSettings
from triptych.schemas.admin import (
    AdminCancelMsg,
    AdminDoneMsg,
    AdminDrainMsg,
    AdminErrorMsg,
    AdminMsg,
    AdminReplyMsg,
    AdminResumeMsg,
    AdminStatusMsg,
    AdminStatusReplyMsg,
    AdminStoryMsg,
    AdminStoryReplyMsg,
)
from triptych.schemas.client import ErrorMsg, PingMsg, PongMsg, QueuedMsg, SubmitMsg
from triptych.schemas.errors import ConfigError, RequestCancelled, UnknownName
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.states import RequestState
from triptych.schemas.status import MessageCounts, ServerStatus
from triptych.schemas.transfer import PROTOCOL_VERSION, TransferWorkMsg
from triptych.transport.link.channels import broker_to_operators, operator_to_broker

FOX = SamplingParams("a fox")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a runtime directory of the test's own, with a short path."""
    with TemporaryDirectory(prefix="triptych-") as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@pytest.fixture
async def broker(folder: Path) -> AsyncIterator[RunningBroker]:
    """Return a broker with an admin endpoint."""
    async with running_broker(replace(PRIVATE, admin_endpoint=f"ipc://{folder}/admin")) as running:
        yield running


async def asked(operator: Operator, msg: AdminMsg) -> AdminReplyMsg:
    """Return the answer to `msg`."""
    operator.send_nowait(msg)
    answer, attachments = await operator.receive()
    assert attachments == ()
    return answer


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def sockets(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_socket()}


# ----------------------------------------------------------------------------------------------- what it does


async def test_the_status_has_the_machine_and_the_process_around_it(broker: RunningBroker) -> None:
    """What is registered, and which process on which endpoints has heard how much."""
    operator = await broker.operator()
    await broker.encoder()
    reply = await asked(operator, AdminStatusMsg())
    assert isinstance(reply, AdminStatusReplyMsg)
    assert [one.instance_id for one in reply.status.instances] == ["encoder-0"]
    assert reply.broker is not None
    about = reply.broker
    assert (about.package_version, about.protocol_version) == (version("triptych"), PROTOCOL_VERSION)
    assert (about.pid, about.endpoints) == (os.getpid(), broker.endpoints)
    assert about.messages == MessageCounts(received=2)
    again = await asked(operator, AdminStatusMsg())
    assert isinstance(again, AdminStatusReplyMsg)
    assert again.broker is not None
    assert again.broker.uptime_s > about.uptime_s >= 0


async def test_a_drained_service_gets_the_work_when_it_is_resumed(broker: RunningBroker) -> None:
    """What came meanwhile has waited."""
    operator, client, encoder = await broker.operator(), await broker.client(), await broker.encoder()
    assert isinstance(await asked(operator, AdminDrainMsg("encoder-0")), AdminDoneMsg)
    client.send_nowait(SubmitMsg("r1", FOX))
    assert isinstance((await client.receive())[0], QueuedMsg)
    status = await asked(operator, AdminStatusMsg())
    assert isinstance(status, AdminStatusReplyMsg)
    assert status.status.requests == {RequestState.ENCODER_WAITING: 1}
    assert await asked(operator, AdminResumeMsg("encoder-0")) == AdminDoneMsg("encoder encoder-0 gets work")
    work, _ = await encoder.receive()
    assert isinstance(work, TransferWorkMsg)
    assert work.request_id == "r1"


async def test_a_client_is_told_that_its_request_was_cancelled_by_an_admin(broker: RunningBroker) -> None:
    """And the story tells it afterwards."""
    operator, client = await broker.operator(), await broker.client()
    client.send_nowait(SubmitMsg("r1", FOX))
    await client.receive()
    assert isinstance(await asked(operator, AdminCancelMsg("r1")), AdminDoneMsg)
    assert (await client.receive())[0] == ErrorMsg(RequestCancelled("admin").info(), "r1", RequestState.CANCELLED)
    told = await asked(operator, AdminStoryMsg("r1"))
    assert isinstance(told, AdminStoryReplyMsg)
    assert "cancelled by an operator" in told.lines[-1]


async def test_an_unknown_name_is_answered_with_the_error(broker: RunningBroker) -> None:
    """As it travels."""
    await broker.encoder()
    answer = await asked(await broker.operator(), AdminDrainMsg("encoder-1"))
    assert answer == AdminErrorMsg(UnknownName("instance", "encoder-1", ["encoder-0"]).info())


@pytest.mark.parametrize(
    "frames",
    [
        [b"nonsense"],
        [b"__admin__", b"\xc1"],
        [b"__admin__", b"\x91" * 4000],
        [b"__admin__", b"\x00" * 5000],
        [b"__admin__", msgspec.msgpack.encode({"msg_type": "admin_reboot"})],
        [b"__admin__", msgspec.msgpack.encode(AdminStatusMsg()), b"attached"],
        [b"__client__", msgspec.msgpack.encode(PingMsg())],
    ],
    ids=["word", "garbage", "nested", "oversized", "unknown tag", "attachment", "other channel"],
)
async def test_what_is_no_message_is_answered_and_counted(broker: RunningBroker, frames: list[bytes]) -> None:
    """The next question of the same operator is answered, and clients are served."""
    operator, client = await broker.operator(), await broker.client()
    operator._socket.send_nowait(frames)
    refused, _ = await operator.receive()
    assert isinstance(refused, AdminErrorMsg)
    assert refused.error.code == "malformed_message"
    reply = await asked(operator, AdminStatusMsg())
    assert isinstance(reply, AdminStatusReplyMsg)
    assert reply.broker is not None
    assert reply.broker.messages == MessageCounts(received=1, malformed=1)
    client.send_nowait(PingMsg())
    assert await client.receive() == (PongMsg(), ())


async def test_an_operator_that_goes_without_hearing_the_answer_disturbs_nobody(broker: RunningBroker) -> None:
    """Like one who presses Ctrl-C."""
    gone = await broker.operator(b"gone")
    for _ in range(100):
        gone.send_nowait(AdminStatusMsg())
    await gone.aclose()
    assert isinstance(await asked(await broker.operator(b"stays"), AdminStatusMsg()), AdminStatusReplyMsg)


async def test_the_status_of_ten_thousand_instances_fits_into_one_message(broker: RunningBroker) -> None:
    """With long names and several models each."""
    await broker.encoder()
    reply = await asked(await broker.operator(), AdminStatusMsg())
    assert isinstance(reply, AdminStatusReplyMsg)
    names = (f"{'encoder-on-a-host-with-a-long-name.':.<120}{number:05}" for number in range(10_000))
    (one,) = reply.status.instances
    models = tuple(f"{'model':.<60}{number}" for number in range(8))
    instances = tuple(replace(one, instance_id=name, models=models) for name in names)
    large = AdminStatusReplyMsg(ServerStatus(instances, (), {}, 0, ()), reply.broker)
    assert operator_to_broker().decode(broker_to_operators().encode(large)) == (large, ())


# ----------------------------------------------------------------------------------------------- who reaches it


async def test_only_this_user_can_open_the_socket(broker: RunningBroker, folder: Path) -> None:
    """On Linux, connecting needs the right to write."""
    assert stat.S_IMODE((folder / "admin").stat().st_mode) == 0o600


async def test_a_broker_that_stopped_leaves_no_file(folder: Path) -> None:
    """Neither of its own sockets nor of its locks."""
    settings = BrokerSettings(*(f"ipc://{folder}/{name}" for name in ("services", "clients", "admin")))
    async with running_broker(settings) as running:
        assert running.endpoints == replace(running.endpoints, admin=settings.admin_endpoint)
        assert sockets(folder) == {"services", "clients", "admin"}
    assert files(folder) == []


@pytest.mark.parametrize("key", ["service_endpoint", "client_endpoint", "admin_endpoint"])
async def test_an_endpoint_in_use_is_refused_by_its_name(folder: Path, key: str) -> None:
    """The second broker does not start, and the first one still answers there."""
    first = BrokerSettings(*(f"ipc://{folder}/{name}" for name in ("services", "clients", "admin")))
    second = replace(PRIVATE, **{key: getattr(first, key)})
    async with running_broker(first) as running:
        with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=f"{key} is 'ipc://.*here somebody does")):
            async with running_broker(second):
                pass
        await running.encoder()
        client = await running.client()
        client.send_nowait(PingMsg())
        assert await client.receive() == (PongMsg(), ())
        assert isinstance(await asked(await running.operator(), AdminStatusMsg()), AdminStatusReplyMsg)


async def test_without_a_setting_each_broker_has_a_socket_of_its_own_where_it_is_found(folder: Path) -> None:
    """In a folder that this user alone can enter; named for where its clients connect; gone with it."""
    settings = replace(PRIVATE, admin_endpoint=BrokerSettings().admin_endpoint)
    async with running_broker(settings) as one, running_broker(settings) as other:
        ours = folder / "triptych"
        expected = {auto_endpoint(ours, running.endpoints.clients) for running in (one, other)}
        assert {one.endpoints.admin, other.endpoints.admin} == expected
        assert len(expected) == 2
        assert set(running_brokers()) == expected
        assert stat.S_IMODE(ours.stat().st_mode) == 0o700
        for running in (one, other):
            reply = await asked(await running.operator(), AdminStatusMsg())
            assert isinstance(reply, AdminStatusReplyMsg)
            assert reply.broker is not None
            assert reply.broker.endpoints == running.endpoints
    assert (running_brokers(), files(ours)) == ([], [])


async def test_an_empty_endpoint_is_none(folder: Path) -> None:
    """Nothing listens, and no file is made."""
    async with running_broker(PRIVATE) as running:
        assert running.endpoints.admin == ""
        assert files(folder) == []


def test_a_folder_that_others_can_enter_is_not_used(folder: Path) -> None:
    """Somebody else could have put a socket there."""
    (folder / "triptych").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="is not a folder that this user alone may enter"):
        make_admin_folder()
    with socket.socket(socket.AF_UNIX) as fake:
        fake.bind(str(folder / "triptych" / "tcp-127.0.0.1-7701.sock"))
        fake.listen()
        assert running_brokers() == []


def test_a_link_in_place_of_the_folder_is_not_followed(folder: Path) -> None:
    """For the same reason."""
    (folder / "elsewhere").mkdir(mode=0o700)
    (folder / "triptych").symlink_to(folder / "elsewhere")
    with pytest.raises(ConfigError, match="is not a folder that this user alone may enter"):
        make_admin_folder()


@pytest.mark.parametrize(
    ("clients", "name"),
    [
        ("tcp://127.0.0.1:7701", "tcp-127.0.0.1-7701.sock"),
        ("tcp://*:7701", "tcp-7701.sock"),
        ("ipc:///run/triptych/clients", "ipc-run-triptych-clients.sock"),
        (f"ipc:///{'long/' * 20}", "bfe7c50c.sock"),
    ],
)
def test_the_socket_is_named_for_where_clients_connect(clients: str, name: str) -> None:
    """With a checksum where the name would be too long for a socket."""
    assert auto_endpoint(Path("/run/user/1000/triptych"), clients) == f"ipc:///run/user/1000/triptych/{name}"
