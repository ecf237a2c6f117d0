"""Which network a process is in."""

import os
import subprocess
import sys

import pytest

from triptych.transport.link.network import network_id

SAY_IT = [sys.executable, "-c", "from triptych.transport.link.network import network_id; print(network_id())"]


def said(*before: str) -> str:
    return subprocess.run([*before, *SAY_IT], capture_output=True, text=True, check=True).stdout.strip()


def test_processes_beside_each_other_are_in_one_network() -> None:
    """They reach each other's loopback addresses."""
    assert said() == network_id()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a network namespace")
def test_a_namespace_is_a_network_of_its_own() -> None:
    """Its loopback addresses are nobody else's."""
    try:
        inside = said("unshare", "--net")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network namespace can be made here")
    assert inside != network_id()
