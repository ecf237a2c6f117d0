"""Attention written out: for so few tokens on a CPU it trains several times faster than the fused kernel."""

import torch
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """Mix values: queries float [N, H, L, D], keys and values float [N, H, S, D] to float [N, L, H * D]."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    return (scores.softmax(dim=-1).to(value.dtype) @ value).transpose(1, 2).flatten(2)


def mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Bool [N, S], true for keys that count, to float [N, 1, 1, S], added to the scores."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -1e4)[:, None, None, :]
