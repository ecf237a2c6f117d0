"""The dtypes that travel, and their names on the wire: one closed table, read both ways."""

import torch

#: in torch's own spelling; those that this torch lacks are left out
NAMES = (
    "bool",
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("complex32", "complex64", "complex128"),
)

dtype_of: dict[str, torch.dtype] = {
    name: dtype for name in NAMES if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
name_of: dict[torch.dtype, str] = {dtype: name for name, dtype in dtype_of.items()}

#: copied as these, no bit of a NaN can change on the way, and no dtype lacks a kernel
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
bits_of: dict[torch.dtype, torch.dtype] = {dtype: _BITS[dtype.itemsize] for dtype in name_of}
