"""Trains the VAE: python -m training.train_vae --minutes 20."""

import argparse
import functools
import math
import random
import time

import torch
from torch import Tensor, distributed
from torch.nn import functional

from triptych.services.pipelines.reference.vae import ImageDecoder, ImageEncoder, to_uint8

from .parallel import average, launch
from .store import drawn, open_pictures, some
from .tensors import channels_last, checkpoint, read, write

SEED = 20261201
KL_WEIGHT = 1e-4
EDGE_WEIGHT = 0.5


def to_float(pictures: Tensor) -> Tensor:
    """uint8 [N, H, W, 3] to float32 [N, 3, H, W] in -1 to 1, channels last."""
    return (pictures.permute(0, 3, 1, 2).float() / 127.5 - 1.0).contiguous(memory_format=torch.channels_last)


def _edges(images: Tensor) -> tuple[Tensor, Tensor]:
    return images.diff(dim=-1), images.diff(dim=-2)


def reconstruction_loss(back: Tensor, wanted: Tensor) -> Tensor:
    """L1 and squared error, plus L1 on the differences of neighbouring pixels, which keeps edges sharp."""
    loss = functional.l1_loss(back, wanted) + functional.mse_loss(back, wanted)
    for mine, theirs in zip(_edges(back), _edges(wanted), strict=True):
        loss = loss + EDGE_WEIGHT * functional.l1_loss(mine, theirs)
    return loss


@torch.no_grad()
def psnr(back: Tensor, pictures: Tensor) -> float:
    """Mean PSNR in dB of float [N, 3, H, W] against uint8 pictures [N, H, W, 3]."""
    errors = (to_uint8(back).float() - pictures.float()).square().mean(dim=(1, 2, 3))
    return float((10 * torch.log10(255.0**2 / errors)).mean())


@torch.no_grad()
def measure(encoder: ImageEncoder, decoder: ImageDecoder, pictures: Tensor) -> float:
    """Mean PSNR in dB of uint8 pictures [N, H, W, 3] through the VAE."""
    mean, _ = encoder(to_float(pictures))
    return psnr(decoder.decode_raw(mean), pictures)


def save(encoder: ImageEncoder, decoder: ImageDecoder, pictures: Tensor) -> None:
    """Write both halves, with the latents' mean and deviation measured on `pictures` uint8 [N, H, W, 3]."""
    with torch.no_grad():
        mean, _ = encoder(to_float(pictures))
    decoder.latent_mean.copy_(mean.mean(dim=(0, 2, 3)))
    decoder.latent_std.copy_(mean.std(dim=(0, 2, 3)))
    for name, half in (("vae_encoder", encoder), ("vae_decoder", decoder)):
        write(checkpoint(name), half.state_dict())


def load() -> tuple[ImageEncoder, ImageDecoder]:
    """Both halves as `save` wrote them."""
    encoder, decoder = ImageEncoder(), ImageDecoder()
    encoder.load_state_dict(read(checkpoint("vae_encoder")))
    decoder.load_state_dict(read(checkpoint("vae_decoder")))
    return encoder, decoder


def _loss(encoder: ImageEncoder, decoder: ImageDecoder, images: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        mean, log_variance = encoder(images)
        latents = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        back = decoder.decode_raw(latents)
    mean, log_variance = mean.float(), log_variance.float()
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).mean()
    return reconstruction_loss(back.float(), images) + KL_WEIGHT * divergence


def train(rank: int, ranks: int, *, minutes: float, batch: int, peak: float, resume: bool) -> None:
    """Train for a wall-clock time, `batch` pictures a step and rank; the learning rate follows the clock too."""
    torch.manual_seed(SEED)
    encoder, decoder = load() if resume else (ImageEncoder(), ImageDecoder())
    channels_last(encoder)
    channels_last(decoder)
    torch.manual_seed(SEED + 1 + rank)
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=peak, betas=(0.9, 0.98), weight_decay=1e-4)
    while drawn() < 2000:
        time.sleep(0.5)
    pictures, rng = open_pictures("r"), random.Random(f"{SEED}/{rank}")
    probe = torch.from_numpy(pictures[:512].copy())
    begun, reported, step = time.monotonic(), 0.0, 0
    spent = torch.zeros(())
    while float(spent) < 1.0:
        for group in optimizer.param_groups:
            cosine = 0.5 * (1 + math.cos(math.pi * float(spent)))
            group["lr"] = peak * min(1.0, (step + 1) / 100) * (0.02 + 0.98 * cosine)
        images = to_float(torch.from_numpy(pictures[some(rng, batch, drawn())]))
        loss = _loss(encoder, decoder, images)
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
            quality = measure(encoder, decoder, probe[:128])
            print(f"{float(spent):6.1%} step {step} loss {float(loss.detach()):.4f} psnr {quality:.2f} dB", flush=True)
            save(encoder, decoder, probe)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--peak", type=float, default=1.5e-3)
    parser.add_argument("--resume", action="store_true")
    o = parser.parse_args()
    launch(functools.partial(train, minutes=o.minutes, batch=o.batch, peak=o.peak, resume=o.resume), o.ranks, 29711)


if __name__ == "__main__":
    main()
