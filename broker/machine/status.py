"""What an operator sees of the machine. It looks at everything."""

from collections import Counter

from ...schemas.roles import Role
from ...schemas.sampling import SamplingParams
from ...schemas.states import TERMINAL_STATES
from ...schemas.status import InstanceStatus, LoadStatus, PoolStatus, ServerStatus, TenantStatus
from .deadlines import Alarm
from .models import Pool
from .records import Instance, Tenant
from .tables import Tables

#: the request whose time at each stage is told
_USUAL = SamplingParams("")
_PLACES = {role: place for place, role in enumerate(Role)}


def status_of(t: Tables) -> ServerStatus:
    """Return the status of everything."""
    states = Counter(request.state for request in t.requests.values())
    live = {state: count for state, count in sorted(states.items()) if state not in TERMINAL_STATES}
    settling = sum(count for state, count in states.items() if state in TERMINAL_STATES)
    instances = sorted(t.by_peer.values(), key=lambda one: _PLACES[one.role])
    return ServerStatus(
        tuple(instance_status(t, instance) for instance in instances),
        tuple(_pool_status(pool) for model in t.models.values() for pool in model.pools.values()),
        live,
        settling,
        tuple(_tenant_status(t.tenants[name]) for name in sorted(t.tenants)),
    )


def instance_status(t: Tables, instance: Instance) -> InstanceStatus:
    """Return the status of one instance."""
    said, load, slots = instance.registration, instance.load, instance.slots
    rests_until = t.deadlines.when(Alarm.REST, instance.peer) if instance.resting else None
    return InstanceStatus(
        instance_id=said.instance_id,
        incarnation=said.incarnation,
        role=said.role,
        models=said.models,
        package_version=said.package_version,
        capacity=said.capacity,
        leases=_leases_by_phase(instance),
        free_leases=instance.free_leases,
        free_slots=slots.free_count,
        taken_slots=len(slots.taken),
        retired_slots=len(slots.retired),
        staged=len(instance.staged),
        pushes=len(instance.pushes),
        pool_bytes=said.pool.size,
        outstanding_s=max(0.0, instance.outstanding_s),
        slowness=instance.slowness,
        silent_s=max(0.0, t.now + t.settings.lease_s - instance.expires_at),
        failures=instance.failures,
        on_probation=instance.on_probation,
        resting=instance.resting,
        rests_s=0.0 if rests_until is None else max(0.0, rests_until - t.now),
        draining=instance.draining,
        leaving=instance.leaving,
        load=LoadStatus(load.jobs, load.staged, load.free_bytes, load.loop_lag_s, load.loaded),
    )


def _leases_by_phase(instance: Instance) -> dict[str, int]:
    counts: dict[str, int] = {}
    for lease in instance.leases.values():
        counts[lease.phase] = counts.get(lease.phase, 0) + 1
    return counts


def _pool_status(pool: Pool) -> PoolStatus:
    estimates = pool.model.estimates
    seen = pool.role in estimates.per_cost()
    return PoolStatus(
        pool.model.name,
        pool.role,
        len(pool.members),
        len(pool.free),
        len(pool.waiting),
        {priority: count for priority, count in sorted(pool.waiting.by_class.items()) if count},
        pool.waiting.parked_count,
        estimates.stage_s(_USUAL, pool.role) if seen else None,
    )


def _tenant_status(tenant: Tenant) -> TenantStatus:
    settings = tenant.settings
    return TenantStatus(
        tenant.name, settings.weight, tenant.waiting, settings.max_queued, tenant.running, settings.max_running
    )
