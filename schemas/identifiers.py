"""What requests, instances and models are called, and the units that messages have in common."""

from typing import Annotated

from msgspec import Meta

RequestId = Annotated[str, Meta(min_length=1, max_length=64)]
InstanceId = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:@-]+\Z")]
Incarnation = Annotated[int, Meta(ge=0, lt=2**62)]
Attempt = Annotated[int, Meta(ge=1, le=1000)]
SlotId = Annotated[int, Meta(ge=0, lt=2**31)]
Seconds = Annotated[float, Meta(ge=0)]
Reason = Annotated[str, Meta(max_length=4096)]
#: as an instance registers it and a request names it
ModelName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:/@-]+\Z")]
#: on whose account a request goes; empty: nobody's in particular
TenantName = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9._:@-]*\Z")]


def routing_id(instance_id: str, incarnation: int) -> bytes:
    """Return the ZeroMQ routing id of one incarnation of an instance."""
    return f"{instance_id}/{incarnation:x}".encode()


def split_routing_id(peer: bytes) -> tuple[str, int]:
    """Return the instance and the incarnation that a routing id names; a foreign one names the instance "", 0."""
    name, _, incarnation = peer.decode("ascii", "replace").rpartition("/")
    try:
        return name, int(incarnation, 16)
    except ValueError:
        return "", 0
