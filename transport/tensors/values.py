"""What is sent: tensors and lists of tensors, by name."""

from collections.abc import Iterator, Mapping

from torch import Tensor

#: a tensor, or a list of tensors in which some may be missing
TensorValue = Tensor | list[Tensor | None]


def each_tensor(tensors: Mapping[str, TensorValue]) -> Iterator[tuple[str, int | None, Tensor]]:
    """Yield every tensor with its name and its place in the list of that name, in the order of the mapping."""
    for name, value in tensors.items():
        if isinstance(value, Tensor):
            yield name, None, value
        else:
            yield from ((name, index, tensor) for index, tensor in enumerate(value) if tensor is not None)
