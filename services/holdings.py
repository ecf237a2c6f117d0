"""What a service holds, as it tells a broker that restarted."""

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..schemas.context import RequestContext
from ..schemas.holdings import HeldJob, HeldOutput
from ..schemas.memory import Slot
from ..schemas.transfer import TransferRegisterMsg
from ..transport.link.codec import MessageLimits

#: of `jobs` and of `outputs` in a registration
MAX_JOBS, MAX_OUTPUTS = 4096, 65_536
#: of a registration, in bytes; the broker takes no larger message
MAX_BYTES = MessageLimits().max_message_bytes


class Given(Struct, frozen=True):
    """A request's context as it came, and when that was, in seconds of the loop's clock."""

    context: RequestContext
    at: float

    @property
    def ends_at(self) -> float:
        """When the request's time runs out."""
        return self.at + self.context.left_s

    def context_at(self, now: float) -> RequestContext:
        """Return the context with the time that is left of it."""
        return replace(self.context, left_s=max(0.0, self.ends_at - now))


class Holdings(Struct, frozen=True):
    """What is held at one moment; nothing beside it lies or runs here that the broker has to know."""

    jobs: tuple[HeldJob, ...] = ()
    outputs: tuple[HeldOutput, ...] = ()
    #: the pre-allocated ones that are quiet, or that one of `jobs` reads
    receive_slots: tuple[Slot, ...] = ()


def registration_with(registration: TransferRegisterMsg, holdings: Holdings) -> TransferRegisterMsg:
    """Return the registration of the same incarnation that says what it holds."""
    return replace(registration, jobs=holdings.jobs, outputs=holdings.outputs, receive_slots=holdings.receive_slots)


def too_much(registration: TransferRegisterMsg) -> bool:
    """Return whether a registration says more than the broker would take."""
    outside = len(registration.jobs) > MAX_JOBS or len(registration.outputs) > MAX_OUTPUTS
    return outside or len(msgspec.msgpack.encode(registration)) > MAX_BYTES
