"""DeepEP's objects for streams of a GPU. On a host an operation has ended when its call, or its hook, returns."""
from __future__ import annotations

from typing import Any, Optional, Tuple


class EventHandle:
    """An event that has happened."""

    def current_stream_wait(self) -> None:
        """Does nothing."""


class EventOverlap:
    """An event, and tensors that live as long as it does. `event` is None where nobody asked for one."""

    def __init__(self, event: Optional[EventHandle] = None, extra_tensors: Optional[Tuple[Any, ...]] = None):
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """Does nothing: the operation has ended."""

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.current_stream_wait()


def ending(asked: bool) -> EventOverlap:
    return EventOverlap(EventHandle() if asked else None)
