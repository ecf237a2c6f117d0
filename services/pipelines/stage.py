"""What one stage of a pipeline hands to the next."""

from msgspec import Struct
from torch import Tensor

Scalar = bool | int | float | str | None

#: a tensor, or a list of tensors in which some may be missing
TensorValue = Tensor | list[Tensor | None]


class StageOutput(Struct, frozen=True):
    """Tensors of any shape and dtype by name, and the small values that travel beside them."""

    tensors: dict[str, TensorValue]
    scalar_fields: dict[str, Scalar] = {}
