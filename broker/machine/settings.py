"""What an operator can set of the machine."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct


class PolicyName(StrEnum):
    """How the instance for a request is picked among those with a free lease."""

    ROUND_ROBIN = "round_robin"
    MAX_FREE_SLOTS = "max_free_slots"
    LEAST_LOADED = "least_loaded"


PositiveSeconds = Annotated[float, Meta(gt=0)]


class DispatchSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Queues, leases and timeouts."""

    policy: PolicyName = PolicyName.LEAST_LOADED
    #: requests that may wait for an encoder; one more is refused
    max_queued: Annotated[int, Meta(ge=1)] = 1024
    #: staged outputs that may wait for the next role before the one that makes them gets no more work
    max_staged: Annotated[int, Meta(ge=1)] = 256
    #: from acceptance to the result, in seconds, where the client sets no timeout
    request_timeout_s: PositiveSeconds = 600.0
    #: how often a service sends a heartbeat, in seconds
    heartbeat_s: PositiveSeconds = 1.0
    #: a service silent for so long is lost, in seconds
    lease_s: PositiveSeconds = 5.0
    #: for a receiver to answer ALLOC, in seconds
    alloc_timeout_s: PositiveSeconds = 5.0
    #: for a sender to answer PUSH, in seconds
    push_timeout_s: PositiveSeconds = 60.0
    #: how long a receiver that refused an ALLOC is passed over, in seconds
    alloc_backoff_s: PositiveSeconds = 0.1
