"""What services say: which message counts when, and who handles it."""

from collections.abc import Callable, Mapping

from ...schemas.transfer import (
    TransferAllocatedMsg,
    TransferAllocRefusedMsg,
    TransferChunkMsg,
    TransferDoneMsg,
    TransferDrainMsg,
    TransferFailedMsg,
    TransferFetchFailedMsg,
    TransferHeartbeatAckMsg,
    TransferHeartbeatMsg,
    TransferLeaveMsg,
    TransferLoadedMsg,
    TransferProgressMsg,
    TransferPushedMsg,
    TransferPushFailedMsg,
    TransferRegisterMsg,
    TransferReleasedMsg,
    TransferReleaseMsg,
    TransferStagedMsg,
    TransferStartedMsg,
)
from . import hops, results, work
from .events import ServiceSpoke, ServiceVanished
from .records import Instance, Phase
from .registry import leave, lose, register, turn_away
from .tables import Tables

_RUNNING = frozenset({Phase.RUNNING})
_ALLOCATING = frozenset({Phase.ALLOCATING})

#: message: the phases of the lease in which it counts, and its handler. In any other phase it is late, and ignored
ABOUT_A_LEASE: Mapping[type, tuple[frozenset[Phase], Callable[..., None]]] = {
    TransferAllocatedMsg: (_ALLOCATING, hops.allocated),
    TransferAllocRefusedMsg: (_ALLOCATING, hops.alloc_refused),
    TransferLoadedMsg: (_RUNNING, hops.loaded),
    TransferStartedMsg: (_RUNNING, work.started),
    TransferProgressMsg: (_RUNNING, work.progress),
    TransferStagedMsg: (_RUNNING, work.staged),
    TransferDoneMsg: (_RUNNING, work.done),
    TransferFailedMsg: (_RUNNING | _ALLOCATING | {Phase.PUSHING}, work.failed),
    TransferReleasedMsg: (frozenset({Phase.ABORTING}), work.released),
}

#: message: its handler
ABOUT_A_PUSH: Mapping[type, Callable[..., None]] = {
    TransferPushedMsg: hops.pushed,
    TransferPushFailedMsg: hops.push_failed,
}


def service_spoke(t: Tables, event: ServiceSpoke) -> None:
    """Handle a message from a service; whatever a registered one says renews its lease."""
    peer, msg = event.peer, event.msg
    if isinstance(msg, TransferRegisterMsg):
        register(t, peer, msg)
        return
    instance = t.by_peer.get(peer)
    if instance is None:
        turn_away(t, peer, msg)
        return
    instance.expires_at = t.now + t.settings.lease_s
    t.attachments = event.attachments
    HANDLERS[type(msg)](t, instance, msg)


def service_vanished(t: Tables, event: ServiceVanished) -> None:
    """Count an instance that cannot be reached as lost."""
    instance = t.by_peer.get(event.peer)
    if instance is not None:
        lose(t, instance, "lost", event.reason)


def _heartbeat(t: Tables, instance: Instance, msg: TransferHeartbeatMsg) -> None:
    moved = instance.load.loaded != msg.loaded
    instance.load = msg
    if moved:
        t.refresh(instance)
    t.tell_service(instance.peer, TransferHeartbeatAckMsg())


def _leave(t: Tables, instance: Instance, msg: TransferLeaveMsg) -> None:
    lose(t, instance, "left", f"it left: {msg.reason}")


def _drain(t: Tables, instance: Instance, _msg: TransferDrainMsg) -> None:
    leave(t, instance)


LeaseMsg = (
    TransferAllocatedMsg
    | TransferAllocRefusedMsg
    | TransferLoadedMsg
    | TransferStartedMsg
    | TransferProgressMsg
    | TransferStagedMsg
    | TransferDoneMsg
    | TransferFailedMsg
    | TransferReleasedMsg
)


def _about_a_lease(t: Tables, instance: Instance, msg: LeaseMsg) -> None:
    lease = instance.leases.get((msg.request_id, msg.attempt))
    if lease is None:
        t.ignore(instance.peer, msg, f"it holds no lease of {msg.request_id}, attempt {msg.attempt}")
        if isinstance(msg, TransferDoneMsg):
            t.tell_service(instance.peer, TransferReleaseMsg(msg.request_id, msg.attempt))  # it keeps the result for us
        return
    phases, handle = ABOUT_A_LEASE[type(msg)]
    if lease.phase not in phases:
        t.ignore(instance.peer, msg, f"its lease of {msg.request_id} is {lease.phase}")
        return
    handle(t, lease, msg)


def _about_a_push(t: Tables, instance: Instance, msg: TransferPushedMsg | TransferPushFailedMsg) -> None:
    push = instance.pushes.get((msg.request_id, msg.attempt))
    if push is None:
        t.ignore(instance.peer, msg, f"it was asked for no push of {msg.request_id}, attempt {msg.attempt}")
        return
    ABOUT_A_PUSH[type(msg)](t, push, msg)


#: message: its handler, where the peer is registered
HANDLERS: Mapping[type, Callable[..., None]] = {
    TransferHeartbeatMsg: _heartbeat,
    TransferDrainMsg: _drain,
    TransferLeaveMsg: _leave,
    TransferChunkMsg: results.chunk,
    TransferFetchFailedMsg: results.fetch_failed,
    **dict.fromkeys(ABOUT_A_LEASE, _about_a_lease),
    **dict.fromkeys(ABOUT_A_PUSH, _about_a_push),
}
