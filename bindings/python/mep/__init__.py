"""MEP: MoE expert parallelism and collectives that survive rank failures.

    import mep, numpy
    with mep.init() as comm:
        x = numpy.full(4, comm.rank, numpy.float32)
        comm.allreduce(x)                  # overwrites x with the sum; comm.allreduce(x, total) leaves x

Everything of mep.h is here: Comm has the collectives, the messages and the membership, Ep and Handle the
expert parallelism, Request the nonblocking operations (also for asyncio). Failures are exceptions
below mep.Error with the library's text. docs/reference/api.md describes what the functions do.
"""
import ctypes as _ctypes

from ._abi import MEP_VERSION_MAJOR, MEP_VERSION_MINOR, MEP_VERSION_PATCH
from ._buffers import dtype_number
from ._call import check as _check
from ._call import lib as _lib
from ._group import group
from ._habits import ELSEWHERE as _ELSEWHERE
from ._log import set_log_callback
from ._message_calls import ANY_SOURCE, ANY_TAG, PROC_NULL, Message
from ._types import BufferLike
from ._comm_records import CommInfo, CommStats, Reach
from .comm import Comm, PeerState, View, init, init_all, join
from ._device import DeviceArray
from ._ep_results import EpSize, OpStatus, Received
from .ep import Ep, Handle
from .errors import (AbortedError, BootstrapError, BusyError, CapacityError, DeniedError, DeviceError,
                     Error, EvictedError, ForkedError, InProgressError, InternalError, InvalidArgumentError,
                     MismatchError, NoMemoryError, NoQuorumError, NotFoundError, PeerFailedError,
                     PeerLeftError, RevokedError, SystemCallError, ThreadError, TimeoutError, UnsupportedError,
                     VersionError)
from .request import OpInfo, Request, waitall, waitany

__version__ = f"{MEP_VERSION_MAJOR}.{MEP_VERSION_MINOR}.{MEP_VERSION_PATCH}"


def library_version() -> str:
    """The version of the loaded libmep.so."""
    number = _lib.mep_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def result_string(code: int) -> str:
    """The name of a result code."""
    name: bytes = _lib.mep_result_string(code)
    return name.decode()


def dtype_size(dtype: object) -> int:
    """Bytes of one item of a type: a name, number or NumPy dtype."""
    size: int = _lib.mep_dtype_size(dtype_number(dtype))
    return size


def preferred_hca(location: str = "cpu") -> str:
    """The HCA and port, "mlx5_3:1", nearest to a location: "cpu", "gpu:0", "numa:0" or a PCI address.

    NotFoundError says that there is none.
    """
    name = _ctypes.create_string_buffer(128)
    _check(_lib.mep_preferred_hca(location.encode(), name, len(name)))
    return name.value.decode()


def __getattr__(name: str) -> object:
    text = f"; type {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    raise AttributeError(f"module 'mep' has no attribute {name!r}{text}")


__all__ = [
    "ANY_SOURCE", "ANY_TAG", "AbortedError", "BootstrapError", "BufferLike", "BusyError", "CapacityError", "Comm", "CommInfo", "CommStats",
    "DeniedError", "DeviceArray", "DeviceError", "Ep", "EpSize", "Error", "EvictedError", "ForkedError",
    "Handle", "InProgressError", "InternalError", "InvalidArgumentError", "Message", "MismatchError", "NoMemoryError",
    "NoQuorumError", "NotFoundError", "OpInfo", "OpStatus", "PROC_NULL", "PeerFailedError", "PeerLeftError",
    "PeerState", "Reach", "Received", "Request", "RevokedError", "SystemCallError", "ThreadError", "TimeoutError",
    "UnsupportedError", "VersionError", "View", "dtype_size", "group", "init", "init_all", "join",
    "library_version", "preferred_hca", "result_string", "set_log_callback", "waitall", "waitany",
]
