"""The messages between operators, that is the command line's `triptych admin`, and the broker. Each is answered."""

from typing import Annotated

from msgspec import Meta, Struct

from .errors import ErrorInfo
from .identifiers import RequestId
from .status import BrokerStatus, InstanceStatus, ServerStatus

#: what somebody typed; whether it names anything is for the broker to say
Typed = Annotated[str, Meta(max_length=256)]

# ------------------------------------------------------------------------------------------ operator → broker


class AdminStatusMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_status"):
    """How is everything? Answered by ADMIN_STATUS_REPLY. The broker looks at all it has: now and then, please."""


class AdminInstanceMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_instance"):
    """How is this instance? Answered by ADMIN_INSTANCE_REPLY."""

    instance_id: Typed


class AdminDrainMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_drain"):
    """Give the instance no more work. It ends what it has, stays registered, and may be resumed or stopped.

    It holds for this incarnation: one that registers anew is given work.
    """

    instance_id: Typed


class AdminResumeMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_resume"):
    """Give the instance work again."""

    instance_id: Typed


class AdminCancelMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_cancel"):
    """End the request as CANCELLED; its client is told that an admin did it."""

    request_id: Typed


class AdminStoryMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_story"):
    """What happened to the request? Answered by ADMIN_STORY_REPLY, for a while after its end too."""

    request_id: Typed


AdminMsg = AdminStatusMsg | AdminInstanceMsg | AdminDrainMsg | AdminResumeMsg | AdminCancelMsg | AdminStoryMsg

# ------------------------------------------------------------------------------------------ broker → operator


class AdminStatusReplyMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_status_reply"):
    """All there is to see. `broker` is None where no process is around the machine, as in a simulation."""

    status: ServerStatus
    broker: BrokerStatus | None = None


class AdminInstanceReplyMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_instance_reply"):
    """The instance as it is now."""

    instance: InstanceStatus


class AdminDoneMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_done"):
    """It is done: `what`, for people."""

    what: str


class AdminStoryReplyMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_story_reply"):
    """The life of the request so far, line by line. Times are seconds of the broker's clock, on which it is `now`."""

    request_id: RequestId
    lines: Annotated[tuple[str, ...], Meta(max_length=1024)]
    now: float


class AdminErrorMsg(Struct, frozen=True, tag_field="msg_type", tag="admin_error"):
    """It was not done, or the frames were no message."""

    error: ErrorInfo


AdminReplyMsg = AdminStatusReplyMsg | AdminInstanceReplyMsg | AdminDoneMsg | AdminStoryReplyMsg | AdminErrorMsg
