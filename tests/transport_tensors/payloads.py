"""Strategies for payloads, each tensor with the bytes it must arrive as."""

import warnings

import torch
from hypothesis import strategies as st

from triptych.transport.tensors.dtypes import dtype_of

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)

#: views of the leading dimensions, by name
VIEWS = {
    "whole": lambda t: t,
    "every second": lambda t: t[::2],
    "transposed": lambda t: t.transpose(0, 1),
    "inner part": lambda t: t[1:, 1:],
    "expanded": lambda t: t.unsqueeze(0).expand(3, *t.shape),
    "one element": lambda t: t.flatten(0, 1)[-1],
}


def random_bytes(shape, seed):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def bytes_of(tensor):
    return bytes(tensor.contiguous().flatten().tolist())


def viewed(dtype, shape, view, seed):
    """Return a view of random bits of `dtype`, and its bytes, found without ever looking at it as `dtype`."""
    raw = random_bytes((*shape, dtype.itemsize), seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # complex32 is experimental, says torch once
        tensor = raw.view(dtype).squeeze(-1)
    return VIEWS[view](tensor), bytes_of(VIEWS[view](raw))


def arrived(tensor):
    """Return the bytes of a tensor that was loaded."""
    assert tensor.is_contiguous()
    return bytes(tensor.flatten().view(torch.uint8).tolist()) if tensor.numel() else b""


@st.composite
def tensors(draw):
    return torch.zeros(draw(shapes), dtype=draw(st.sampled_from(PLAIN)))


PLAIN = [torch.uint8, torch.float32, torch.bfloat16, torch.float8_e5m2, torch.bool, torch.complex64]
payloads = st.dictionaries(st.text(max_size=8), tensors() | st.lists(st.none() | tensors(), max_size=4), max_size=5)
dtypes = st.sampled_from(list(dtype_of.values()))
