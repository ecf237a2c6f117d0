"""What a pipeline is: a list of stages, each naming its role."""

from collections.abc import Callable, Generator

import torch
from msgspec import Struct

from ...schemas.roles import Role
from ...schemas.sampling import SamplingLimits, SamplingParams
from .stage import StageOutput

#: yields k after step k of the stage is done, and returns its output; closing it cancels the stage
Steps = Generator[int, None, StageOutput]

#: computes one request from its parameters and the output of the stage before it (empty for the first). Its input may
#: lie in the memory of another service: it must not change it, nor keep it once it has returned
Stage = Callable[[SamplingParams, StageOutput], Steps]


NO_INPUT = StageOutput({})


def no_input(_params: SamplingParams) -> StageOutput:
    """Return the input of a first stage."""
    return NO_INPUT


class StageSpec(Struct, frozen=True):
    """One stage: `load` reads the weights of this stage alone, `example` makes an input of the right shapes and dtypes.

    What the example says, beside those, does not matter: it warms the stage up, and shows how large payloads are.
    """

    name: str
    role: Role
    load: Callable[[torch.device], Stage]
    example: Callable[[SamplingParams], StageOutput] = no_input


class Pipeline(Struct, frozen=True):
    """A model as its stages, in order.

    The last one's output has `images`, uint8 [N, H, W, 3], which become PNG files; or files that it encoded itself as
    `media`, a list of uint8 tensors of one dimension, with their `media_type` among the scalar fields.
    """

    name: str
    limits: SamplingLimits
    stages: tuple[StageSpec, ...]
    #: a typical request, in few steps: every service computes it once before it takes work
    warm_up: SamplingParams = SamplingParams("warm-up", num_inference_steps=1)


def chained(stages: list[Stage]) -> Stage:
    """Return the stages of one role as one, each fed the output of the one before."""

    def run(params: SamplingParams, inputs: StageOutput) -> Steps:
        for stage in stages:
            inputs = yield from stage(params, inputs)
        return inputs

    return run
