"""Calls into libmep.so: results become exceptions, and Ctrl-C is answered while a call waits.

Python runs signal handlers only between byte codes of the main thread, so the main thread must never
sit in C for long. Blocking calls without a nonblocking form therefore run on a helper thread while
the main thread waits for it; other threads, which get no signals, call directly.
"""
from __future__ import annotations

import os
import queue
import threading
from typing import Any, Callable, Optional

from . import _abi
from .errors import error

lib = _abi.load()

SLICE_MS = 100  # how long the main thread stays in C at a time


def last_error() -> str:
    """The library's text for the calling thread's last failed call."""
    return lib.mep_last_error().decode("utf-8", "replace")


def check(result: int) -> int:
    """Raises for negative results; gives back 0 or a qualified success such as MEP_PARTIAL."""
    if result < 0:
        raise error(result, last_error())
    return result


class _Helper:
    """A daemon thread that makes one call at a time."""

    def __init__(self) -> None:
        self._calls: "queue.SimpleQueue[tuple]" = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="mep-call", daemon=True).start()

    def _serve(self) -> None:
        while True:
            function, arguments, answer = self._calls.get()
            try:
                result = function(*arguments)
                # The text belongs to this thread, so it is fetched here.
                answer.put((result, last_error() if result < 0 else ""))
            except BaseException as problem:  # a wrong argument type: raised where the call was made
                answer.put((problem, ""))
            function = arguments = answer = None  # keeps no buffers alive between calls

    def call(self, function: Callable[..., int], arguments: tuple) -> tuple:
        answer: "queue.SimpleQueue[tuple]" = queue.SimpleQueue()
        self._calls.put((function, arguments, answer))
        return answer.get()


_idle: list = []  # helpers that have no call to make


def _forget_helpers() -> None:
    _idle.clear()  # a child made by fork has none of the parent's threads


os.register_at_fork(after_in_child=_forget_helpers)


def blocking(function: Callable[..., int], *arguments: Any) -> int:
    """check(function(*arguments)) for a function that may wait long.

    After KeyboardInterrupt the call goes on in the background with its arguments kept alive, and its
    communicator is busy until the call has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return check(function(*arguments))
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    result, text = helper.call(function, arguments)
    _idle.append(helper)  # not reached after KeyboardInterrupt: that helper is still busy
    if isinstance(result, BaseException):
        raise result
    if result < 0:
        raise error(result, text)
    return result


def milliseconds(seconds: Optional[float], default: int = 0) -> int:
    """Seconds as the C ABI's uint32_t milliseconds; None is `default`."""
    if seconds is None:
        return default
    return min(max(int(seconds * 1000), 0), 0xFFFFFFFE)
