"""The collectives of a communicator: what Comm has them from."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple, TypeVar, Union, cast, overload

import numpy

from ._arguments import OPERATORS, ROOTS, Blocks, match, operator_argument, receive_buffer, root_argument
from ._buffers import NEVER, Buffer, InPlace, buffer, in_place, is_as_before, maker, stream_address
from ._call import address_argument, bare, check, size_argument
from ._collectives import COLLECTIVES
from ._group import current_group, joins_group
from ._habits import HabitCalls, buffers_by_name, habit_of, only, only_with_op, with_other_names
from ._types import BufferLike, Counts, Given, Number, Numbers
from .errors import MismatchError
from .request import SLICE, OpInfoRecord, Request, running, wait_for

if TYPE_CHECKING:
    from .comm import Comm

_ENQUEUE = {name.removeprefix("mep_"): bare(name) for name in COLLECTIVES if not name.startswith("mep_i")}
# The calls for blocks of different lengths.
_COUNTED = {"gather": "gatherv(send, root, counts)", "allgather": "allgatherv(send)"}
_BEGIN = {name: bare("mep_i" + name) for name in _ENQUEUE}
_BEGIN_BROADCAST, _BEGIN_ALLREDUCE = _BEGIN["broadcast"], _BEGIN["allreduce"]
NO_STREAM = 0
_NULL = address_argument(0)
_Result = TypeVar("_Result")
_Prepared = Tuple[Tuple[Any, ...], _Result, Any]  # arguments of C, the result, what must live as long as the operation


@with_other_names
class CollectiveCalls(HabitCalls):
    """With `i` before the name: at once, with a request. On a communicator with a GPU calls are enqueued on `stream`, and a
    request ends when the operation has ended there. `out` is another name of `recv`."""

    _argument: Any  # the communicator, for C
    _on_gpu: bool  # all its calls are enqueued
    _last: Optional[OpInfoRecord]
    _spare: List[Request]  # of blocking calls that have ended well, for the next ones
    _last_broadcast: InPlace = NEVER
    _last_allreduce: InPlace = NEVER
    rank: int
    size: int

    def barrier(self, *, stream: Any = NO_STREAM) -> None:
        """Returns after every live rank has entered."""
        self._run("barrier", ((), None, ()), stream)

    def ibarrier(self, *, stream: Any = NO_STREAM) -> Request:
        """Begins a barrier; the request's wait() returns after every live rank has entered."""
        return self._start(_BEGIN["barrier"], (), None, (), stream)

    @overload
    def broadcast(self, buf: Given, root: int = 0, recv: None = None, *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    @overload
    def broadcast(self, buf: BufferLike, root: int, recv: Given, *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    @overload
    def broadcast(self, buf: BufferLike, root: int = 0, *, recv: Given, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    @overload
    def broadcast(self, buf: BufferLike, root: int = 0, *, out: Given, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    def broadcast(self, buf: BufferLike, root: int = 0, recv: Optional[BufferLike] = None, *, out: Any = None,
                  dtype: Any = None, stream: Any = NO_STREAM) -> Any:
        """recv on every rank = buf of root; without recv, buf is both. Returns the receive buffer."""
        if recv is None and out is None and dtype is None and stream is NO_STREAM and not self._on_gpu:
            last = self._last_broadcast
            if last[0] == id(buf) and last[1] is root and is_as_before(buf, last):
                return self._at_once(_BEGIN_BROADCAST, last[2], buf, buf)
            word = ROOTS.get(root) if type(root) is int else None
            if word is not None and (found := in_place(buf, root, word)) is not None:
                self._last_broadcast = found
                return self._at_once(_BEGIN_BROADCAST, found[2], buf, buf)
        if out is not None:
            recv = only(recv, out)
        try:
            prepared = self._broadcast(buf, root, recv, dtype)
        except (TypeError, ValueError) as problem:
            habit = self._habit("broadcast", self._broadcast, (buf, root, recv, dtype), stream, problem)
        else:
            return self._run("broadcast", prepared, stream)
        return habit()

    def ibroadcast(self, buf: BufferLike, root: int = 0, recv: Optional[BufferLike] = None, *, out: Any = None,
                   dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins broadcast; the request's wait() gives what broadcast returns."""
        if out is not None:
            recv = only(recv, out)
        return self._start(_BEGIN["broadcast"], *self._broadcast(buf, root, recv, dtype), stream)

    def allgather(self, send: Any, recv: Optional[Given] = None, *, out: Any = None, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given:
        """recv[r] = send of rank r; recv has size times the items of send. Without recv a new array
        [size, *send.shape] of the kind of send (NumPy, ml_dtypes or PyTorch), as of all calls that make
        one. Blocks of absent ranks stay as they are; in a new array they are zero, in a new tensor on a GPU
        undefined. send None: this rank's block of recv is the input. Objects that are no buffers travel as of bcast, and
        each rank gets a list, with None of absent ranks."""
        if out is not None:
            recv = only(recv, out)
        result: Given = self._do("allgather", self._allgather, (send, recv, dtype), stream)
        return result

    def iallgather(self, send: Optional[BufferLike], recv: Optional[BufferLike] = None, *, out: Any = None,
                   dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins allgather; the request's wait() gives what allgather returns."""
        if out is not None:
            recv = only(recv, out)
        return self._start(_BEGIN["allgather"], *self._allgather(send, recv, dtype), stream)

    @overload
    def allreduce(self, send: Given, recv: Optional[str] = None, op: Union[str, int] = "sum", *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    @overload
    def allreduce(self, send: BufferLike, recv: Given, op: Union[str, int] = "sum", *, dtype: Any = None,
                  stream: Any = NO_STREAM) -> Given: ...

    @overload
    def allreduce(self, send: BufferLike, recv: Optional[str] = None, op: Union[str, int] = "sum", *, out: Given,
                  dtype: Any = None, stream: Any = NO_STREAM) -> Given: ...

    @overload
    def allreduce(self, send: Number, recv: Optional[str] = None, op: Union[str, int] = "sum") -> Number: ...

    @overload
    def allreduce(self, send: Numbers, recv: Optional[str] = None, op: Union[str, int] = "sum") -> numpy.ndarray: ...

    def allreduce(self, send: Any = None, recv: Any = None, op: Union[str, int] = "sum", *, out: Any = None,
                  dtype: Any = None, stream: Any = NO_STREAM, **names: Any) -> Any:
        """recv = op over the live ranks' send, item by item; without recv in place. op: sum, prod,
        min, max, avg, and, or, xor. Returns the receive buffer. A number gives a number, and a list or tuple of them an
        array: int64, float64 or complex128, so all ranks give numbers of one kind."""
        if recv is None and out is None and dtype is None and stream is NO_STREAM and not names and not self._on_gpu:
            last = self._last_allreduce
            if last[0] == id(send) and last[1] is op and is_as_before(send, last):
                return self._at_once(_BEGIN_ALLREDUCE, last[2], send, send)
            word = OPERATORS.get(op) if type(op) is str else None
            if word is not None and (found := in_place(send, op, word)) is not None:
                self._last_allreduce = found
                return self._at_once(_BEGIN_ALLREDUCE, found[2], send, send)
        if names:
            send, recv = buffers_by_name("allreduce", send, recv, names)
        if out is not None:
            recv, op = only_with_op(recv, out, op)
        try:
            prepared = self._allreduce(send, recv, op, dtype)
        except (TypeError, ValueError) as problem:
            habit = self._habit("allreduce", self._allreduce, (send, recv, op, dtype), stream, problem)
        else:
            return self._run("allreduce", prepared, stream)
        return habit()

    def iallreduce(self, send: BufferLike, recv: Optional[BufferLike] = None, op: Union[str, int] = "sum", *,
                   out: Any = None, dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins allreduce; the request's wait() gives what allreduce returns."""
        if out is not None:
            recv, op = only_with_op(recv, out, op)
        return self._start(_BEGIN["allreduce"], *self._allreduce(send, recv, op, dtype), stream)

    def reduce(self, send: Any, root: Union[int, str] = 0, recv: Any = None, op: Union[str, int] = "sum",
               *, out: Any = None, dtype: Any = None, stream: Any = NO_STREAM) -> Any:
        """recv of root = op over the live ranks' send; without recv in place there. Returns the receive
        buffer of root, elsewhere None. Numbers, lists and tuples: as of allreduce."""
        if out is not None:
            recv, op = only_with_op(recv, out, op)
        return self._do("reduce", self._reduce, (send, root, recv, op, dtype), stream)

    def ireduce(self, send: BufferLike, root: int = 0, recv: Optional[BufferLike] = None, op: Union[str, int] = "sum",
                *, out: Any = None, dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins reduce; the request's wait() gives what reduce returns."""
        if out is not None:
            recv, op = only_with_op(recv, out, op)
        return self._start(_BEGIN["reduce"], *self._reduce(send, root, recv, op, dtype), stream)

    def gather(self, send: Any, root: int = 0, recv: Optional[BufferLike] = None, *, out: Any = None,
               dtype: Any = None, stream: Any = NO_STREAM) -> Any:
        """recv[r] of root = send of rank r; root may leave recv and send away as in allgather. Blocks of absent
        ranks: as of allgather. Returns the receive buffer of root, elsewhere None. Objects that are no buffers travel as of
        bcast, and root gets a list."""
        if out is not None:
            recv = only(recv, out)
        return self._do("gather", self._gather, (send, root, recv, dtype), stream)

    def igather(self, send: Optional[BufferLike], root: int = 0, recv: Optional[BufferLike] = None, *, out: Any = None,
                dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins gather; the request's wait() gives what gather returns."""
        if out is not None:
            recv = only(recv, out)
        return self._start(_BEGIN["gather"], *self._gather(send, root, recv, dtype), stream)

    def scatter(self, send: Any, root: int = 0, recv: Optional[Given] = None, *, out: Any = None,
                dtype: Any = None, stream: Any = NO_STREAM) -> Given:
        """recv of rank r = block r of root's send, which has size times the items of recv and may be None
        elsewhere. Without recv root's block stays in send. Returns the receive buffer. A list of size objects of root's
        travels as of bcast, and each rank gets its own; recv is then left out."""
        if out is not None:
            recv = only(recv, out)
        result: Given = self._do("scatter", self._scatter, (send, root, recv, dtype), stream)
        return result

    def iscatter(self, send: Optional[BufferLike], root: int = 0, recv: Optional[BufferLike] = None, *, out: Any = None,
                 dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins scatter; the request's wait() gives what scatter returns."""
        if out is not None:
            recv = only(recv, out)
        return self._start(_BEGIN["scatter"], *self._scatter(send, root, recv, dtype), stream)

    def reduce_scatter(self, send: BufferLike, recv: Optional[Given] = None, op: Union[str, int] = "sum", *,
                       out: Any = None, dtype: Any = None, stream: Any = NO_STREAM) -> Given:
        """recv of rank r = op over the live ranks' block r of send, which has size times the items of recv.
        Without recv a new array, of the shape of send[r] if send has size rows. recv may be this
        rank's block of send. Returns the receive buffer."""
        if out is not None:
            recv, op = only_with_op(recv, out, op)
        result: Given = self._do("reduce_scatter", self._reduce_scatter, (send, recv, op, dtype), stream)
        return result

    def ireduce_scatter(self, send: BufferLike, recv: Optional[BufferLike] = None, op: Union[str, int] = "sum", *,
                        out: Any = None, dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins reduce_scatter; the request's wait() gives what reduce_scatter returns."""
        if out is not None:
            recv, op = only_with_op(recv, out, op)
        return self._start(_BEGIN["reduce_scatter"], *self._reduce_scatter(send, recv, op, dtype), stream)

    def alltoall(self, send: Any, recv: Optional[Given] = None, *, out: Any = None, dtype: Any = None,
                 stream: Any = NO_STREAM) -> Given:
        """Block s of recv = this rank's block of send of rank s. Both have size blocks; without recv a new
        array of the shape of send. Blocks of absent ranks: as of allgather. Returns the receive buffer. A list of size
        objects travels as of bcast, and gives a list."""
        if out is not None:
            recv = only(recv, out)
        result: Given = self._do("alltoall", self._alltoall, (send, recv, dtype), stream)
        return result

    def ialltoall(self, send: BufferLike, recv: Optional[BufferLike] = None, *, out: Any = None,
                  dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins alltoall; the request's wait() gives what alltoall returns."""
        if out is not None:
            recv = only(recv, out)
        return self._start(_BEGIN["alltoall"], *self._alltoall(send, recv, dtype), stream)

    def allgatherv(self, send: Optional[BufferLike], counts: Optional[Counts] = None,
                   recv: Optional[Given] = None, displs: Optional[Counts] = None, *, out: Any = None,
                   dtype: Any = None, stream: Any = NO_STREAM) -> Given:
        """The counts[r] items of recv from displs[r] on = send of rank r. Without displs the blocks lie one
        behind the other, without recv in a new array. Blocks of absent ranks, and what lies between the blocks of
        a new array: as of allgather. send None: this rank's block of recv is the input. Without counts the ranks
        exchange the numbers of their items first."""
        if out is not None:
            recv = only(recv, out)
        result: Given = self._do("allgatherv", self._allgatherv, (send, counts, recv, displs, dtype), stream)
        return result

    def iallgatherv(self, send: Optional[BufferLike], counts: Counts, recv: Optional[BufferLike] = None,
                    displs: Optional[Counts] = None, *, out: Any = None, dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins allgatherv; the request's wait() gives what allgatherv returns."""
        if out is not None:
            recv = only(recv, out)
        return self._start(_BEGIN["allgatherv"], *self._allgatherv(send, counts, recv, displs, dtype), stream)

    def gatherv(self, send: Optional[BufferLike], root: int = 0, counts: Optional[Counts] = None,
                recv: Optional[BufferLike] = None, displs: Optional[Counts] = None, *, out: Any = None,
                dtype: Any = None, stream: Any = NO_STREAM) -> Any:
        """Like allgatherv for root, which alone gives counts. Returns its receive buffer, elsewhere None."""
        if out is not None:
            recv = only(recv, out)
        return self._do("gatherv", self._gatherv, (send, root, counts, recv, displs, dtype), stream)

    def igatherv(self, send: Optional[BufferLike], root: int = 0, counts: Optional[Counts] = None,
                 recv: Optional[BufferLike] = None, displs: Optional[Counts] = None, *, out: Any = None,
                 dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins gatherv; the request's wait() gives what gatherv returns."""
        if out is not None:
            recv = only(recv, out)
        return self._start(_BEGIN["gatherv"],
                           *self._gatherv(send, root, counts, recv, displs, dtype), stream)

    def scatterv(self, send: Optional[BufferLike], root: int = 0, counts: Optional[Counts] = None,
                 recv: Optional[Given] = None, displs: Optional[Counts] = None, *, out: Any = None, dtype: Any = None,
                 stream: Any = NO_STREAM) -> Given:
        """recv of rank r = the counts[r] items of root's send from displs[r] on; root alone gives counts.
        Without recv root's block stays in send. Returns the receive buffer."""
        if out is not None:
            recv = only(recv, out)
        result: Given = self._do("scatterv", self._scatterv, (send, root, counts, recv, displs, dtype), stream)
        return result

    def iscatterv(self, send: Optional[BufferLike], root: int = 0, counts: Optional[Counts] = None,
                  recv: Optional[BufferLike] = None, displs: Optional[Counts] = None, *, out: Any = None,
                  dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins scatterv; the request's wait() gives what scatterv returns."""
        if out is not None:
            recv = only(recv, out)
        return self._start(_BEGIN["scatterv"],
                           *self._scatterv(send, root, counts, recv, displs, dtype), stream)

    def reduce_scatterv(self, send: BufferLike, counts: Counts, recv: Optional[Given] = None,
                        op: Union[str, int] = "sum", displs: Optional[Counts] = None, *, out: Any = None,
                        dtype: Any = None, stream: Any = NO_STREAM) -> Given:
        """recv of rank r = op over the live ranks' counts[r] items of send from displs[r] on. Without recv a
        new array. recv may be this rank's block of send. Returns the receive buffer."""
        if out is not None:
            recv, op = only_with_op(recv, out, op)
        result: Given = self._do("reduce_scatterv", self._reduce_scatterv, (send, counts, recv, op, displs, dtype), stream)
        return result

    def ireduce_scatterv(self, send: BufferLike, counts: Counts, recv: Optional[BufferLike] = None,
                         op: Union[str, int] = "sum", displs: Optional[Counts] = None, *, out: Any = None,
                         dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins reduce_scatterv; the request's wait() gives what reduce_scatterv returns."""
        if out is not None:
            recv, op = only_with_op(recv, out, op)
        return self._start(_BEGIN["reduce_scatterv"],
                           *self._reduce_scatterv(send, counts, recv, op, displs, dtype), stream)

    def alltoallv(self, send: BufferLike, sendcounts: Counts, recvcounts: Counts, recv: Optional[Given] = None,
                  senddispls: Optional[Counts] = None, recvdispls: Optional[Counts] = None, *, out: Any = None,
                  dtype: Any = None, stream: Any = NO_STREAM) -> Given:
        """The recvcounts[s] items of recv from recvdispls[s] on = this rank's sendcounts[rank] items of send of
        rank s. Without recv a new array. Blocks of absent ranks, and what lies between the blocks of a new
        array: as of allgather. Returns the receive buffer."""
        if out is not None:
            recv = only(recv, out)
        result: Given = self._do("alltoallv", self._alltoallv, (send, sendcounts, recvcounts, recv, senddispls,
                                                      recvdispls, dtype), stream)
        return result

    def ialltoallv(self, send: BufferLike, sendcounts: Counts, recvcounts: Counts, recv: Optional[BufferLike] = None,
                   senddispls: Optional[Counts] = None, recvdispls: Optional[Counts] = None, *, out: Any = None,
                   dtype: Any = None, stream: Any = NO_STREAM) -> Request:
        """Begins alltoallv; the request's wait() gives what alltoallv returns."""
        if out is not None:
            recv = only(recv, out)
        return self._start(_BEGIN["alltoallv"], *self._alltoallv(send, sendcounts, recvcounts, recv,
                                                                senddispls, recvdispls, dtype), stream)

    # ---- arguments of C, the result, and what must live as long as the operation: a NumPy array of the host that can
    # be used as it is, or Buffers in a tuple ------------------------------------------------------

    def _broadcast(self, buf: Any, root: int, recv: Any, dtype: Any) -> _Prepared[Any]:
        if recv is None and dtype is None and (found := in_place(buf, root, root_argument(root))) is not None:
            return found[2], buf, buf
        result = buf if recv is None else recv
        target = buffer(result, dtype, writable=True)
        source = target if recv is None else buffer(buf, dtype)
        match(source, target, target.count)
        arguments = (source.address_argument, target.address_argument, target.count_argument,
                     target.dtype_argument, root_argument(root))
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
        match(source, target, source.count * self.size)
        arguments = (source.address_argument, target.address_argument, source.count_argument,
                     source.dtype_argument)
        return arguments, recv, (source, target)

    def _allreduce(self, send: Any, recv: Any, op: Union[str, int], dtype: Any) -> _Prepared[Any]:
        if recv is None and dtype is None and (found := in_place(send, op, operator_argument(op))) is not None:
            return found[2], send, send
        result = send if recv is None else recv
        target = buffer(result, dtype, writable=True)
        source = target if recv is None else buffer(send, dtype)
        match(source, target, source.count)
        arguments = (source.address_argument, target.address_argument, source.count_argument,
                     source.dtype_argument, operator_argument(op))
        return arguments, result, (source, target)

    def _reduce(self, send: Any, root: int, recv: Any, op: Union[str, int], dtype: Any) -> _Prepared[Any]:
        number = root_argument(root)
        if self.rank == root:
            arguments, result, keep = self._allreduce(send, recv, op, dtype)
            return (*arguments, number), result, keep
        source = buffer(send, dtype)
        arguments = (source.address_argument, None, source.count_argument, source.dtype_argument,
                     operator_argument(op), number)
        return arguments, None, (source,)

    def _gather(self, send: Any, root: int, recv: Any, dtype: Any) -> _Prepared[Any]:
        number = root_argument(root)
        if self.rank == root:
            arguments, result, keep = self._allgather(send, recv, dtype)
            return (*arguments, number), result, keep
        source = buffer(send, dtype)
        arguments = (source.address_argument, None, source.count_argument, source.dtype_argument, number)
        return arguments, None, (source,)

    def _scatter(self, send: Any, root: int, recv: Optional[Given], dtype: Any) -> _Prepared[Given]:
        number = root_argument(root)
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
        match(source, target, count)
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
        match(source, target, count)
        arguments = (source.address_argument, target.address_argument, size_argument(count),
                     source.dtype_argument, operator_argument(op))
        return arguments, recv, (source, target)

    def _alltoall(self, send: Any, recv: Optional[Given], dtype: Any) -> _Prepared[Given]:
        source = buffer(send, dtype)
        count = self._items_of_a_rank("send", source)
        if recv is None:
            recv = cast(Given, maker(send, zeroed=True)(source.shape, source.dtype))
            target = buffer(recv, source.dtype, writable=True)
        else:
            target = buffer(recv, dtype, writable=True)
        match(source, target, source.count)
        arguments = (source.address_argument, target.address_argument, size_argument(count),
                     source.dtype_argument)
        return arguments, recv, (source, target)

    def _allgatherv(self, send: Any, counts: Any, recv: Optional[Given], displs: Any, dtype: Any) -> _Prepared[Given]:
        blocks = Blocks("counts", counts, displs, self.size)
        if send is None:
            target = buffer(recv, dtype, writable=True)
            blocks.check("recv", target)
            own = target.address + blocks.first(self.rank) * target.itemsize
            arguments = (address_argument(own), target.address_argument, blocks.counts, blocks.displs,
                         target.dtype_argument)
            return arguments, cast(Given, recv), (target,)
        source = buffer(send, dtype)
        recv, target = receive_buffer(send, recv, source, blocks.end, dtype)
        blocks.check("recv", target)
        if source.count != blocks.counts[self.rank]:
            raise ValueError(f"send has {source.count} items, counts[{self.rank}] is "
                             f"{blocks.counts[self.rank]}")
        arguments = (source.address_argument, target.address_argument, blocks.counts, blocks.displs,
                     source.dtype_argument)
        return arguments, recv, (source, target)

    def _gatherv(self, send: Any, root: int, counts: Any, recv: Any, displs: Any,
                 dtype: Any) -> _Prepared[Any]:
        number = root_argument(root)
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
        number = root_argument(root)
        if self.rank != root:
            target = buffer(recv, dtype, writable=True)
            arguments = (None, target.address_argument, target.count_argument, None, None, target.dtype_argument,
                         number)
            return arguments, cast(Given, recv), (target,)
        blocks = Blocks("counts", counts, displs, self.size)
        source = buffer(send, dtype, writable=recv is None)
        blocks.check("send", source)
        count = blocks.counts[self.rank]
        lengths = (size_argument(count), blocks.counts, blocks.displs, source.dtype_argument, number)
        if recv is None:
            own = source.address + blocks.first(self.rank) * source.itemsize
            return (source.address_argument, address_argument(own), *lengths), send, (source,)
        target = buffer(recv, dtype, writable=True)
        match(source, target, count)
        return (source.address_argument, target.address_argument, *lengths), recv, (source, target)

    def _reduce_scatterv(self, send: Any, counts: Any, recv: Optional[Given], op: Union[str, int], displs: Any,
                         dtype: Any) -> _Prepared[Given]:
        blocks = Blocks("counts", counts, displs, self.size)
        source = buffer(send, dtype)
        blocks.check("send", source)
        recv, target = receive_buffer(send, recv, source, blocks.counts[self.rank], dtype)
        match(source, target, blocks.counts[self.rank])
        arguments = (source.address_argument, target.address_argument, blocks.counts, blocks.displs,
                     source.dtype_argument, operator_argument(op))
        return arguments, recv, (source, target)

    def _alltoallv(self, send: Any, sendcounts: Any, recvcounts: Any, recv: Optional[Given], senddispls: Any,
                   recvdispls: Any, dtype: Any) -> _Prepared[Given]:
        given = Blocks("sendcounts", sendcounts, senddispls, self.size)
        gotten = Blocks("recvcounts", recvcounts, recvdispls, self.size)
        source = buffer(send, dtype)
        given.check("send", source)
        recv, target = receive_buffer(send, recv, source, gotten.end, dtype)
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

    def _do(self, name: str, prepare: Callable[..., _Prepared[_Result]], given: tuple[Any, ...], stream: Any) -> _Result:
        try:
            prepared = prepare(*given)
        except (TypeError, ValueError) as problem:
            habit = self._habit(name, prepare, given, stream, problem)
        else:
            try:
                return self._run(name, prepared, stream)
            except MismatchError as mismatch:
                # Both calls are in the text.
                if name in _COUNTED and mismatch.text.count(f"mep_{name} of ") == 2:
                    mismatch.advise(f"blocks of different lengths: comm.{_COUNTED[name]}")
                raise
        return cast(_Result, habit())

    def _habit(self, name: str, prepare: Any, given: tuple[Any, ...], stream: Any, problem: Exception) -> Callable[[], Any]:
        """Called while `problem` is handled, which goes on where the call stands for no other."""
        names = prepare.__code__.co_varnames[1:]
        habit = habit_of(cast("Comm", self), name, prepare, dict(zip(names, given)), stream, problem)
        if habit is None:
            del problem  # its traceback has this frame
            raise
        return habit

    def _run(self, name: str, prepared: _Prepared[_Result], stream: Any) -> _Result:
        """On the stream, or to its end."""
        arguments, result, keep = prepared
        if (stream is not NO_STREAM or self._on_gpu or type(keep) is tuple) and self._on_stream(stream, keep):
            check(_ENQUEUE[name](*arguments, self._argument, address_argument(stream_address(stream))))
            return result
        return self._at_once(_BEGIN[name], arguments, result, keep)

    def _at_once(self, function: Callable[..., int], arguments: tuple[Any, ...], result: _Result, keep: Any) -> _Result:
        """On a host, outside streams."""
        if current_group.reference is not None:
            request = self._start(function, arguments, result, keep)
            return result if joins_group(request) else self._finish(request)
        spare = self._spare
        request = spare.pop() if spare else Request(cast("Comm", self), None)
        running[request] = keep  # before the library has it: Ctrl-C may come with its return
        record, argument = request._record, request._argument
        begun = function(*arguments, self._argument, _NULL, argument)
        if begun < 0:
            raise self._refusal(request, begun)
        if wait_for(argument, SLICE, request._done_argument, record.argument) != 0 or not request._done:
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

    def _start(self, function: Any, arguments: tuple[Any, ...], result: Any, keep: tuple[Any, ...],
               stream: Any = NO_STREAM) -> Request:
        raise NotImplementedError
