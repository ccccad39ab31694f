"""DeepEP's objects for streams of a GPU. On a host an operation has ended when its call, or its hook, returns."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from mep.torch import _binding

_cuda: Any = torch.cuda  # parts of it have no types


class EventHandle:
    """All that a stream, or the current one, has to do so far. Without a GPU in use: nothing."""

    def __init__(self, stream: Any = None):
        self._event: Any = None
        if stream is not None or (torch.cuda.is_available() and _cuda.is_initialized()):
            self._event = _cuda.Event()
            self._event.record(stream if stream is not None else torch.cuda.current_stream())

    def wait_on(self, stream: Any) -> None:
        """`stream` runs what it gets later after the event."""
        if self._event is not None:
            stream.wait_event(self._event)

    def current_stream_wait(self) -> None:
        if self._event is not None:
            self.wait_on(torch.cuda.current_stream())


class EventOverlap:
    """An event, and tensors that live as long as it does. `event` is None where nobody asked for one."""

    def __init__(self, event: Optional[EventHandle] = None, extra_tensors: Optional[Tuple[Any, ...]] = None):
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """The current stream waits for the event. On a host the operation has ended."""
        if self.event is not None:
            self.event.current_stream_wait()

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.current_stream_wait()


def ending(asked: bool) -> EventOverlap:
    """The event of an operation on a host, which has ended."""
    return EventOverlap(EventHandle() if asked else None)


class Streams:
    """The stream that a Buffer's operations run on beside the program's current one, and their order."""

    def __init__(self, device: int):
        self.device = torch.device("cuda", device)
        self.own = _cuda.Stream(self.device)
        self.order = _binding.BufferStreams(self.own.stream_id, self.own.device_index, self.own.device_type)

    def check(self, **tensors: Optional[torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if tensor is not None and tensor.device != self.device:
                raise ValueError(f"{name} is on {tensor.device}; this Buffer's operations run on {self.device}")
