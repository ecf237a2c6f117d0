"""Manifests: where each tensor of a payload lies in its slot."""

from typing import Annotated

from msgspec import Meta, Struct

Name = Annotated[str, Meta(max_length=128)]
Count = Annotated[int, Meta(ge=0, le=2**48)]

#: tensors lie at multiples of this, in bytes
ALIGNMENT = 512

Scalar = bool | int | float | Annotated[str, Meta(max_length=4096)] | None
ScalarFields = Annotated[dict[Name, Scalar], Meta(max_length=256)]


class TensorEntry(Struct, frozen=True, array_like=True):
    """One tensor, contiguous in row-major order at `offset` bytes from the start of its slot.

    `index` is its place in the list called `name`, or None where `name` is a tensor by itself. `nbytes` is the exact
    size; the space up to the next multiple of `ALIGNMENT` belongs to it too.
    """

    name: Name
    index: Annotated[int, Meta(ge=0, lt=2**20)] | None
    dtype: Annotated[str, Meta(max_length=32)]
    shape: Annotated[tuple[Count, ...], Meta(max_length=16)]
    offset: Count
    nbytes: Count


class TensorManifest(Struct, frozen=True, array_like=True):
    """All tensors of one payload. `data_size` is what moves: each tensor's bytes with the alignment counted in."""

    data_size: Count
    entries: Annotated[tuple[TensorEntry, ...], Meta(max_length=65_536)] = ()
    #: the length of each list, with the places that hold no tensor
    list_lengths: Annotated[dict[Name, Annotated[int, Meta(ge=0, lt=2**20)]], Meta(max_length=256)] = {}


EMPTY_MANIFEST = TensorManifest(0)
