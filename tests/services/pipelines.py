"""Stages for tests: real code on real tensors, stopped and released by the test."""

import threading

import torch

from triptych.schemas.sampling import SamplingParams
from triptych.services.pipelines.interface import Stage, Steps
from triptych.services.pipelines.stage import StageOutput


class Gate:
    """A stage that says when it started and waits in every step until the test opens it."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.open = threading.Event()
        self.steps_done = 0

    def __call__(self, params: SamplingParams, inputs: StageOutput) -> Steps:
        """Count to `num_inference_steps`, then hand the input on."""
        self.started.set()
        for step in range(1, params.num_inference_steps + 1):
            assert self.open.wait(30)
            self.steps_done = step
            yield step
        return inputs or StageOutput({})


def by_prompt(stages: dict[str, Stage]) -> Stage:
    """Return a stage that is another one for each prompt."""

    def run(params: SamplingParams, inputs: StageOutput) -> Steps:
        return (yield from stages[params.prompt](params, inputs))

    return run


def counting(params: SamplingParams, _inputs: StageOutput) -> Steps:
    """Give `numbers`, int64 [seed], in one step."""
    yield 1
    return StageOutput({"numbers": torch.arange(params.seed)}, {"seed": params.seed})


def failing(_params: SamplingParams, _inputs: StageOutput) -> Steps:
    """Fail in the first step."""
    yield from ()
    raise ValueError("no picture in it")


def picture(params: SamplingParams, _inputs: StageOutput) -> Steps:
    """Give `num_images` black pictures."""
    yield 1
    return StageOutput({"images": torch.zeros(params.num_images, params.height, params.width, 3, dtype=torch.uint8)})
