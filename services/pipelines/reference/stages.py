"""The reference pipeline as the services run it: one stage per role."""

from collections.abc import Callable
from typing import Final

import torch

from ....schemas.roles import Role
from ....schemas.sampling import SamplingParams
from ..interface import Pipeline, Stage, StageSpec, Steps
from ..stage import StageOutput
from .pipeline import LIMITS, ReferenceDecoder, ReferenceDenoiser, ReferenceEncoder
from .text_encoder import TEXT_WIDTH
from .tokenizer import MAX_TOKENS
from .vae import DOWNSCALE, LATENT_CHANNELS


def _in_one_go(compute: Callable[[SamplingParams, StageOutput], StageOutput]) -> Stage:
    def run(params: SamplingParams, inputs: StageOutput) -> Steps:
        output = compute(params, inputs)
        yield 1
        return output

    return run


def _encoder(device: torch.device) -> Stage:
    encoder = ReferenceEncoder.load(device)
    return _in_one_go(lambda params, _: encoder.encode(params))


def _denoiser(device: torch.device) -> Stage:
    return ReferenceDenoiser.load(device).denoise


def _decoder(device: torch.device) -> Stage:
    decoder = ReferenceDecoder.load(device)
    return _in_one_go(lambda params, inputs: StageOutput({"images": decoder.decode(params, inputs)}))


def _embeddings(_params: SamplingParams) -> StageOutput:
    embeds, mask = torch.zeros(1, MAX_TOKENS, TEXT_WIDTH), torch.ones(1, MAX_TOKENS, dtype=torch.bool)
    names = ("prompt", "negative_prompt")
    return StageOutput({f"{name}_{part}": of for name in names for part, of in (("embeds", embeds), ("mask", mask))})


def _latents(params: SamplingParams) -> StageOutput:
    shape = (params.num_images, LATENT_CHANNELS, params.height // DOWNSCALE, params.width // DOWNSCALE)
    return StageOutput({"latents": torch.zeros(shape)})


REFERENCE: Final = Pipeline(
    "reference",
    LIMITS,
    (
        StageSpec("encode", Role.ENCODER, _encoder),
        StageSpec("denoise", Role.DENOISER, _denoiser, _embeddings),
        StageSpec("decode", Role.DECODER, _decoder, _latents),
    ),
)
