"""Copies the trained weights into the package, in half precision: python -m training.export."""

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from .tensors import checkpoint, read, write

TARGET: Final = Path(__file__).parent.parent / "services" / "pipelines" / "reference" / "weights"


def _write(name: str, state: dict[str, Tensor]) -> None:
    target = TARGET / f"{name}.safetensors"
    write(target, {key: value.to(torch.float16) for key, value in state.items()})
    print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    """Write the three files."""
    trained = read(checkpoint("ema"))
    for name in ("text_encoder", "denoiser"):
        prefix = f"{name}."
        _write(name, {key.removeprefix(prefix): value for key, value in trained.items() if key.startswith(prefix)})
    _write("vae_decoder", read(checkpoint("vae_decoder")))


if __name__ == "__main__":
    main()
