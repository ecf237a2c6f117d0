"""The image side of the latent space: a small convolutional VAE, 8x down, 8 channels.

Latents that leave the encoder half and enter the decoder half are normalised: zero mean, unit variance per channel over
the training pictures. The package ships only the decoder half; `ImageEncoder` is used by `training/`.
"""

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

LATENT_CHANNELS: Final = 8
#: Pixels of one latent cell, per side.
DOWNSCALE: Final = 8
_WIDTHS: Final = (64, 96, 128)


class _Block(nn.Module):
    """Two 3 x 3 convolutions around a skip, pre-normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.GroupNorm(8, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Float [N, C, H, W] to the same shape."""
        hidden: Tensor = self.conv1(functional.silu(self.norm1(x)))
        return x + self.conv2(functional.silu(self.norm2(hidden)))


class ImageEncoder(nn.Module):
    """Pictures to the mean and log-variance of their latents, not yet normalised."""

    def __init__(self) -> None:
        super().__init__()
        fine, middle, coarse = _WIDTHS
        self.body = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(12, fine, 3, padding=1),
            _Block(fine),
            nn.Conv2d(fine, middle, 2, stride=2),
            _Block(middle),
            nn.Conv2d(middle, coarse, 2, stride=2),
            _Block(coarse),
            _Block(coarse),
            nn.GroupNorm(8, coarse),
            nn.SiLU(),
        )
        self.head = nn.Conv2d(coarse, 2 * LATENT_CHANNELS, 1)
        with torch.no_grad():
            self.head.bias[LATENT_CHANNELS:] = -6.0  # pyright: ignore[reportOptionalSubscript]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Float [N, 3, H, W] in -1 to 1 to mean and log-variance, both [N, 8, H / 8, W / 8]."""
        out: Tensor = self.head(self.body(images))
        mean, log_variance = out.chunk(2, dim=1)
        return mean, log_variance.clamp(-12.0, 4.0)


class ImageDecoder(nn.Module):
    """Latents to pictures."""

    latent_mean: Tensor
    latent_std: Tensor

    def __init__(self) -> None:
        super().__init__()
        fine, middle, coarse = _WIDTHS
        self.register_buffer("latent_mean", torch.zeros(LATENT_CHANNELS))
        self.register_buffer("latent_std", torch.ones(LATENT_CHANNELS))
        self.body = nn.Sequential(
            nn.Conv2d(LATENT_CHANNELS, coarse, 3, padding=1),
            _Block(coarse),
            _Block(coarse),
            nn.Conv2d(coarse, 4 * middle, 1),
            nn.PixelShuffle(2),
            _Block(middle),
            _Block(middle),
            nn.Conv2d(middle, 4 * fine, 1),
            nn.PixelShuffle(2),
            _Block(fine),
            _Block(fine),
            nn.GroupNorm(8, fine),
            nn.SiLU(),
            nn.Conv2d(fine, 12, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def decode_raw(self, latents: Tensor) -> Tensor:
        """Latents as the encoder half gives them to float [N, 3, H, W], about -1 to 1."""
        out: Tensor = self.body(latents)
        return out

    def forward(self, latents: Tensor) -> Tensor:
        """Normalised latents float [N, 8, h, w] to float [N, 3, 8h, 8w], about -1 to 1."""
        mean = self.latent_mean.view(1, -1, 1, 1)
        std = self.latent_std.view(1, -1, 1, 1)
        return self.decode_raw(latents * std + mean)


def to_uint8(images: Tensor) -> Tensor:
    """Float [N, 3, H, W] in -1 to 1 to uint8 [N, H, W, 3]."""
    scaled = (images.float().clamp(-1.0, 1.0) + 1.0) * 127.5
    return scaled.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
