"""Arguments of collectives for C."""
from __future__ import annotations

import ctypes
from typing import Any, Optional, cast

from . import _abi
from ._buffers import Buffer, buffer, dtype_name, maker
from ._call import int32, int32_argument, uint32_argument
from ._types import Given

OPS = {"sum": _abi.MEP_SUM, "prod": _abi.MEP_PROD, "min": _abi.MEP_MIN, "max": _abi.MEP_MAX,
       "avg": _abi.MEP_AVG, "and": _abi.MEP_AND, "or": _abi.MEP_OR, "xor": _abi.MEP_XOR}
OPERATORS = {key: uint32_argument(number) for name, number in OPS.items() for key in (name, number)}
ROOTS = {root: int32_argument(root) for root in range(64)}


class Blocks:
    """Where the blocks of a buffer lie, as C is told: `end` is behind the last of them."""

    def __init__(self, name: str, counts: Any, displs: Any, size: int) -> None:
        self.counts = _lengths(name, counts, size)
        self.displs = None if displs is None else _lengths("displs", displs, size)
        self._name = name
        self.end = max((self.first(rank) + count for rank, count in enumerate(self.counts) if count),
                       default=0)

    def first(self, rank: int) -> int:
        """The item with which the block of `rank` begins."""
        return sum(self.counts[:rank]) if self.displs is None else self.displs[rank]

    def check(self, name: str, blocks: Buffer) -> None:
        if blocks.count < self.end:
            raise ValueError(f"{name} has {blocks.count} items, {self._name} say {self.end}")


def _lengths(name: str, values: Any, size: int) -> Any:
    numbers = [] if values is None else [int(each) for each in values]
    if len(numbers) != size or any(each < 0 or each >= 2**64 for each in numbers):
        raise ValueError(f"{name} must be {size} numbers of items, one for each rank")
    return (ctypes.c_uint64 * size)(*numbers)


def receive_buffer(send: Any, recv: Optional[Given], source: Buffer, count: int,
            dtype: Any) -> tuple[Given, Buffer]:
    """The receive buffer, or a new one of `count` items, zeroed."""
    if recv is None:
        recv = cast(Given, maker(send, zeroed=True)((count,), source.dtype))
        dtype = source.dtype
    target = buffer(recv, dtype, writable=True)
    match(source, target, target.count)
    return recv, target


def operator_argument(op: Any) -> Any:
    """Enumerations of others count in their own way, also where their members are integers."""
    if type(op) is str or type(op) is int:
        argument = OPERATORS.get(op)
        if argument is not None:
            return argument
    kind = ValueError if type(op) in (str, int) else TypeError
    raise kind(f"op is {op!r} of type {type(op).__name__}, it must be one of the words {', '.join(OPS)}")


def root_argument(root: Any) -> Any:
    return int32_argument(int32("root", root))


def match(source: Buffer, target: Buffer, count: int) -> None:
    """The counts of C leave no room for two sizes or types."""
    if target.dtype != source.dtype:
        raise ValueError(f"the send buffer holds {dtype_name(source.dtype)}, the receive buffer "
                         f"{dtype_name(target.dtype)}; both must hold the same type")
    if target.count != count:
        raise ValueError(f"the receive buffer has {target.count} items, it must have {count}")
