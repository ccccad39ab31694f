"""Running operations and what is known of finished ones."""
from __future__ import annotations

import asyncio
import ctypes
import os
import time
from typing import TYPE_CHECKING, Any, Generator, List, NamedTuple, Optional

from . import _abi
from ._call import SLICE_MS, Unique, check, last_error, lib, milliseconds
from .errors import error

if TYPE_CHECKING:
    from .comm import Comm


class OpInfo(NamedTuple):
    """What happened to an operation. Ranks are those of its communicator."""

    epoch: int
    seq: int
    result: int
    contributors: List[int]
    failed: List[int]
    input_intact: bool


class OpInfoRecord:
    """A mep_op_info_t with room for the bitmaps of `size` ranks."""

    def __init__(self, size: int):
        words = (size + 63) // 64
        self._bits = (ctypes.c_uint64 * (2 * words))()
        self._words = words
        self.struct = _abi.mep_op_info_t()
        self.reference = ctypes.byref(self.struct)
        lib.mep_op_info_init(self.reference, ctypes.sizeof(self.struct))
        self.struct.contributors = ctypes.addressof(self._bits)
        self.struct.failed = ctypes.addressof(self._bits) + 8 * words
        self.struct.contributors_words = self.struct.failed_words = words

    def info(self) -> OpInfo:
        struct, words = self.struct, self._words
        return OpInfo(struct.epoch, struct.seq, struct.result, _ranks(self._bits[:words]),
                      _ranks(self._bits[words:]), bool(struct.flags & _abi.MEP_OP_INPUT_INTACT))


def _ranks(words: List[int]) -> List[int]:
    return [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]


_running: "set[Request]" = set()  # their buffers are in use, also when nobody knows them any more


class Request(Unique):
    """A nonblocking operation; its buffers belong to it until it is done.

    Finish it with wait(), test() until True, or `await`. The request and its buffers are kept alive until
    then, so it may be dropped and is finished by Comm.close().
    """

    def __init__(self, comm: "Comm", result: Any, keep: tuple):
        self._comm = comm
        self._address = _abi.mep_request_t()
        self._result = result
        self._keep = keep
        self._record = OpInfoRecord(comm.size)
        self._failure: Optional[Exception] = None
        self._finished = False

    def _begin(self, function: Any, arguments: tuple) -> None:
        """Registered before the library has it: Ctrl-C may come with its return."""
        _running.add(self)
        self._comm._requests.add(self)
        try:
            check(function(*arguments, self._comm._address, ctypes.byref(self._address)))
        finally:
            if not self._address.value:
                self._finished = True
                self._forget()

    def _forget(self) -> None:
        self._comm._requests.discard(self)
        _running.discard(self)
        self._keep = ()

    @property
    def done(self) -> bool:
        """Whether it has been found done by wait or test. Does not look again."""
        if not self._finished and not self._address.value:
            # Ctrl-C came with the library's return, which had filled the record.
            self._ended(self._record.struct.result)
        return self._finished

    def _ended(self, result: int) -> None:
        self._finished = True
        self._forget()
        if result < 0:
            self._failure = error(result, last_error(), self._record.info())

    def _value(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._result

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Returns the receive buffer, or raises the operation's error; its `info` tells more.

        timeout in seconds: BusyError when it is over, and the operation goes on. None: until the
        operation's own timeout. Ctrl-C gets in at any time; the operation then goes on too.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            part = SLICE_MS
            if end is not None:
                part = min(part, milliseconds(end - time.monotonic()))
            result = lib.mep_request_wait(ctypes.byref(self._address), part, self._record.reference)
            if not self._address.value:
                self._ended(result)
            elif result != _abi.MEP_ERR_BUSY:
                check(result)
            elif end is not None and time.monotonic() >= end:
                raise error(result, f"not done within {timeout} s; the operation goes on")
            else:
                time.sleep(0)  # another thread may be inside a call on the communicator
        return self._value()

    def test(self) -> bool:
        """Whether it is done now; makes progress, never blocks. Raises the operation's error."""
        if not self.done:
            flag = ctypes.c_int32()
            result = lib.mep_request_test(ctypes.byref(self._address), ctypes.byref(flag),
                                          self._record.reference)
            if not self._address.value:
                self._ended(result)
            else:
                check(result)
        if self.done:
            self._value()
        return self.done

    def info(self) -> OpInfo:
        """What is known of it; result is MEP_ERR_BUSY while it runs."""
        if not self.done:
            check(lib.mep_request_info(self._address, self._record.reference))
        return self._record.info()

    def fileno(self) -> int:
        """A descriptor that is readable when test() is worth while, for select, epoll and asyncio."""
        fd = ctypes.c_int32()
        check(lib.mep_request_event_fd(self._address, ctypes.byref(fd)))
        return fd.value

    async def _completion(self) -> Any:
        if self.test():
            return self._value()
        loop = asyncio.get_running_loop()
        fd = os.dup(self.fileno())  # requests may share a descriptor; asyncio wants one owner each
        ready = asyncio.Event()
        loop.add_reader(fd, ready.set)
        try:
            while not self.test():
                ready.clear()
                # The pause bounds the wait for progress that only this rank's calls can make.
                try:
                    await asyncio.wait_for(ready.wait(), SLICE_MS / 1000)
                except asyncio.TimeoutError:
                    pass
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        return self._value()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._completion().__await__()
