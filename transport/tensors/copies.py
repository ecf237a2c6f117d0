"""Tensors into the bytes of a slot and out of them again, bit for bit."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from ...schemas.manifest import TensorEntry, TensorManifest
from .dtypes import bits_of, dtype_of
from .values import TensorValue, each_tensor


def pack(tensors: Mapping[str, TensorValue], manifest: TensorManifest, memory: Tensor, *, non_blocking: bool) -> None:
    """Copy the tensors to where their manifest, planned for these very tensors, puts them in `memory` (uint8)."""
    for entry, (_, _, tensor) in zip(manifest.entries, each_tensor(tensors), strict=True):
        if entry.nbytes:
            plain = tensor.detach().resolve_conj().resolve_neg()
            source = plain.view(bits_of[plain.dtype])
            stored = memory[entry.offset : entry.offset + entry.nbytes].view(source.dtype)
            stored.view(source.shape).copy_(source, non_blocking=non_blocking)


def unpack(
    manifest: TensorManifest, memory: Tensor, device: torch.device, *, non_blocking: bool
) -> dict[str, TensorValue]:
    """Copy the tensors of a checked manifest out of `memory` into memory of their own."""
    values: dict[str, TensorValue] = {name: _gaps(length) for name, length in manifest.list_lengths.items()}
    for entry in manifest.entries:
        tensor = _read(entry, memory, device, non_blocking=non_blocking)
        listed = values.get(entry.name)
        if entry.index is None or not isinstance(listed, list):
            values[entry.name] = tensor
        else:
            listed[entry.index] = tensor
    return values


def _read(entry: TensorEntry, memory: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
    dtype = dtype_of[entry.dtype]
    copied = torch.empty(entry.shape, dtype=bits_of[dtype], device=device)
    if prod(entry.shape):
        stored = memory[entry.offset : entry.offset + entry.nbytes].view(copied.dtype)
        copied.copy_(stored.view(entry.shape), non_blocking=non_blocking)
    return copied.view(dtype)


def _gaps(length: int) -> list[Tensor | None]:
    return [None] * length
