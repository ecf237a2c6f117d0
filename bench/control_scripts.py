"""What the null services and clients of `bench.broker` say: to the broker and, in the same sizes, to the forwarder.

A message is encoded once, as a template; to say it is to fill in the request.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from triptych.schemas.client import ClientMsg, HelloMsg, SubmitMsg
from triptych.schemas.identifiers import routing_id
from triptych.schemas.manifest import TensorEntry, TensorManifest
from triptych.schemas.memory import PoolAddress, Slot
from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingParams
from triptych.schemas.timing import StageTiming
from triptych.schemas.transfer import (
    PROTOCOL_VERSION,
    MediaInfo,
    ServiceMsg,
    TransferDoneMsg,
    TransferHeartbeatMsg,
    TransferRegisterMsg,
    TransferStagedMsg,
    TransferStartedMsg,
)
from triptych.transport.link.codec import CLIENT_CHANNEL, TRANSFER_CHANNEL

from .forwarder import HEAD, Out, Plan
from .zmtp_peer import encode

ROLES = tuple(Role)
#: as the services' settings have it: one computes, one prefetches
CAPACITY = 2
POOL_BYTES = 2**26
#: of the picture that comes with DONE, like a small PNG
PICTURE = bytes(range(256)) * 16

#: a request id as long as a UUID's digits, and a slot id that takes four bytes; they are replaced
_ID, _SLOT_ID = b"%032x" % 0xDEFACED, 0x7ACE5107
_SLOT = msgspec.msgpack.encode(_SLOT_ID)


class Shape(Struct, frozen=True):
    """How many services of each role there are, and clients."""

    services: tuple[int, int, int]
    clients: int = 16


class Script(Protocol):
    """What peers of one kind of server say. Everything is encoded for the wire."""

    def greet(self, role: Role | None, index: int) -> bytes:
        """Return the first words of a service, or of a client (no role); one message answers them."""
        ...

    def heartbeat(self) -> bytes:
        """Return what each service says once a second; empty: nothing."""
        ...

    def submit(self, number: int, client: int) -> bytes:
        """Return a client's request with this number."""
        ...

    def answer(self, role: Role, frames: Sequence[bytes]) -> bytes:
        """Return what a service of `role` says to a message; empty: nothing."""
        ...

    def ended(self, frames: Sequence[bytes]) -> int | None:
        """Return the number of the request whose result this message to a client is, if it is one."""
        ...


class Template:
    """A message that is the same for each request but for the request's id, and its slot's."""

    def __init__(self, channel: bytes, message: Struct, attachments: Sequence[bytes] = ()) -> None:
        self.body = msgspec.msgpack.encode(message)
        self.attachments = attachments
        wire = encode([channel, self.body, *attachments])
        self._head, tail = wire.split(_ID)
        self._middle, _, self._tail = tail.partition(_SLOT)
        self._has_slot = _SLOT in tail

    def fill(self, number: int) -> bytes:
        """Return the message about the request with this number, for the wire."""
        request_id = b"%032x" % number
        if self._has_slot:
            return b"".join((self._head, request_id, self._middle, b"\xce", number.to_bytes(4), self._tail))
        return b"".join((self._head, request_id, self._middle))


def instance_id(role: Role, index: int) -> str:
    """Return the name of a service."""
    return f"{role}-{index}"


def client_id(index: int) -> str:
    """Return the routing id of a client."""
    return f"client-{index}"


def peer_id(role: Role | None, index: int) -> bytes:
    """Return the routing id of a service, or of a client (no role)."""
    return client_id(index).encode() if role is None else routing_id(instance_id(role, index), 1)


# ------------------------------------------------------------------------------------------ to the broker


class _Heard(Struct):
    """What a null service or a client looks at."""

    msg_type: str
    request_id: str = ""
    error: msgspec.Raw = msgspec.Raw()


class UnexpectedMessage(Exception):
    """The broker said what it says only where something went wrong."""


_SUBMIT = Template(CLIENT_CHANNEL, SubmitMsg(_ID.decode(), SamplingParams("a fox on a blue background", seed=7)))
_ENTRIES = (
    TensorEntry("prompt_embeds", None, "float32", (1, 32, 64), 0, 8192),
    TensorEntry("pooled", None, "float32", (1, 64), 8192, 256),
)
_STARTED = Template(TRANSFER_CHANNEL, TransferStartedMsg(_ID.decode(), 1))


