"""The messages between services and the broker: registration, work, and the life of a hop.

The peer of every message is known by its routing id, `routing_id(instance_id, incarnation)`, so a message of an older
incarnation comes from a peer that is not registered any more. Messages about a request carry its attempt.

A hop between hosts: the sender's STAGED → ALLOC, ALLOCATED (skipped where a pre-allocated receive slot fits) → PUSH,
and EXPECT to the receiver, → PUSHED → READY → LOADED, PROGRESS… → the receiver's own STAGED, or DONE in the last role.
On one host READY follows STAGED at once, and the receiver reads the sender's slot in place. RELEASE lets the sender
drop its staged bytes; it comes when nobody reads them any more.
ABORT ends an attempt early; the instance answers RELEASED once nothing of that attempt runs or touches memory any more.

A result too large for one message stays with the service that made it, and DONE brings a ticket for it. The client
fetches it over a data link (`fetch.py`), or, where it cannot, through the broker: FETCH → CHUNK or FETCH_FAILED, a
piece each, and FETCH_END when it wants no more.
"""

from typing import Annotated

from msgspec import Meta, Struct

from .context import RequestContext
from .errors import ErrorInfo
from .holdings import HeldJob, HeldOutput
from .identifiers import Attempt, Incarnation, InstanceId, ModelName, Reason, RequestId, Seconds
from .manifest import Count, Name, ScalarFields, TensorManifest
from .memory import PoolAddress, Slot
from .roles import Role
from .sampling import SamplingLimits
from .timing import StageTiming

#: raised whenever an older peer could misunderstand a message
PROTOCOL_VERSION = 2

#: bytes of one piece that a client may ask a service for, and through the broker
MAX_PIECE_BYTES = 4 * 2**20
MAX_RELAYED_PIECE_BYTES = 256 * 2**10

Secret = Annotated[bytes, Meta(min_length=16, max_length=64)]


class ResultTicket(Struct, frozen=True):
    """Where the bytes of a result wait to be fetched, once."""

    #: of the service that has them
    holder: InstanceId
    #: where it listens for those who fetch
    endpoint: Annotated[str, Meta(max_length=255)]
    #: whoever knows it may fetch; random
    token: Secret
    #: bytes of each medium
    sizes: Annotated[tuple[Count, ...], Meta(max_length=1024)]
    #: CRC-32 of each medium
    checksums: Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**32)], ...], Meta(max_length=1024)]


class Claim(Struct, frozen=True):
    """A reader's right to a result. The first reader that shows the ticket's token is the only one ever."""

    request_id: RequestId
    token: Secret
    #: random, the reader's own
    reader: Secret


class Piece(Struct, frozen=True):
    """Bytes `offset` to `offset + length` of the medium with the index `medium`."""

    medium: Annotated[int, Meta(ge=0, lt=1024)]
    offset: Count
    length: Annotated[int, Meta(ge=1, le=MAX_PIECE_BYTES)]


RelayId = Annotated[int, Meta(ge=0, lt=2**53)]


# ------------------------------------------------------------------------------------------ service → broker


class TransferRegisterMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="transfer_register"):
    """A service offers itself. A new incarnation replaces an older one of the same instance.

    To a broker that restarted it says what it still holds, and its incarnation goes on.
    """

    protocol_version: int
    #: of the package, for people
    package_version: Annotated[str, Meta(max_length=64)]
    instance_id: InstanceId
    incarnation: Incarnation
    role: Role
    #: requests it takes at once: one computes, the others prefetch
    capacity: Annotated[int, Meta(ge=1, le=4096)]
    pool: PoolAddress
    #: pre-allocated receive slots; the broker hands them out
    receive_slots: Annotated[tuple[Slot, ...], Meta(max_length=4096)] = ()
    #: what it can compute, the one it was made for first
    models: Annotated[tuple[ModelName, ...], Meta(max_length=256)] = ("default",)
    #: work that it was given before the broker restarted, and has not ended
    jobs: Annotated[tuple[HeldJob, ...], Meta(max_length=4096)] = ()
    #: staged before the broker restarted, and not released
    outputs: Annotated[tuple[HeldOutput, ...], Meta(max_length=65_536)] = ()
    #: what its pipeline allows; an encoder's are used to check requests
    limits: SamplingLimits = SamplingLimits()
    #: two processes with the same network id reach each other's loopback addresses
    network_id: Name = ""
    #: where clients fetch large results; empty: nowhere
    data_endpoint: Annotated[str, Meta(max_length=255)] = ""


class TransferHeartbeatMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="transfer_heartbeat"):
    """The service's loop is alive. Answered by TransferHeartbeatAckMsg, or TransferRegisterAgainMsg to a stranger."""

    #: requests it has been given and not ended
    jobs: Count = 0
    #: outputs that are not released
    staged: Count = 0
    #: bytes of its pool that are not in use
    free_bytes: Count = 0
    #: how late its loop was since the last heartbeat, in seconds
    loop_lag_s: Seconds = 0.0
    #: the models whose weights are in memory; None: all that it registered
    loaded: Annotated[tuple[ModelName, ...], Meta(max_length=256)] | None = None


class TransferStagedMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="transfer_staged"):
    """The stage is computed and its output lies in the sender's `slot`."""

    request_id: RequestId
    attempt: Attempt
    slot: Slot
    manifest: TensorManifest
    timing: StageTiming
    scalar_fields: ScalarFields = {}


class TransferAllocatedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_allocated"):
    """The receiver set `slot` aside for the request, as ALLOC asked."""

    request_id: RequestId
    attempt: Attempt
    slot: Slot


class TransferAllocRefusedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_alloc_refused"):
    """The receiver has no room; the lease is given back. `error` says whether it can ever have (`pool_exhausted`)."""

    request_id: RequestId
    attempt: Attempt
    error: ErrorInfo


class TransferPushedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_pushed"):
    """The sender's engine has written everything; it does not touch the receiver's slot any more."""

    request_id: RequestId
    attempt: Attempt
    nbytes: Count
    duration_s: Seconds


class TransferPushFailedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_push_failed"):
    """The engine could not write; it does not touch the receiver's slot any more.

    But where the error is `write_overdue` it still may; PUSHED or another PUSH_FAILED says when it has let go.
    """

    request_id: RequestId
    attempt: Attempt
    error: ErrorInfo


class TransferLoadedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_loaded"):
    """The receiver has a copy of its input: the slot it came in is quiet, its own or, read in place, the sender's."""

    request_id: RequestId
    attempt: Attempt


class TransferStartedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_started"):
    """The compute thread has taken the request up."""

    request_id: RequestId
    attempt: Attempt


class TransferProgressMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_progress"):
    """Step `step` of `steps` is done."""

    request_id: RequestId
    attempt: Attempt
    step: Count
    steps: Count


class MediaInfo(Struct, frozen=True, omit_defaults=True):
    """One encoded picture (or film); its bytes are the attachment of the same index."""

    media_type: Annotated[str, Meta(max_length=64)]
    #: pixels
    width: Count
    #: pixels
    height: Count
    #: draws this picture again, alone
    seed: Annotated[int, Meta(ge=0)]


class TransferDoneMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="transfer_done"):
    """The last role is done; the bytes of `media` are the attachments, in order, or wait where `ticket` says.

    Answered by RELEASE; until then the service says it again to a broker that restarted.
    """

    request_id: RequestId
    attempt: Attempt
    timing: StageTiming
    media: Annotated[tuple[MediaInfo, ...], Meta(max_length=1024)] = ()
    ticket: ResultTicket | None = None


class TransferFailedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_failed"):
    """The attempt failed on this instance, which holds nothing of it any more: lease and receive slot are free."""

    request_id: RequestId
    attempt: Attempt
    error: ErrorInfo


class TransferReleasedMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="transfer_released"):
    """The answer to ABORT: nothing of the attempt runs or touches memory here; its lease and receive slot are free.

    With `slot_retired` the pre-allocated slot is not to be handed out again, since its lost writer may still write.
    """

    request_id: RequestId
    attempt: Attempt
    slot_retired: bool = False


class TransferDrainMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_drain"):
    """The service wants no new work; it finishes what it has, keeps staged outputs until released, and leaves.

    Answered by DRAINED when nothing that was sent to it, or is in its pool, is needed any more.
    """


class TransferLeaveMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_leave"):
    """The service goes, now; what it still holds is lost."""

    reason: Reason


class TransferChunkMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_chunk"):
    """The answer to FETCH: the attachment is the piece."""

    relay_id: RelayId


class TransferFetchFailedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_fetch_failed"):
    """The answer to FETCH where there is no such piece for this claim."""

    relay_id: RelayId
    error: ErrorInfo


