"""A process that owns a segment until it is killed: prints its name, then its host id for each line it reads."""

import os
import sys

from triptych.transport.tensors.shared_memory import create, host_id, segment_name

segment = create(segment_name(sys.argv[1], os.getpid()), 4096)
sys.stdout.write(f"{segment.name}\n")
sys.stdout.flush()
for _ in sys.stdin:
    sys.stdout.write(f"{host_id()}\n")
    sys.stdout.flush()
