"""What operators say."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import chain, islice

from ...schemas.admin import (
    AdminCancelMsg,
    AdminDoneMsg,
    AdminDrainMsg,
    AdminErrorMsg,
    AdminInstanceMsg,
    AdminInstanceReplyMsg,
    AdminReplyMsg,
    AdminResumeMsg,
    AdminStatusMsg,
    AdminStatusReplyMsg,
    AdminStoryMsg,
    AdminStoryReplyMsg,
)
from ...schemas.errors import InvalidRequest, RequestCancelled, UnknownName
from ...schemas.states import TERMINAL_STATES, RequestState
from .commands import ReportInstance, TellOperator
from .endings import end_early
from .events import OperatorSpoke
from .records import Instance
from .status import instance_status, status_of
from .tables import Tables

#: letters of names that are compared with a mistyped one: nobody else is served meanwhile
MOST_COMPARED = 10_000
#: how many names are told that are near
MOST_NEAR = 3


def operator_spoke(t: Tables, event: OperatorSpoke) -> None:
    """Handle a message from an operator; it is always answered."""
    try:
        reply = HANDLERS[type(event.msg)](t, event.msg)
    except (InvalidRequest, UnknownName) as error:
        reply = AdminErrorMsg(error.info())
    t.out.append(TellOperator(event.peer, reply))


def _status(t: Tables, _msg: AdminStatusMsg) -> AdminStatusReplyMsg:
    return AdminStatusReplyMsg(status_of(t))


def _instance(t: Tables, msg: AdminInstanceMsg) -> AdminInstanceReplyMsg:
    return AdminInstanceReplyMsg(instance_status(t, _find(t, msg.instance_id)))


def _drain(t: Tables, msg: AdminDrainMsg) -> AdminDoneMsg:
    instance = _find(t, msg.instance_id)
    if not instance.draining:
        instance.draining = True
        t.refresh(instance)
        t.out.append(ReportInstance(instance.instance_id, instance.role, "drained", "an operator's wish"))
    held = f"{_counted(len(instance.leases), 'request')} and {_counted(len(instance.staged), 'output')} in its pool"
    return AdminDoneMsg(f"{instance} gets no more work; it has {held}{_nobody_else(instance)}")


def _resume(t: Tables, msg: AdminResumeMsg) -> AdminDoneMsg:
    instance = _find(t, msg.instance_id)
    if instance.leaving:
        raise InvalidRequest("instance_id", msg.instance_id, "an instance that does not leave of its own wish")
    if instance.draining:
        instance.draining = False
        t.refresh(instance)
        t.out.append(ReportInstance(instance.instance_id, instance.role, "resumed", "an operator's wish"))
    return AdminDoneMsg(f"{instance} gets work")


def _cancel(t: Tables, msg: AdminCancelMsg) -> AdminDoneMsg:
    request = t.requests.get(msg.request_id)
    ended = msg.request_id in t.ended
    if request is None and not ended:
        raise UnknownName("request", msg.request_id, _nearest(msg.request_id, t.requests))
    if request is None or request.state in TERMINAL_STATES:
        raise InvalidRequest("request_id", msg.request_id, "a request that lives; this one has ended")
    before = request.state
    end_early(t, request, RequestState.CANCELLED, RequestCancelled("admin"), "cancelled by an operator")
    return AdminDoneMsg(f"request {msg.request_id} is cancelled; it was {before}")


def _story(t: Tables, msg: AdminStoryMsg) -> AdminStoryReplyMsg:
    request = t.requests.get(msg.request_id)
    lines = t.ended.lines(msg.request_id) if request is None else request.story.lines()
    if not lines:
        raise UnknownName("request", msg.request_id, _nearest(msg.request_id, chain(t.requests, t.ended)))
    return AdminStoryReplyMsg(msg.request_id, tuple(lines), t.now)


HANDLERS: Mapping[type, Callable[..., AdminReplyMsg]] = {
    AdminStatusMsg: _status,
    AdminInstanceMsg: _instance,
    AdminDrainMsg: _drain,
    AdminResumeMsg: _resume,
    AdminCancelMsg: _cancel,
    AdminStoryMsg: _story,
}


def _find(t: Tables, instance_id: str) -> Instance:
    """Return the registered instance, or raise with the names that are near."""
    instance = t.by_id.get(instance_id)
    if instance is None:
        raise UnknownName("instance", instance_id, _nearest(instance_id, t.by_id))
    return instance


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return names that begin with what was typed, or otherwise look like it."""
    names = list(known)
    begun = list(islice((each for each in names if each.startswith(name)), MOST_NEAR))
    some = names[: MOST_COMPARED // max(1, len(name))]
    return begun or get_close_matches(name, some, n=MOST_NEAR)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _nobody_else(instance: Instance) -> str:
    """Say for which models nobody else of its role takes work."""
    lonely = [
        pool.model.name for pool in instance.pools if not any(other.takes_work for other in pool.members.values())
    ]
    return f"; no other {instance.role} takes work for {', '.join(lonely)}" if lonely else ""
