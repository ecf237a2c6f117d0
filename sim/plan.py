"""What is simulated: the cluster, who asks it for what, and for how long. All of it is plain values."""

from typing import Annotated

from msgspec import Meta, Struct, field

from ..broker.machine.settings import DispatchSettings
from ..schemas.context import Priority
from ..schemas.identifiers import TenantName
from ..schemas.manifest import Count
from ..schemas.roles import Role
from ..schemas.sampling import SamplingParams
from .distributions import Constant, Distribution, SomeTime, Time

_USUAL = SamplingParams("")

Rate = Annotated[float, Meta(gt=0, le=1e6)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Pixels = Annotated[int, Meta(ge=8, le=8192, multiple_of=8)]
Number = Annotated[int, Meta(ge=1, le=1_000_000)]

# ------------------------------------------------------------------------------------------ what is asked for


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """What makes a request large or small."""

    steps: Annotated[int, Meta(ge=1, le=1000)] = _USUAL.num_inference_steps
    #: pixels
    width: Pixels = _USUAL.width
    #: pixels
    height: Pixels = _USUAL.height
    num_images: Annotated[int, Meta(ge=1, le=64)] = 1

    def params(self) -> SamplingParams:
        """Return the sampling parameters of such a request."""
        return SamplingParams(
            "simulated",
            num_inference_steps=self.steps,
            width=self.width,
            height=self.height,
            num_images=self.num_images,
        )


class MixEntry(Shape, frozen=True, forbid_unknown_fields=True):
    """One kind of request, and how often it comes."""

    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0


class Poisson(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="poisson"):
    """Many people who know nothing of each other."""

    rate_per_s: Rate


class Diurnal(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="diurnal"):
    """Poisson with a rate that swings around its mean as a sine does, lowest at the start."""

    mean_rate_per_s: Rate
    #: how far the rate goes up and down, as a part of its mean
    swing: Fraction = 0.8
    #: from one peak to the next, in seconds
    period_s: SomeTime = 86_400.0


class Closed(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="closed"):
    """So many clients, each of which waits for its result, thinks, and asks again. Refused, it asks when told to."""

    clients: Number
    #: from a result to the next request
    think: Distribution = Constant(0.0)


class Burst(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="burst"):
    """So many requests at once, the first ones at `first_s`, and again each `every_s`, if that is given."""

    size: Number
    #: in seconds
    first_s: Time = 0.0
    #: in seconds
    every_s: SomeTime | None = None


Arrivals = Poisson | Diurnal | Closed | Burst


class Traffic(Struct, frozen=True, forbid_unknown_fields=True):
    """A stream of requests of one tenant."""

    arrivals: Arrivals
    tenant: TenantName = ""
    priority: Priority = Priority.NORMAL
    #: kinds of requests; empty: those with default parameters
    mix: tuple[MixEntry, ...] = ()
    #: from acceptance to the result, in seconds; without it, the broker's
    timeout_s: Annotated[float, Meta(gt=0, le=7 * 86_400)] | None = None
    #: how long its clients wait before they cancel; without it, for ever
    patience: Distribution | None = None

    @property
    def kinds(self) -> tuple[MixEntry, ...]:
        """The kinds of requests, one at least."""
        return self.mix or (MixEntry(),)


# ------------------------------------------------------------------------------------------ the cluster


class Failures(Struct, frozen=True, forbid_unknown_fields=True):
    """How instances fail."""

    #: mean time from a start of an instance to its end, in seconds; without it, none ends
    mean_between_s: SomeTime | None = None
    #: from its end to the next registration, in seconds
    restart_s: Time = 30.0
    #: True: it does not crash but drains and leaves in order, as in a rolling update
    graceful: bool = False
    #: of attempts that are computed to their end, the part that fails
    attempts: Fraction = 0.0


class Others(Struct, frozen=True, forbid_unknown_fields=True):
    """More instances of a pool, faster or slower ones."""

    instances: Annotated[int, Meta(ge=1, le=100_000)]
    #: 2.0 takes half the time
    speed: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    #: requests one takes at once, as that of the pool if it is not given
    capacity: Annotated[int, Meta(ge=1, le=4096)] | None = None


class PoolPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """The instances of one role."""

    #: what an instance of speed 1 computes at a request, alone
    time: Distribution
    instances: Annotated[int, Meta(ge=0, le=100_000)] = 1
    #: 2.0 takes half the time
    speed: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    #: requests one instance takes at once: one computes, the others prefetch
    capacity: Annotated[int, Meta(ge=1, le=4096)] = 2
    #: further instances that differ
    others: tuple[Others, ...] = ()
    #: the request that `time` is of; that of others is proportional to steps × pixels. Without it, all take the same
    time_of: Shape | None = None
    #: what the output takes in the pool, in bytes; where `time_of` is given, that request's, and others by their pixels
    output_bytes: Count = 1_048_576
    #: pre-allocated receive slots of an instance; without it, as many as its capacity
    receive_slots: Annotated[int, Meta(ge=0, le=4096)] | None = None
    failures: Failures = Failures()

    @property
    def groups(self) -> tuple[Others, ...]:
        """All its instances, by what they are alike in."""
        own = (Others(self.instances, self.speed),) if self.instances else ()
        return tuple(
            Others(group.instances, group.speed, group.capacity or self.capacity) for group in (*own, *self.others)
        )

    @property
    def size(self) -> int:
        """How many instances it has."""
        return sum(group.instances for group in self.groups)


class Network(Struct, frozen=True, forbid_unknown_fields=True):
    """What lies between the processes."""

    #: of a message, one way, in seconds
    latency_s: Annotated[float, Meta(ge=0, le=10)] = 0.0002
    #: to begin a write from pool to pool, in seconds
    setup_s: Annotated[float, Meta(ge=0, le=10)] = 0.0005
    #: of a write from pool to pool
    bytes_per_s: Annotated[float, Meta(gt=0)] = 5e9
    #: of a copy between a pool and a device
    copy_bytes_per_s: Annotated[float, Meta(gt=0)] = 20e9
    #: on so many hosts the instances of each role are spread, those on one read in place; 0: each has its own host
    hosts: Annotated[int, Meta(ge=0, le=100_000)] = 0


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """For how long, and how."""

    #: requests after which no more come
    requests: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    #: time after which no more come, in seconds
    duration_s: SomeTime | None = None
    #: what happens before is not counted, in seconds
    warm_up_s: Time = 0.0
    seed: int = 1
    #: False: services are silent but for their work, which is quicker; a crash is noticed when something is sent there
    heartbeats: bool = True
    #: steps of a denoiser between two PROGRESS; 0: it says none
    progress_every: Annotated[int, Meta(ge=0, le=1000)] = 1

    def __post_init__(self) -> None:
        """Raise `ValueError` where it would have no end, or be over before it counts."""
        if self.requests is None and self.duration_s is None:
            raise ValueError("requests or duration_s, so that it ends")
        if self.duration_s is not None and self.warm_up_s >= self.duration_s:
            raise ValueError(f"warm_up_s less than duration_s, {self.duration_s:g}")


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """All that a simulation needs to be told."""

    encoder: PoolPlan
    denoiser: PoolPlan
    decoder: PoolPlan
    traffic: Annotated[tuple[Traffic, ...], Meta(min_length=1, max_length=10_000)]
    run: Run
    broker: DispatchSettings = field(default_factory=DispatchSettings)
    network: Network = Network()

    def pool(self, role: Role) -> PoolPlan:
        """Return the plan of the pool of `role`."""
        match role:
            case Role.ENCODER:
                return self.encoder
            case Role.DENOISER:
                return self.denoiser
            case Role.DECODER:
                return self.decoder
