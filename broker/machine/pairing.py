"""Which engine moves a payload from one instance to another."""

from ...schemas.memory import EngineName, PoolAddress
from .records import Instance


def way_between(sender: PoolAddress, receiver: PoolAddress) -> EngineName | None:
    """Return the first of the sender's engines that reaches the receiver."""
    for engine in sender.engines:
        if engine in receiver.engines and (engine is not EngineName.SHM or sender.host_id == receiver.host_id):
            return engine
    return None


def no_way(sender: Instance, receiver: Instance) -> str:
    """Say why no engine reaches from one to the other, and what to change."""
    ends = (f"{one} has {', '.join(one.pool.engines)} on the host {one.pool.host_id}" for one in (sender, receiver))
    return f"no engine reaches from {sender} to {receiver}: {'; '.join(ends)}; set `engine` of both to auto or nixl"
