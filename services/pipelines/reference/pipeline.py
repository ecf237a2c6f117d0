"""The three parts of the reference model, each with the weights of its own role only.

Everything is deterministic: on one kind of machine the same parameters give the same bits, whichever processes the
parts run in. Images are computed one by one, never batched with others, so that none depends on its neighbours: image
`i` of a request is, bit for bit, the only image of the request with seed `(seed + i) % 2**64`.
"""

from collections.abc import Generator
from typing import Final

import torch
from torch import Tensor

from ....schemas.sampling import SamplingLimits, SamplingParams
from ..stage import StageOutput, TensorValue
from .denoiser import Denoiser
from .schedule import euler_step, flow_times, guided, initial_noise
from .text_encoder import TextEncoder, prompt_tokens
from .vae import DOWNSCALE, LATENT_CHANNELS, ImageDecoder, to_uint8
from .weights import with_weights

#: Trained at 64 x 64 pixels; other sizes are served, less well.
LIMITS: Final = SamplingLimits(size_multiple=16, min_size=32, max_size=128, max_images=64)
_SEEDS: Final = 2**64


def _tensor(inputs: StageOutput, name: str) -> Tensor:
    found: TensorValue | None = inputs.tensors.get(name)
    if not isinstance(found, Tensor):
        raise TypeError(f"the stage before gave no tensor {name!r}; it gave {sorted(inputs.tensors)}")
    return found


class ReferenceEncoder:
    """Prompts to embeddings."""

    def __init__(self, text_encoder: TextEncoder, device: torch.device) -> None:
        self._text_encoder = text_encoder
        self._device = device

    @classmethod
    def load(cls, device: torch.device) -> "ReferenceEncoder":
        """Read the text encoder's weights."""
        return cls(with_weights(TextEncoder(), "text_encoder", device), device)

    @torch.no_grad()
    def encode(self, params: SamplingParams) -> StageOutput:
        """`prompt_embeds` float32 [1, T, D] and `prompt_mask` bool [1, T], and the same for the negative prompt."""
        tensors: dict[str, TensorValue] = {}
        for name, prompt in (("prompt", params.prompt), ("negative_prompt", params.negative_prompt)):
            tokens, mask = (part.to(self._device) for part in prompt_tokens(prompt))
            tensors[f"{name}_embeds"] = self._text_encoder(tokens, mask)
            tensors[f"{name}_mask"] = mask
        return StageOutput(tensors)


class ReferenceDenoiser:
    """Embeddings and seeds to latents."""

    def __init__(self, denoiser: Denoiser, device: torch.device) -> None:
        self._denoiser = denoiser
        self._device = device

    @classmethod
    def load(cls, device: torch.device) -> "ReferenceDenoiser":
        """Read the denoiser's weights."""
        return cls(with_weights(Denoiser(), "denoiser", device), device)

    def denoise(self, params: SamplingParams, inputs: StageOutput) -> Generator[int, None, StageOutput]:
        """Yield k once step k of all images is done; return `latents`, float32 [N, 8, H / 8, W / 8]."""
        names = ("prompt", "negative_prompt") if params.guidance_scale != 1.0 else ("prompt",)
        text = torch.cat([_tensor(inputs, f"{name}_embeds") for name in names]).to(self._device)
        mask = torch.cat([_tensor(inputs, f"{name}_mask") for name in names]).to(self._device)
        shape = (1, LATENT_CHANNELS, params.height // DOWNSCALE, params.width // DOWNSCALE)
        seeds = [(params.seed + i) % _SEEDS for i in range(params.num_images)]
        latents = [initial_noise(seed, shape).to(self._device) for seed in seeds]
        times = [float(time) for time in flow_times(params.num_inference_steps)]
        for k in range(1, len(times)):
            for i, latent in enumerate(latents):
                velocity = self._velocity(latent, times[k - 1], text, mask, params.guidance_scale)
                latents[i] = euler_step(latent, velocity, times[k - 1], times[k])
            yield k
        return StageOutput({"latents": torch.cat(latents)})

    @torch.no_grad()
    def _velocity(self, latent: Tensor, time: float, text: Tensor, mask: Tensor, guidance: float) -> Tensor:
        count = text.shape[0]
        at = torch.full((count,), time, dtype=torch.float32, device=self._device)
        velocity: Tensor = self._denoiser(latent.expand(count, -1, -1, -1), at, text, mask)
        return velocity if count == 1 else guided(velocity[:1], velocity[1:], guidance)


class ReferenceDecoder:
    """Latents to pictures."""

    def __init__(self, decoder: ImageDecoder, device: torch.device) -> None:
        self._decoder = decoder
        self._device = device

    @classmethod
    def load(cls, device: torch.device) -> "ReferenceDecoder":
        """Read the decoder's weights."""
        return cls(with_weights(ImageDecoder(), "vae_decoder", device), device)

    @torch.no_grad()
    def decode(self, params: SamplingParams, inputs: StageOutput) -> Tensor:
        """Return the pictures, uint8 [N, H, W, 3], on the CPU."""
        latents = _tensor(inputs, "latents").to(self._device)
        height, width = params.height // DOWNSCALE, params.width // DOWNSCALE
        if latents.shape[1:] != (LATENT_CHANNELS, height, width):
            raise ValueError(
                f"latents are {tuple(latents.shape)}; they must be [N, {LATENT_CHANNELS}, {height}, {width}]"
            )
        return torch.cat([to_uint8(self._decoder(latent[None])).cpu() for latent in latents])
