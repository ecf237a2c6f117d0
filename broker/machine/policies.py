"""Which instance with a free lease comes next.

A policy ranks instances by a key, the smallest first, and says what it costs in terms of that key to move the input to
another host, or to load a model's weights first.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from .heaps import Key
from .records import Instance
from .settings import PolicyName

#: as much more work as an instance on the sender's host may have, in parts of the request's own work
EQUAL = 0.1


class Wish(Struct, frozen=True):
    """What a request would like of an instance."""

    #: bytes of its input
    nbytes: int = 0
    #: where its input can be read in place
    host_id: str | None = None
    #: its input can be written to any host; so can one that there is none of
    nixl: bool = False
    #: what it takes, in seconds
    work_s: float = 1.0
    #: to load its model, in seconds
    model_load_s: float = 10.0


class Policy(Struct, frozen=True):
    """How instances are ranked: by `key`, the smallest first.

    `far` is added to the first part of the key of those on another host than the input, `cold` to that of those that
    would have to load the model first.
    """

    key: Callable[[Instance], Key]
    far: Callable[[Wish], float]
    cold: Callable[[Wish], float]


def _oldest_grant(instance: Instance) -> Key:
    return (instance.last_granted, instance.order)


def _least_work(instance: Instance) -> Key:
    return (instance.outstanding_s, instance.last_granted, instance.order)


def _most_slots(instance: Instance) -> Key:
    return (-instance.slots.free_count, -instance.free_leases, instance.last_granted, instance.order)


POLICIES: Mapping[PolicyName, Policy] = {
    #: the one that was picked longest ago, wherever it is; one that must load the model only where no other is free
    PolicyName.ROUND_ROBIN: Policy(_oldest_grant, lambda _: 0.0, lambda _: float("inf")),
    #: the one whose leases take the least time; among about equals one on the sender's host, then picked longest ago
    PolicyName.LEAST_LOADED: Policy(_least_work, lambda wish: EQUAL * wish.work_s, lambda wish: wish.model_load_s),
    #: the one with the most free receive slots, then free leases; among equals one on the sender's host
    PolicyName.MAX_FREE_SLOTS: Policy(_most_slots, lambda _: 0.5, lambda _: float("inf")),
}
