from math import prod

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from triptych.schemas.errors import ManifestMismatch, TransferError
from triptych.schemas.manifest import ALIGNMENT, EMPTY_MANIFEST, TensorEntry, TensorManifest
from triptych.transport.tensors.copies import pack, unpack
from triptych.transport.tensors.dtypes import dtype_of
from triptych.transport.tensors.manifests import MAX_ENTRIES, check_manifest, plan

from .payloads import payloads

HOST = torch.device("cpu")
UNIT = ALIGNMENT


def entry(offset=0, shape=(4,), nbytes=16, name="x", index=None, dtype="float32"):
    return TensorEntry(name, index, dtype, shape, offset, nbytes)


@given(payload=payloads)
def test_plan_is_accepted_after_travelling(payload):
    """A plan fits exactly the slot of its own data size, also after MessagePack, and no smaller one."""
    manifest = plan(payload)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(manifest), type=TensorManifest)
    check_manifest(decoded, manifest.data_size)
    assert decoded == manifest
    with pytest.raises(ManifestMismatch):
        check_manifest(decoded, manifest.data_size - 1)


@given(payload=payloads)
def test_planned_tensors_lie_apart_and_aligned(payload):
    """Tensors start at multiples of the alignment, one behind the other, and the data size counts what lies between."""
    manifest = plan(payload)
    end = 0
    for placed in manifest.entries:
        assert placed.offset == end
        end += -(-placed.nbytes // UNIT) * UNIT
    assert (manifest.data_size, end % UNIT) == (end, 0)


def test_odd_size_beside_small_one():
    """1 MiB − 100 bytes beside 100 bytes take 1 MiB and one unit of alignment, and both arrive."""
    payload = {"large": torch.full((2**20 - 100,), 7, dtype=torch.uint8), "small": torch.arange(100, dtype=torch.uint8)}
    manifest = plan(payload)
    assert manifest == TensorManifest(
        2**20 + UNIT,
        (
            TensorEntry("large", None, "uint8", (2**20 - 100,), 0, 2**20 - 100),
            TensorEntry("small", None, "uint8", (100,), 2**20, 100),
        ),
    )
    memory = torch.zeros(manifest.data_size, dtype=torch.uint8)
    pack(payload, manifest, memory, non_blocking=False)
    loaded = unpack(manifest, memory, HOST, non_blocking=False)
    assert all(torch.equal(loaded[name], payload[name]) for name in payload)


def test_empty_payload():
    """Nothing at all is a payload of zero bytes, and fits everywhere."""
    assert plan({}) == EMPTY_MANIFEST
    check_manifest(EMPTY_MANIFEST, 0)


BASE = TensorManifest(
    4 * UNIT,
    (entry(), entry(UNIT, (2, 3, 40), 480, "y", dtype="bfloat16"), entry(3 * UNIT, name="l", index=1)),
    {"l": 3},
)
LIES = {
    "a data size beyond the slot": replace(BASE, data_size=5 * UNIT),
    "a data size below the tensors": replace(BASE, data_size=3 * UNIT + 16),
    "a negative data size": TensorManifest(-1),
    "an offset off the alignment": TensorManifest(4 * UNIT, (entry(8),)),
    "a negative offset": TensorManifest(4 * UNIT, (entry(-UNIT),)),
    "an offset outside": TensorManifest(4 * UNIT, (entry(4 * UNIT),)),
    "a tensor that ends outside": TensorManifest(2 * UNIT, (entry(UNIT, (256,), 1024),)),
    "two tensors in one place": TensorManifest(4 * UNIT, (entry(), entry(name="y"))),
    "a tensor inside another": TensorManifest(4 * UNIT, (entry(0, (512,), 2048), entry(UNIT, name="y"))),
    "an empty tensor inside another": TensorManifest(4 * UNIT, (entry(0, (512,), 2048), entry(UNIT, (0,), 0, "y"))),
    "fewer bytes than the shape": TensorManifest(4 * UNIT, (entry(nbytes=15),)),
    "more bytes than the shape": TensorManifest(4 * UNIT, (entry(nbytes=17),)),
    "negative bytes": TensorManifest(4 * UNIT, (entry(nbytes=-16),)),
    "a shape whose product overflows to the size": TensorManifest(
        4 * UNIT, (entry(shape=(2**32, 2**32 + 1), nbytes=0),)
    ),
    "an empty shape with an overflowing rest": TensorManifest(4 * UNIT, (entry(shape=(2**40, 0, 2**40), nbytes=0),)),
    "two negative dimensions": TensorManifest(4 * UNIT, (entry(shape=(-2, -2)),)),
    "too many dimensions": TensorManifest(4 * UNIT, (entry(shape=(1,) * 17, nbytes=4),)),
    "an unknown dtype": TensorManifest(4 * UNIT, (entry(dtype="object"),)),
    "a dtype that is something else in torch": TensorManifest(4 * UNIT, (entry(dtype="Tensor"),)),
    "one name twice": TensorManifest(4 * UNIT, (entry(), entry(UNIT))),
    "one place of a list twice": replace(BASE, entries=(entry(name="l", index=1), entry(UNIT, name="l", index=1))),
    "a place behind the list": replace(BASE, entries=(entry(name="l", index=3),)),
    "a negative place": replace(BASE, entries=(entry(name="l", index=-1),)),
    "a place in no list": TensorManifest(4 * UNIT, (entry(index=0),)),
    "a tensor with the name of a list": replace(BASE, entries=(entry(name="l"),)),
    "a list of negative length": TensorManifest(0, (), {"l": -1}),
    "lists of too many places": TensorManifest(0, (), {str(n): 2**19 for n in range(3)}),
    "too many lists": TensorManifest(0, (), {str(n): 0 for n in range(257)}),
    "too many tensors": TensorManifest(0, (entry(shape=(0,), nbytes=0),) * (MAX_ENTRIES + 1)),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused(lie):
    """Each manifest that lies about its slot is refused with a reason, before anything is read."""
    check_manifest(BASE, 4 * UNIT)
    with pytest.raises(ManifestMismatch, match="the manifest does not fit: "):
        check_manifest(LIES[lie], 4 * UNIT)


numbers = st.sampled_from([-1, 0, 1, 2, 15, 16, 17, UNIT - 1, UNIT, 2 * UNIT, 3 * UNIT, 2**31, 2**48, 2**63, 2**64])
changes = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "y", "l", "z"]),
        "index": st.none() | st.integers(-1, 4),
        "dtype": st.sampled_from(["float32", "int32", "bfloat16", "uint8", "complex128", "object"]),
        "shape": st.lists(numbers, max_size=3).map(tuple),
        "offset": numbers,
        "nbytes": numbers,
    },
)


