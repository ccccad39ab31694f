"""Running operations and what is known of finished ones."""
from __future__ import annotations

import asyncio
import ctypes
import os
import time
from typing import TYPE_CHECKING, Any, Dict, Generator, Iterable, List, NamedTuple, Optional

from . import _abi
from ._call import (SLICE_MS, Unique, address_argument, bare, check, last_error, lib, milliseconds,
                    uint32_argument)
from .errors import error

if TYPE_CHECKING:
    from .comm import Comm


class OpInfo(NamedTuple):
    """The outcome of an operation. Ranks are those of its communicator."""

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
        self.argument = address_argument(ctypes.addressof(self.struct))
        lib.mep_struct_init(self.reference, ctypes.sizeof(self.struct))
        self.struct.contributors = ctypes.addressof(self._bits)
        self.struct.failed = ctypes.addressof(self._bits) + 8 * words
        self.struct.contributors_words = self.struct.failed_words = words

    def info(self) -> OpInfo:
        struct, words = self.struct, self._words
        return OpInfo(struct.epoch, struct.seq, struct.result, _ranks(self._bits[:words]),
                      _ranks(self._bits[words:]), bool(struct.flags & _abi.MEP_OP_INPUT_INTACT))


def _ranks(words: List[int]) -> List[int]:
    return [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]


running: "Dict[Request, Any]" = {}  # their buffers are in use, also when nobody knows them any more
wait_for = bare("mep_request_wait")
SLICE = uint32_argument(SLICE_MS)


class Request(Unique):
    """A nonblocking operation; its buffers belong to it until it is done.

    Finish it with wait(), test() until True, `await`, waitall(), waitany(), or as `with request:`, which waits at
    the end of the block. The request and its buffers are kept alive until then, so it may be dropped and is
    finished by Comm.close().
    """

    def __init__(self, comm: "Comm", result: Any):
        self._comm = comm
        self._address = _abi.mep_request_t()
        self._argument = address_argument(ctypes.addressof(self._address))
        self._done = ctypes.c_int32()  # what the last wait said
        self._done_argument = address_argument(ctypes.addressof(self._done))
        self._result = result
        self._record = OpInfoRecord(comm.size)
        self._failure: Optional[Exception] = None
        self._finished = False

    def _begin(self, function: Any, arguments: tuple[Any, ...], keep: tuple[Any, ...]) -> None:
        """Registered before the library has it: Ctrl-C may come with its return."""
        running[self] = keep
        try:
            check(function(*arguments, ctypes.byref(self._address)))
        finally:
            if not self._address.value:
                self._finished = True
                running.pop(self, None)

    @property
    def done(self) -> bool:
        """Whether it has been found done by wait or test. Does not look again."""
        if not self._finished and not self._address.value:
            # Ctrl-C came with the library's return, which had filled the record.
            self._ended(self._record.struct.result)
        return self._finished

    def _ended(self, result: int) -> None:
        self._finished = True
        running.pop(self, None)
        if result < 0:
            self._failure = error(result, last_error(), self._record.info())

    def _value(self) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._result

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Returns the receive buffer, or raises the operation's error; its `info` tells more.

        timeout in seconds: InProgressError when it is over, and the operation goes on. None: until the
        operation's own timeout. Ctrl-C gets in at any time; the operation then goes on too.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            part = SLICE_MS
            if end is not None:
                part = min(part, milliseconds(end - time.monotonic()))
            result = lib.mep_request_wait(ctypes.byref(self._address), part, ctypes.byref(self._done),
                                          self._record.reference)
            if not self._address.value:
                self._ended(result)
            elif result not in (_abi.MEP_SUCCESS, _abi.MEP_ERR_THREAD):
                check(result)
            elif end is not None and time.monotonic() >= end:
                raise error(_abi.MEP_IN_PROGRESS, f"not done within {timeout} s; the operation goes on")
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

    def cancel(self) -> bool:
        """Withdraws a receive that no message has come for: True, its buffer is as it was, and wait() gives None.
        False: too late, it ends as if nothing had been asked, or another thread is inside a call on the
        communicator. UnsupportedError: it is no receive."""
        if self.done:
            return False
        # The result stays this if it is withdrawn; no operation ends with it.
        self._record.struct.result = _abi.MEP_IN_PROGRESS
        result = lib.mep_request_cancel(ctypes.byref(self._address), ctypes.byref(ctypes.c_int32()))
        if not self._address.value:
            self._ended(_abi.MEP_IN_PROGRESS)
            return True
        if result != _abi.MEP_ERR_THREAD:
            check(result)
        return False

    def _tell(self) -> None:
        """It was a blocking call: Comm.last_op() tells of it."""
        self._comm._last = self._record

    def info(self) -> OpInfo:
        """All that is known of it; result is MEP_IN_PROGRESS while it runs, and of a receive that was withdrawn."""
        if not self.done:
            check(lib.mep_request_info(self._address, self._record.reference))
        return self._record.info()

    def fileno(self) -> int:
        """A descriptor that is readable when test() is worth while, for select, epoll and asyncio."""
        if self.done:
            raise error(_abi.MEP_ERR_INVALID_ARGUMENT, "the request is done and has no descriptor any more")
        fd = ctypes.c_int32()
        check(lib.mep_request_event_fd(self._address, ctypes.byref(fd)))
        return fd.value

    def __enter__(self) -> "Request":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:  # else the exception goes on at once, and so does the operation
            self.wait()

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
                # It bounds the wait for progress that only this rank's calls can make. asyncio.wait_for loses a cancel
                # that comes as it is woken, before Python 3.12.
                pause = loop.call_later(SLICE_MS / 1000, ready.set)
                try:
                    await ready.wait()
                finally:
                    pause.cancel()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        return self._value()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._completion().__await__()


