"""Groups: blocking calls that only begin until the end of a `with` block."""
from __future__ import annotations

import threading
import weakref
from typing import Any, ContextManager, List, Optional, Tuple

from ._call import check, lib
from .request import Request, waitall


class _Current(threading.local):
    """The innermost group of the thread. Only its `with` statement keeps a group alive, so none is left over
    where Ctrl-C came while it was entered or left."""

    reference: "Optional[weakref.ref[_Group]]" = None

    def group(self) -> "Optional[_Group]":
        return None if self.reference is None else self.reference()


current_group = _Current()


class _Group:
    """The library's own groups are the thread's that waits for them, and would keep Ctrl-C out; this one is made
    of requests."""

    def __init__(self) -> None:
        self.requests: List[Request] = []
        self.enqueued: List[Tuple[Any, Tuple[Any, ...], Any]] = []  # function, arguments, what they need
        self._before: "Optional[weakref.ref[_Group]]" = None

    def __enter__(self) -> List[Request]:
        self._before = current_group.reference
        current_group.reference = weakref.ref(self)
        return self.requests

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        current_group.reference = self._before
        outer = current_group.group()
        if outer is not None:
            outer.requests.extend(self.requests)
            outer.enqueued.extend(self.enqueued)
        elif kind is None:  # else the exception goes on at once, and so do the operations
            try:
                self._enqueue()
                waitall(self.requests)
            finally:
                for request in self.requests:
                    if request.done:
                        request._tell()


    def _enqueue(self) -> None:
        """Messages on streams, as one operation of each communicator."""
        if not self.enqueued:
            return
        check(lib.mep_group_begin())
        try:
            for function, arguments, _ in self.enqueued:
                check(function(*arguments))
        finally:
            ended = lib.mep_group_end()
        check(ended)


def group() -> ContextManager[List[Request]]:
    """`with mep.group():` - in the block send, recv, sendrecv and the blocking collectives of host communicators,
    when this thread calls them, only begin. The end of the block waits for all of them, and raises the first
    error in the order of the calls. So no order of sends and receives makes ranks wait for each other.

    Buffers belong to the operations until then; they are kept alive. recv and sendrecv return None in the
    block: `with mep.group() as requests:` has the request of each call so far, whose wait() gives the Message
    (sendrecv makes two, the send's and the receive's). Groups may be nested: the outermost end waits. After an
    exception in the block nothing is waited for, and what has begun goes on.

    send, recv and sendrecv of communicators with a GPU are enqueued by the outermost end, those of a communicator
    as one operation on one stream.
    """
    return _Group()


def enqueue(function: Any, arguments: Tuple[Any, ...], keep: Any) -> None:
    """A message on a stream: now, or by the end of the thread's group."""
    group = current_group.group()
    if group is None:
        check(function(*arguments))
    else:
        group.enqueued.append((function, arguments, keep))


def joins_group(request: Request) -> bool:
    """Whether the thread is in a group, which then waits for the request."""
    group = current_group.group()
    if group is None:
        return False
    group.requests.append(request)
    return True
