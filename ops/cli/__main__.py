"""`python -m triptych.ops.cli` is `triptych`."""

from .app import main

main()
