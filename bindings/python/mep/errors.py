"""Exceptions: one class for each result code, all of them mep.Error."""
from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Optional

from . import _abi

if TYPE_CHECKING:
    from ._message_calls import Message
    from .request import OpInfo


class Error(Exception):
    """A call of the library failed.

    code: the MEP_ERR_* value; name: its name; text: the library's detail text;
    info: what is known of the operation (OpInfo), for operations that have been started;
    message: the Message for which the buffer of a receive has too little room or another type;
    admitted: the ranks that came, of an error of Comm.recover_ranks().
    """

    code: int = 0
    message: Optional["Message"] = None
    admitted: int

    def __init__(self, text: str, code: Optional[int] = None, info: Optional["OpInfo"] = None):
        if code is not None:
            self.code = code
        self.text = text
        self.info = info
        super().__init__(f"{self.name}: {text}" if text else self.name)

    def advise(self, advice: str) -> None:
        """Adds to the text what to type."""
        self.__init__(f"{self.text}; {advice}", self.code, self.info)  # type: ignore[misc]

    @property
    def name(self) -> str:
        return NAMES.get(self.code, f"result {self.code}")


class InvalidArgumentError(Error, ValueError):
    code = _abi.MEP_ERR_INVALID_ARGUMENT


class UnsupportedError(Error, NotImplementedError):
    code = _abi.MEP_ERR_UNSUPPORTED


class NoMemoryError(Error, MemoryError):
    code = _abi.MEP_ERR_NO_MEMORY


class SystemCallError(Error):
    code = _abi.MEP_ERR_SYSTEM


class InternalError(Error):
    code = _abi.MEP_ERR_INTERNAL


class TimeoutError(Error, builtins.TimeoutError):
    code = _abi.MEP_ERR_TIMEOUT


class PeerFailedError(Error):
    """info is there for operations; calls such as split, which are none, leave it None."""

    code = _abi.MEP_ERR_PEER_FAILED
    if TYPE_CHECKING:  # not Optional: a program that reads info.failed behind an operation needs no check
        info: "OpInfo"


class PeerLeftError(Error):
    """info: as of PeerFailedError."""

    code = _abi.MEP_ERR_PEER_LEFT
    if TYPE_CHECKING:
        info: "OpInfo"


class NoQuorumError(Error):
    code = _abi.MEP_ERR_NO_QUORUM


class EvictedError(Error):
    code = _abi.MEP_ERR_EVICTED


class BusyError(Error):
    """Something that belongs to it is left: finish or close that first."""

    code = _abi.MEP_ERR_BUSY


class ThreadError(Error):
    """Another thread is inside a call on it; nothing was changed."""

    code = _abi.MEP_ERR_THREAD


class InProgressError(Error, builtins.TimeoutError):
    """The time that a wait was given is over; the operation goes on. No error of the library."""

    code = _abi.MEP_IN_PROGRESS


class ForkedError(Error):
    code = _abi.MEP_ERR_FORKED


class MismatchError(Error):
    code = _abi.MEP_ERR_MISMATCH


class BootstrapError(Error):
    code = _abi.MEP_ERR_BOOTSTRAP


class DeniedError(Error, PermissionError):
    code = _abi.MEP_ERR_DENIED


class RevokedError(Error):
    code = _abi.MEP_ERR_REVOKED


class AbortedError(Error):
    code = _abi.MEP_ERR_ABORTED


class VersionError(Error):
    code = _abi.MEP_ERR_VERSION


class CapacityError(Error):
    code = _abi.MEP_ERR_CAPACITY


class NotFoundError(Error, LookupError):
    code = _abi.MEP_ERR_NOT_FOUND


class DeviceError(Error):
    code = _abi.MEP_ERR_DEVICE


NAMES = {value: name for name, value in vars(_abi).items() if name.startswith("MEP_ERR_")
         or name == "MEP_IN_PROGRESS"}
CLASSES = {cls.code: cls for cls in Error.__subclasses__()}


def error(code: int, text: str, info: Optional["OpInfo"] = None) -> Error:
    """The exception for a result code."""
    return CLASSES.get(code, Error)(text, code, info)