@given(
    mutations=st.lists(st.tuples(st.integers(0, 2), changes), max_size=3),
    data_size=st.just(4 * UNIT) | numbers,
    lists=st.just({"l": 3}) | st.dictionaries(st.sampled_from(["x", "l", "m"]), st.integers(-1, 5), max_size=2),
)
def test_mutated_manifest_is_refused_or_harmless(mutations, data_size, lists):
    """Whatever is changed in a manifest: it is refused, or each of its tensors is its own bytes of the slot."""
    entries = list(BASE.entries)
    for place, change in mutations:
        entries[place] = replace(entries[place], **change)
    manifest = TensorManifest(data_size, tuple(entries), lists)
    slot = torch.arange(4 * UNIT).to(torch.uint8)
    try:
        check_manifest(manifest, 4 * UNIT)
    except ManifestMismatch:
        return
    loaded = unpack(manifest, slot, HOST, non_blocking=False)
    touched = [at for e in entries for at in range(e.offset, e.offset + e.nbytes)]
    assert len(touched) == len(set(touched))
    for e in entries:
        tensor = loaded[e.name] if e.index is None else loaded[e.name][e.index]
        assert (tensor.dtype, tuple(tensor.shape), prod(e.shape) * tensor.itemsize) == (
            dtype_of[e.dtype],
            e.shape,
            e.nbytes,
        )
        stored = slot[e.offset : e.offset + e.nbytes]
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), stored)


def test_planning_refuses_what_cannot_travel():
    """A sparse tensor, one without data, one of half bytes, an absurd shape: the error names the tensor."""
    unfit = [
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.empty((1,) * 17),
        torch.empty(0).expand(2**50, 0),
        torch.empty(2, dtype=torch.uint4),
    ]
    for tensor in unfit:
        with pytest.raises(TransferError, match="'odd'"):
            plan({"odd": tensor})


def test_planning_refuses_what_is_too_much():
    """More tensors, lists, places or letters than the wire allows are refused by the sender already."""
    one = torch.empty(0)
    for payload in (
        {"l": [one] * (MAX_ENTRIES + 1)},
        {str(n): [] for n in range(257)},
        {"l": [None] * (2**20 + 1)},
        {"n" * 129: one},
    ):
        with pytest.raises(TransferError, match=r"at most|longer than"):
            plan(payload)


def test_thousands_of_tensors():
    """A list of 20,000 tensors is planned, checked and found whole."""
    payload = {"l": [torch.empty(3, dtype=torch.int16)] * 20_000}
    manifest = plan(payload)
    check_manifest(manifest, 20_000 * UNIT)
    assert (manifest.data_size, len(manifest.entries)) == (20_000 * UNIT, 20_000)
