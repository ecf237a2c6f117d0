"""A machine at hand: it is told things in few words, its clock is a number, and it is checked after every event."""

from triptych.broker.machine.commands import Command, ReportIgnored, TellClient, TellService
from triptych.broker.machine.context import context_of
from triptych.broker.machine.events import ClientSpoke, Event, ServiceSpoke, ServiceVanished, TimePassed
from triptych.broker.machine.models import Model
from triptych.broker.machine.records import Request, Tenant
from triptych.broker.machine.server import DiffusionServer
from triptych.broker.machine.settings import DispatchSettings, TenantSettings
from triptych.broker.machine.story import Story
from triptych.schemas.client import CancelMsg, ClientMsg, SubmitMsg
from triptych.schemas.context import RequestContext
from triptych.schemas.errors import ErrorInfo, TransferError
from triptych.schemas.identifiers import routing_id
from triptych.schemas.manifest import TensorEntry, TensorManifest
from triptych.schemas.memory import EngineName, NixlAddress, PoolAddress, Slot
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.timing import StageTiming
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    ServiceMsg,
    TransferAllocatedMsg,
    TransferDoneMsg,
    TransferExpectMsg,
    TransferForgetMsg,
    TransferHeartbeatMsg,
    TransferPushedMsg,
    TransferPushMsg,
    TransferRegisterMsg,
    TransferReleasedMsg,
    TransferStagedMsg,
)

CLIENT = b"client"
POOL_BYTES = 65_536
SIZE = 1024
PARAMS = SamplingParams("a fox")
MANIFEST = TensorManifest(SIZE, (TensorEntry("x", None, "float32", (16, 16), 0, SIZE),))
#: where a sender's output lies
OUTPUT = Slot(7, 32_768, SIZE)
#: a pre-allocated receive slot
FIXED = Slot(0, 0, 2048)
#: a slot that ALLOC brought
DYNAMIC = Slot(9, 40_960, SIZE)
BROKEN = TransferError("broken").info()

ROLE_OF = {"e": Role.ENCODER, "d": Role.DENOISER, "v": Role.DECODER}


def pool_of(name: str, size: int = POOL_BYTES, incarnation: int = 1) -> PoolAddress:
    """Return a pool on a host of its own, that NIXL alone reaches."""
    nixl = NixlAddress(f"{name}-{incarnation}", b"metadata", 4096)
    return PoolAddress(f"host of {name}", f"/{name}-{incarnation}", size, (EngineName.NIXL,), nixl)


def shared_pool_of(name: str, host_id: str = "host", size: int = POOL_BYTES) -> PoolAddress:
    """Return a pool that those on the same host read in place."""
    return PoolAddress(host_id, f"/{name}", size)


def registration(name: str, **fields: object) -> TransferRegisterMsg:
    """Return what the service `name` says; its first letter is its role: e, d or v."""
    known = {
        "protocol_version": PROTOCOL_VERSION,
        "package_version": "0.1.0",
        "instance_id": name,
        "incarnation": 1,
        "role": ROLE_OF[name[0]],
        "capacity": 1,
        "pool": pool_of(name, incarnation=fields.get("incarnation", 1)),
        "receive_slots": (FIXED,) if name[0] != "e" else (),
    }
    return TransferRegisterMsg(**(known | fields))


def two_way_pool_of(
    name: str, host_id: str = "host", size: int = POOL_BYTES, first: EngineName = EngineName.SHM
) -> PoolAddress:
    """Return a pool that is read in place or reached by NIXL; `first` is what its owner prefers."""
    engines = (EngineName.SHM, EngineName.NIXL) if first is EngineName.SHM else (EngineName.NIXL, EngineName.SHM)
    return PoolAddress(host_id, f"/{name}", size, engines, NixlAddress(f"{name}-1", b"", 0))


def push_to(receiver: str, request_id: str = "r1", slot: Slot = FIXED) -> TransferPushMsg:
    """Return what a sender of `MANIFEST` is told; the engine has nine tenths of `push_timeout_s`."""
    return TransferPushMsg(request_id, 1, receiver, pool_of(receiver), slot, SIZE, 1, 54.0)


def expect_from(sender: str, request_id: str = "r1", slot: Slot = FIXED) -> TransferExpectMsg:
    """Return what the receiver is told in the same turn."""
    return TransferExpectMsg(request_id, 1, pool_of(sender), slot)


def peer_of(name: str, incarnation: int = 1) -> bytes:
    return routing_id(name, incarnation)


def context(**fields: object) -> RequestContext:
    """Return what goes with the work of a request that was submitted just now, without anything special."""
    known = {"client": CLIENT, "params": PARAMS, "model": "default", "timeout_s": 600.0, "left_s": 600.0}
    return RequestContext(**(known | fields))


def in_context(bench: "Bench", request_id: str = "r1") -> RequestContext:
    """Return what goes with the work of a request as it stands."""
    return context_of(bench.server._tables.requests[request_id], bench.now)


def timing(name: str) -> StageTiming:
    return StageTiming(ROLE_OF[name[0]], name, compute_s=1.0)


def error_of(reason: str) -> ErrorInfo:
    return TransferError(reason).info()


