"""Planning where tensors lie in a slot, and checking a plan that came from a peer before anything is read."""

from collections.abc import Mapping
from math import prod

from torch import Tensor, strided

from ...schemas.errors import ManifestMismatch, TransferError, shortened
from ...schemas.manifest import ALIGNMENT, TensorEntry, TensorManifest
from .dtypes import dtype_of, name_of
from .values import TensorValue, each_tensor

MAX_NAME = 128
MAX_DIMENSIONS = 16
MAX_ENTRIES = 65_536
MAX_LISTS = 256
#: the lengths of all lists together, places without a tensor included
MAX_PLACES = 2**20
#: elements, counting a dimension of length 0 as 1, since torch computes strides that way
MAX_EXTENT = 2**48


def padded(nbytes: int) -> int:
    """Return `nbytes` rounded up to the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def plan(tensors: Mapping[str, TensorValue]) -> TensorManifest:
    """Lay the tensors out one after the other; raise TransferError for what cannot travel."""
    lists = {name: len(value) for name, value in tensors.items() if not isinstance(value, Tensor)}
    _plannable(len(lists) <= MAX_LISTS, f"{len(lists)} lists, at most {MAX_LISTS} travel")
    _plannable(sum(lists.values()) <= MAX_PLACES, f"lists of {sum(lists.values())} places, at most {MAX_PLACES} travel")
    longest = max(tensors, key=len, default="")
    _plannable(len(longest) <= MAX_NAME, f"the name {shortened(longest)} is longer than {MAX_NAME} characters")
    entries: list[TensorEntry] = []
    offset = 0
    for name, index, tensor in each_tensor(tensors):
        entry = _entry(name, index, tensor, offset)
        entries.append(entry)
        offset += padded(entry.nbytes)
    _plannable(len(entries) <= MAX_ENTRIES, f"{len(entries)} tensors, at most {MAX_ENTRIES} travel in one payload")
    return TensorManifest(offset, tuple(entries), lists)


def _entry(name: str, index: int | None, tensor: Tensor, offset: int) -> TensorEntry:
    dtype = name_of.get(tensor.dtype)
    if dtype is None or tensor.layout is not strided or tensor.is_meta or tensor.is_nested:
        raise TransferError(f"{shortened(name)} is {tensor.dtype}, {tensor.layout}; only plain dense tensors travel")
    shape = tuple(tensor.shape)
    if len(shape) > MAX_DIMENSIONS or _extent(shape) > MAX_EXTENT:
        raise TransferError(
            f"{shortened(name)} has the shape {shortened(shape)}, more than {MAX_DIMENSIONS} or too long"
        )
    return TensorEntry(name, index, dtype, shape, offset, tensor.numel() * tensor.itemsize)


def check_manifest(manifest: TensorManifest, slot_size: int) -> None:
    """Raise ManifestMismatch unless each tensor lies inside the slot, by itself, and is what its entry says."""
    _require(0 <= manifest.data_size <= slot_size, f"{manifest.data_size} bytes in a slot of {slot_size}")
    _check_lists(manifest)
    places = {(entry.name, entry.index) for entry in manifest.entries}
    _require(len(places) == len(manifest.entries), "two tensors have one name and place")
    for entry in manifest.entries:
        _check_place(entry, manifest)
        _check_size(entry)
    end = 0
    for entry in sorted(manifest.entries, key=_by_offset):
        if entry.offset < end:
            raise ManifestMismatch(f"{_label(entry)} overlaps the tensor before it, at offset {entry.offset}")
        end = entry.offset + padded(entry.nbytes)


def _check_lists(manifest: TensorManifest) -> None:
    _require(len(manifest.entries) <= MAX_ENTRIES, f"{len(manifest.entries)} tensors, of {MAX_ENTRIES}")
    lengths = manifest.list_lengths.values()
    _require(len(lengths) <= MAX_LISTS, f"{len(lengths)} lists, of {MAX_LISTS}")
    _require(min(lengths, default=0) >= 0, "a list of negative length")
    _require(sum(lengths) <= MAX_PLACES, f"lists of {sum(lengths)} places, of {MAX_PLACES}")


def _check_place(entry: TensorEntry, manifest: TensorManifest) -> None:
    length = manifest.list_lengths.get(entry.name)
    if (entry.index is None) != (length is None):
        raise ManifestMismatch(f"{_label(entry)} is both a tensor and a list, or is in a list without a length")
    if entry.index is not None and length is not None and not 0 <= entry.index < length:
        raise ManifestMismatch(f"{_label(entry)} is outside its list of length {length}")
    if entry.offset < 0 or entry.offset % ALIGNMENT:
        raise ManifestMismatch(f"{_label(entry)} lies at {entry.offset}, no multiple of {ALIGNMENT}")
    if entry.nbytes < 0 or entry.offset + padded(entry.nbytes) > manifest.data_size:
        raise ManifestMismatch(f"{_label(entry)}, {entry.nbytes} bytes at {entry.offset}, of {manifest.data_size}")


def _check_size(entry: TensorEntry) -> None:
    dtype = dtype_of.get(entry.dtype)
    if dtype is None:
        raise ManifestMismatch(f"{_label(entry)} has the unknown dtype {shortened(entry.dtype)}")
    shape = entry.shape
    if len(shape) > MAX_DIMENSIONS or min(shape, default=0) < 0 or _extent(shape) > MAX_EXTENT:
        raise ManifestMismatch(f"{_label(entry)} has the shape {shortened(shape)}, which no tensor has")
    if prod(shape) * dtype.itemsize != entry.nbytes:
        raise ManifestMismatch(f"{_label(entry)} {shape} of {entry.dtype} is not {entry.nbytes} bytes")


def _extent(shape: tuple[int, ...]) -> int:
    return prod(shape) or prod(length or 1 for length in shape)


def _by_offset(entry: TensorEntry) -> tuple[int, int]:
    return entry.offset, entry.nbytes


def _label(entry: TensorEntry) -> str:
    return shortened(entry.name) if entry.index is None else f"{shortened(entry.name)}[{entry.index}]"


def _require(truth: bool, otherwise: str) -> None:
    if not truth:
        raise ManifestMismatch(otherwise)


def _plannable(truth: bool, otherwise: str) -> None:
    if not truth:
        raise TransferError(otherwise)
