"""Turns the drawn pictures into normalised latents with the trained VAE: python -m training.encode."""

import torch

from .parallel import launch
from .store import CAPACITY, LATENT_SHAPE, LATENTS, open_latents, open_pictures
from .tensors import channels_last
from .train_vae import load, to_float

BATCH = 250


@torch.no_grad()
def encode(rank: int, ranks: int) -> None:
    """Encode every `ranks`-th batch of the store."""
    encoder, decoder = load()
    channels_last(encoder)
    mean, std = decoder.latent_mean.view(1, -1, 1, 1), decoder.latent_std.view(1, -1, 1, 1)
    pictures, latents = open_pictures("r"), open_latents("r+")
    for start in range(rank * BATCH, CAPACITY, ranks * BATCH):
        images = to_float(torch.from_numpy(pictures[start : start + BATCH].copy()))
        with torch.autocast("cpu", torch.bfloat16):
            raw, _ = encoder(images)
        latents[start : start + BATCH] = ((raw.float() - mean) / std).half().numpy()


def main() -> None:
    """Make room, then encode in two processes."""
    with LATENTS.open("wb") as file:
        file.truncate(CAPACITY * LATENT_SHAPE[0] * LATENT_SHAPE[1] * LATENT_SHAPE[2] * 2)
    launch(encode, 2, 29712)


if __name__ == "__main__":
    main()
