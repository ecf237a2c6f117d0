"""What an operator can set of the machine."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from ...schemas.context import StageTimeouts
from ...schemas.identifiers import TenantName


class PolicyName(StrEnum):
    """How the instance for a request is picked among those with a free lease."""

    ROUND_ROBIN = "round_robin"
    MAX_FREE_SLOTS = "max_free_slots"
    LEAST_LOADED = "least_loaded"


PositiveSeconds = Annotated[float, Meta(ge=0.001, le=7 * 86_400)]
Bound = Annotated[int, Meta(ge=1)]


class TenantSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What one tenant may have."""

    #: its share of the work, against the weights of the others that have requests waiting
    weight: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0
    #: requests that may wait for an encoder; one more is refused
    max_queued: Bound | None = None
    #: requests in the pools at once; the others wait
    max_running: Bound | None = None


class DispatchSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Queues, leases and timeouts."""

    policy: PolicyName = PolicyName.LEAST_LOADED
    #: what a request gets that names no model; empty: the only one there is
    default_model: Annotated[str, Meta(max_length=128)] = ""
    #: requests that may wait for an encoder of each model; one more is refused
    max_queued: Bound = 1024
    #: staged outputs that may wait for the next role before the one that makes them gets no more work
    max_staged: Bound = 256
    #: a request that waits for so long counts as one of the next better class, in seconds
    ageing_s: PositiveSeconds = 60.0
    #: by name
    tenants: dict[TenantName, TenantSettings] = {}
    #: what those have that are not named in `tenants`
    other_tenants: TenantSettings = TenantSettings()
    #: from acceptance to the result, in seconds, where the client sets no timeout
    request_timeout_s: PositiveSeconds = 600.0
    #: for one attempt at the stage of each role, in seconds; one that takes longer is stopped and made elsewhere
    stage_timeout_s: StageTimeouts = {}
    #: attempts of one request; the reasons of all are told when the last one fails
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    #: attempts that an instance may fail in a row before it is passed over for a while, longer each time
    failures_in_a_row: Bound = 3
    #: the first such while, and the longest, in seconds
    back_off_s: PositiveSeconds = 1.0
    longest_back_off_s: PositiveSeconds = 60.0
    #: what loading a model takes, roughly: an instance that has it is preferred unless it is so much busier; in seconds
    model_load_s: PositiveSeconds = 10.0
    #: how often a service sends a heartbeat, in seconds
    heartbeat_s: PositiveSeconds = 1.0
    #: a service silent for so long is lost, in seconds
    lease_s: PositiveSeconds = 5.0
    #: a client silent for so long is gone, and with it the requests that are to be cancelled then, in seconds
    client_lease_s: PositiveSeconds = 30.0
    #: after its start the broker waits for so long for services that hold work of its predecessor, in seconds
    take_up_s: Annotated[float, Meta(ge=0, le=3600)] = 3.0
    #: for a receiver to answer ALLOC, in seconds
    alloc_timeout_s: PositiveSeconds = 5.0
    #: for a sender to answer PUSH; one that does not is lost; in seconds
    push_timeout_s: PositiveSeconds = 60.0
    #: for an instance to end an attempt at its next step; one that does not is lost; in seconds
    abort_timeout_s: PositiveSeconds = 120.0
    #: how long a receiver that refused an ALLOC is passed over, in seconds
    alloc_backoff_s: PositiveSeconds = 0.1
    #: pieces of results that pass through at a time, for clients that cannot reach the service that has them
    relays_in_flight: Bound = 2
    #: for a service to answer for such a piece, in seconds
    relay_timeout_s: PositiveSeconds = 10.0

    def __post_init__(self) -> None:
        """Raise `ValueError` where a healthy service would be counted as lost."""
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError(f"lease_s is {self.lease_s:g}; allowed: at least twice heartbeat_s, {self.heartbeat_s:g}")

    def tenant(self, name: str) -> TenantSettings:
        """Return what the tenant `name` may have."""
        return self.tenants.get(name, self.other_tenants)
