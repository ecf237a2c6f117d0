"""What an operator can set of a service."""

from typing import Annotated

from msgspec import Meta, Struct

from ..schemas.roles import Role
from ..schemas.transfer import InstanceId

PositiveInt = Annotated[int, Meta(ge=1)]


class ServiceSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One service: whom it serves, what it computes, and with how much memory."""

    role: Role
    #: unique in the cluster; the same after a restart
    instance_id: InstanceId
    #: the broker's service endpoint
    broker: str = "tcp://127.0.0.1:7700"
    pipeline: str = "reference"
    #: a torch device: cpu, cuda, cuda:1
    device: str = "cpu"
    #: threads that one CPU operation may use
    compute_threads: PositiveInt = 1
    #: requests whose input loads while another computes
    prefetch_depth: PositiveInt = 1
    #: the tensor pool, in bytes; rounded up to a power of two
    pool_bytes: PositiveInt = 64 * 2**20
    #: receive slots set aside at start (denoiser, decoder)
    receive_slots: Annotated[int, Meta(ge=0)] = 4
    #: of one receive slot, in bytes; rounded up to a power of two
    receive_slot_bytes: PositiveInt = 256 * 2**10
    #: how long running work may take to finish after SIGTERM, in seconds
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
