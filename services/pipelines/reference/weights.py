"""The trained weights that ship with the package: one safetensors file per role, float16 on disk."""

from importlib import resources
from typing import Literal, TypeAlias, TypeVar

import torch
from safetensors.torch import load
from torch import nn

WeightsName: TypeAlias = Literal["text_encoder", "denoiser", "vae_decoder"]
Module = TypeVar("Module", bound=nn.Module)


def with_weights(module: Module, name: WeightsName, device: torch.device | str) -> Module:
    """Fill a module from its file, in float32, ready to compute on `device`."""
    file = resources.files(__name__.rpartition(".")[0]) / "weights" / f"{name}.safetensors"
    module.load_state_dict({key: value.float() for key, value in load(file.read_bytes()).items()})
    return module.to(device=device, dtype=torch.float32).eval().requires_grad_(requires_grad=False)
