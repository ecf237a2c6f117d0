"""What an operator can set of a service."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from ..schemas.identifiers import InstanceId, ModelName
from ..schemas.roles import Role

#: the broker takes no larger message by default
MAX_INLINE_RESULT_BYTES = 8 * 2**20

Bytes = Annotated[int, Meta(ge=1, le=2**46)]


class EngineChoice(StrEnum):
    """What a service may move payloads with."""

    #: shared memory on one host, and NIXL to others where it is installed and works
    AUTO = "auto"
    #: shared memory alone
    SHM = "shm"
    #: NIXL alone, on one host too
    NIXL = "nixl"


class ServiceSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One service: whom it serves, what it computes, and with how much memory."""

    role: Role
    #: unique in the cluster; the same after a restart
    instance_id: InstanceId
    #: the broker's service endpoint
    broker: str = "tcp://127.0.0.1:7700"
    #: what is computed where no models are named: a pipeline that ships, or your own as package.module:ATTRIBUTE
    pipeline: str = "reference"
    #: models by the name that requests ask for, each with its pipeline; none: one, named after `pipeline`
    models: dict[ModelName, str] = {}
    #: models whose weights are in memory at a time; another that is asked for takes the place of one
    models_in_memory: Annotated[int, Meta(ge=1, le=256)] = 1
    #: a torch device: cpu, cuda, cuda:1
    device: str = "cpu"
    #: threads that one CPU operation may use
    compute_threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    #: requests whose input loads while another computes
    prefetch_depth: Annotated[int, Meta(ge=1, le=1024)] = 1
    #: what moves tensors: auto (shm on one host, nixl to others where it is installed), shm, or nixl
    engine: EngineChoice = EngineChoice.AUTO
    #: the tensor pool, in bytes; rounded up to a power of two
    pool_bytes: Bytes = 64 * 2**20
    #: receive slots set aside at start (denoiser, decoder)
    receive_slots: Annotated[int, Meta(ge=0, le=1024)] = 4
    #: of one receive slot at least, in bytes; it is what the input of the warm-up run takes, if that is more
    receive_slot_bytes: Annotated[int, Meta(ge=0, le=2**46)] = 0
    #: a result above this is fetched by the client from this service, in bytes; up to it, it goes through the broker
    inline_result_bytes: Annotated[int, Meta(ge=0, le=MAX_INLINE_RESULT_BYTES)] = 2**20
    #: results that wait to be fetched, in bytes; where no more fit, the one that nobody wants for longest is dropped
    outbox_bytes: Bytes = 2**30
    #: how long a result waits to be fetched, from when it was made or last read, in seconds
    result_ttl_s: Annotated[float, Meta(gt=0)] = 300.0
    #: the address at which clients reach this service; empty: the one from which it reaches the broker
    data_host: str = ""
    #: its port; 0 picks a free one
    data_port: Annotated[int, Meta(ge=0, lt=2**16)] = 0
    #: how long running work may take to finish, and results to be fetched, after SIGTERM, in seconds
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
