"""Tensors into the bytes of a slot and out of them again, bit for bit."""

import mmap
from collections.abc import Callable, Mapping
from math import prod

import torch
from torch import Tensor

from ...schemas.manifest import TensorEntry, TensorManifest
from .dtypes import bits_of, dtype_of
from .values import TensorValue, each_tensor

#: where a tensor of the host is as large as this, malloc maps it anew each time
HUGE_BYTES = 32 * 2**20
HUGE_PAGE = 2 * 2**20
#: the advice for huge pages, 0 where this system has none
HUGE_PAGES: int = getattr(mmap, "MADV_HUGEPAGE", 0)


def pack(tensors: Mapping[str, TensorValue], manifest: TensorManifest, memory: Tensor, *, non_blocking: bool) -> None:
    """Copy the tensors to where their manifest, planned for these very tensors, puts them in `memory` (uint8)."""
    for entry, (_, _, tensor) in zip(manifest.entries, each_tensor(tensors), strict=True):
        if entry.nbytes:
            plain = tensor.detach().resolve_conj().resolve_neg()
            source = plain.view(bits_of[plain.dtype])
            stored = memory[entry.offset : entry.offset + entry.nbytes].view(source.dtype)
            if source.ndim != 1:
                stored = stored.view(source.shape)
            stored.copy_(source, non_blocking=non_blocking)


def unpack(
    manifest: TensorManifest, memory: Tensor, device: torch.device, *, non_blocking: bool
) -> dict[str, TensorValue]:
    """Copy the tensors of a checked manifest out of `memory` into memory of their own."""
    return _each(manifest, lambda entry: _read(entry, memory, device, non_blocking=non_blocking))


def view(manifest: TensorManifest, memory: Tensor) -> dict[str, TensorValue]:
    """Return the tensors of a checked manifest as they lie in `memory`."""
    return _each(manifest, lambda entry: _view(entry, memory))


def _each(manifest: TensorManifest, tensor_of: Callable[[TensorEntry], Tensor]) -> dict[str, TensorValue]:
    values: dict[str, TensorValue] = {name: _gaps(length) for name, length in manifest.list_lengths.items()}
    for entry in manifest.entries:
        tensor = tensor_of(entry)
        listed = values.get(entry.name)
        if entry.index is None or not isinstance(listed, list):
            values[entry.name] = tensor
        else:
            listed[entry.index] = tensor
    return values


def _read(entry: TensorEntry, memory: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
    dtype = dtype_of[entry.dtype]
    copied = _empty(entry, bits_of[dtype], device)
    if prod(entry.shape):
        stored = memory[entry.offset : entry.offset + entry.nbytes].view(copied.dtype)
        copied.copy_(stored.view(entry.shape), non_blocking=non_blocking)
    return copied.view(dtype)


def _empty(entry: TensorEntry, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return new memory; on the host, much of it comes in huge pages, since page faults cost more than the copy."""
    if device.type != "cpu" or entry.nbytes < HUGE_BYTES or not HUGE_PAGES:
        return torch.empty(entry.shape, dtype=dtype, device=device)
    mapping = mmap.mmap(-1, entry.nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(HUGE_PAGES)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    skipped = -memory.data_ptr() % HUGE_PAGE
    return memory[skipped : skipped + entry.nbytes].view(dtype).view(entry.shape)


def _view(entry: TensorEntry, memory: Tensor) -> Tensor:
    dtype = dtype_of[entry.dtype]
    if not prod(entry.shape):
        return torch.empty(entry.shape, dtype=bits_of[dtype]).view(dtype)
    return memory[entry.offset : entry.offset + entry.nbytes].view(bits_of[dtype]).view(entry.shape).view(dtype)


def _gaps(length: int) -> list[Tensor | None]:
    return [None] * length
