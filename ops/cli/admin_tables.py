"""The status of a broker, for people."""

from collections.abc import Iterable, Sequence

from msgspec.structs import asdict
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...schemas.admin import AdminStatusReplyMsg
from ...schemas.context import Priority
from ...schemas.status import BrokerStatus, InstanceStatus, PoolStatus, ServerStatus, TenantStatus

#: more instances than these are not shown to people
MOST_ROWS = 200


def status_page(reply: AdminStatusReplyMsg) -> list[RenderableType]:
    """Return what is printed, one below the other."""
    status = reply.status
    about = [] if reply.broker is None else [_about(reply.broker)]
    tenants = [_tenant_table(status.tenants)] if any(tenant.name for tenant in status.tenants) else []
    return [*about, _instance_table(status.instances), _pool_table(status.pools), *tenants, _requests(status)]


def duration(seconds: float) -> str:
    """Return a time as people say it, in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if not hours:
        return f"{minutes} min {seconds % 60:.0f} s"
    return f"{hours} h {minutes % 60} min" if not days else f"{days} d {hours % 24} h"


def state_of(instance: InstanceStatus) -> str:
    """Return in a word or two what the instance does, and why it gets no work where that is so."""
    if instance.leaving:
        return "leaving"
    if instance.draining:
        return "draining" if instance.holds else "drained"
    if instance.resting:
        return f"resting {instance.rests_s:.1f} s" + (f" ({instance.failures} failures)" if instance.failures else "")
    if instance.on_probation:
        return f"on probation ({instance.failures} failures)"
    return "busy" if instance.leases else "idle"


def _about(broker: BrokerStatus) -> Text:
    at, lag, messages = broker.endpoints, broker.loop_lag, broker.messages
    version = f"triptych {broker.package_version}, protocol {broker.protocol_version}"
    lines = (
        f"{version}, process {broker.pid}, up {duration(broker.uptime_s)}",
        f"services {at.services}, clients {at.clients}, admin {at.admin}",
        f"loop lag: {lag.mean_s * 1e3:.1f} ms on average, at most {lag.max_s * 1e3:.1f} ms",
        f"messages: {', '.join(f'{count} {what}' for what, count in asdict(messages).items())}",
    )
    return Text("\n".join(lines))


def _instance_table(instances: Sequence[InstanceStatus]) -> Table:
    left_out = len(instances) - MOST_ROWS
    caption = f"… and {left_out} more, which --json has" if left_out > 0 else None
    table = _table("instances", ("instance", "role", "models", "state"), caption)
    for column in ("leases", "slots", "staged", "pool free", "work", "heard", "lag"):
        table.add_column(column, justify="right")
    for one in instances[:MOST_ROWS]:
        table.add_row(one.instance_id, one.role, _models(one), state_of(one), *_numbers(one))
    return table


def _models(instance: InstanceStatus) -> str:
    """Return the models, those in brackets that are not loaded."""
    loaded = instance.load.loaded
    return ", ".join(name if loaded is None or name in loaded else f"({name})" for name in instance.models)


def _numbers(instance: InstanceStatus) -> Iterable[str]:
    yield f"{instance.capacity - instance.free_leases}/{instance.capacity}"
    retired = f" -{instance.retired_slots}" if instance.retired_slots else ""
    yield f"{instance.taken_slots}/{instance.taken_slots + instance.free_slots}{retired}"
    yield str(instance.staged)
    yield f"{instance.load.free_bytes / instance.pool_bytes:.0%}" if instance.pool_bytes else "-"
    yield f"{instance.outstanding_s:.1f} s"
    yield f"{instance.silent_s:.1f} s"
    yield f"{instance.load.loop_lag_s * 1e3:.0f} ms"


def _pool_table(pools: Sequence[PoolStatus]) -> Table:
    table = _table("pools", ("model", "role"))
    for column in ("instances", "free", "waiting", *Priority, "parked", "stage"):
        table.add_column(column, justify="right")
    for pool in pools:
        counts = (pool.instances, pool.free, pool.waiting, *(pool.by_priority.get(each, 0) for each in Priority))
        stage = "-" if pool.stage_s is None else f"{pool.stage_s:.3g} s"
        table.add_row(pool.model or "(not named)", pool.role, *map(str, counts), str(pool.parked), stage)
    return table


def _tenant_table(tenants: Sequence[TenantStatus]) -> Table:
    table = _table("tenants", ("tenant",))
    for column in ("weight", "waiting", "running"):
        table.add_column(column, justify="right")
    for one in tenants:
        counts = (_of(one.waiting, one.max_queued), _of(one.running, one.max_running))
        table.add_row(one.name or "(not named)", f"{one.weight:g}", *counts)
    return table


def _of(count: int, bound: int | None) -> str:
    return str(count) if bound is None else f"{count}/{bound}"


def _requests(status: ServerStatus) -> Text:
    counts = [f"{count} {state}" for state, count in status.requests.items()]
    settling = [f"{status.settling} ended and settling"] if status.settling else []
    return Text(f"requests: {', '.join([*counts, *settling]) or 'none'}")


def _table(title: str, columns: Iterable[str], caption: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
