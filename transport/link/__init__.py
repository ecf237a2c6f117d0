"""Messages over ZeroMQ in asyncio: a ROUTER in the broker, DEALERs in services and clients."""
