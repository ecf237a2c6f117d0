"""Tenants, and what each has: requests that wait for an encoder, and requests in the pools."""

from ...schemas.roles import Role
from .records import Request, Tenant
from .tables import Tables


def tenant_of(t: Tables, name: str) -> Tenant:
    """Return the tenant `name`, which is known only while it has requests."""
    tenant = t.tenants.get(name)
    return Tenant(name, t.settings.tenant(name)) if tenant is None else tenant


def join_tenant(t: Tables, request: Request) -> None:
    """Count a new request that waits for an encoder."""
    t.tenants[request.tenant.name] = request.tenant
    request.tenant.waiting += 1


def admit(t: Tables, request: Request) -> None:
    """Count a request that leaves the encoder's queue."""
    if not request.admitted:
        request.admitted = True
        request.tenant.waiting -= 1
        request.tenant.running += 1
        _note_room(t, request.tenant)


def readmit(t: Tables, request: Request) -> None:
    """Count a request that goes back to the encoder's queue."""
    if request.admitted:
        request.admitted = False
        request.tenant.waiting += 1
        request.tenant.running -= 1
        _note_room(t, request.tenant)


def leave_tenant(t: Tables, request: Request) -> None:
    """Count a request no more that has ended."""
    tenant = request.tenant
    if request.admitted:
        tenant.running -= 1
    else:
        tenant.waiting -= 1
    _note_room(t, tenant)
    if not tenant.waiting and not tenant.running:
        del t.tenants[tenant.name]


def _note_room(t: Tables, tenant: Tenant) -> None:
    """Have the queues look again at a tenant whose requests in the pools are limited."""
    if tenant.settings.max_running is None:
        return
    for model in t.models.values():
        pool = model.pools[Role.ENCODER]
        pool.waiting.refresh(tenant.name)
        t.awake[pool] = None
