"""The models of the cluster: the pools of each, and what was seen of it."""

from collections import Counter, OrderedDict
from itertools import pairwise

from ...schemas.memory import EngineName
from ...schemas.roles import Role
from .estimates import Estimates
from .free import FreeInstances
from .heaps import KeyedHeap
from .pace import Pace
from .policies import POLICIES
from .queues import FairQueue
from .records import Instance, Tenant
from .settings import DispatchSettings

#: the role whose output each role takes
_BEFORE = dict(pairwise(reversed(Role)))


class Pool:
    """The instances of one role that serve one model, and the requests for it that wait for them."""

    __slots__ = ("free", "members", "model", "on_host", "role", "sizes", "waiting")

    def __init__(self, settings: DispatchSettings, model: "Model", role: Role) -> None:
        self.model = model
        self.role = role
        #: all that are registered, by peer, in order of registration
        self.members = OrderedDict[bytes, Instance]()
        #: those that can take a request now
        self.free = FreeInstances(POLICIES[settings.policy], model.name)
        #: those that NIXL reaches, the one with the largest tensor pool first
        self.sizes = KeyedHeap[Instance]()
        #: by host id, how many can read in place there
        self.on_host = Counter[str]()
        self.waiting = FairQueue(settings.ageing_s, _has_room if role is Role.ENCODER else _always)

    def add(self, instance: Instance) -> None:
        """Take a new instance in."""
        self.members[instance.peer] = instance
        if EngineName.NIXL in instance.pool.engines:
            self.sizes.put(instance, (-instance.pool.size,))
        self._count_reader(instance, 1)
        self.free.refresh(instance)

    def remove(self, instance: Instance) -> None:
        """Drop a lost instance."""
        del self.members[instance.peer]
        self.sizes.discard(instance)
        self._count_reader(instance, -1)
        self.free.set_aside(instance)

    @property
    def sender(self) -> "Pool | None":
        """Return the pool of the role before this one."""
        before = _BEFORE.get(self.role)
        return None if before is None else self.model.pools[before]

    def largest(self) -> int | None:
        """Return the bytes of the largest tensor pool that NIXL reaches."""
        key = self.sizes.first_key()
        return None if key is None else -int(key[0])

    def _count_reader(self, instance: Instance, change: int) -> None:
        if EngineName.SHM in instance.pool.engines:
            host_id = instance.pool.host_id
            self.on_host[host_id] += change
            if not self.on_host[host_id]:
                del self.on_host[host_id]


class Model:
    """One model. It is known from the first instance that serves it, or the first request for it, on."""

    __slots__ = ("estimates", "known", "name", "pace", "pools")

    def __init__(self, settings: DispatchSettings, name: str) -> None:
        self.name = name
        #: an instance has served it
        self.known = False
        self.pools = {role: Pool(settings, self, role) for role in Role}
        self.estimates = Estimates()
        self.pace = Pace()

    @property
    def waiting(self) -> int:
        """How many requests wait for any of its pools."""
        return sum(len(pool.waiting) for pool in self.pools.values())

    @property
    def served(self) -> bool:
        """Whether any instance serves it."""
        return any(pool.members for pool in self.pools.values())

    def rename(self, name: str) -> None:
        """Call it `name`: requests that named no model wait for the first one there is."""
        self.name = name
        for pool in self.pools.values():
            pool.free.model = name


def _has_room(tenant: Tenant) -> bool:
    return not tenant.full


def _always(_tenant: Tenant) -> bool:
    return True