# ---- several of them --------------------------------------------------------------------------------


def waitall(requests: Iterable[Optional[Request]], timeout: Optional[float] = None) -> List[Any]:
    """Waits until all are done, also where one fails; None stands for one that is done. Returns what their
    wait() gives, or raises the first error in their order.

    timeout in seconds: InProgressError when it is over, and those that are not done go on. None: until each
    one's own timeout.
    """
    every = list(requests)
    pending = dict.fromkeys(each for each in every if each is not None and not each.done)
    end = None if timeout is None else time.monotonic() + timeout
    while pending:
        del pending[_first_done(list(pending), end, timeout)]
    return [None if each is None else each._value() for each in every]


def waitany(requests: Iterable[Optional[Request]], timeout: Optional[float] = None) -> Optional[int]:
    """Waits until one of them is done and returns its place; its wait() then gives the result, or raises its
    error. Those that were found done before are left out, and None; with none left it returns None.

    timeout: as of waitall.
    """
    pending: Dict[Request, int] = {}
    for place, each in enumerate(requests):
        if each is None or each._finished:
            continue
        if each.done:
            return place
        pending.setdefault(each, place)
    if not pending:
        return None
    end = None if timeout is None else time.monotonic() + timeout
    return pending[_first_done(list(pending), end, timeout)]


def _first_done(requests: List[Request], end: Optional[float], timeout: Optional[float]) -> Request:
    while True:
        part = SLICE_MS
        if end is not None:
            part = min(part, milliseconds(end - time.monotonic()))
        found = _wait_for_one(requests, part)
        if found is not None:
            return found
        if end is not None and time.monotonic() >= end:
            raise error(_abi.MEP_IN_PROGRESS, f"not done within {timeout} s; the operations go on")
        time.sleep(0)  # another thread may be inside a call on the communicator


def _wait_for_one(requests: List[Request], part: int) -> Optional[Request]:
    record = OpInfoRecord(max(each._comm.size for each in requests))
    addresses = (_abi.mep_request_t * len(requests))(*(each._address.value for each in requests))
    own = [each._record for each in requests]
    index = ctypes.c_int32(-1)
    try:
        for place, each in enumerate(requests):
            # The library writes to the requests themselves: Ctrl-C may come with its return.
            each._record = record
            each._address = _abi.mep_request_t.from_buffer(
                addresses, place * ctypes.sizeof(_abi.mep_request_t))
        result = lib.mep_request_waitany(len(requests), addresses, part, ctypes.byref(ctypes.c_int32()),
                                         ctypes.byref(index), record.reference)
    finally:
        for each, before in zip(requests, own):
            if each._address.value:
                each._record = before
    if index.value < 0:
        if result != _abi.MEP_ERR_THREAD:
            check(result)
        return None
    requests[index.value]._ended(result)
    return requests[index.value]
