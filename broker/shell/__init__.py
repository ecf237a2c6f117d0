"""asyncio around the machine: sockets, timers, logs."""
