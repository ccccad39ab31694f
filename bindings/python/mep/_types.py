"""Annotations of the memory that calls take."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Protocol, Sequence, Tuple, TypeVar, Union

if TYPE_CHECKING:  # type checkers bring typing_extensions with them
    import typing_extensions
    from typing_extensions import Buffer as Buffer
else:
    Buffer = Any  # the buffer protocol: collections.abc.Buffer of Python 3.12


class SupportsArrayInterface(Protocol):
    """Memory of the host, as NumPy describes it."""

    @property
    def __array_interface__(self) -> Dict[str, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """Memory of a GPU: CuPy, Numba, PyTorch."""

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]: ...


class SupportsDLPack(Protocol):
    """Memory of the host or of a GPU: PyTorch, CuPy, JAX."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...

    def __dlpack_device__(self) -> Tuple[Any, Any]: ...


# An array, a tensor, a memoryview, a bytearray, an array of ctypes. No list: it has no memory that C can use.
BufferLike = Union[Buffer, SupportsArrayInterface, SupportsCudaArrayInterface, SupportsDLPack]
Number = TypeVar("Number", int, float, complex)
Numbers = Union[Sequence[int], Sequence[float], Sequence[complex]]
# Whole numbers, one for each rank.
Counts = Union[Sequence[int], BufferLike]

if TYPE_CHECKING:
    # The type of a buffer that is given and returned. Any: a new one, of the kind of the send buffer.
    Given = typing_extensions.TypeVar("Given", bound=BufferLike, default=Any)
else:
    Given = TypeVar("Given")
