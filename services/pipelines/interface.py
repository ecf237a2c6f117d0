"""What a pipeline is: a list of stages, each naming its role."""

from collections.abc import Callable, Generator

import torch
from msgspec import Struct

from ...schemas.roles import Role
from ...schemas.sampling import SamplingLimits, SamplingParams
from .stage import StageOutput

#: yields k after step k of the stage is done, and returns its output; closing it cancels the stage
Steps = Generator[int, None, StageOutput]

#: computes one request from its parameters and the output of the stage before it (empty for the first)
Stage = Callable[[SamplingParams, StageOutput], Steps]


class StageSpec(Struct, frozen=True):
    """One stage: `load` reads the weights of this stage alone."""

    name: str
    role: Role
    load: Callable[[torch.device], Stage]


class Pipeline(Struct, frozen=True):
    """A model as its stages, in order. The last one's output has `images`, uint8 [N, H, W, 3]."""

    name: str
    limits: SamplingLimits
    stages: tuple[StageSpec, ...]


NO_INPUT = StageOutput({})


def chained(stages: list[Stage]) -> Stage:
    """Return the stages of one role as one, each fed the output of the one before."""

    def run(params: SamplingParams, inputs: StageOutput) -> Steps:
        for stage in stages:
            inputs = yield from stage(params, inputs)
        return inputs

    return run
