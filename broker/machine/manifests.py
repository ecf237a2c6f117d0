"""The broker's check of a manifest: arithmetic alone. What a dtype is, sender and receiver know."""

from math import prod

from ...schemas.manifest import ALIGNMENT, TensorEntry, TensorManifest
from ...schemas.memory import Slot
from .slots import slot_problem


def padded(nbytes: int) -> int:
    """Return `nbytes` with the space up to the next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def manifest_problem(manifest: TensorManifest, slot: Slot, pool_size: int) -> str | None:
    """Say why `manifest` cannot describe what lies in `slot` of a pool of `pool_size` bytes."""
    if manifest.data_size > slot.size:
        return f"{manifest.data_size} bytes lie in slot {slot.slot_id}, which has {slot.size}"
    problem = slot_problem(slot, pool_size)
    end = 0
    for entry in sorted(manifest.entries, key=lambda entry: entry.offset):
        problem = problem or _entry_problem(entry, manifest.data_size, end)
        if entry.nbytes:
            end = entry.offset + padded(entry.nbytes)
    return problem


def _entry_problem(entry: TensorEntry, data_size: int, end: int) -> str | None:
    where = f"{entry.name!a} at {entry.offset}"
    if entry.offset % ALIGNMENT:
        return f"{where} is not aligned to {ALIGNMENT}"
    if entry.offset + padded(entry.nbytes) > data_size:
        return f"{where} reaches {entry.offset + padded(entry.nbytes)}, past the {data_size} bytes of the payload"
    if entry.nbytes and entry.offset < end:
        return f"{where} begins inside the tensor before it"
    elements = prod(entry.shape)
    if (entry.nbytes % elements if elements else entry.nbytes) or (elements and not entry.nbytes):
        return f"{where} has {entry.nbytes} bytes for {elements} elements"
    return None
