"""The library's log lines as calls of a Python function."""
from __future__ import annotations

import atexit
import ctypes
import logging
import os
import re
import threading
import traceback
from typing import Callable, Optional

from . import _abi
from ._call import check, lib

_LEVELS = {b"error": logging.ERROR, b"warn": logging.WARNING, b"info": logging.INFO, b"debug": logging.DEBUG}
_LEVEL_OF_LINE = re.compile(rb"mep\S* (?:\S+Z \S+ )?(error|warn|info|debug): ")
_END = b"\0\n"  # no line has a NUL


class _Sink:
    """The library writes to a pipe on whichever thread has a line, without entering Python: its heartbeats
    must never wait for the interpreter lock. A Python thread reads it and calls back."""

    def __init__(self, callback: Callable[[int, str], object]):
        self._callback, self._process = callback, os.getpid()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._serve, name="mep-log", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        write = ctypes.cast(lib.mep_log_to_descriptor, ctypes.c_void_p)
        check(lib.mep_set_log_callback(write, self._write))

    def _serve(self) -> None:
        with open(self._read, "rb") as lines:
            for line in lines:
                if line == _END:
                    return
                found = _LEVEL_OF_LINE.match(line)
                try:
                    self._callback(_LEVELS[found[1]] if found else logging.WARNING, line[:-1].decode("utf-8", "replace"))
                except Exception:
                    traceback.print_exc()

    def stop(self) -> None:
        """After the library has got another callback: returns when all lines have been given."""
        if os.getpid() != self._process:  # a forked child has no such thread, and shares the pipe
            os.close(self._read)
            os.close(self._write)
            return
        by_callback = threading.current_thread() is self._thread
        os.set_blocking(self._write, not by_callback)
        try:
            os.write(self._write, _END)
        except BlockingIOError:
            pass  # the end of the file will do
        os.close(self._write)
        if not by_callback:
            self._thread.join()


_lock = threading.Lock()
_sink: Optional[_Sink] = None


def set_log_callback(callback: Optional[Callable[[int, str], object]]) -> None:
    """Calls callback(level, line) for each log line of the process, in place of stderr, on a thread of its own; None:
    stderr again. The level is a number of Python's logging, so a logger's method takes the lines:

        mep.set_log_callback(logging.getLogger("mep").log)

    MEP_LOG says which lines there are. Exceptions of the callback are printed. When this returns the old one runs no
    more, and has had all lines that came before; called by the callback, these still follow. Lines that come faster than the
    callback takes them are lost beyond 64 KB."""
    global _sink
    made = None if callback is None else _Sink(callback)
    with _lock:
        if made is not None:
            made.begin()
        elif _sink is not None:
            check(lib.mep_set_log_callback(None, None))
        old, _sink = _sink, made
    if old is not None:
        old.stop()


atexit.register(set_log_callback, None)
