"""What an operator sees of the machine."""

from collections import Counter

from msgspec import Struct

from ...schemas.roles import Role
from ...schemas.states import TERMINAL_STATES
from .records import Instance, Phase
from .tables import Pool, Tables


class InstanceStatus(Struct, frozen=True):
    """One registered instance. `leases` counts those held, by phase; the rest of `capacity` is free."""

    instance_id: str
    incarnation: int
    role: Role
    capacity: int
    leases: dict[Phase, int]
    free_leases: int
    #: pre-allocated receive slots; `taken_slots` counts dynamic ones too
    free_slots: int
    taken_slots: int
    retired_slots: int
    #: outputs in its pool that are not released
    staged: int
    #: pushes that it has not answered
    pushes: int
    #: it had no room a moment ago and is passed over
    resting: bool
    #: it wants no more work
    draining: bool


class RoleStatus(Struct, frozen=True):
    """One role. `parked` of the `waiting` requests fit no instance that is free."""

    role: Role
    instances: tuple[InstanceStatus, ...]
    waiting: int
    parked: int


class ServerStatus(Struct, frozen=True):
    """The whole machine."""

    roles: tuple[RoleStatus, ...]
    #: live requests by state
    requests: dict[str, int]
    #: ended requests of which something is still in use somewhere
    settling: int


def status_of(t: Tables) -> ServerStatus:
    """Return the status of everything."""
    states = Counter(request.state for request in t.requests.values())
    live = {str(state): count for state, count in sorted(states.items()) if state not in TERMINAL_STATES}
    settling = sum(count for state, count in states.items() if state in TERMINAL_STATES)
    return ServerStatus(tuple(_role_status(role, pool) for role, pool in t.pools.items()), live, settling)


def _role_status(role: Role, pool: Pool) -> RoleStatus:
    instances = tuple(map(_instance_status, pool.members.values()))
    return RoleStatus(role, instances, len(pool.waiting), pool.waiting.parked_count)


def _instance_status(instance: Instance) -> InstanceStatus:
    return InstanceStatus(
        instance.instance_id,
        instance.registration.incarnation,
        instance.role,
        instance.registration.capacity,
        dict(Counter(lease.phase for lease in instance.leases.values())),
        instance.free_leases,
        instance.slots.free_count,
        len(instance.slots.taken),
        len(instance.slots.retired),
        len(instance.staged),
        len(instance.pushes),
        instance.resting,
        instance.draining,
    )
