"""Messages from one rank to another: what Comm has them from."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple, cast, overload

import numpy

from . import _abi
from ._buffers import Buffer, buffer, dtype_name, stream_address
from ._call import Calls, address_argument, blocking, check, int32, lib
from ._group import enqueue, joins_group
from ._habits import with_other_names
from ._objects import MESSAGE_TYPE, begins_object, from_message, is_object, require_alone, require_host, to_message
from ._types import BufferLike
from .errors import CapacityError, Error, error
from .request import Request, waitall

if TYPE_CHECKING:
    from .comm import Comm

ANY_SOURCE = _abi.MEP_ANY_SOURCE
ANY_TAG = _abi.MEP_ANY_TAG
PROC_NULL = -2**31  # no arithmetic on ranks comes to it


class Message(NamedTuple):
    """A message's description: the rank that sent it, its tag, its length, and the type of its items as it was sent, by
    the name that dtype= takes."""

    source: int
    tag: int
    bytes: int
    dtype: str


_NOTHING = Message(PROC_NULL, ANY_TAG, 0, "uint8")  # from PROC_NULL


class MessageRecord:
    """A mep_message_t for the library to fill."""

    def __init__(self) -> None:
        self.struct = _abi.mep_message_t()
        self.reference = ctypes.byref(self.struct)
        lib.mep_struct_init(self.reference, ctypes.sizeof(self.struct))

    def message(self) -> Message:
        struct = self.struct
        return Message(struct.source, struct.tag, struct.bytes, dtype_name(struct.dtype))

    def clear(self) -> None:
        """To what a receive from PROC_NULL has."""
        self.struct.source, self.struct.tag, self.struct.dtype = _NOTHING.source, _NOTHING.tag, _abi.MEP_UINT8


class SendRequest(Request):
    """A send; wait() gives None."""

    def _tell(self) -> None:
        """Comm.last_op() does not tell of messages."""


class ReceiveRequest(SendRequest):
    """A receive; wait() gives its Message, or None if it was withdrawn."""

    def __init__(self, comm: "Comm", target: Optional[Buffer] = None):
        """target: memory of the caller, None: for an object."""
        super().__init__(comm, None)
        self._message = MessageRecord()
        self._for_object = target is None
        self._mistaken = target.address if target is not None and target.dtype == MESSAGE_TYPE else 0

    def _ended(self, result: int) -> None:
        super()._ended(result)
        if result in (_abi.MEP_ERR_CAPACITY, _abi.MEP_ERR_MISMATCH):
            self._refuse(result, cast(Error, self._failure).text)
        elif result == 0 and self._mistaken and begins_object(self._mistaken, self._message.struct.bytes):
            self._refuse(_abi.MEP_ERR_MISMATCH, "the message is an object, whose bytes the buffer has now")

    def _refuse(self, code: int, text: str) -> None:
        message = self._message.message()
        if code == _abi.MEP_ERR_MISMATCH:
            names = f"{message.source}, {message.tag})"
            if self._for_object:
                text += f"; it is a buffer and no object: call comm.recv(buf, {names}"
            elif self._message.struct.dtype == MESSAGE_TYPE:
                text += f"; objects come with this type: call obj = comm.recv(None, {names}"
        failure = error(code, text, self._record.info())
        failure.message = message
        self._failure = failure

    def _value(self) -> Any:
        super()._value()
        withdrawn = self._record.struct.result == _abi.MEP_IN_PROGRESS
        return None if withdrawn else self._message.message()


@with_other_names
class MessageCalls:
    """With `i` before the name: at once, with a request. A message that is sent on one communicator is received on no
    other. On a communicator with a GPU send, recv and sendrecv are enqueued on `stream` and return None; a receive names
    its source, and async_result() raises what has failed. The others are for hosts."""

    _address: Optional[int]
    _calls: Calls

    def send(self, buf: Any, dest: int, tag: int = 0, *, dtype: Any = None, stream: Any = 0) -> None:
        """Sends buf to rank dest, with a tag from 0 up. Returns when buf is the caller's again, which says nothing
        about the receiver: a small message waits for nobody, a large one for the receive. An object that is no buffer
        travels as a pickle, and recv(source=) has it. dest PROC_NULL: nothing is sent."""
        given = self._given("send", buf, dtype)
        if not self._on_stream(stream, (given,)):
            self._finish(self._send(given, dest, tag))
        elif int32("dest", dest) != PROC_NULL:
            enqueue(lib.mep_send, (*_items(given), int32("dest", dest), int32("tag", tag), self._address,
                                   address_argument(stream_address(stream))), given)

    def isend(self, buf: Any, dest: int, tag: int = 0, *, dtype: Any = None) -> Request:
        """Like send; buf is the caller's again when the request's wait() returns. An object is pickled at once."""
        return self._send(self._given("isend", buf, dtype), dest, tag)

    @overload
    def recv(self, buf: None = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Any: ...

    @overload
    def recv(self, buf: BufferLike, source: int = ANY_SOURCE, tag: int = ANY_TAG, *,
             dtype: Any = None, stream: Any = 0) -> Message: ...

    def recv(self, buf: Optional[BufferLike] = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, *,
             dtype: Any = None, stream: Any = 0) -> Any:
        """Receives the first message from source with that tag into buf, which may be longer: the rest stays as
        it was. CapacityError: buf is too small; MismatchError: its type is another one. Both have the
        message in `message` and leave it for the next receive. source PROC_NULL: returns at once, buf is as it was.

        Without buf: receives an object that send, isend or sendrecv has pickled, and returns it; MismatchError where a
        buffer was sent. Loading a pickle runs code that the sender chose (docs/design/security.md)."""
        if buf is None:
            return self._receive_object("recv", source, tag)
        target = buffer(buf, dtype, writable=True)
        if not self._on_stream(stream, (target,)):
            return self._finish(self._receive(target, source, tag))
        if int32("source", source) != PROC_NULL:
            enqueue(lib.mep_recv, (*_items(target), int32("source", source), int32("tag", tag), self._address, None,
                                   address_argument(stream_address(stream))), target)
        return None

    def irecv(self, buf: BufferLike, source: int = ANY_SOURCE, tag: int = ANY_TAG, *,
              dtype: Any = None) -> Request:
        """Like recv into a buffer; the request's wait() gives the Message, and cancel() withdraws it."""
        return self._receive(buffer(buf, dtype, writable=True), source, tag)

    @overload
    def sendrecv(self, send: Any, dest: int, recv: None = None, source: int = ANY_SOURCE, sendtag: int = 0,
                 recvtag: int = ANY_TAG) -> Any: ...

    @overload
    def sendrecv(self, send: BufferLike, dest: int, recv: BufferLike, source: int = ANY_SOURCE, sendtag: int = 0,
                 recvtag: int = ANY_TAG, *, dtype: Any = None, stream: Any = 0) -> Message: ...

    def sendrecv(self, send: Any, dest: int, recv: Optional[BufferLike] = None, source: int = ANY_SOURCE,
                 sendtag: int = 0, recvtag: int = ANY_TAG, *, dtype: Any = None, stream: Any = 0) -> Any:
        """Sends and receives at one time and returns when both have ended, with what has come. The buffers have
        the same type and do not overlap. Without recv: sends the object `send`, an array too, and returns the object
        that has come. A side whose rank is PROC_NULL is left out."""
        if recv is None:
            require_alone(cast("Comm", self), "sendrecv")
            leaving = self._send(buffer(to_message(send), MESSAGE_TYPE), dest, sendtag)
            come = self._receive_object("sendrecv", source, recvtag)
            leaving.wait()
            return come
        given, target = buffer(send, dtype), buffer(recv, dtype, writable=True)
        if given.dtype != target.dtype:
            raise ValueError(f"send holds {dtype_name(given.dtype)}, recv {dtype_name(target.dtype)}; both must hold "
                             "the same type")
        if _overlap(given, target):
            raise ValueError("send and receive buffer overlap")
        if self._on_stream(stream, (given, target)):
            return self._enqueue_both(given, target, (dest, source, sendtag, recvtag), stream)
        received = self._receive(target, source, recvtag)
        try:
            sent = self._send(given, dest, sendtag)
        except (Error, ValueError):  # refused: it shall not have received either
            received.cancel()
            raise
        if joins_group(sent):
            joins_group(received)
            return received._result  # None, as of all calls in a group
        waitall((sent, received))
        return received._value()

    def probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Message:
        """Waits for a message that such a receive would take now, and leaves it there. An object has the type
        "float8_e5m2"."""
        if int32("source", source) == PROC_NULL:
            return _NOTHING
        record = MessageRecord()
        blocking(lib.mep_probe, int32("source", source), int32("tag", tag), self._address,
                 record.reference, calls=self._calls)
        return record.message()

    def iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Optional[Message]:
        """The same without waiting; None: there is none now."""
        if int32("source", source) == PROC_NULL:
            return _NOTHING
        record, found = MessageRecord(), ctypes.c_int32()
        check(lib.mep_iprobe(int32("source", source), int32("tag", tag), self._address,
                             ctypes.byref(found), record.reference))
        return record.message() if found.value else None

    # ---- how they are carried out ---------------------------------------------------------------

    def _given(self, name: str, value: Any, dtype: Any) -> Buffer:
        """The memory of a message: that of `value`, or of its pickle."""
        if dtype is not None or isinstance(value, numpy.ndarray) or not is_object(value):
            return buffer(value, dtype)
        require_host(cast("Comm", self), name)
        return buffer(to_message(value), MESSAGE_TYPE)

    def _send(self, given: Buffer, dest: int, tag: int) -> Request:
        self._on_stream(0, (given,))
        request = SendRequest(cast("Comm", self), None)
        rank, number = int32("dest", dest), int32("tag", tag)
        if rank == PROC_NULL:
            request._finished = True
        else:
            request._begin(lib.mep_isend, (*_items(given), rank, number, self._address, None), (given,))
        return request

    def _receive(self, target: Buffer, source: int, tag: int, for_object: bool = False) -> Request:
        self._on_stream(0, (target,))
        request = ReceiveRequest(cast("Comm", self), None if for_object else target)
        rank, number = int32("source", source), int32("tag", tag)
        if rank == PROC_NULL:
            request._message.clear()
            request._finished = True
        else:
            request._begin(lib.mep_irecv, (*_items(target), rank, number, self._address, request._message.reference,
                                           None), (target,))
        return request

    def _receive_object(self, name: str, source: int, tag: int) -> Any:
        require_alone(cast("Comm", self), name)
        if int32("source", source) == PROC_NULL:
            return None
        room = numpy.empty(_abi.MEP_MESSAGE_EAGER_BYTES, numpy.uint8)
        while True:
            request = self._receive(buffer(room, MESSAGE_TYPE, writable=True), source, tag, for_object=True)
            try:
                message: Message = self._finish(request)
            except CapacityError as problem:  # the message stays; another thread may take it
                room = numpy.empty(max(cast(Message, problem.message).bytes, room.size), numpy.uint8)
            else:
                return from_message(room[:message.bytes], message.source, message.tag)

    def _enqueue_both(self, given: Buffer, target: Buffer, names: Tuple[int, int, int, int], stream: Any) -> None:
        dest, source, sendtag, recvtag = map(int32, ("dest", "source", "sendtag", "recvtag"), names)
        on_stream = address_argument(stream_address(stream))
        if PROC_NULL not in (dest, source):
            enqueue(lib.mep_sendrecv, (given.address, given.count, dest, sendtag, target.address, target.count, source,
                                       recvtag, given.dtype, self._address, None, on_stream), (given, target))
        elif dest != PROC_NULL:
            enqueue(lib.mep_send, (*_items(given), dest, sendtag, self._address, on_stream), given)
        elif source != PROC_NULL:
            enqueue(lib.mep_recv, (*_items(target), source, recvtag, self._address, None, on_stream), target)

    def _on_stream(self, stream: Any, kept: tuple[Any, ...]) -> bool:
        raise NotImplementedError

    def _finish(self, request: Request) -> Any:
        raise NotImplementedError


def _items(each: Buffer) -> Tuple[Any, ...]:
    return each.address, each.count, each.dtype


def _overlap(one: Buffer, other: Buffer) -> bool:
    return (one.address < other.address + other.count * other.itemsize and
            other.address < one.address + one.count * one.itemsize)
