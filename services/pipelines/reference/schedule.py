"""The times a picture passes on its way from noise to picture, and the step between two of them.

Rectified flow (Liu et al., 2022): at time t a latent is `(1 - t) * clean + t * noise`, and the model predicts the
velocity `noise - clean`, so a step of Euler's method is exact wherever the path is straight.
"""

import torch
from torch import Tensor


def flow_times(steps: int) -> Tensor:
    """Return the times of `steps` steps: float32 [steps + 1], evenly spaced from 1 (noise) down to 0 (clean)."""
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1")
    return torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float32)


def guided(with_prompt: Tensor, without: Tensor, scale: float) -> Tensor:
    """Go from the prediction without the prompt towards, and past, the one with it (Ho and Salimans, 2022)."""
    return without + scale * (with_prompt - without)


def euler_step(latents: Tensor, velocity: Tensor, time: float, next_time: float) -> Tensor:
    """Follow the velocity from one time to the next."""
    return latents + (next_time - time) * velocity


def initial_noise(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Draw standard normal float32 noise on the CPU, the same on every machine that has the same torch."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
