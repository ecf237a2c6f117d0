"""What a service still holds when it registers with a broker that restarted."""

from typing import Annotated

from msgspec import Meta, Struct

from .context import RequestContext
from .identifiers import Attempt, RequestId
from .manifest import ScalarFields, TensorManifest
from .memory import Slot
from .timing import StageTiming


class HeldJob(Struct, frozen=True, omit_defaults=True):
    """Work that it was given (WORK or READY) and has not ended, or whose DONE was not answered by RELEASE."""

    request_id: RequestId
    attempt: Attempt
    context: RequestContext
    #: what it reads its input from, until LOADED: a receive slot of its own, or, with `segment`, one of its sender
    slot: Slot | None = None
    #: of the pool whose slot it reads in place
    segment: Annotated[str, Meta(max_length=255)] = ""
    #: the compute thread has taken it up
    started: bool = False


class HeldOutput(Struct, frozen=True, omit_defaults=True):
    """What an attempt staged; the broker has not released it."""

    request_id: RequestId
    attempt: Attempt
    context: RequestContext
    slot: Slot
    manifest: TensorManifest
    timing: StageTiming
    scalar_fields: ScalarFields = {}
