"""Checkpoints, and typed doors to calls whose types torch and safetensors leave open."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import safetensors.torch
import torch
from torch import Tensor, nn

from .store import WORK

Module = TypeVar("Module", bound=nn.Module)


def checkpoint(name: str) -> Path:
    """Where the trainers keep the weights called `name`."""
    return WORK / f"{name}.safetensors"


def read(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    return safetensors.torch.load_file(path)


def write(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    safetensors.torch.save_file({key: value.contiguous() for key, value in state.items()}, part)
    part.chmod(0o644)
    part.replace(path)


def channels_last(module: Module) -> Module:
    """Lay out the weights for fast convolutions on a CPU."""
    for weight in module.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return module


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat tensor into parts of the shapes of `like`."""
    parts = torch.split(flat, [part.numel() for part in like])
    return [new.view(old.shape) for new, old in zip(parts, like, strict=True)]


@torch.no_grad()
def move_towards(means: Sequence[Tensor], values: Sequence[Tensor], share: float) -> None:
    """Move each running mean the given share of the way to its value."""
    for mean, value in zip(means, values, strict=True):
        mean.lerp_(value, share)
