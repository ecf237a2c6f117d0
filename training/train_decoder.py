"""Goes on with the VAE's decoder alone, its latents fixed: python -m training.train_decoder --minutes 8.

The latents are a little noisy here, as those of the denoiser are.
"""

import argparse
import functools
import math
import random
import time

import torch
from torch import distributed

from .parallel import average, launch
from .store import CAPACITY, open_latents, open_pictures, some
from .tensors import channels_last, checkpoint, write
from .train_vae import load, psnr, reconstruction_loss, to_float

SEED = 20261202
#: Standard deviation of the noise; that of the latents is 1.
NOISE = 0.05


def train(rank: int, ranks: int, *, minutes: float, batch: int, peak: float) -> None:
    """Train for a wall-clock time, `batch` pictures a step and rank."""
    decoder = channels_last(load()[1])
    torch.manual_seed(SEED + rank)
    weights = list(decoder.parameters())
    optimizer = torch.optim.AdamW(weights, lr=peak, betas=(0.9, 0.98), weight_decay=1e-4)
    pictures, latents, rng = open_pictures("r"), open_latents("r"), random.Random(f"{SEED}/{rank}")
    begun, reported, step = time.monotonic(), 0.0, 0
    spent = torch.zeros(())
    while float(spent) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = (
                peak * min(1.0, (step + 1) / 50) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * float(spent))))
            )
        places = some(rng, batch, CAPACITY)
        images = to_float(torch.from_numpy(pictures[places]))
        clean = torch.from_numpy(latents[places]).float()
        with torch.autocast("cpu", torch.bfloat16):
            back = decoder(clean + NOISE * torch.randn_like(clean))
        loss = reconstruction_loss(back.float(), images)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average([w.grad for w in weights if w.grad is not None], ranks)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        step += 1
        spent.fill_((time.monotonic() - begun) / (60 * minutes))
        distributed.broadcast(spent, 0)
        if rank == 0 and (time.monotonic() - begun > reported or float(spent) >= 1.0):
            reported += 60.0
            with torch.no_grad():
                quality = psnr(
                    decoder(torch.from_numpy(latents[:128].copy()).float()), torch.from_numpy(pictures[:128].copy())
                )
            print(f"{float(spent):6.1%} step {step} loss {float(loss.detach()):.4f} psnr {quality:.2f} dB", flush=True)
            write(checkpoint("vae_decoder"), decoder.state_dict())


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--peak", type=float, default=1e-3)
    o = parser.parse_args()
    launch(functools.partial(train, minutes=o.minutes, batch=o.batch, peak=o.peak), o.ranks, 29714)


if __name__ == "__main__":
    main()
