"""The text encoder: a small bidirectional transformer over prompt tokens."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from .attention import attend, mask_bias
from .tokenizer import MAX_TOKENS, PAD, VOCABULARY_SIZE, tokenize

TEXT_WIDTH: Final = 192
_LAYERS: Final = 2
_HEADS: Final = 6


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(TEXT_WIDTH)
        self.qkv = nn.Linear(TEXT_WIDTH, 3 * TEXT_WIDTH)
        self.out = nn.Linear(TEXT_WIDTH, TEXT_WIDTH)
        self.norm2 = nn.LayerNorm(TEXT_WIDTH)
        self.up = nn.Linear(TEXT_WIDTH, 4 * TEXT_WIDTH)
        self.down = nn.Linear(4 * TEXT_WIDTH, TEXT_WIDTH)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Float [N, T, D], bias float [N, 1, 1, T] to the shape of x."""
        qkv: Tensor = self.qkv(self.norm1(x))
        query, key, value = qkv.view(*x.shape[:2], 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(query, key, value, bias))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class TextEncoder(nn.Module):
    """Token ids to one embedding per token."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY_SIZE, TEXT_WIDTH)
        self.position = nn.Parameter(torch.randn(MAX_TOKENS, TEXT_WIDTH) * 0.02)
        self.layers = nn.ModuleList(_Layer() for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(TEXT_WIDTH)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """int64 [N, T], bool [N, T] (true: a real token) to float [N, T, TEXT_WIDTH]."""
        x: Tensor = self.token(tokens) + self.position[: tokens.shape[1]]
        bias = mask_bias(mask, x.dtype)
        for layer in self.layers:
            x = layer(x, bias)
        out: Tensor = self.norm(x)
        return out


def token_batch(prompts: Sequence[Sequence[int]], length: int = MAX_TOKENS) -> tuple[Tensor, Tensor]:
    """Turn lists of token ids into int64 [N, length], padded, and bool [N, length], true for real tokens."""
    tokens = torch.full((len(prompts), length), PAD, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int64)
    return tokens, tokens != PAD


def prompt_tokens(prompt: str) -> tuple[Tensor, Tensor]:
    """Return one prompt as int64 [1, MAX_TOKENS] and its mask, bool [1, MAX_TOKENS]."""
    return token_batch([tokenize(prompt)])
