"""Who was told of whose pool, so that it can be told to forget it."""

from ...schemas.transfer import TransferForgetMsg
from .records import Instance
from .tables import Tables


def introduce(owner: Instance, other: Instance) -> None:
    """Note that `other` is told of the owner's pool."""
    owner.known_to[other.peer] = other
    other.knows[owner.peer] = owner


def part(t: Tables, instance: Instance) -> None:
    """Have those who know the pool of a lost instance forget it, and forget whom that instance knew."""
    for other in instance.known_to.values():
        del other.knows[instance.peer]
        t.tell_service(other.peer, TransferForgetMsg(instance.pool))
    for owner in instance.knows.values():
        del owner.known_to[instance.peer]
    instance.known_to, instance.knows = {}, {}
