"""Triptych serves diffusion models as separate pools of encoders, denoisers and decoders."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import (
        Client,
        Fetching,
        Finished,
        Image,
        Priority,
        Queued,
        Result,
        Retrying,
        StageFinished,
        StageStarted,
        StepDone,
    )
    from .schemas.errors import (
        BrokerUnreachable,
        ConfigError,
        DeadlineUnreachable,
        InvalidRequest,
        LinkError,
        MalformedMessage,
        Overloaded,
        PeerError,
        RequestCancelled,
        RequestError,
        RequestFailed,
        RequestLost,
        RequestTimedOut,
        ResourceError,
        TenantLimit,
        TransferError,
        TriptychError,
        VersionMismatch,
    )
    from .schemas.sampling import SamplingParams

    __version__: str

__all__ = [
    "BrokerUnreachable",
    "Client",
    "ConfigError",
    "DeadlineUnreachable",
    "Fetching",
    "Finished",
    "Image",
    "InvalidRequest",
    "LinkError",
    "MalformedMessage",
    "Overloaded",
    "PeerError",
    "Priority",
    "Queued",
    "RequestCancelled",
    "RequestError",
    "RequestFailed",
    "RequestLost",
    "RequestTimedOut",
    "ResourceError",
    "Result",
    "Retrying",
    "SamplingParams",
    "StageFinished",
    "StageStarted",
    "StepDone",
    "TenantLimit",
    "TransferError",
    "TriptychError",
    "VersionMismatch",
    "__version__",
]


_CLIENT = {
    *("Client", "Fetching", "Finished", "Image", "Priority", "Queued", "Result", "Retrying"),
    *("StageFinished", "StageStarted", "StepDone"),
}


def __getattr__(name: str) -> object:
    """Import what is asked for, when it is asked for: the package itself costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: object = import_module("importlib.metadata").version("triptych")
    elif name in _CLIENT:
        value = getattr(import_module(".client", __name__), name)
    elif name == "SamplingParams":
        value = getattr(import_module(".schemas.sampling", __name__), name)
    else:
        value = getattr(import_module(".schemas.errors", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
