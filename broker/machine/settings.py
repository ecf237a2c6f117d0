"""What an operator can set of the machine."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct


class PolicyName(StrEnum):
    """How the instance for a request is picked among those with a free lease."""

    ROUND_ROBIN = "round_robin"
    MAX_FREE_SLOTS = "max_free_slots"
    LEAST_LOADED = "least_loaded"


PositiveSeconds = Annotated[float, Meta(ge=0.001, le=7 * 86_400)]


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
    #: for a sender to answer PUSH; one that does not is lost; in seconds
    push_timeout_s: PositiveSeconds = 60.0
    #: for an instance to end an attempt at its next step; one that does not is lost; in seconds
    abort_timeout_s: PositiveSeconds = 120.0
    #: how long a receiver that refused an ALLOC is passed over, in seconds
    alloc_backoff_s: PositiveSeconds = 0.1
    #: pieces of results that pass through at a time, for clients that cannot reach the service that has them
    relays_in_flight: Annotated[int, Meta(ge=1)] = 2
    #: for a service to answer for such a piece, in seconds
    relay_timeout_s: PositiveSeconds = 10.0

    def __post_init__(self) -> None:
        """Raise `ValueError` where a healthy service would be counted as lost."""
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError(f"lease_s is {self.lease_s:g}; allowed: at least twice heartbeat_s, {self.heartbeat_s:g}")
