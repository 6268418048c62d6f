"""What the library has to know of a NumPy array or a PyTorch tensor."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, Union

import numpy as np

from ._gen import ncclDataType_t
from ._library import _number


class AnyArray(Protocol):
    """An array that calls take: a NumPy array or a PyTorch tensor on the CPU, whose elements lie one behind
    the other. Lists and masked arrays are refused."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> Any: ...


# Where users find it.
AnyArray.__module__ = "oxccl"

#: An array of a call that returns one of the same type.
Array = TypeVar("Array", bound=AnyArray)
#: A number for each rank, as a list or an array of integers.
Counts = Union[Sequence[int], np.ndarray]

# The types by NumPy's and PyTorch's names. NumPy itself lacks the last three: the package ml_dtypes has them.
NAMES = {
    **{
        name: int(ncclDataType_t["nccl" + name.capitalize()])
        for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
    },
    "bfloat16": int(ncclDataType_t.ncclBfloat16),
    "float8_e4m3fn": int(ncclDataType_t.ncclFloat8e4m3),
    "float8_e5m2": int(ncclDataType_t.ncclFloat8e5m2),
}


# Those of NAMES that were asked for: a name takes longer than a call.
_kinds: dict = {}


def kind(name, dtype):
    """The library's number of a type of elements."""
    found = _kinds.get(dtype)
    if found is None:
        text = str(dtype).removeprefix("torch.")
        if text not in NAMES or not getattr(dtype, "isnative", True):
            raise TypeError(f"{name} has elements of type {text}; expected one of {', '.join(NAMES)}")
        found = _kinds[dtype] = NAMES[text]
    return found


class Place(NamedTuple):
    """Elements in memory."""

    array: object
    address: int
    count: int
    kind: int
    bytes: int

    def length(self, name, expected):
        """Refuses any other number of elements."""
        if self.count != expected:
            raise ValueError(f"{name} has {self.count} elements; expected {expected}")


def place(name, array, like=None, writable=False):
    """Where the elements of an array are, which must be of the type of `like`."""
    if isinstance(array, np.ndarray):
        found = _of_array(name, array, writable)
    elif (torch := sys.modules.get("torch")) is not None and isinstance(array, torch.Tensor):
        found = _of_tensor(name, array)
    else:
        raise TypeError(f"{name} is a {type(array).__name__}; expected a NumPy array or a tensor")
    if like is not None and like.kind != found.kind:
        raise TypeError(f"{name} has elements of type {array.dtype}; expected {like.array.dtype}")
    return found


def _of_array(name, array, writable):
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, whose mask would be ignored; pass {name}.data"
            + ("" if writable else f", or {name}.filled(...)")
        )
    flags = array.flags
    # Other orders are refused: ranks whose arrays differ in it would mix up their elements.
    if not flags.c_contiguous:
        copied = f"pass a copy by numpy.ascontiguousarray({name})"
        back = ", and copy the result back into it" if writable else ""
        raise ValueError(f"{name} is not contiguous, row by row; {copied}{back}")
    if writable and not flags.writeable:
        raise ValueError(f"{name} is read-only")
    try:
        # A third of what array.ctypes.data takes, but not for all arrays.
        address = ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError, BufferError):
        address = array.ctypes.data
    return Place(array, address, array.size, kind(name, array.dtype), array.nbytes)


def _of_tensor(name, tensor):
    if not tensor.is_cpu:
        raise TypeError(f"{name} is on {tensor.device}; expected a tensor on the CPU")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous; pass a copy")
    return Place(tensor, tensor.data_ptr(), tensor.numel(), kind(name, tensor.dtype), tensor.nbytes)


class Parts:
    """A part of an array for each rank, as C takes them: `counts` of elements, and the element `displs` at
    which each begins; without `displs` they lie one behind the other."""

    def __init__(self, name, whole, ranks, counts, displs=None):
        counts = [_number(f"a count of {name}", count) for count in counts]
        if displs is None:
            displs = [sum(counts[:r]) for r in range(len(counts))]
        for what, values in ((f"counts of {name}", counts), (f"displs of {name}", displs)):
            if len(values) != ranks:
                raise ValueError(f"{what} has {len(values)} elements; expected {ranks}, one for each rank")
        for r, (count, displ) in enumerate(zip(counts, displs)):
            if count < 0 or count > 0 and not 0 <= displ <= whole.count - count:
                raise ValueError(
                    f"the part of rank {r} in {name} is {count} elements from element {displ} on; "
                    f"{name} has {whole.count} elements"
                )
        self.counts = (ctypes.c_size_t * ranks)(*counts)
        # Nobody looks where a part without elements lies.
        self.displs = (ctypes.c_size_t * ranks)(*(d if c else 0 for c, d in zip(counts, displs)))


#: Of arrays that a rank has no use for.
NO_PARTS = Parts.__new__(Parts)
NO_PARTS.counts = NO_PARTS.displs = None
