"""Hypothesis strategies for Structs, made from their annotations."""

from typing import Any

from hypothesis import strategies as st
from msgspec import inspect

MAX_INT = 2**48


def structs(kind: type) -> st.SearchStrategy[Any]:
    """Return a strategy for every value that `kind`, a Struct or a union of them, allows."""
    return _strategy(inspect.type_info(kind))


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911  (one line a kind)
    match info:
        case inspect.StructType():
            return st.builds(info.cls, **{field.name: _strategy(field.type) for field in info.fields})
        case inspect.UnionType():
            return st.one_of([_strategy(member) for member in info.types])
        case inspect.IntType():
            return st.integers(_low(info), _high(info))
        case inspect.FloatType():
            return _floats(info)
        case inspect.StrType():
            return _text(info)
        case inspect.BytesType():
            return st.binary(min_size=info.min_length or 0, max_size=min(info.max_length or 16, 16))
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.EnumType():
            return st.sampled_from(list(info.cls))
        case inspect.VarTupleType() | inspect.ListType():
            items = st.lists(_strategy(info.item_type), max_size=min(info.max_length or 3, 3))
            return items.map(tuple) if isinstance(info, inspect.VarTupleType) else items
        case inspect.DictType():
            return st.dictionaries(_strategy(info.key_type), _strategy(info.value_type), max_size=3)
        case _:
            raise NotImplementedError(info)


def _low(info: inspect.IntType) -> int:
    return info.ge if info.ge is not None else -MAX_INT


def _high(info: inspect.IntType) -> int:
    if info.le is not None:
        return info.le
    return info.lt - 1 if info.lt is not None else MAX_INT


def _floats(info: inspect.FloatType) -> st.SearchStrategy[float]:
    low = info.ge if info.ge is not None else info.gt
    return st.floats(low, info.le, exclude_min=info.gt is not None, allow_nan=False)


def _text(info: inspect.StrType) -> st.SearchStrategy[str]:
    if info.pattern is not None:
        return st.from_regex(info.pattern, fullmatch=True).filter(lambda text: len(text) <= (info.max_length or 64))
    return st.text(min_size=info.min_length or 0, max_size=min(info.max_length or 16, 16))
