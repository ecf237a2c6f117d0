"""What all tests share."""

from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("triptych", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("triptych")


@pytest.fixture(scope="session", autouse=True)
def runtime_folder() -> Iterator[str]:
    """Keep the tests' brokers out of the person's own runtime directory. Its path is short, as sockets need it."""
    with TemporaryDirectory(prefix="triptych-") as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_RUNTIME_DIR", folder)
        yield folder
