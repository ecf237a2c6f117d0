"""Page-locking host memory for the accelerator, so that copies to and from it run beside everything else."""

from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor


class _Runtime(Protocol):
    def cudaHostRegister(self, address: int, size: int, flags: int) -> int: ...  # noqa: N802

    def cudaHostUnregister(self, address: int) -> int: ...  # noqa: N802


def page_lock(memory: Tensor, device: torch.device | str) -> Callable[[], None]:
    """Register `memory` with the device where that is one (CUDA, ROCm) which can; return what undoes it."""
    if torch.device(device).type != "cuda":
        return _nothing
    runtime = cast("_Runtime", torch.cuda.cudart())
    address = memory.data_ptr()
    torch.cuda.check_error(runtime.cudaHostRegister(address, memory.nbytes, 0))

    def unlock() -> None:
        torch.cuda.check_error(runtime.cudaHostUnregister(address))

    return unlock


def _nothing() -> None:
    """Undo nothing."""
