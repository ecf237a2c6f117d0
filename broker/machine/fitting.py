"""Which instances can never hold a request's input, whatever is free at present."""

from ...schemas.errors import PayloadTooLarge
from ...schemas.roles import Role
from ...schemas.transfer import EngineName
from .pairing import way_between
from .records import Instance, Request
from .tables import Pool

#: free instances that are passed over for one request at a time
MOST_PASSED_OVER = 8


def pick_fitting(pool: Pool, request: Request) -> Instance | None:
    """Return the policy's first free instance that could hold the input; the request remembers those before it."""
    passed: list[Instance] = []
    while len(passed) < MOST_PASSED_OVER:
        instance = pool.free.pick()
        if instance is None or (instance.peer not in request.too_small and _holds(instance, request)):
            break
        pool.free.set_aside(instance)
        passed.append(instance)
    else:
        instance = None
    for other in passed:
        request.too_small.add(other.peer)
        pool.free.refresh(other)
    return instance


def all_too_small(pool: Pool, request: Request) -> bool:
    """Say whether none of the registered instances can ever hold the input."""
    if input_size(request) > pool.largest() and not _some_read_in_place(pool, request):
        return len(pool.members) > 0
    if len(request.too_small) >= len(pool.members):
        request.too_small &= pool.members.keys()
    return len(request.too_small) >= len(pool.members) > 0


def too_large(pool: Pool, role: Role, request: Request) -> PayloadTooLarge:
    """Return the error that says so."""
    return PayloadTooLarge(input_size(request), pool.largest(), f"the pool size of a {role}")


def _holds(instance: Instance, request: Request) -> bool:
    """Say whether the input fits into the instance's pool, or need not, since it is read in place."""
    staged = request.staged
    if staged is None or staged.manifest.data_size <= instance.pool.size:
        return True
    return way_between(staged.instance.pool, instance.pool) is EngineName.SHM


def _some_read_in_place(pool: Pool, request: Request) -> bool:
    return request.staged is not None and pool.on_host[request.staged.instance.pool.host_id] > 0


def input_size(request: Request) -> int:
    """Return the bytes of the request's input; the first stage has none."""
    return 0 if request.staged is None else request.staged.manifest.data_size
