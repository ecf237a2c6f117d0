"""The broker: a pure machine, and the asyncio shell around it."""
