"""Which instances can never hold a request's input, whatever is free at present."""

from ...schemas.errors import PayloadTooLarge
from ...schemas.roles import Role
from .records import Instance, Request
from .tables import Pool

#: free instances that are passed over for one request at a time
MOST_PASSED_OVER = 8


def pick_fitting(pool: Pool, request: Request) -> Instance | None:
    """Return the policy's first free instance that could hold the input; the request remembers those before it."""
    size = input_size(request)
    passed: list[Instance] = []
    while len(passed) < MOST_PASSED_OVER:
        instance = pool.free.pick()
        if instance is None or (size <= instance.pool_size and instance.peer not in request.too_small):
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
    if input_size(request) > pool.largest():
        return len(pool.members) > 0
    if len(request.too_small) >= len(pool.members):
        request.too_small &= pool.members.keys()
    return len(request.too_small) >= len(pool.members) > 0


def too_large(pool: Pool, role: Role, request: Request) -> PayloadTooLarge:
    """Return the error that says so."""
    return PayloadTooLarge(input_size(request), pool.largest(), f"the pool size of a {role}")


def input_size(request: Request) -> int:
    """Return the bytes of the request's input; the first stage has none."""
    return 0 if request.staged is None else request.staged.manifest.data_size
