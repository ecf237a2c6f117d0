"""Instances that drain are told when they may leave."""

from ...schemas.transfer import TransferDrainedMsg
from .records import Instance
from .tables import Tables


def dismiss_the_quiet(t: Tables) -> None:
    """Let those drained instances go that hold nothing any more; looked at in the end, when the turn has settled."""
    for instance in t.eased:
        if instance.alive and instance.leaving and not instance.dismissed and not _is_needed(instance):
            instance.dismissed = True
            t.tell_service(instance.peer, TransferDrainedMsg())
    t.eased.clear()


def _is_needed(instance: Instance) -> bool:
    """Say whether anything was sent to it that has not ended, or lies in its pool and is somebody's input."""
    return bool(instance.leases or instance.staged or instance.pushes)
