"""Where payloads lie: slots, the pools they are pieces of, and how others reach those."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from .identifiers import SlotId
from .manifest import Count, Name


class Slot(Struct, frozen=True):
    """A piece of an instance's pool. `slot_id` is unique within its incarnation while the slot exists."""

    slot_id: SlotId
    offset: Count
    #: bytes
    size: Count


class EngineName(StrEnum):
    """What moves a payload between two services."""

    #: the receiver reads the sender's slot in place; both on one host
    SHM = "shm"
    #: the sender writes into the receiver's slot through NIXL, on any host
    NIXL = "nixl"


class NixlAddress(Struct, frozen=True):
    """How a NIXL agent of another service reaches this service's pool."""

    #: unique to the incarnation of the pool
    agent: Annotated[str, Meta(min_length=1, max_length=255)]
    #: what NIXL calls the agent's metadata, opaque here
    metadata: Annotated[bytes, Meta(max_length=2**16)]
    #: where the pool begins in the owner's memory; slots are counted from here
    base: Annotated[int, Meta(ge=0)]
    #: which memory it is: a device index for VRAM, None for DRAM
    device: Annotated[int, Meta(ge=0, lt=1024)] | None = None


class PoolAddress(Struct, frozen=True, omit_defaults=True):
    """How another service reaches this service's pool."""

    #: two services with the same host id can map each other's shared memory
    host_id: Name
    #: the name of the pool's shared-memory segment
    segment: Annotated[str, Meta(max_length=255)]
    #: bytes
    size: Count
    #: what this service can move payloads with, the preferred one first
    engines: Annotated[tuple[EngineName, ...], Meta(max_length=8)] = (EngineName.SHM,)
    nixl: NixlAddress | None = None