def _timing(role: Role) -> StageTiming:
    return StageTiming(role, instance_id(role, 0), load_s=0.0012, wait_s=0.0034, compute_s=0.0056, output_s=0.0078)


def _staged(role: Role) -> Template:
    slot, manifest = Slot(_SLOT_ID, 16_384, 16_384), TensorManifest(8704, _ENTRIES)
    message = TransferStagedMsg(_ID.decode(), 1, slot, manifest, _timing(role), {"guidance": 4.0})
    return Template(TRANSFER_CHANNEL, message)


def _done() -> Template:
    media = (MediaInfo("image/png", 64, 64, 7),)
    return Template(TRANSFER_CHANNEL, TransferDoneMsg(_ID.decode(), 1, _timing(Role.DECODER), media), (PICTURE,))


#: what ends each stage
_OUTPUTS = {Role.ENCODER: _staged(Role.ENCODER), Role.DENOISER: _staged(Role.DENOISER), Role.DECODER: _done()}


class BrokerScript:
    """The sequence of a real request without steps: what is computed is ready at once, and inputs are read in place."""

    def __init__(self) -> None:
        self._heard = msgspec.msgpack.Decoder(_Heard)
        self._heartbeat = _encoded(TRANSFER_CHANNEL, TransferHeartbeatMsg())
        #: called with each message that the broker sends
        self.notice: Callable[[Role | None, str, int], None] = _overhear

    def greet(self, role: Role | None, index: int) -> bytes:
        """Register, or say hello."""
        if role is None:
            return _encoded(CLIENT_CHANNEL, HelloMsg(PROTOCOL_VERSION, "bench"))
        name = instance_id(role, index)
        pool = PoolAddress("bench", name, POOL_BYTES)
        return _encoded(TRANSFER_CHANNEL, TransferRegisterMsg(PROTOCOL_VERSION, "bench", name, 1, role, CAPACITY, pool))

    def heartbeat(self) -> bytes:
        """Renew the lease."""
        return self._heartbeat

    def submit(self, number: int, client: int) -> bytes:
        """Return a SUBMIT."""
        return _SUBMIT.fill(number)

    def answer(self, role: Role, frames: Sequence[bytes]) -> bytes:
        """Return STARTED and, at once, the output."""
        heard = self._heard.decode(frames[1])
        self.notice(role, heard.msg_type, len(frames[1]))
        if heard.msg_type in {"transfer_work", "transfer_ready"}:
            number = int(heard.request_id, 16)
            return _STARTED.fill(number) + _OUTPUTS[role].fill(number)
        if heard.msg_type not in {"transfer_release", "transfer_heartbeat_ack", "transfer_register_ack"}:
            raise UnexpectedMessage(f"{role}: {frames[1]!r}")
        return b""

    def ended(self, frames: Sequence[bytes]) -> int | None:
        """Return the number of a RESULT's request."""
        heard = self._heard.decode(frames[1])
        self.notice(None, heard.msg_type, len(frames[1]))
        if heard.msg_type == "error":
            raise UnexpectedMessage(f"client: {frames[1]!r}")
        return int(heard.request_id, 16) if heard.msg_type == "result" else None


def _overhear(_role: Role | None, _msg_type: str, _size: int) -> None:
    """Let it pass."""


def _encoded(channel: bytes, message: ServiceMsg | ClientMsg) -> bytes:
    return encode([channel, msgspec.msgpack.encode(message)])


# ------------------------------------------------------------------------------------------ to the forwarder

#: kinds of messages: SUBMIT; STARTED and then the output of each role; the greetings of a client and of each role
_SUBMITTED = 0
_STARTED_BY = {role: 1 + place for place, role in enumerate(ROLES)}
_ENDED_BY = {role: 4 + place for place, role in enumerate(ROLES)}
_GREETING_OF = {role: 7 + place for place, role in enumerate((None, *ROLES))}
#: kinds of what comes back
_TO_COMPUTE, _RESULT, _OTHER = 1, 2, 3

