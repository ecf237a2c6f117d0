import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.transport.tensors.copies import HUGE_BYTES, pack, unpack
from triptych.transport.tensors.dtypes import dtype_of
from triptych.transport.tensors.manifests import check_manifest, plan

from .payloads import VIEWS, arrived, bytes_of, dtypes, random_bytes, viewed


def hop(payload):
    """Return the payload as it comes out of a slot full of something else."""
    manifest = plan(payload)
    memory = torch.full((manifest.data_size + 512,), 0xA5, dtype=torch.uint8)
    pack(payload, manifest, memory, non_blocking=False)
    check_manifest(manifest, memory.nbytes)
    loaded = unpack(manifest, memory, torch.device("cpu"), non_blocking=False)
    assert set(memory[manifest.data_size :].tolist()) == {0xA5}
    assert not memory.requires_grad
    memory.fill_(0)
    return loaded


def same_kind(loaded, sent):
    return (loaded.dtype, loaded.shape, loaded.device, loaded.requires_grad) == (
        sent.dtype,
        sent.shape,
        sent.device,
        False,
    )


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", dtype_of)
def test_every_dtype_and_stride_arrives_bit_for_bit(name, view):
    """Random bits of every dtype (so every NaN too), contiguous or not, arrive unchanged in memory of their own."""
    tensor, expected = viewed(dtype_of[name], (4, 6), view, seed=1)
    loaded = hop({"x": tensor})["x"]
    assert same_kind(loaded, tensor)
    assert arrived(loaded) == expected


@given(dtype=dtypes, shape=st.lists(st.integers(0, 4), max_size=5).map(tuple), seed=st.integers(0, 2**31))
def test_every_shape_arrives_bit_for_bit(dtype, shape, seed):
    """Any shape of any dtype arrives unchanged, 0-dimensional and empty ones too."""
    tensor, expected = viewed(dtype, shape, "whole", seed)
    loaded = hop({"x": tensor})["x"]
    assert same_kind(loaded, tensor)
    assert arrived(loaded) == expected


def test_lists_keep_their_gaps():
    """Lists arrive with their gaps, their empty ends, and whatever lies beside them."""
    first, last, alone = (random_bytes((2, 3), seed).view(torch.bool) for seed in range(3))
    loaded = hop({"l": [None, first, None, last, None], "none": [None, None], "empty": [], "alone": alone})
    assert [entry if entry is None else arrived(entry) for entry in loaded["l"]] == [
        None,
        bytes_of(first.view(torch.uint8)),
        None,
        bytes_of(last.view(torch.uint8)),
        None,
    ]
    assert (loaded["none"], loaded["empty"], arrived(loaded["alone"])) == (
        [None, None],
        [],
        bytes_of(alone.view(torch.uint8)),
    )
    assert list(loaded) == ["l", "none", "empty", "alone"]


def test_lazy_conjugates_and_negations_arrive_as_their_values():
    """A conjugate, and the imaginary part of one, are only flags on other memory; what arrives is what they mean."""
    numbers = torch.tensor([1 + 2j, -3 - 0j, complex("nan"), complex(0, float("inf"))])
    payload = {"conjugate": numbers.conj(), "negative": numbers.conj().imag, "scalar": numbers.conj()[0]}
    assert (payload["conjugate"].is_conj(), payload["negative"].is_neg()) == (True, True)
    loaded = hop(payload)
    for name, sent in payload.items():
        expected = sent.resolve_conj().resolve_neg().contiguous().view(-1)
        assert torch.equal(loaded[name].view(-1).view(torch.int32), expected.view(torch.int32))


def test_parameters_arrive_as_plain_tensors():
    """What takes gradients is sent as its values."""
    parameter = torch.nn.Parameter(torch.randn(3, 2))
    wide = torch.nn.Parameter(torch.randn(3, dtype=torch.complex128))
    loaded = hop({"leaf": parameter, "inner": (parameter * 2).T, "wide": wide})
    assert [type(tensor) for tensor in loaded.values()] == [torch.Tensor] * 3
    assert torch.equal(loaded["wide"], wide.detach())
    assert torch.equal(loaded["leaf"], parameter.detach())
    assert torch.equal(loaded["inner"], (parameter.detach() * 2).T)
    assert not loaded["inner"].requires_grad


def test_tensors_made_for_inference_arrive():
    """The compute side works in inference mode; its tensors travel like all others and arrive as normal ones."""
    with torch.inference_mode():
        made = torch.randn(4, 4)
    loaded = hop({"x": made})["x"]
    assert (torch.equal(loaded, made), loaded.is_inference()) == (True, False)


def test_loaded_tensors_share_nothing():
    """One tensor sent under two names arrives as two."""
    one = torch.ones(4)
    loaded = hop({"a": one, "b": [one, one]})
    loaded["a"].fill_(2)
    loaded["b"][0].fill_(3)
    assert torch.equal(loaded["b"][1], one)


@pytest.mark.parametrize("nbytes", [HUGE_BYTES - 512, HUGE_BYTES, HUGE_BYTES + 4 * 511])
def test_large_tensors_own_their_memory_too(nbytes):
    """A tensor large enough for huge pages arrives like any other, and may be written to from end to end."""
    sent = torch.arange(nbytes // 4, dtype=torch.int32)
    loaded = hop({"x": sent})["x"]
    assert (torch.equal(loaded, sent), same_kind(loaded, sent)) == (True, True)
    loaded.fill_(-1)
    assert not hop({"x": sent})["x"].lt(0).any()
