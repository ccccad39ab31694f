"""The collectives of a communicator: what Comm has them from."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, List, Optional, Tuple, TypeVar, Union, cast, overload

from . import _abi
from ._buffers import Buffer, buffer, dtype_name, in_place, maker, stream_address
from ._call import (address_argument, bare, check, int32, int32_argument, size_argument,
                    uint32_argument)
from ._collectives import COLLECTIVES
from ._group import current_group, joins_group
from ._types import BufferLike, Counts, Given
from .request import SLICE, OpInfoRecord, Request, running, wait_for

if TYPE_CHECKING:
    from .comm import Comm

OPS = {"sum": _abi.MEP_SUM, "prod": _abi.MEP_PROD, "min": _abi.MEP_MIN, "max": _abi.MEP_MAX,
       "avg": _abi.MEP_AVG, "and": _abi.MEP_AND, "or": _abi.MEP_OR, "xor": _abi.MEP_XOR}
_OPERATORS = {key: uint32_argument(number) for name, number in OPS.items() for key in (name, number)}
_ENQUEUE = {name.removeprefix("mep_"): bare(name) for name in COLLECTIVES if not name.startswith("mep_i")}
_BEGIN = {name: bare("mep_i" + name) for name in _ENQUEUE}
NO_STREAM = 0
_Result = TypeVar("_Result")
_Prepared = Tuple[Tuple[Any, ...], _Result, Any]  # arguments of C, the result, what must live as long as the operation


class CollectiveCalls:
    """Without `stream` and with `i` before the name: at once, with a request."""

    _argument: Any  # the communicator, for C
    _on_gpu: bool  # all its calls are enqueued
    _last: Optional[OpInfoRecord]
    _spare: List[Request]  # of blocking calls that have ended well, for the next ones
    rank: int
    size: int

    def barrier(self, *, stream: Any = NO_STREAM) -> None:
        """Returns after every live rank has entered."""
        self._run("barrier", ((), None, ()), stream)

    def ibarrier(self) -> Request:
        """Begins a barrier; the request's wait() returns after every live rank has entered."""
        return self._start(_BEGIN["barrier"], (), None, ())

    @overload
    def broadcast(self, buf: Given, root: int = 0, recv: None = None, *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    @overload
    def broadcast(self, buf: BufferLike, root: int, recv: Given, *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    @overload
    def broadcast(self, buf: BufferLike, root: int = 0, *, recv: Given, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    def broadcast(self, buf: BufferLike, root: int = 0, recv: Optional[BufferLike] = None, *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Any:
        """recv on every rank = buf of root; without recv, buf is both. Returns the receive buffer."""
        return self._run("broadcast", self._broadcast(buf, root, recv, dtype), stream)

    def ibroadcast(self, buf: BufferLike, root: int = 0, recv: Optional[BufferLike] = None, *,
                   dtype: Any = None) -> Request:
        """Begins broadcast; the request's wait() gives what broadcast returns."""
        return self._start(_BEGIN["broadcast"], *self._broadcast(buf, root, recv, dtype))

    def allgather(self, send: Optional[BufferLike], recv: Optional[Given] = None, *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given:
        """recv[r] = send of rank r; recv has size times the items of send. Without recv a new array
        [size, *send.shape] of the kind of send (NumPy, ml_dtypes or PyTorch), as of all calls that make
        one. Blocks of absent ranks stay as they are; in a new array they are zero, in a new tensor on a GPU
        undefined. send None: this rank's block of recv is the input."""
        return self._run("allgather", self._allgather(send, recv, dtype), stream)

    def iallgather(self, send: Optional[BufferLike], recv: Optional[BufferLike] = None, *,
                   dtype: Any = None) -> Request:
        """Begins allgather; the request's wait() gives what allgather returns."""
        return self._start(_BEGIN["allgather"], *self._allgather(send, recv, dtype))

    @overload
    def allreduce(self, send: Given, recv: None = None, op: Union[str, int] = "sum", *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    @overload
    def allreduce(self, send: BufferLike, recv: Given, op: Union[str, int] = "sum", *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    def allreduce(self, send: BufferLike, recv: Optional[BufferLike] = None, op: Union[str, int] = "sum", *,
                  dtype: Any = None, stream: Any = NO_STREAM) -> Any:
        """recv = op over the live ranks' send, item by item; without recv in place. op: sum, prod,
        min, max, avg, and, or, xor. Returns the receive buffer."""
        return self._run("allreduce", self._allreduce(send, recv, op, dtype), stream)

    def iallreduce(self, send: BufferLike, recv: Optional[BufferLike] = None, op: Union[str, int] = "sum", *,
                   dtype: Any = None) -> Request:
        """Begins allreduce; the request's wait() gives what allreduce returns."""
        return self._start(_BEGIN["allreduce"], *self._allreduce(send, recv, op, dtype))

    def reduce(self, send: BufferLike, root: int = 0, recv: Optional[BufferLike] = None, op: Union[str, int] = "sum",
               *, dtype: Any = None, stream: Any = NO_STREAM) -> Any:
        """recv of root = op over the live ranks' send; without recv in place there. Returns the receive
        buffer of root, elsewhere None."""
        return self._run("reduce", self._reduce(send, root, recv, op, dtype), stream)

    def ireduce(self, send: BufferLike, root: int = 0, recv: Optional[BufferLike] = None, op: Union[str, int] = "sum",
                *, dtype: Any = None) -> Request:
        """Begins reduce; the request's wait() gives what reduce returns."""
        return self._start(_BEGIN["reduce"], *self._reduce(send, root, recv, op, dtype))

    def gather(self, send: Optional[BufferLike], root: int = 0, recv: Optional[BufferLike] = None, *,
               dtype: Any = None, stream: Any = NO_STREAM) -> Any:
        """recv[r] of root = send of rank r; root may leave recv and send away as in allgather. Blocks of absent
        ranks: as of allgather. Returns the receive buffer of root, elsewhere None."""
        return self._run("gather", self._gather(send, root, recv, dtype), stream)

    def igather(self, send: Optional[BufferLike], root: int = 0, recv: Optional[BufferLike] = None, *,
                dtype: Any = None) -> Request:
        """Begins gather; the request's wait() gives what gather returns."""
        return self._start(_BEGIN["gather"], *self._gather(send, root, recv, dtype))

    def scatter(self, send: Optional[BufferLike], root: int = 0, recv: Optional[Given] = None, *,
                dtype: Any = None, stream: Any = NO_STREAM) -> Given:
        """recv of rank r = block r of root's send, which has size times the items of recv and may be None
        elsewhere. Without recv root's block stays in send. Returns the receive buffer."""
        return self._run("scatter", self._scatter(send, root, recv, dtype), stream)

    def iscatter(self, send: Optional[BufferLike], root: int = 0, recv: Optional[BufferLike] = None, *,
                 dtype: Any = None) -> Request:
        """Begins scatter; the request's wait() gives what scatter returns."""
        return self._start(_BEGIN["scatter"], *self._scatter(send, root, recv, dtype))

    def reduce_scatter(self, send: BufferLike, recv: Optional[Given] = None, op: Union[str, int] = "sum", *,
                       dtype: Any = None, stream: Any = NO_STREAM) -> Given:
        """recv of rank r = op over the live ranks' block r of send, which has size times the items of recv.
        Without recv a new array, of the shape of send[r] if send has size rows. recv may be this
        rank's block of send. Returns the receive buffer."""
        return self._run("reduce_scatter", self._reduce_scatter(send, recv, op, dtype), stream)

    def ireduce_scatter(self, send: BufferLike, recv: Optional[BufferLike] = None, op: Union[str, int] = "sum", *,
                        dtype: Any = None) -> Request:
        """Begins reduce_scatter; the request's wait() gives what reduce_scatter returns."""
        return self._start(_BEGIN["reduce_scatter"], *self._reduce_scatter(send, recv, op, dtype))

    def alltoall(self, send: BufferLike, recv: Optional[Given] = None, *, dtype: Any = None,
                 stream: Any = NO_STREAM) -> Given:
        """Block s of recv = this rank's block of send of rank s. Both have size blocks; without recv a new
        array of the shape of send. Blocks of absent ranks: as of allgather. Returns the receive buffer."""
        return self._run("alltoall", self._alltoall(send, recv, dtype), stream)

    def ialltoall(self, send: BufferLike, recv: Optional[BufferLike] = None, *, dtype: Any = None) -> Request:
        """Begins alltoall; the request's wait() gives what alltoall returns."""
        return self._start(_BEGIN["alltoall"], *self._alltoall(send, recv, dtype))

    def allgatherv(self, send: Optional[BufferLike], counts: Counts, recv: Optional[Given] = None,
                   displs: Optional[Counts] = None, *, dtype: Any = None, stream: Any = NO_STREAM) -> Given:
        """The counts[r] items of recv from displs[r] on = send of rank r. Without displs the blocks lie one
        behind the other, without recv in a new array. Blocks of absent ranks, and what lies between the blocks of
        a new array: as of allgather. send None: this rank's block of recv is the input."""
        return self._run("allgatherv", self._allgatherv(send, counts, recv, displs, dtype), stream)

    def iallgatherv(self, send: Optional[BufferLike], counts: Counts, recv: Optional[BufferLike] = None,
                    displs: Optional[Counts] = None, *, dtype: Any = None) -> Request:
        """Begins allgatherv; the request's wait() gives what allgatherv returns."""
        return self._start(_BEGIN["allgatherv"], *self._allgatherv(send, counts, recv, displs, dtype))

    def gatherv(self, send: Optional[BufferLike], root: int = 0, counts: Optional[Counts] = None,
                recv: Optional[BufferLike] = None, displs: Optional[Counts] = None, *, dtype: Any = None,
                stream: Any = NO_STREAM) -> Any:
        """Like allgatherv for root, which alone gives counts. Returns its receive buffer, elsewhere None."""
        return self._run("gatherv", self._gatherv(send, root, counts, recv, displs, dtype), stream)

    def igatherv(self, send: Optional[BufferLike], root: int = 0, counts: Optional[Counts] = None,
                 recv: Optional[BufferLike] = None, displs: Optional[Counts] = None, *, dtype: Any = None) -> Request:
        """Begins gatherv; the request's wait() gives what gatherv returns."""
        return self._start(_BEGIN["gatherv"],
                           *self._gatherv(send, root, counts, recv, displs, dtype))

    def scatterv(self, send: Optional[BufferLike], root: int = 0, counts: Optional[Counts] = None,
                 recv: Optional[Given] = None, displs: Optional[Counts] = None, *, dtype: Any = None,
                 stream: Any = NO_STREAM) -> Given:
        """recv of rank r = the counts[r] items of root's send from displs[r] on; root alone gives counts.
        Without recv root's block stays in send. Returns the receive buffer."""
        return self._run("scatterv", self._scatterv(send, root, counts, recv, displs, dtype), stream)

    def iscatterv(self, send: Optional[BufferLike], root: int = 0, counts: Optional[Counts] = None,
                  recv: Optional[BufferLike] = None, displs: Optional[Counts] = None, *,
                  dtype: Any = None) -> Request:
        """Begins scatterv; the request's wait() gives what scatterv returns."""
        return self._start(_BEGIN["scatterv"],
                           *self._scatterv(send, root, counts, recv, displs, dtype))

    def reduce_scatterv(self, send: BufferLike, counts: Counts, recv: Optional[Given] = None,
                        op: Union[str, int] = "sum", displs: Optional[Counts] = None, *, dtype: Any = None,
                        stream: Any = NO_STREAM) -> Given:
        """recv of rank r = op over the live ranks' counts[r] items of send from displs[r] on. Without recv a
        new array. recv may be this rank's block of send. Returns the receive buffer."""
        return self._run("reduce_scatterv",
                         self._reduce_scatterv(send, counts, recv, op, displs, dtype), stream)

    def ireduce_scatterv(self, send: BufferLike, counts: Counts, recv: Optional[BufferLike] = None,
                         op: Union[str, int] = "sum", displs: Optional[Counts] = None, *,
                         dtype: Any = None) -> Request:
        """Begins reduce_scatterv; the request's wait() gives what reduce_scatterv returns."""
        return self._start(_BEGIN["reduce_scatterv"],
                           *self._reduce_scatterv(send, counts, recv, op, displs, dtype))

    def alltoallv(self, send: BufferLike, sendcounts: Counts, recvcounts: Counts, recv: Optional[Given] = None,
                  senddispls: Optional[Counts] = None, recvdispls: Optional[Counts] = None, *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given:
        """The recvcounts[s] items of recv from recvdispls[s] on = this rank's sendcounts[rank] items of send of
        rank s. Without recv a new array. Blocks of absent ranks, and what lies between the blocks of a new
        array: as of allgather. Returns the receive buffer."""
        return self._run("alltoallv", self._alltoallv(send, sendcounts, recvcounts, recv, senddispls,
                                                      recvdispls, dtype), stream)

    def ialltoallv(self, send: BufferLike, sendcounts: Counts, recvcounts: Counts, recv: Optional[BufferLike] = None,
                   senddispls: Optional[Counts] = None, recvdispls: Optional[Counts] = None, *,
                   dtype: Any = None) -> Request:
        """Begins alltoallv; the request's wait() gives what alltoallv returns."""
        return self._start(_BEGIN["alltoallv"], *self._alltoallv(send, sendcounts, recvcounts, recv,
                                                                senddispls, recvdispls, dtype))

    # ---- arguments of C, the result, and what must live as long as the operation: a NumPy array of the host that can
    # be used as it is, or Buffers in a tuple ------------------------------------------------------

    def _broadcast(self, buf: Any, root: int, recv: Any, dtype: Any) -> _Prepared[Any]:
        if recv is None and dtype is None and (found := in_place(buf)) is not None:
            return (*found, _root(root)), buf, buf
        result = buf if recv is None else recv
        target = buffer(result, dtype, writable=True)
        source = target if recv is None else buffer(buf, dtype)
        _match(source, target, target.count)
        arguments = (source.address_argument, target.address_argument, target.count_argument,
                     target.dtype_argument, _root(root))
        return arguments, result, (source, target)

    def _allgather(self, send: Any, recv: Optional[Given], dtype: Any) -> _Prepared[Given]:
        if send is None:
            target = buffer(recv, dtype, writable=True)
            count = self._items_of_a_rank("recv", target)
            own = target.address + self.rank * count * target.itemsize
            arguments = (address_argument(own), target.address_argument, size_argument(count), target.dtype_argument)
            return arguments, cast(Given, recv), (target,)
        source = buffer(send, dtype)
        if recv is None:
            recv = cast(Given, maker(send, zeroed=True)((self.size,) + source.shape, source.dtype))
            target = buffer(recv, source.dtype, writable=True)
        else:
            target = buffer(recv, dtype, writable=True)
        _match(source, target, source.count * self.size)
        arguments = (source.address_argument, target.address_argument, source.count_argument,
                     source.dtype_argument)
        return arguments, recv, (source, target)

    def _allreduce(self, send: Any, recv: Any, op: Union[str, int], dtype: Any) -> _Prepared[Any]:
        if recv is None and dtype is None and (found := in_place(send)) is not None:
            return (*found, _operator(op)), send, send
        result = send if recv is None else recv
        target = buffer(result, dtype, writable=True)
        source = target if recv is None else buffer(send, dtype)
        _match(source, target, source.count)
        arguments = (source.address_argument, target.address_argument, source.count_argument,
                     source.dtype_argument, _operator(op))
        return arguments, result, (source, target)

    def _reduce(self, send: Any, root: int, recv: Any, op: Union[str, int], dtype: Any) -> _Prepared[Any]:
        number = _root(root)
        if self.rank == root:
            arguments, result, keep = self._allreduce(send, recv, op, dtype)
            return (*arguments, number), result, keep
        source = buffer(send, dtype)
        arguments = (source.address_argument, None, source.count_argument, source.dtype_argument,
                     _operator(op), number)
        return arguments, None, (source,)

    def _gather(self, send: Any, root: int, recv: Any, dtype: Any) -> _Prepared[Any]:
        number = _root(root)
        if self.rank == root:
            arguments, result, keep = self._allgather(send, recv, dtype)
            return (*arguments, number), result, keep
        source = buffer(send, dtype)
        arguments = (source.address_argument, None, source.count_argument, source.dtype_argument, number)
        return arguments, None, (source,)

    def _scatter(self, send: Any, root: int, recv: Optional[Given], dtype: Any) -> _Prepared[Given]:
        number = _root(root)
        if self.rank != root:
            target = buffer(recv, dtype, writable=True)
            arguments = (None, target.address_argument, target.count_argument, target.dtype_argument, number)
            return arguments, cast(Given, recv), (target,)
        source = buffer(send, dtype, writable=recv is None)
        count = self._items_of_a_rank("send", source)
        if recv is None:
            own = source.address + self.rank * count * source.itemsize
            arguments = (source.address_argument, address_argument(own), size_argument(count),
                         source.dtype_argument, number)
            return arguments, send, (source,)
        target = buffer(recv, dtype, writable=True)
        _match(source, target, count)
        arguments = (source.address_argument, target.address_argument, size_argument(count),
                     source.dtype_argument, number)
        return arguments, recv, (source, target)

    def _reduce_scatter(self, send: Any, recv: Optional[Given], op: Union[str, int], dtype: Any) -> _Prepared[Given]:
        source = buffer(send, dtype)
        count = self._items_of_a_rank("send", source)
        if recv is None:
            has_rows = len(source.shape) > 0 and source.shape[0] == self.size
            shape = source.shape[1:] if has_rows else (count,)
            recv = cast(Given, maker(send)(shape, source.dtype))
            target = buffer(recv, source.dtype, writable=True)
        else:
            target = buffer(recv, dtype, writable=True)
        _match(source, target, count)
        arguments = (source.address_argument, target.address_argument, size_argument(count),
                     source.dtype_argument, _operator(op))
        return arguments, recv, (source, target)

    def _alltoall(self, send: Any, recv: Optional[Given], dtype: Any) -> _Prepared[Given]:
        source = buffer(send, dtype)
        count = self._items_of_a_rank("send", source)
        if recv is None:
            recv = cast(Given, maker(send, zeroed=True)(source.shape, source.dtype))
            target = buffer(recv, source.dtype, writable=True)
        else:
            target = buffer(recv, dtype, writable=True)
        _match(source, target, source.count)
        arguments = (source.address_argument, target.address_argument, size_argument(count),
                     source.dtype_argument)
        return arguments, recv, (source, target)

    def _allgatherv(self, send: Any, counts: Any, recv: Optional[Given], displs: Any, dtype: Any) -> _Prepared[Given]:
        blocks = _Blocks("counts", counts, displs, self.size)
        if send is None:
            target = buffer(recv, dtype, writable=True)
            blocks.check("recv", target)
            own = target.address + blocks.first(self.rank) * target.itemsize
            arguments = (address_argument(own), target.address_argument, blocks.counts, blocks.displs,
                         target.dtype_argument)
            return arguments, cast(Given, recv), (target,)
        source = buffer(send, dtype)
        recv, target = _target(send, recv, source, blocks.end, dtype)
        blocks.check("recv", target)
        if source.count != blocks.counts[self.rank]:
            raise ValueError(f"send has {source.count} items, counts[{self.rank}] is "
                             f"{blocks.counts[self.rank]}")
        arguments = (source.address_argument, target.address_argument, blocks.counts, blocks.displs,
                     source.dtype_argument)
        return arguments, recv, (source, target)

    def _gatherv(self, send: Any, root: int, counts: Any, recv: Any, displs: Any,
                 dtype: Any) -> _Prepared[Any]:
        number = _root(root)
        if self.rank != root:
            source = buffer(send, dtype)
            sent = (source.address_argument, None, source.count_argument, None, None, source.dtype_argument,
                    number)
            return sent, None, (source,)
        arguments, result, keep = self._allgatherv(send, counts, recv, displs, dtype)
        own = size_argument(arguments[2][self.rank])
        return (*arguments[:2], own, *arguments[2:], number), result, keep

    def _scatterv(self, send: Any, root: int, counts: Any, recv: Optional[Given], displs: Any,
                  dtype: Any) -> _Prepared[Given]:
        number = _root(root)
        if self.rank != root:
            target = buffer(recv, dtype, writable=True)
            arguments = (None, target.address_argument, target.count_argument, None, None, target.dtype_argument,
                         number)
            return arguments, cast(Given, recv), (target,)
        blocks = _Blocks("counts", counts, displs, self.size)
        source = buffer(send, dtype, writable=recv is None)
        blocks.check("send", source)
        count = blocks.counts[self.rank]
        lengths = (size_argument(count), blocks.counts, blocks.displs, source.dtype_argument, number)
        if recv is None:
            own = source.address + blocks.first(self.rank) * source.itemsize
            return (source.address_argument, address_argument(own), *lengths), send, (source,)
        target = buffer(recv, dtype, writable=True)
        _match(source, target, count)
        return (source.address_argument, target.address_argument, *lengths), recv, (source, target)

    def _reduce_scatterv(self, send: Any, counts: Any, recv: Optional[Given], op: Union[str, int], displs: Any,
                         dtype: Any) -> _Prepared[Given]:
        blocks = _Blocks("counts", counts, displs, self.size)
        source = buffer(send, dtype)
        blocks.check("send", source)
        recv, target = _target(send, recv, source, blocks.counts[self.rank], dtype)
        _match(source, target, blocks.counts[self.rank])
        arguments = (source.address_argument, target.address_argument, blocks.counts, blocks.displs,
                     source.dtype_argument, _operator(op))
        return arguments, recv, (source, target)

    def _alltoallv(self, send: Any, sendcounts: Any, recvcounts: Any, recv: Optional[Given], senddispls: Any,
                   recvdispls: Any, dtype: Any) -> _Prepared[Given]:
        given = _Blocks("sendcounts", sendcounts, senddispls, self.size)
        gotten = _Blocks("recvcounts", recvcounts, recvdispls, self.size)
        source = buffer(send, dtype)
        given.check("send", source)
        recv, target = _target(send, recv, source, gotten.end, dtype)
        gotten.check("recv", target)
        arguments = (source.address_argument, target.address_argument, given.counts, given.displs,
                     gotten.counts, gotten.displs, source.dtype_argument)
        return arguments, recv, (source, target)

    def _items_of_a_rank(self, name: str, blocks: Buffer) -> int:
        """The items of one rank's block."""
        count, rest = divmod(blocks.count, self.size)
        if rest:
            raise ValueError(f"{name} has {blocks.count} items, no multiple of {self.size} ranks")
        return count

    # ---- how they are carried out (Comm) --------------------------------------------------------

    def _run(self, name: str, prepared: _Prepared[_Result], stream: Any) -> _Result:
        """On the stream, or to its end."""
        arguments, result, keep = prepared
        if (stream is not NO_STREAM or self._on_gpu or type(keep) is tuple) and self._on_stream(stream, keep):
            check(_ENQUEUE[name](*arguments, self._argument, address_argument(stream_address(stream))))
            return result
        if current_group.reference is not None:
            request = self._start(_BEGIN[name], arguments, result, keep)
            return result if joins_group(request) else self._finish(request)
        spare = self._spare
        request = spare.pop() if spare else Request(cast("Comm", self), None)
        running[request] = keep  # before the library has it: Ctrl-C may come with its return
        record = request._record
        begun = _BEGIN[name](*arguments, self._argument, request._argument)
        if begun < 0:
            raise self._refusal(request, begun)
        if wait_for(request._argument, SLICE, record.argument) != 0:
            self._finish(request)  # it has failed, or takes longer
            return result
        del running[request]
        self._last, request._record = record, self._last or OpInfoRecord(self.size)
        spare.append(request)
        return result

    def _on_stream(self, stream: Any, kept: tuple[Any, ...]) -> bool:
        raise NotImplementedError

    def _finish(self, request: Request) -> Any:
        raise NotImplementedError

    def _refusal(self, request: Request, code: int) -> Exception:
        raise NotImplementedError

    def _start(self, function: Any, arguments: tuple[Any, ...], result: Any, keep: tuple[Any, ...]) -> Request:
        raise NotImplementedError


class _Blocks:
    """Where the blocks of a buffer lie, as C is told: `end` is behind the last of them."""

    def __init__(self, name: str, counts: Any, displs: Any, size: int) -> None:
        self.counts = _lengths(name, counts, size)
        self.displs = None if displs is None else _lengths("displs", displs, size)
        self._name = name
        self.end = max((self.first(rank) + count for rank, count in enumerate(self.counts) if count),
                       default=0)

    def first(self, rank: int) -> int:
        """The item with which the block of `rank` begins."""
        return sum(self.counts[:rank]) if self.displs is None else self.displs[rank]

    def check(self, name: str, blocks: Buffer) -> None:
        if blocks.count < self.end:
            raise ValueError(f"{name} has {blocks.count} items, {self._name} say {self.end}")


def _lengths(name: str, values: Any, size: int) -> Any:
    numbers = [] if values is None else [int(each) for each in values]
    if len(numbers) != size or any(each < 0 or each >= 2**64 for each in numbers):
        raise ValueError(f"{name} must be {size} numbers of items, one for each rank")
    return (ctypes.c_uint64 * size)(*numbers)


def _target(send: Any, recv: Optional[Given], source: Buffer, count: int,
            dtype: Any) -> tuple[Given, Buffer]:
    """The receive buffer, or a new one of `count` items, zeroed."""
    if recv is None:
        recv = cast(Given, maker(send, zeroed=True)((count,), source.dtype))
        dtype = source.dtype
    target = buffer(recv, dtype, writable=True)
    _match(source, target, target.count)
    return recv, target


def _operator(op: Any) -> Any:
    """Enumerations of others count in their own way, also where their members are integers."""
    if type(op) is str or type(op) is int:
        argument = _OPERATORS.get(op)
        if argument is not None:
            return argument
    kind = ValueError if type(op) in (str, int) else TypeError
    raise kind(f"op is {op!r} of type {type(op).__name__}, it must be one of the words {', '.join(OPS)}")


def _root(root: Any) -> Any:
    return int32_argument(int32("root", root))


def _match(source: Buffer, target: Buffer, count: int) -> None:
    """The counts of C leave no room for two sizes or types."""
    if target.dtype != source.dtype:
        raise ValueError(f"the send buffer holds {dtype_name(source.dtype)}, the receive buffer "
                         f"{dtype_name(target.dtype)}; both must hold the same type")
    if target.count != count:
        raise ValueError(f"the receive buffer has {target.count} items, it must have {count}")