#: what brings each message of the broker about: by who gets it and what it is
_CAUSES: dict[tuple[Role | None, str], tuple[int, ...]] = {
    (None, "queued"): (_SUBMITTED,),
    (Role.ENCODER, "transfer_work"): (_SUBMITTED,),
    (None, "stage_started"): tuple(_STARTED_BY.values()),
    (None, "stage_finished"): tuple(_ENDED_BY.values()),
    (Role.DENOISER, "transfer_ready"): (_ENDED_BY[Role.ENCODER],),
    (Role.ENCODER, "transfer_release"): (_ENDED_BY[Role.DENOISER],),
    (Role.DECODER, "transfer_ready"): (_ENDED_BY[Role.DENOISER],),
    (Role.DENOISER, "transfer_release"): (_ENDED_BY[Role.DECODER],),
    (Role.DECODER, "transfer_release"): (_ENDED_BY[Role.DECODER],),
    (None, "result"): (_ENDED_BY[Role.DECODER],),
}


class Recorded(Struct, frozen=True):
    """A message that the broker sent to a service of `role` or to a client (no role)."""

    role: Role | None
    msg_type: str
    #: bytes of its frame 1
    size: int


def forwarder_plan(shape: Shape, recorded: Sequence[Recorded], *, lean: bool = False) -> Plan:
    """Return a plan of as many messages, of the same sizes and to the same peers, as `recorded` of one request has."""
    outs: dict[int, list[Out]] = {kind: [] for kind in (_SUBMITTED, *_STARTED_BY.values(), *_ENDED_BY.values())}
    seen: dict[tuple[Role | None, str], int] = {}
    for message in recorded:
        key = (message.role, message.msg_type)
        causes = _CAUSES[key]
        turn = seen[key] = seen.get(key, -1) + 1
        kind = {"transfer_work": _TO_COMPUTE, "transfer_ready": _TO_COMPUTE, "result": _RESULT}.get(key[1], _OTHER)
        place = 1 if message.role is None else 2 + ROLES.index(message.role)
        outs[causes[turn]].append(Out(place, kind, message.size, kind == _RESULT))
    greetings = {kind: [Out(1 + place, _OTHER, 64, attached=False)] for place, kind in enumerate(_GREETING_OF.values())}
    services = [
        tuple(peer_id(role, index).decode() for index in range(count))
        for role, count in zip(ROLES, shape.services, strict=True)
    ]
    clients = tuple(map(client_id, range(shape.clients)))
    return Plan((clients, *services), {kind: tuple(found) for kind, found in (outs | greetings).items()}, lean)


class ForwarderScript:
    """The same messages with nothing in them but whom they are for, in turn among the services of a role."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._submit = _Blank(_SUBMITTED, CLIENT_CHANNEL, _SUBMIT)
        self._started = {role: _Blank(_STARTED_BY[role], TRANSFER_CHANNEL, _STARTED) for role in ROLES}
        self._outputs = {role: _Blank(_ENDED_BY[role], TRANSFER_CHANNEL, _OUTPUTS[role]) for role in ROLES}

    def greet(self, role: Role | None, index: int) -> bytes:
        """Ask for an echo."""
        places = [0, 0, 0, 0]
        places[0 if role is None else 1 + ROLES.index(role)] = index
        channel = CLIENT_CHANNEL if role is None else TRANSFER_CHANNEL
        return encode([channel, HEAD.pack(_GREETING_OF[role], *places, 0)])

    def heartbeat(self) -> bytes:
        """Say nothing."""
        return b""

    def submit(self, number: int, client: int) -> bytes:
        """Return a message as large as a SUBMIT."""
        places = (number % count for count in self._shape.services)
        return self._submit.fill(HEAD.pack(0, client, *places, number))

    def answer(self, role: Role, frames: Sequence[bytes]) -> bytes:
        """Return messages as large as STARTED and the output."""
        body = frames[1]
        if body[HEAD.size] != _TO_COMPUTE:
            return b""
        return self._started[role].fill(body) + self._outputs[role].fill(body)

    def ended(self, frames: Sequence[bytes]) -> int | None:
        """Return the number of the request whose result this stands for."""
        body = frames[1]
        return HEAD.unpack_from(body)[-1] if body[HEAD.size] == _RESULT else None


class _Blank:
    """A message as large as that of a template, of which the head is filled in."""

    def __init__(self, kind: int, channel: bytes, template: Template) -> None:
        self._kind = HEAD.pack(kind, 0, 0, 0, 0, 0)[:2]
        head, blank = b"\xfe" * HEAD.size, template.body[HEAD.size :]
        self._before, self._after = encode([channel, head + blank, *template.attachments]).split(head)

    def fill(self, head: bytes) -> bytes:
        """Return the message with all of `head` but its kind."""
        return b"".join((self._before, self._kind, head[2 : HEAD.size], self._after))
