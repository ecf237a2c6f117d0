"""What a request is: it travels with its work, so that whoever holds the work can tell a broker that restarted."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from .identifiers import ModelName, Reason, Seconds, TenantName
from .roles import Role
from .sampling import SamplingParams
from .timing import StageTiming, TransferTiming


class Priority(StrEnum):
    """Classes of requests, the most urgent first. None starves: with time a request counts as one of a better class."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


#: for one attempt at the stage of each role, in seconds
StageTimeouts = dict[Role, Annotated[float, Meta(gt=0, le=7 * 86_400)]]


class RequestContext(Struct, frozen=True, omit_defaults=True):
    """A request as the broker knows it when it sends this."""

    #: routing id of its client
    client: Annotated[bytes, Meta(min_length=1, max_length=255)]
    params: SamplingParams
    model: ModelName
    #: from acceptance to the result, in seconds
    timeout_s: Seconds
    #: what is left of it; whoever holds the request counts it down
    left_s: Seconds
    priority: Priority = Priority.NORMAL
    tenant: TenantName = ""
    cancel_on_disconnect: bool = False
    stage_timeout_s: StageTimeouts = {}
    #: why attempts failed
    reasons: Annotated[tuple[Reason, ...], Meta(max_length=1000)] = ()
    #: of the stages that are done
    stages: Annotated[tuple[StageTiming, ...], Meta(max_length=64)] = ()
    transfers: Annotated[tuple[TransferTiming, ...], Meta(max_length=64)] = ()
