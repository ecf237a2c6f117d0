"""Which instance with a free lease comes next: each policy is a key, and the smallest is picked."""

from collections.abc import Callable, Mapping

from .heaps import Key, KeyedHeap
from .records import Instance
from .settings import PolicyName


def round_robin(instance: Instance) -> Key:
    """Pick the one that was picked longest ago."""
    return (instance.last_granted, instance.order)


def least_loaded(instance: Instance) -> Key:
    """Pick the one with the smallest part of its capacity in use; among equals, the one picked longest ago."""
    return (len(instance.leases) / instance.registration.capacity, instance.last_granted, instance.order)


def max_free_slots(instance: Instance) -> Key:
    """Pick the one with the most free receive slots, then free leases; among equals, the one picked longest ago."""
    return (-instance.slots.free_count, -instance.free_leases, instance.last_granted, instance.order)


POLICIES: Mapping[PolicyName, Callable[[Instance], Key]] = {
    PolicyName.ROUND_ROBIN: round_robin,
    PolicyName.LEAST_LOADED: least_loaded,
    PolicyName.MAX_FREE_SLOTS: max_free_slots,
}


class FreeInstances:
    """The instances of a role that can take a request now."""

    __slots__ = ("_heap", "_key")

    def __init__(self, policy: Callable[[Instance], Key]) -> None:
        self._heap = KeyedHeap[Instance]()
        self._key = policy

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, instance: Instance) -> bool:
        return instance in self._heap

    def refresh(self, instance: Instance) -> None:
        """Put `instance` where its state belongs: in, out, or elsewhere in the order."""
        if instance.is_free:
            self._heap.put(instance, self._key(instance))
        else:
            self._heap.discard(instance)

    def set_aside(self, instance: Instance) -> None:
        """Take `instance` out until the next `refresh`."""
        self._heap.discard(instance)

    def pick(self) -> Instance | None:
        """Return the instance that comes next; it stays in."""
        return self._heap.first()
