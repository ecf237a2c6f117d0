"""The async Python SDK: `async with Client("tcp://…") as client: result = await client.generate("a fox")`."""

from .client import Client
from .events import Event, Fetching, Finished, Queued, StageFinished, StageStarted, StepDone
from .options import SamplingOptions
from .result import Image, Result

__all__ = [
    "Client",
    "Event",
    "Fetching",
    "Finished",
    "Image",
    "Queued",
    "Result",
    "SamplingOptions",
    "StageFinished",
    "StageStarted",
    "StepDone",
]
