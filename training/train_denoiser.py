"""Trains the text encoder and the denoiser together: python -m training.train_denoiser --minutes 65.

Flow matching (Lipman et al., 2022) with logit-normal times (Esser et al., 2024); Muon (Jordan et al., 2024) for the
hidden matrices, AdamW for the rest; exponential moving average of the weights.
"""

import argparse
import functools
import random
import time
from typing import Final

import torch
from torch import Tensor, distributed, nn

from triptych.services.pipelines.reference.denoiser import Denoiser
from triptych.services.pipelines.reference.text_encoder import TextEncoder, token_batch
from triptych.services.pipelines.reference.tokenizer import START, tokenize

from .parallel import average, launch
from .prompts import describe
from .store import CAPACITY, open_latents, open_scenes, some, unpack
from .tensors import checkpoint, move_towards, read, unflatten, write

SEED: Final = 20261201
DROP_PROMPT: Final = 0.1
EMA_DECAY: Final = 0.9992
#: Share of the time over which the learning rate falls to nothing, at the end.
COOLDOWN: Final = 0.35
_NOT_MUON: Final = ("token.weight", "modulation", "cells_")


class TextToLatents(nn.Module):
    """Both trained parts as one module."""

    def __init__(self) -> None:
        super().__init__()
        self.text_encoder = TextEncoder()
        self.denoiser = Denoiser()

    def forward(self, latents: Tensor, time: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Latents float [N, 8, 8, 8], times [N], tokens int64 [N, T], mask bool [N, T] to velocity [N, 8, 8, 8]."""
        velocity: Tensor = self.denoiser(latents, time, self.text_encoder(tokens, mask), mask)
        return velocity


class Data:
    """Random batches of latents and freshly phrased prompts."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.latents = torch.from_numpy(open_latents("r")[:])
        self.scenes: list[list[int]] = open_scenes("r").tolist()

    def batch(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Latents float32 [count, 8, 8, 8], tokens int64 [count, T], mask bool [count, T]."""
        places = some(self.rng, count, CAPACITY)
        prompts = [
            [START] if self.rng.random() < DROP_PROMPT else tokenize(describe(unpack(self.scenes[i]), self.rng))
            for i in places
        ]
        tokens, mask = token_batch(prompts, max(map(len, prompts)))
        return self.latents[places].float(), tokens, mask


class Optimizers:
    """Muon for this rank's share of the hidden matrices, AdamW for all the rest on every rank."""

    def __init__(self, model: nn.Module, rank: int, ranks: int, peak: float) -> None:
        matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and not any(n in name for n in _NOT_MUON)]
        matrices = [w for w in matrices if min(w.shape) > 32]
        chosen = set(map(id, matrices))
        rest = [w for w in model.parameters() if id(w) not in chosen]
        matrices.sort(key=Tensor.numel, reverse=True)
        self.shares = [matrices[i::ranks] for i in range(ranks)]
        muon = torch.optim.Muon(self.shares[rank], lr=2 * peak, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        adam = torch.optim.AdamW(rest, lr=peak, betas=(0.9, 0.98), weight_decay=0.0)
        self.all: tuple[torch.optim.Optimizer, ...] = (muon, adam)
        self.peaks = (2 * peak, peak)

    def step(self, factor: float) -> None:
        """Step with the peak rates times `factor`, then hand each rank's matrices to the others."""
        for optimizer, peak in zip(self.all, self.peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
        with torch.no_grad():
            for rank, share in enumerate(self.shares):
                flat = torch.cat([w.flatten() for w in share])
                distributed.broadcast(flat, rank)
                for old, new in zip(share, unflatten(flat, share), strict=True):
                    old.copy_(new)


def loss_of(model: TextToLatents, data: Data, batch: int) -> Tensor:
    """Mean squared error of the velocity at random times."""
    latents, tokens, mask = data.batch(batch)
    times = torch.randn(batch).sigmoid()
    noise = torch.randn_like(latents)
    at = times.view(-1, 1, 1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        velocity = model((1 - at) * latents + at * noise, times, tokens, mask)
    return (velocity.float() - (noise - latents)).square().mean()


def _factor(spent: float, step: int, resume: bool) -> float:
    rise = min(1.0, (step + 1) / (400 if resume else 200))
    return rise * min(1.0, (1 - spent) / COOLDOWN)


def train(rank: int, ranks: int, *, minutes: float, batch: int, peak: float, resume: bool) -> None:
    """Train for a wall-clock time, `batch` latents a step and rank."""
    torch.manual_seed(SEED)
    model = TextToLatents()
    if resume:
        model.load_state_dict(read(checkpoint("model")))
    torch.manual_seed(SEED + 1 + rank)
    mean = {key: value.detach().clone() for key, value in model.state_dict().items()}
    if resume:
        mean = read(checkpoint("ema"))
    data, optimizers = Data(f"{SEED}/{rank}/{resume}"), Optimizers(model, rank, ranks, peak)
    weights = list(model.parameters())
    begun, reported, step, total = time.monotonic(), 20.0, 0, 0.0
    spent, counted = torch.zeros(()), 0
    while float(spent) < 1.0:
        loss = loss_of(model, data, batch)
        model.zero_grad(set_to_none=True)
        loss.backward()
        average([w.grad for w in weights if w.grad is not None], ranks)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizers.step(_factor(float(spent), step, resume))
        step, counted, total = step + 1, counted + 1, total + float(loss.detach())
        spent.fill_((time.monotonic() - begun) / (60 * minutes))
        distributed.broadcast(spent, 0)
        if rank > 0:
            continue
        decay = EMA_DECAY if resume else min(EMA_DECAY, (1 + step) / (20 + step))
        state = model.state_dict()
        move_towards(list(mean.values()), [state[key] for key in mean], 1 - decay)
        if time.monotonic() - begun > reported or float(spent) >= 1.0:
            reported += 60.0
            print(f"{float(spent):6.1%} step {step} loss {total / counted:.4f}", flush=True)
            total, counted = 0.0, 0
            write(checkpoint("model"), state)
            write(checkpoint("ema"), mean)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=65.0)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--peak", type=float, default=1e-3)
    parser.add_argument("--resume", action="store_true")
    o = parser.parse_args()
    launch(functools.partial(train, minutes=o.minutes, batch=o.batch, peak=o.peak, resume=o.resume), o.ranks, 29713)


if __name__ == "__main__":
    main()
