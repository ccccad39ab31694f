"""Messages from one rank to another: what Comm has them from."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple, cast

from . import _abi
from ._buffers import Buffer, buffer, dtype_name, stream_address
from ._call import Calls, address_argument, blocking, check, int32, lib
from ._group import enqueue, joins_group
from ._types import BufferLike
from .errors import Error
from .request import Request, waitall

if TYPE_CHECKING:
    from .comm import Comm

ANY_SOURCE = _abi.MEP_ANY_SOURCE
ANY_TAG = _abi.MEP_ANY_TAG


class Message(NamedTuple):
    """A message's description: the rank that sent it, its tag, its length, and the type of its items as it was sent, by
    the name that dtype= takes."""

    source: int
    tag: int
    bytes: int
    dtype: str


class MessageRecord:
    """A mep_message_t for the library to fill."""

    def __init__(self) -> None:
        self.struct = _abi.mep_message_t()
        self.reference = ctypes.byref(self.struct)
        lib.mep_struct_init(self.reference, ctypes.sizeof(self.struct))

    def message(self) -> Message:
        struct = self.struct
        return Message(struct.source, struct.tag, struct.bytes, dtype_name(struct.dtype))


class SendRequest(Request):
    """A send; wait() gives None."""

    def _tell(self) -> None:
        """Comm.last_op() does not tell of messages."""


class ReceiveRequest(SendRequest):
    """A receive; wait() gives its Message, or None if it was withdrawn."""

    def __init__(self, comm: "Comm"):
        super().__init__(comm, None)
        self._message = MessageRecord()

    def _ended(self, result: int) -> None:
        super()._ended(result)
        if result in (_abi.MEP_ERR_CAPACITY, _abi.MEP_ERR_MISMATCH):
            cast(Error, self._failure).message = self._message.message()

    def _value(self) -> Any:
        super()._value()
        withdrawn = self._record.struct.result == _abi.MEP_IN_PROGRESS
        return None if withdrawn else self._message.message()


class MessageCalls:
    """With `i` before the name: at once, with a request. A message that is sent on one communicator is received on no
    other. On a communicator with a GPU send, recv and sendrecv are enqueued on `stream` and return None; a receive names
    its source, and async_result() raises what has failed. The others are for hosts."""

    _address: Optional[int]
    _calls: Calls

    def send(self, buf: BufferLike, dest: int, tag: int = 0, *, dtype: Any = None, stream: Any = 0) -> None:
        """Sends buf to rank dest, with a tag from 0 up. Returns when buf is the caller's again, which says nothing
        about the receiver: a small message waits for nobody, a large one for the receive."""
        given = buffer(buf, dtype)
        if self._on_stream(stream, (given,)):
            enqueue(lib.mep_send, (*_items(given), int32("dest", dest), int32("tag", tag), self._address,
                                   address_argument(stream_address(stream))), given)
        else:
            self._finish(self._send(given, dest, tag))

    def isend(self, buf: BufferLike, dest: int, tag: int = 0, *, dtype: Any = None) -> Request:
        """Like send; buf is the caller's again when the request's wait() returns."""
        return self._send(buffer(buf, dtype), dest, tag)

    def recv(self, buf: BufferLike, source: int = ANY_SOURCE, tag: int = ANY_TAG, *,
             dtype: Any = None, stream: Any = 0) -> Message:
        """Receives the first message from source with that tag into buf, which may be longer: the rest stays as
        it was. CapacityError: buf is too small; MismatchError: its type is another one. Both have the
        message in `message` and leave it for the next receive."""
        target = buffer(buf, dtype, writable=True)
        if not self._on_stream(stream, (target,)):
            return cast(Message, self._finish(self._receive(target, source, tag)))
        enqueue(lib.mep_recv, (*_items(target), int32("source", source), int32("tag", tag), self._address, None,
                               address_argument(stream_address(stream))), target)
        return cast(Message, None)

    def irecv(self, buf: BufferLike, source: int = ANY_SOURCE, tag: int = ANY_TAG, *,
              dtype: Any = None) -> Request:
        """Like recv; the request's wait() gives the Message, and cancel() withdraws it."""
        return self._receive(buffer(buf, dtype, writable=True), source, tag)

    def sendrecv(self, send: BufferLike, dest: int, recv: BufferLike, source: int = ANY_SOURCE, sendtag: int = 0,
                 recvtag: int = ANY_TAG, *, dtype: Any = None, stream: Any = 0) -> Message:
        """Sends and receives at one time and returns when both have ended, with what has come. The buffers have
        the same type and do not overlap."""
        given, target = buffer(send, dtype), buffer(recv, dtype, writable=True)
        if given.dtype != target.dtype:
            raise ValueError(f"send holds {dtype_name(given.dtype)}, recv {dtype_name(target.dtype)}; both must hold "
                             "the same type")
        if _overlap(given, target):
            raise ValueError("send and receive buffer overlap")
        if self._on_stream(stream, (given, target)):
            enqueue(lib.mep_sendrecv, (given.address, given.count, int32("dest", dest), int32("sendtag", sendtag),
                                       target.address, target.count, int32("source", source),
                                       int32("recvtag", recvtag), given.dtype, self._address, None,
                                       address_argument(stream_address(stream))), (given, target))
            return cast(Message, None)
        received = self._receive(target, source, recvtag)
        try:
            sent = self._send(given, dest, sendtag)
        except (Error, ValueError):  # refused: it shall not have received either
            received.cancel()
            raise
        if joins_group(sent):
            joins_group(received)
            return cast(Message, received._result)  # None, as of all calls in a group
        waitall((sent, received))
        return cast(Message, received._value())

    def probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Message:
        """Waits for a message that such a receive would take now, and leaves it there."""
        record = MessageRecord()
        blocking(lib.mep_probe, int32("source", source), int32("tag", tag), self._address,
                 record.reference, calls=self._calls)
        return record.message()

    def iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Optional[Message]:
        """The same without waiting; None: there is none now."""
        record, found = MessageRecord(), ctypes.c_int32()
        check(lib.mep_iprobe(int32("source", source), int32("tag", tag), self._address,
                             ctypes.byref(found), record.reference))
        return record.message() if found.value else None

    # ---- how they are carried out ---------------------------------------------------------------

    def _send(self, given: Buffer, dest: int, tag: int) -> Request:
        self._on_stream(0, (given,))
        request = SendRequest(cast("Comm", self), None)
        request._begin(lib.mep_isend, (given.address, given.count, given.dtype,
                                       int32("dest", dest), int32("tag", tag), self._address, None), (given,))
        return request

    def _receive(self, target: Buffer, source: int, tag: int) -> Request:
        self._on_stream(0, (target,))
        request = ReceiveRequest(cast("Comm", self))
        request._begin(lib.mep_irecv, (target.address, target.count, target.dtype,
                                       int32("source", source), int32("tag", tag), self._address,
                                       request._message.reference, None), (target,))
        return request

    def _on_stream(self, stream: Any, kept: tuple[Any, ...]) -> bool:
        raise NotImplementedError

    def _finish(self, request: Request) -> Any:
        raise NotImplementedError


def _items(each: Buffer) -> Tuple[Any, ...]:
    return each.address, each.count, each.dtype


def _overlap(one: Buffer, other: Buffer) -> bool:
    return (one.address < other.address + other.count * other.itemsize and
            other.address < one.address + one.count * one.itemsize)
