"""Calls into libmep.so: results become exceptions, and Ctrl-C is answered while a call waits.

Python runs signal handlers only between byte codes of the main thread, so the main thread must never
sit in C for long. Blocking calls without a nonblocking form therefore run on a helper thread while
the main thread waits for it; other threads, which get no signals, call directly.
"""
from __future__ import annotations

import ctypes
import operator
import os
import queue
import threading
from typing import Any, Callable, Optional

from . import _abi
from .errors import error

lib = _abi.load()

SLICE_MS = 100  # how long the main thread stays in C at a time

# Converting arguments costs more than a short call. These make arguments that ctypes takes as they are; they are for
# functions of bare() and keep nothing alive.
address_argument = ctypes.c_void_p.from_param
size_argument = ctypes.c_size_t.from_param
uint32_argument = ctypes.c_uint32.from_param
int32_argument = ctypes.c_int32.from_param


def bare(name: str) -> Callable[..., int]:
    """A function of the library that converts none of its arguments: all must be ctypes' own, or None."""
    function = lib[name]
    function.restype = ctypes.c_int32
    return function


def last_error() -> str:
    """The library's text for the calling thread's last failed call."""
    text: bytes = lib.mep_last_error()
    return text.decode("utf-8", "replace")


def check(result: int) -> int:
    """Raises for negative results; gives back 0 or a qualified success such as MEP_PARTIAL."""
    if result < 0:
        raise error(result, last_error())
    return result


def int32(name: str, value: Any) -> int:
    """ctypes would cut off what C's int32_t has no room for."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r} of type {type(value).__name__}, it must be a whole number") from None
    if not -2**31 <= number < 2**31:
        raise ValueError(f"{name} is {number}, which has more than 32 bits")
    return number


class Unique:
    """An object that stands for one thing of the library. A copy would free it a second time."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a mep.{type(self).__name__} can be neither copied nor pickled")


class Closed:
    """An attribute of a class that stands for the address of an object that has none any more."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        raise error(_abi.MEP_ERR_INVALID_ARGUMENT, f"the {self._what} is closed; make another one")


class Calls:
    """The calls on a communicator that Ctrl-C has left running in the background."""

    def __init__(self) -> None:
        self._running: "set[_Call]" = set()

    def wait(self) -> None:
        """Until all have ended. Every call ends: by its result, its timeout, or mep_comm_abort."""
        for call in list(self._running):
            while not call.finished and call.pid == os.getpid():
                if call.gate.acquire(timeout=SLICE_MS / 1000):
                    call.gate.release()
            self._running.discard(call)


class _Call:
    """One call on a helper. The thread that comes second, the helper with the result or the main thread with an
    exception, does what has to be done for an abandoned call."""

    def __init__(self, function: Callable[..., int], arguments: tuple[Any, ...], calls: Optional[Calls],
                 undo: Optional[Callable[[], Any]]):
        self.function, self.arguments = function, arguments
        self.calls, self.undo = calls, undo
        self.pid = os.getpid()
        self.lock = threading.Lock()  # of the flags
        self.begun = self.returned = self.abandoned = self.kept = False
        self.finished = False  # returned, and what follows from it is done
        self.gate = threading.Lock()  # free once the call has finished
        self.gate.acquire()
        self.result: Any = None  # of the function, or the exception that it raised
        self.text = ""

    def run(self) -> None:
        """On the helper."""
        with self.lock:
            if self.begun:
                return  # sent twice, see abandon()
            self.begun = True
            abandoned = self.abandoned
        if abandoned:
            self.function, self.undo = _nothing, None
        try:
            self.result = self.function(*self.arguments)
            # The text belongs to this thread, so it is fetched here.
            self.text = last_error() if self.result < 0 else ""
        except BaseException as problem:  # a wrong argument type: raised where the call was made
            self.result = problem
        with self.lock:
            self.returned = True
            abandoned = self.abandoned
        if abandoned:
            self._give_up()
        self.finished = True
        self.gate.release()

    def abandon(self, helper: "Optional[_Helper]") -> None:
        """On the main thread: nobody will look at the result."""
        # Lives until the library has returned, even if the interpreter ends before.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        with self.lock:
            self.kept = True
            self.abandoned = True
            returned = self.returned
            if not returned and self.calls is not None:
                self.calls._running.add(self)
        if returned:
            self._give_up()
        elif helper is None:
            self.run()  # nobody else has it: does nothing
        else:
            helper.start(self)  # whether it was sent before Ctrl-C or not

    def _give_up(self) -> None:
        if self.kept:
            self.kept = False
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self))
        made_something = not isinstance(self.result, BaseException) and self.result >= 0
        if self.undo is not None and made_something:
            self.undo()
        if self.calls is not None:
            self.calls._running.discard(self)


def _nothing(*_arguments: Any) -> int:
    return 0


class _Helper:
    """A daemon thread that makes one call at a time."""

    def __init__(self) -> None:
        self._work: "queue.SimpleQueue[_Call]" = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="mep-call", daemon=True).start()

    def _serve(self) -> None:
        while True:
            call = self._work.get()
            call.run()
            del call  # keeps no buffers alive between calls

    def start(self, call: _Call) -> None:
        self._work.put(call)


_idle: list[_Helper] = []  # helpers that have no call to make


def _forget_helpers() -> None:
    _idle.clear()  # a child made by fork has none of the parent's threads


os.register_at_fork(after_in_child=_forget_helpers)


def blocking(function: Callable[..., int], *arguments: Any, calls: Optional[Calls] = None,
             undo: Optional[Callable[[], Any]] = None) -> int:
    """check(function(*arguments)) for a function that may wait long.

    After KeyboardInterrupt the call goes on in the background with its arguments kept alive; `calls`
    then knows it until it has ended, and `undo` is called if it succeeds: nobody has its result.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return check(function(*arguments))
    call, helper = _Call(function, arguments, calls, undo), None
    try:
        try:
            helper = _idle.pop()
        except IndexError:
            helper = _Helper()
        helper.start(call)
        while not call.finished:
            # Bounded: a signal just before the wait does not end it.
            call.gate.acquire(timeout=SLICE_MS / 1000)
    except BaseException:
        call.abandon(helper)
        raise
    _idle.append(helper)  # not reached after KeyboardInterrupt: that helper may still be busy
    if isinstance(call.result, BaseException):
        raise call.result
    if call.result < 0:
        raise error(call.result, call.text)
    result: int = call.result
    return result


def milliseconds(seconds: Optional[float], default: int = 0) -> int:
    """Seconds as the C ABI's uint32_t milliseconds; None is `default`."""
    if seconds is None:
        return default
    return int(min(max(seconds * 1000, 0), 0xFFFFFFFE))
