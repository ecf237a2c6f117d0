"""The async Python SDK: `async with Client("tcp://…") as client: result = await client.generate("a fox")`."""

from ..schemas.context import Priority
from ..schemas.sampling import SamplingLimits
from .client import Client
from .events import Event, Fetching, Finished, Queued, Retrying, StageFinished, StageStarted, StepDone
from .options import RequestOptions, SamplingOptions
from .result import Image, Result

__all__ = [
    "Client",
    "Event",
    "Fetching",
    "Finished",
    "Image",
    "Priority",
    "Queued",
    "RequestOptions",
    "Result",
    "Retrying",
    "SamplingLimits",
    "SamplingOptions",
    "StageFinished",
    "StageStarted",
    "StepDone",
]
