"""The instances of a pool that can take a request now, in the order of the policy.

Those alike in all that a request may ask of them are in one group, which is a heap; the groups that differ in their
host alone are in a heap of groups. A pick looks at the first of each such heap, and at the groups on the sender's host:
its cost grows with the number of different pool sizes, not with that of instances.
"""

from collections.abc import Iterator

from msgspec import Struct

from ...schemas.memory import EngineName
from .heaps import Key, KeyedHeap
from .policies import Policy, Wish
from .records import Instance


class _Kind(Struct, frozen=True):
    """What instances are alike in."""

    #: bytes of the pool
    size: int
    #: NIXL reaches it
    nixl: bool
    #: the model is in memory
    loaded: bool


class _Place(Struct, frozen=True):
    """What the instances of a group are alike in; `host_id` is None where the input cannot be read in place."""

    kind: _Kind
    host_id: str | None


class FreeInstances:
    """See the module. `model` is the one whose presence in memory counts."""

    __slots__ = ("_groups", "_kinds", "_places", "_policy", "model")

    def __init__(self, policy: Policy, model: str) -> None:
        self._policy = policy
        self._groups: dict[_Place, KeyedHeap[Instance]] = {}
        self._kinds: dict[_Kind, KeyedHeap[_Place]] = {}
        self._places: dict[Instance, _Place] = {}
        self.model = model

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, instance: Instance) -> bool:
        return instance in self._places

    def refresh(self, instance: Instance) -> None:
        """Put `instance` where its state belongs: in, out, or elsewhere in the order."""
        if not instance.is_free:
            self.set_aside(instance)
            return
        pool = instance.pool
        kind = _Kind(pool.size, EngineName.NIXL in pool.engines, instance.has_loaded(self.model))
        place = _Place(kind, pool.host_id if EngineName.SHM in pool.engines else None)
        if self._places.get(instance, place) != place:
            self.set_aside(instance)
        self._places[instance] = place
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = KeyedHeap[Instance]()
        group.put(instance, self._policy.key(instance))
        self._rank(place, group)

    def set_aside(self, instance: Instance) -> None:
        """Take `instance` out until the next `refresh`."""
        place = self._places.pop(instance, None)
        if place is not None:
            group = self._groups[place]
            group.discard(instance)
            self._rank(place, group)

    def pick(self, wish: Wish) -> Instance | None:
        """Return the instance that comes next for such a request; it stays in."""
        best, best_key = None, None
        for place in self._candidates(wish):
            instance = self._groups[place].first()
            if instance is None:
                continue
            key = self._key(instance, place, wish)
            if best_key is None or key < best_key:
                best, best_key = instance, key
        return best

    def _candidates(self, wish: Wish) -> Iterator[_Place]:
        anywhere = wish.nbytes == 0 and wish.host_id is None and not wish.nixl
        for kind, places in self._kinds.items():
            if wish.host_id is not None and (local := _Place(kind, wish.host_id)) in self._groups:
                yield local
            if anywhere or (wish.nixl and kind.nixl and kind.size >= wish.nbytes):
                first = places.first()
                if first is not None:
                    yield first

    def _key(self, instance: Instance, place: _Place, wish: Wish) -> Key:
        """Return the policy's key, with what is lost elsewhere than on the sender's host, or without the weights."""
        first, *others = self._policy.key(instance)
        if wish.host_id not in (None, place.host_id):
            first += self._policy.far(wish)
        if not place.kind.loaded:
            first += self._policy.cold(wish)
        return (first, *others)

    def _rank(self, place: _Place, group: KeyedHeap[Instance]) -> None:
        """Put the group where its first instance belongs, or drop it where it has none."""
        key = group.first_key()
        places = self._kinds.get(place.kind)
        if places is None:
            places = self._kinds[place.kind] = KeyedHeap[_Place]()
        if key is not None:
            places.put(place, key)
            return
        del self._groups[place]
        places.discard(place)
        if not len(places):
            del self._kinds[place.kind]
