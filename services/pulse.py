"""How late the event loop is."""

import asyncio

#: looks in the time from one heartbeat to the next
LOOKS = 10


async def watch_loop(duration_s: float) -> float:
    """Look at the clock a few times in `duration_s`, and return by how much the latest look came too late.

    A loop that was held up for less than the time between two looks may show as less than that.
    """
    loop = asyncio.get_running_loop()
    latest = 0.0
    for _ in range(LOOKS):
        due = loop.time() + duration_s / LOOKS
        await asyncio.sleep(duration_s / LOOKS)
        latest = max(latest, loop.time() - due)
    return latest
