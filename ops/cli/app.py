"""The `triptych` command as a process. Nothing is imported here, so that Ctrl-C is understood from the first moment."""

import sys


def main() -> None:
    """Run the command line and leave with its status."""
    try:
        from .commands import app  # noqa: PLC0415
        from .errors import guarded  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(guarded(lambda: app(standalone_mode=False)))
