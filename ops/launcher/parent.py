"""A child that ends with its launcher, however the launcher ends."""

import ctypes
import os
import signal

#: names the launcher's process
PARENT_PID = "TRIPTYCH_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the launcher, if any, dies. Raises `SystemExit` where it has already."""
    parent = os.environ.pop(PARENT_PID, None)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        raise SystemExit(1)
