"""Where the time of a request went."""

from msgspec import Struct

from .roles import Role


class StageTiming(Struct, frozen=True, omit_defaults=True):
    """One stage on one instance, measured there, in seconds."""

    role: Role
    instance_id: str
    #: copying the input from the receive slot to the device
    load_s: float = 0.0
    #: waiting for the compute thread with the input at hand
    wait_s: float = 0.0
    compute_s: float = 0.0
    #: copying the output from the device to the pool (encoder, denoiser), or encoding the media (decoder)
    output_s: float = 0.0
    #: waiting in the broker's queue for an instance; the broker fills it in
    queue_s: float = 0.0


class TransferTiming(Struct, frozen=True, omit_defaults=True):
    """One payload from the pool of `sender` to the pool of `receiver`, or read `in_place`, so that nothing moved."""

    sender: str
    receiver: str
    #: bytes moved, alignment counted in
    nbytes: int
    #: what the engine took, in seconds
    duration_s: float
    #: the receiver read it where the sender had staged it
    in_place: bool = False
