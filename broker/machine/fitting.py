"""Which instances a request can go to, whatever is free at present."""

from ...schemas.errors import PayloadTooLarge
from ...schemas.memory import EngineName
from .models import Pool
from .pairing import no_way
from .policies import Wish
from .records import Instance, Request, Staged

#: free instances that are passed over for one request at a time
MOST_PASSED_OVER = 8


def wish_of(request: Request, work_s: float, model_load_s: float) -> Wish:
    """Return what `request` would like of an instance."""
    staged = request.staged
    if staged is None:
        return Wish(work_s=work_s, model_load_s=model_load_s)
    engines, host_id = staged.instance.pool.engines, staged.instance.pool.host_id
    return Wish(
        staged.manifest.data_size,
        host_id if EngineName.SHM in engines else None,
        EngineName.NIXL in engines,
        work_s,
        model_load_s,
    )


def pick_fitting(pool: Pool, request: Request, wish: Wish) -> Instance | None:
    """Return the policy's first free instance that the request can go to.

    One on which it failed is the last resort: while there are others, it waits for them.
    """
    passed: list[Instance] = []
    chosen: Instance | None = None
    last_resort: Instance | None = None
    while chosen is None and len(passed) < MOST_PASSED_OVER:
        instance = pool.free.pick(wish)
        if instance is None:
            break
        if instance.peer in request.too_small or instance.peer in request.failed_on:
            pool.free.set_aside(instance)
            passed.append(instance)
            if last_resort is None and instance.peer not in request.too_small:
                last_resort = instance
        else:
            chosen = instance
    for other in passed:
        pool.free.refresh(other)
    return chosen or (None if _others_may_come(pool, request) else last_resort)


def unfit_reason(pool: Pool, request: Request) -> str | None:
    """Say why none of the registered instances can ever take the request's input, if that is so."""
    staged = request.staged
    if staged is None or not pool.members:
        return None
    reason = _unreached(pool, staged)
    if reason is None and len(request.too_small) >= len(pool.members):
        request.too_small &= pool.members.keys()
        if len(request.too_small) == len(pool.members):
            reason = str(_too_large(pool, staged))
    return None if reason is None else f"no {pool.role} can take its input: {reason}"


def _unreached(pool: Pool, staged: Staged) -> str | None:
    sender = staged.instance
    if EngineName.SHM in sender.pool.engines and pool.on_host[sender.pool.host_id] > 0:
        return None
    largest = pool.largest()
    if EngineName.NIXL not in sender.pool.engines or largest is None:
        return no_way(sender, next(iter(pool.members.values())))
    return str(_too_large(pool, staged)) if staged.manifest.data_size > largest else None


def _too_large(pool: Pool, staged: Staged) -> PayloadTooLarge:
    return PayloadTooLarge(staged.manifest.data_size, pool.largest() or 0, f"the pool size of a {pool.role}")


def _others_may_come(pool: Pool, request: Request) -> bool:
    """Say whether there are instances on which it has not failed, busy or resting: it may be worth waiting for them."""
    known = request.failed_on | request.too_small
    if len(pool.members) > len(known) + MOST_PASSED_OVER:
        return True
    return any(one.takes_work for peer, one in pool.members.items() if peer not in known)
