"""What the client's tests share."""

from collections.abc import AsyncIterator

import pytest

from .scripted import ScriptedBroker, scripted_broker


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Return a scripted broker on a free loopback port."""
    async with scripted_broker() as running:
        yield running
