"""How late the event loop is."""

import asyncio
import time

from triptych.services.pulse import watch_loop


async def test_a_loop_that_is_held_up_shows() -> None:
    """By nearly as long as it was, wherever in between that was."""
    asyncio.get_running_loop().call_later(0.03, time.sleep, 0.2)
    assert await watch_loop(0.1) > 0.15


async def test_a_loop_that_is_free_shows_next_to_nothing() -> None:
    """What the system takes to wake it up is counted, too."""
    assert 0.0 <= await watch_loop(0.05) < 0.15
