"""The roles a service can play."""

from enum import StrEnum


class Role(StrEnum):
    """What a service computes. Requests pass the roles in this order."""

    ENCODER = "encoder"
    DENOISER = "denoiser"
    DECODER = "decoder"

    @property
    def has_input(self) -> bool:
        """Whether tensors of another role come in."""
        return self is not Role.ENCODER
