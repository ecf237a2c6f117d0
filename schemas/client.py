"""The messages between clients and the broker."""

from typing import Annotated

from msgspec import Meta, Struct

from .context import Priority, StageTimeouts
from .errors import ErrorInfo
from .identifiers import Attempt, InstanceId, ModelName, RequestId, Seconds, TenantName
from .manifest import Count
from .roles import Role
from .sampling import SamplingLimits, SamplingParams
from .states import RequestState
from .timing import StageTiming, TransferTiming
from .transfer import Claim, MediaInfo, Piece, ResultTicket

# ------------------------------------------------------------------------------------------ client → broker


class HelloMsg(Struct, frozen=True, tag_field="msg_type", tag="hello"):
    """A client introduces itself; answered by WELCOME, or by ERROR where the versions differ."""

    protocol_version: int
    package_version: Annotated[str, Meta(max_length=64)]


class SubmitMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="submit"):
    """Draw this. `request_id` is the client's own, unique for ever (a UUID); answered by QUEUED or ERROR.

    Said again by the same client while the request lives, it changes nothing and is answered by QUEUED once more.
    """

    request_id: RequestId
    params: SamplingParams
    #: counted from acceptance; None: the broker's default
    timeout_s: Annotated[float, Meta(gt=0, le=7 * 86_400)] | None = None
    #: empty: the broker's default
    model: Annotated[str, Meta(max_length=128)] = ""
    priority: Priority = Priority.NORMAL
    tenant: TenantName = ""
    #: limits for one attempt at a stage, where they are shorter than the broker's
    stage_timeout_s: StageTimeouts = {}
    #: end the request when nothing is heard of the client any more
    cancel_on_disconnect: bool = False


class CancelMsg(Struct, frozen=True, tag_field="msg_type", tag="cancel"):
    """End the request; its terminal message is the answer."""

    request_id: RequestId


class PingMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="ping"):
    """The client waits for these requests; answered by PONG."""

    request_ids: Annotated[tuple[RequestId, ...], Meta(max_length=4096)] = ()


class RelayFetchMsg(Struct, frozen=True, tag_field="msg_type", tag="relay_fetch"):
    """The client cannot reach the service `holder` itself: get it this piece. RELAYED_CHUNK or RELAY_FAILED answers."""

    holder: InstanceId
    claim: Claim
    piece: Piece


class RelayEndMsg(Struct, frozen=True, tag_field="msg_type", tag="relay_end"):
    """The client wants no more of the result, since it has all or has given up. Not answered."""

    holder: InstanceId
    claim: Claim


ClientMsg = HelloMsg | SubmitMsg | CancelMsg | PingMsg | RelayFetchMsg | RelayEndMsg

# ------------------------------------------------------------------------------------------ broker → client


class WelcomeMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="welcome"):
    """What the client needs to know of the broker."""

    protocol_version: int
    package_version: str
    #: what the default model allows; None while no encoder serves it
    limits: SamplingLimits | None = None
    #: what each model allows that an encoder serves at present
    models: dict[ModelName, SamplingLimits] = {}


class QueuedMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="queued"):
    """The request is accepted; `position` requests wait before it. `missing_roles` have no instance at present."""

    request_id: RequestId
    position: Count
    missing_roles: tuple[Role, ...] = ()


class StageStartedMsg(Struct, frozen=True, tag_field="msg_type", tag="stage_started"):
    """An instance computes the stage."""

    request_id: RequestId
    role: Role
    instance_id: str


class ProgressMsg(Struct, frozen=True, tag_field="msg_type", tag="progress"):
    """Step `step` of `steps` of the stage is done."""

    request_id: RequestId
    role: Role
    step: Count
    steps: Count


class StageFinishedMsg(Struct, frozen=True, tag_field="msg_type", tag="stage_finished"):
    """The stage is computed."""

    request_id: RequestId
    timing: StageTiming


class RetryingMsg(Struct, frozen=True, tag_field="msg_type", tag="retrying"):
    """An attempt failed for `reason`; the request goes on as `attempt`, from the stage of `role`."""

    request_id: RequestId
    attempt: Attempt
    role: Role
    reason: str


class ResultMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="result"):
    """The request is DONE; the bytes of `media` are the attachments, in order, or wait where `ticket` says."""

    request_id: RequestId
    media: tuple[MediaInfo, ...]
    stages: tuple[StageTiming, ...]
    transfers: tuple[TransferTiming, ...]
    #: from acceptance to this message
    total_s: Seconds
    ticket: ResultTicket | None = None


class ErrorMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="error"):
    """The request ended in `state`, or (`state` None) was never accepted. Without a request id: the message was bad."""

    error: ErrorInfo
    request_id: str | None = None
    state: RequestState | None = None


class PongMsg(Struct, frozen=True, omit_defaults=True, tag_field="msg_type", tag="pong"):
    """The broker lives; it does not know the requests `unknown` (any more)."""

    unknown: tuple[RequestId, ...] = ()


class RelayedChunkMsg(Struct, frozen=True, tag_field="msg_type", tag="relayed_chunk"):
    """The attachment is the piece."""

    request_id: RequestId
    piece: Piece


class RelayFailedMsg(Struct, frozen=True, tag_field="msg_type", tag="relay_failed"):
    """The piece cannot be had. After `Overloaded` it may be asked for again."""

    request_id: RequestId
    piece: Piece
    error: ErrorInfo


ClientReplyMsg = (
    WelcomeMsg
    | QueuedMsg
    | StageStartedMsg
    | ProgressMsg
    | StageFinishedMsg
    | RetryingMsg
    | ResultMsg
    | ErrorMsg
    | PongMsg
    | RelayedChunkMsg
    | RelayFailedMsg
)