ServiceMsg = (
    TransferRegisterMsg
    | TransferHeartbeatMsg
    | TransferStagedMsg
    | TransferAllocatedMsg
    | TransferAllocRefusedMsg
    | TransferPushedMsg
    | TransferPushFailedMsg
    | TransferLoadedMsg
    | TransferStartedMsg
    | TransferProgressMsg
    | TransferDoneMsg
    | TransferFailedMsg
    | TransferReleasedMsg
    | TransferDrainMsg
    | TransferLeaveMsg
    | TransferChunkMsg
    | TransferFetchFailedMsg
)


# ------------------------------------------------------------------------------------------ broker → service


class TransferRegisterAckMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_register_ack"):
    """The service is registered. It sends a heartbeat each `heartbeat_s`; silent for `lease_s`, it is lost."""

    protocol_version: int
    heartbeat_s: Seconds
    lease_s: Seconds


class TransferRegisterRefusedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_register_refused"):
    """The service is not registered, and asking again with the same words will not help."""

    error: ErrorInfo


class TransferRegisterAgainMsg(
    Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="transfer_register_again"
):
    """The broker does not know this peer.

    Where `exceed` is 0 it restarted: register as the same incarnation, with what is held. Otherwise that incarnation
    is gone for good (its lease ran out): come with nothing, as a new one above `exceed`.
    """

    exceed: Incarnation = 0


class TransferDrainedMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_drained"):
    """The answer to DRAIN: nothing more will be sent to the service or fetched from its pool; it may leave."""


class TransferErrorMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_error"):
    """The last frames the service sent were no message; they were dropped."""

    error: ErrorInfo


class TransferHeartbeatAckMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_heartbeat_ack"):
    """The broker's loop is alive."""


class TransferWorkMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_work"):
    """The first role computes this request; its input is the parameters alone."""

    request_id: RequestId
    attempt: Attempt
    context: RequestContext


class TransferAllocMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_alloc"):
    """The receiver sets `size` bytes aside for the request."""

    request_id: RequestId
    attempt: Attempt
    size: Count


class TransferPushMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="transfer_push"):
    """The sender writes the request's staged bytes to `slot` of the pool of `receiver`, exactly `data_size` of them.

    A write that is not over after `timeout_s` fails: the engine lets go of the slot and PUSH_FAILED says so.
    """

    request_id: RequestId
    attempt: Attempt
    receiver: InstanceId
    pool: PoolAddress
    slot: Slot
    data_size: Count
    #: the attempt that staged them
    staged_attempt: Attempt
    timeout_s: Seconds = 60.0


class TransferReadyMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="transfer_ready"):
    """The input lies in `slot`: load it and compute.

    The slot is the receiver's own, or, with `pool`, one of that pool, read in place until the attempt is over.
    """

    request_id: RequestId
    attempt: Attempt
    slot: Slot
    manifest: TensorManifest
    context: RequestContext
    scalar_fields: ScalarFields = {}
    pool: PoolAddress | None = None


class TransferExpectMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_expect"):
    """The sender with `pool` is told to write to this service; help its engine along until READY or ABORT."""

    request_id: RequestId
    attempt: Attempt
    pool: PoolAddress
    #: where it is going to write
    slot: Slot


class TransferForgetMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_forget"):
    """The service that owned `pool` is gone: drop whatever is kept of it."""

    pool: PoolAddress


class TransferReleaseMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_release"):
    """The sender may drop what the attempt staged, once its own pushes of it are over, or its DONE. Not answered."""

    request_id: RequestId
    attempt: Attempt


class TransferAbortMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="transfer_abort"):
    """Stop the attempt at its next step and drop it; answered by RELEASED.

    `writer_lost` says that the sender which was writing the receive slot is lost and may, if it only hung, write again.
    """

    request_id: RequestId
    attempt: Attempt
    writer_lost: bool = False


class TransferFetchMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_fetch"):
    """A client that cannot reach the data link asks for a piece of a result."""

    relay_id: RelayId
    claim: Claim
    piece: Piece


class TransferFetchEndMsg(Struct, frozen=True, tag_field="msg_type", tag="transfer_fetch_end"):
    """The client wants no more of a result, since it has all or has given up. Not answered."""

    claim: Claim


BrokerMsg = (
    TransferRegisterAckMsg
    | TransferRegisterRefusedMsg
    | TransferRegisterAgainMsg
    | TransferDrainedMsg
    | TransferErrorMsg
    | TransferHeartbeatAckMsg
    | TransferWorkMsg
    | TransferAllocMsg
    | TransferPushMsg
    | TransferReadyMsg
    | TransferExpectMsg
    | TransferForgetMsg
    | TransferReleaseMsg
    | TransferAbortMsg
    | TransferFetchMsg
    | TransferFetchEndMsg
)