def record_of(request_id: str, arrival: int = 1, **fields: object) -> Request:
    """Return the record of a request that was accepted at the time 0."""
    model = Model(DispatchSettings(), "default")
    tenant = fields.pop("tenant", Tenant("", TenantSettings()))
    known = {"accepted_at": 0.0, "timeout_s": 60.0, "story": Story()}
    return Request(request_id, CLIENT, PARAMS, model, tenant, arrival, **(known | fields))


class Bench:
    """One machine. Services are `e1`, `d1`, `v1`, …; requests `r1` and so on.

    Unless a test is about more, there is one attempt, and no broker before this one.
    """

    def __init__(self, *services: str, **settings: object) -> None:
        self.server = DiffusionServer(DispatchSettings(**{"max_attempts": 1, "take_up_s": 0.0, **settings}), "0.1.0")
        self.now = 100.0
        for name in services:
            self.register(name)

    def handle(self, event: Event) -> list[Command]:
        commands = self.server.handle(event, self.now)
        self.server.check()
        return commands

    def say(self, name: str, msg: ServiceMsg, *attachments: bytes, incarnation: int = 1) -> list[Command]:
        """Let the service `name` say `msg`."""
        return self.handle(ServiceSpoke(peer_of(name, incarnation), msg, attachments))

    def ask(self, msg: ClientMsg, peer: bytes = CLIENT) -> list[Command]:
        """Let the client say `msg`."""
        return self.handle(ClientSpoke(peer, msg))

    def register(self, name: str, **fields: object) -> list[Command]:
        msg = registration(name, **fields)
        return self.say(name, msg, incarnation=msg.incarnation)

    def submit(self, request_id: str = "r1", **fields: object) -> list[Command]:
        return self.ask(SubmitMsg(request_id, PARAMS, **fields))

    def cancel(self, request_id: str = "r1") -> list[Command]:
        return self.ask(CancelMsg(request_id))

    def lose(self, name: str, incarnation: int = 1) -> list[Command]:
        return self.handle(ServiceVanished(peer_of(name, incarnation), "gone"))

    def after(self, seconds: float, *alive: str) -> list[Command]:
        """Let time pass; the services `alive` send a heartbeat just before."""
        self.now += seconds
        for name in alive:
            self.say(name, TransferHeartbeatMsg())
        return self.handle(TimePassed())

    # ----------------------------------------------------------------------- steps of a request

    def staged(self, name: str, request_id: str = "r1", manifest: TensorManifest = MANIFEST) -> list[Command]:
        slot = Slot(OUTPUT.slot_id, OUTPUT.offset, max(manifest.data_size, OUTPUT.size))
        return self.say(name, TransferStagedMsg(request_id, 1, slot, manifest, timing(name), {"guidance": 4.0}))

    def allocated(self, name: str, request_id: str = "r1", slot: Slot = DYNAMIC) -> list[Command]:
        return self.say(name, TransferAllocatedMsg(request_id, 1, slot))

    def pushed(self, name: str, request_id: str = "r1", nbytes: int = SIZE) -> list[Command]:
        return self.say(name, TransferPushedMsg(request_id, 1, nbytes, 0.5))

    def done(self, name: str, request_id: str = "r1") -> list[Command]:
        return self.say(name, TransferDoneMsg(request_id, 1, timing(name)))

    def released(self, name: str, request_id: str = "r1", **fields: bool) -> list[Command]:
        return self.say(name, TransferReleasedMsg(request_id, 1, **fields))

    def story(self, request_id: str = "r1") -> list[str]:
        return self.server.story(request_id)

    def instance(self, name: str) -> dict[str, object]:
        """Return what the instance holds: leases by phase, and the rest where it is not zero."""
        (status,) = (one for one in self.server.status().instances if one.instance_id == name)
        counts = {
            "free": status.free_slots,
            "taken": status.taken_slots,
            "retired": status.retired_slots,
            "staged": status.staged,
            "pushes": status.pushes,
        }
        return {**status.leases, **{key: count for key, count in counts.items() if count}}

    def states(self) -> dict[str, int]:
        """How many live requests are in which state, and how many are settling."""
        status = self.server.status()
        return status.requests | ({"settling": status.settling} if status.settling else {})


def told(commands: list[Command]) -> list[tuple[str, object]]:
    """Return what is sent to whom, without reports: (peer's name, message)."""
    return [
        (command.peer.decode().partition("/")[0], command.msg)
        for command in commands
        if isinstance(command, TellService | TellClient)
    ]


def names(commands: list[Command]) -> list[tuple[str, str]]:
    """Return what is sent to whom, without reports: (peer's name, message tag)."""
    return [(name, msg.__struct_config__.tag.removeprefix("transfer_")) for name, msg in told(commands)]


def without_forget(commands: list[Command]) -> list[Command]:
    """Return `commands` but those that tell somebody to forget a pool."""
    return [one for one in commands if not (isinstance(one, TellService) and isinstance(one.msg, TransferForgetMsg))]


def ignored(commands: list[Command]) -> bool:
    """Whether all that happened is that a message was ignored."""
    return len(commands) == 1 and isinstance(commands[0], ReportIgnored)
