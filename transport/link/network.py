"""Which network this process is in."""

from pathlib import Path


def network_id() -> str:
    """Return what is equal for exactly those processes that reach each other's loopback addresses.

    That is: the same boot of the same kernel, the same network namespace.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}-{Path('/proc/self/ns/net').stat().st_ino:x}"
