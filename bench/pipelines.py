"""Pipelines that compute next to nothing, so that what moves their results is what is measured."""

import torch

from triptych.schemas.roles import Role
from triptych.schemas.sampling import SamplingLimits, SamplingParams
from triptych.services.pipelines.interface import Pipeline, Stage, StageSpec, Steps
from triptych.services.pipelines.stage import StageOutput

#: of a decoded video: 81 frames of 832 × 480 pixels, 3 bytes each
VIDEO_BYTES = 81 * 832 * 480 * 3
SMALL_BYTES = 1000

#: the prompt whose result is as large as a video; that of all others is small
LARGE_PROMPT = "large"


def _load_passing(_device: torch.device) -> Stage:
    def pass_on(_params: SamplingParams, _inputs: StageOutput) -> Steps:
        yield 1
        return StageOutput({"x": torch.zeros(1024)})

    return pass_on


def _load_filling(_device: torch.device) -> Stage:
    noise = torch.randint(0, 256, (VIDEO_BYTES,), dtype=torch.uint8)

    def fill(params: SamplingParams, _inputs: StageOutput) -> Steps:
        yield 1
        return StageOutput({"media": [noise if params.prompt == LARGE_PROMPT else noise[:SMALL_BYTES]]})

    return fill


#: raw bytes, as many as the prompt asks for
RAW_VIDEO = Pipeline(
    "raw-video",
    SamplingLimits(),
    (
        StageSpec("encode", Role.ENCODER, _load_passing),
        StageSpec("denoise", Role.DENOISER, _load_passing),
        StageSpec("decode", Role.DECODER, _load_filling),
    ),
)
