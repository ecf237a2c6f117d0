import torch

from triptych.transport.tensors.dtypes import bits_of, dtype_of, name_of


def test_table_reads_both_ways():
    """Every name leads to a dtype that leads back to it, and is how torch itself spells it."""
    assert {name: name_of[dtype] for name, dtype in dtype_of.items()} == {name: name for name in dtype_of}
    assert all(str(dtype) == f"torch.{name}" for name, dtype in dtype_of.items())


def test_every_plain_dtype_travels():
    """What torch has beyond the table is quantised, narrower than a byte, or untyped bits."""
    left_out = {str(d) for d in vars(torch).values() if isinstance(d, torch.dtype) and d not in name_of}
    assert all(name.startswith(("torch.q", "torch.bit", "torch.int", "torch.uint")) for name in left_out)


def test_copies_run_as_dtypes_of_equal_size():
    """The dtype a tensor is copied as has its item size."""
    assert [dtype for dtype in name_of if bits_of[dtype].itemsize != dtype.itemsize] == []
