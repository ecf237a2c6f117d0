"""A pipeline in one process, stage after stage: what the split one must equal bit for bit."""

import torch

from ...schemas.sampling import SamplingParams
from .interface import NO_INPUT, Pipeline, Stage, chained
from .stage import StageOutput


class MonolithicPipeline:
    """All stages of a pipeline with their weights on one device."""

    def __init__(self, pipeline: Pipeline, device: torch.device) -> None:
        self._run: Stage = chained([spec.load(device) for spec in pipeline.stages])

    def generate(self, params: SamplingParams) -> StageOutput:
        """Return the output of the last stage."""
        with torch.inference_mode():
            steps = self._run(params, NO_INPUT)
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    return stop.value
