"""What an operator is told, once everything is quiet."""

import asyncio
import sys

import msgspec

from triptych.schemas.admin import AdminReplyMsg, AdminStatusReplyMsg
from triptych.schemas.status import InstanceStatus, ServerStatus

#: for the last lease and slot to come back, in seconds
SETTLED_S = 60.0


async def quiet_status(admin_endpoint: str, instances: int) -> list[tuple[object, ...]]:
    """Wait until so many instances are registered and no request is left; return what each has free and holds."""
    async with asyncio.timeout(SETTLED_S):
        while True:
            status = await admin_status(admin_endpoint)
            if len(status.instances) == instances and not status.requests and not status.settling:
                return sorted(map(_holdings, status.instances))


async def admin_status(admin_endpoint: str) -> ServerStatus:
    """Return what `triptych admin status --json` prints."""
    argv = (sys.executable, "-m", "triptych.ops.cli", "admin", "status", "--json", "--endpoint", admin_endpoint)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    reply = msgspec.json.decode(output, type=AdminReplyMsg)
    assert isinstance(reply, AdminStatusReplyMsg)
    return reply.status


def _holdings(one: InstanceStatus) -> tuple[object, ...]:
    slots = (one.free_slots, one.taken_slots, one.retired_slots)
    return (one.instance_id, one.capacity, one.free_leases, one.leases, slots, one.staged, one.pushes)
