"""The denoiser: a diffusion transformer between two small convolutional stages, trained with flow matching.

The convolutions work on the latent cells, the transformer on patches of 2 x 2 cells, a skip joins the two stages.
Peebles and Xie, "Scalable Diffusion Models with Transformers" (2022), for adaLN-zero; Chen et al., "PixArt-alpha"
(2023), for one modulation shared by all blocks plus a table per block; Esser et al., "Scaling Rectified Flow
Transformers" (2024), for the pooled text beside the timestep. Text enters twice: its mean through adaLN, its tokens
through cross attention.
"""

import math
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from .attention import attend, mask_bias
from .text_encoder import TEXT_WIDTH
from .vae import LATENT_CHANNELS

WIDTH: Final = 256
DEPTH: Final = 5
HEADS: Final = 8
#: Channels of the convolutional stages.
CELL_WIDTH: Final = 64
#: Latent cells of one transformer token, per side.
PATCH: Final = 2
_HEAD_WIDTH: Final = WIDTH // HEADS
_MLP_WIDTH: Final = 3 * WIDTH


def time_features(time: Tensor) -> Tensor:
    """Float [N] in 0 to 1 to float [N, WIDTH]: sines and cosines of geometric frequencies."""
    half = WIDTH // 2
    frequencies = torch.exp(-math.log(1000.0) * torch.arange(half, dtype=torch.float32, device=time.device) / half)
    angles = time.float()[:, None] * 1000.0 * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def place_features(height: int, width: int, device: torch.device) -> Tensor:
    """Float32 [height * width, WIDTH]: where each token lies, measured in tokens from the middle."""
    quarter = WIDTH // 4
    frequencies = torch.exp(-math.log(64.0) * torch.arange(quarter, dtype=torch.float32, device=device) / quarter)
    parts: list[Tensor] = []
    rows = torch.arange(height, dtype=torch.float32, device=device) - (height - 1) / 2
    columns = torch.arange(width, dtype=torch.float32, device=device) - (width - 1) / 2
    for place in (rows[:, None].expand(height, width), columns[None, :].expand(height, width)):
        angles = place.reshape(-1, 1) * frequencies
        parts += [angles.cos(), angles.sin()]
    return torch.cat(parts, dim=-1)


def _heads(x: Tensor) -> Tensor:
    count, length, _ = x.shape
    return x.reshape(count, length, HEADS, _HEAD_WIDTH).transpose(1, 2)


def _modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return functional.layer_norm(x, (WIDTH,)) * (1 + scale) + shift


class _TextAttention(nn.Module):
    """Cross attention from latent tokens to text tokens, zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key_value = nn.Linear(TEXT_WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, text: Tensor, bias: Tensor) -> Tensor:
        """Float [N, L, WIDTH], text float [N, T, TEXT_WIDTH], bias float [N, 1, 1, T] to the shape of x."""
        key, value = (_heads(part) for part in self.key_value(text).chunk(2, dim=-1))
        query = _heads(self.query(functional.layer_norm(x, (WIDTH,))))
        out: Tensor = self.out(attend(query, key, value, bias))
        return out


class _Block(nn.Module):
    """Self attention, perhaps cross attention to the text, and an MLP; self attention and MLP have adaLN-zero."""

    def __init__(self, *, reads_text: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(6, WIDTH))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.self_out = nn.Linear(WIDTH, WIDTH)
        self.text = _TextAttention() if reads_text else None
        self.up = nn.Linear(WIDTH, _MLP_WIDTH)
        self.down = nn.Linear(_MLP_WIDTH, WIDTH)

    def _attend_self(self, x: Tensor) -> Tensor:
        query, key, value = (_heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        out: Tensor = self.self_out(attend(query, key, value))
        return out

    def forward(self, x: Tensor, modulation: Tensor, text: Tensor, bias: Tensor) -> Tensor:
        """Float [N, L, WIDTH], float [N, 6, WIDTH], text float [N, T, TEXT_WIDTH], bias float [N, 1, 1, T]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = (modulation + self.table)[:, :, None, :].unbind(1)
        x = x + gate1 * self._attend_self(_modulate(x, shift1, scale1))
        if self.text is not None:
            x = x + self.text(x, text, bias)
        return x + gate2 * self.down(functional.gelu(self.up(_modulate(x, shift2, scale2)), approximate="tanh"))


class _Cells(nn.Module):
    """A residual pair of 3 x 3 convolutions on the latent cells, modulated by the condition."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = nn.Linear(WIDTH, 2 * CELL_WIDTH)
        self.norm = nn.GroupNorm(8, CELL_WIDTH)
        self.conv1 = nn.Conv2d(CELL_WIDTH, CELL_WIDTH, 3, padding=1)
        self.conv2 = nn.Conv2d(CELL_WIDTH, CELL_WIDTH, 3, padding=1)
        for layer in (self.modulation, self.conv2):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Float [N, CELL_WIDTH, h, w], float [N, WIDTH] to the shape of x."""
        scale, shift = self.modulation(condition)[:, :, None, None].chunk(2, dim=1)
        hidden: Tensor = self.conv1(functional.silu(self.norm(x)))
        return x + self.conv2(functional.silu(hidden * (1 + scale) + shift))


class Denoiser(nn.Module):
    """Predicts the velocity `noise - latents` of a noisy latent, given its time and a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.cells_in = nn.Conv2d(LATENT_CHANNELS, CELL_WIDTH, 3, padding=1)
        self.cells_before = _Cells()
        self.tokens_in = nn.Linear(CELL_WIDTH * PATCH**2, WIDTH)
        self.time_in = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.text_in = nn.Sequential(nn.Linear(TEXT_WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.modulation = nn.Linear(WIDTH, 6 * WIDTH)
        self.blocks = nn.ModuleList(_Block(reads_text=i % 2 == 0) for i in range(DEPTH))
        self.tokens_out = nn.Linear(WIDTH, CELL_WIDTH * PATCH**2)
        self.cells_after = nn.ModuleList((_Cells(), _Cells()))
        self.norm_out = nn.GroupNorm(8, CELL_WIDTH)
        self.cells_out = nn.Conv2d(CELL_WIDTH, LATENT_CHANNELS, 3, padding=1)
        for layer in (self.modulation, self.cells_out):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, latents: Tensor, time: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        """Predict float [N, 8, h, w], h and w even.

        Latents float [N, 8, h, w]; time float [N], 0 clean, 1 noise; text float [N, T, TEXT_WIDTH]; mask bool [N, T].
        """
        weight = mask.to(text.dtype)[:, :, None]
        pooled = (text * weight).sum(dim=1) / weight.sum(dim=1)
        condition = functional.silu(self.time_in(time_features(time)) + self.text_in(pooled))
        bias = mask_bias(mask, text.dtype)
        cells: Tensor = self.cells_before(self.cells_in(latents), condition)
        patches = functional.pixel_unshuffle(cells, PATCH)
        height, width = patches.shape[-2:]
        x: Tensor = self.tokens_in(patches.flatten(2).transpose(1, 2)) + place_features(height, width, latents.device)
        modulation = self.modulation(condition).view(-1, 6, WIDTH)
        for block in self.blocks:
            x = block(x, modulation, text, bias)
        back: Tensor = self.tokens_out(functional.layer_norm(x, (WIDTH,)))
        cells = cells + functional.pixel_shuffle(back.transpose(1, 2).reshape(len(back), -1, height, width), PATCH)
        for stage in self.cells_after:
            cells = stage(cells, condition)
        out: Tensor = self.cells_out(functional.silu(self.norm_out(cells)))
        return out
