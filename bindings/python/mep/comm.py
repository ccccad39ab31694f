"""Communicators, collectives and membership."""
from __future__ import annotations

import ctypes
import enum
import math
import os
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

import numpy

from . import _abi
from ._buffers import Memory, array_at, buffer, dtype_number, numpy_dtype, stream_address
from ._call import SLICE_MS, Calls, Closed, Unique, address_argument, blocking, check, last_error, lib, milliseconds
from ._collective_calls import NO_STREAM, CollectiveCalls
from ._comm_records import CommInfo, CommStats, Reach
from ._device import DeviceArray
from ._group import joins_group
from ._message_calls import MessageCalls
from ._types import BufferLike
from .errors import Error, TimeoutError, error
from .request import OpInfo, OpInfoRecord, Request, running, waitall

QUORUMS = {"majority": _abi.MEP_QUORUM_MAJORITY, "witness": _abi.MEP_QUORUM_WITNESS}
FLAGS = {"auto_recover": _abi.MEP_COMM_AUTO_RECOVER, "progress_thread": _abi.MEP_COMM_PROGRESS_THREAD}


class PeerState(enum.IntEnum):
    ALIVE = _abi.MEP_PEER_ALIVE
    SLOW = _abi.MEP_PEER_SLOW
    SUSPECT = _abi.MEP_PEER_SUSPECT
    DEAD = _abi.MEP_PEER_DEAD
    LEFT = _abi.MEP_PEER_LEFT
    EXCLUDED = _abi.MEP_PEER_EXCLUDED


class View(NamedTuple):
    """The members of a communicator, by rank."""

    epoch: int
    world_epoch: int
    size: int
    live: int
    slots: List[int]
    incarnations: List[int]
    states: List[PeerState]


class Config:
    """The keyword arguments of init, init_all and join as a mep_comm_config_t."""

    def __init__(self, **options: Any):
        self.struct = _abi.mep_comm_config_t()
        lib.mep_struct_init(ctypes.byref(self.struct), ctypes.sizeof(self.struct))
        self._keep: list[Any] = []
        for name, value in options.items():
            if value is not None:
                self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        if name in FLAGS:
            if value:
                self.struct.flags |= FLAGS[name]
        elif name in ("job", "rendezvous", "transports", "secret_file"):
            setattr(self.struct, name, os.fsencode(value))
        elif name == "quorum":
            if isinstance(value, str) and value not in QUORUMS:
                raise ValueError(f"quorum is {value!r}, it must be one of {', '.join(QUORUMS)}")
            self.struct.quorum = QUORUMS[value] if isinstance(value, str) else value
        elif name == "store":
            self.struct.store = ctypes.pointer(self._store(value))
        elif name in ("size", "max_size", "timeout_ms", "init_timeout_ms", "heartbeat_ms",
                      "suspect_ms", "num_sms"):
            setattr(self.struct, name, value)
        elif name == "rank":
            self.struct.rank = value
            self.struct.flags |= _abi.MEP_COMM_SET_RANK
        elif name == "device":
            if value == "by_rank":
                self.struct.device_type = _abi.MEP_DEVICE_CUDA_BY_RANK
            else:
                self.struct.device_type, self.struct.device = _abi.MEP_DEVICE_CUDA, value
        else:
            raise TypeError(f"unknown option {name!r}")

    def _store(self, store: Any) -> _abi.mep_store_t:
        def put(_user: Any, key: bytes, value: int, size: int) -> int:
            try:
                store.put(key.decode(), ctypes.string_at(value, size))
                return 0
            except Exception:
                return 1

        def get(_user: Any, key: bytes, value: int, capacity: int, size: Any, limit: int) -> int:
            try:
                data = bytes(store.get(key.decode(), limit / 1000))
            except Exception:
                return 1
            if len(data) > capacity:
                return 1
            ctypes.memmove(value, data, len(data))
            size[0] = len(data)
            return 0

        struct = _abi.mep_store_t()
        lib.mep_struct_init(ctypes.byref(struct), ctypes.sizeof(struct))
        struct.put, struct.get = _abi.mep_store_put_t(put), _abi.mep_store_get_t(get)
        self._keep.append(struct)
        return struct


def init(**options: Any) -> "Comm":
    """Joins the job's world: a communicator of all its ranks. Collective; blocks.

    Without arguments rank and size come from mep_run, mpirun, Slurm or torchrun, and a program started
    alone is a world of one. Options have the names of mep_comm_config_t (rank, size, max_size, device,
    timeout_ms, init_timeout_ms, job, rendezvous, transports, secret_file, quorum, heartbeat_ms,
    suspect_ms, num_sms), the flags are booleans (auto_recover, progress_thread). store: an object with put(key: str, value: bytes)
    and get(key: str, timeout: float) -> bytes, which waits for the key.
    """
    config, address = Config(**options), _abi.mep_comm_t()
    blocking(lib.mep_comm_init, ctypes.byref(config.struct), ctypes.byref(address),
             undo=lambda: _leave_unused(address))
    return Comm(address.value)


def _leave_unused(*addresses: Any) -> None:
    """Ctrl-C came while they were made: nobody has them."""
    for address in addresses:
        lib.mep_comm_destroy(address)


def init_all(count: int, **options: Any) -> "List[Comm]":
    """A world of `count` ranks inside this process; each communicator is for one thread."""
    config, addresses = Config(**options), (_abi.mep_comm_t * max(count, 1))()
    blocking(lib.mep_comm_init_all, count, ctypes.byref(config.struct), addresses,
             undo=lambda: _leave_unused(*addresses))
    return [Comm(address) for address in addresses]


def join(**options: Any) -> "Comm":
    """The joiner's side of recover_ranks and grow: joins the running job `job`. Options as init."""
    config, address = Config(**options), _abi.mep_comm_t()
    blocking(lib.mep_comm_join, ctypes.byref(config.struct), ctypes.byref(address),
             undo=lambda: _leave_unused(address))
    return Comm(address.value)


class Comm(CollectiveCalls, MessageCalls, Unique):
    """A communicator. Made by init, init_all, join, split, dup, grow or attach; closed by close() or `with`.

    Buffers are NumPy arrays or anything with __array_interface__, DLPack or the buffer protocol,
    contiguous and in this machine's byte order; these are never copied. dtype= names what the items are where the object cannot
    say it: a uint16 array that holds "bfloat16", a uint8 array that holds "float8_e4m3". Times in seconds.
    Blocking collectives of host communicators, outside mep.group(), also take NumPy arrays with strides, which they copy, and
    complex ones, with the operators sum and avg; numbers and lists of them in allreduce, reduce, scan and exscan; and any
    object in bcast, gather, allgather, scatter and alltoall. All ranks give the same kind: else all get an error. The operator
    may stand in the place of recv.
    Leaving a `with` block by an exception aborts: the other ranks then see this rank fail.

    With device= at its making (a number, or "by_rank": GPUs are dealt to the ranks) it is a
    communicator on the GPU `device`: buffers there are CuPy arrays, PyTorch
    tensors or anything with __cuda_array_interface__ or DLPack, collectives are enqueued on stream=
    (a number or a stream object of CuPy, PyTorch or cuda.core) and return at once, also inside the
    capture of a CUDA graph. The caller keeps the arrays alive until the stream has run them;
    async_result() raises the first failure.
    """

    _address: Any = Closed("communicator")
    _argument: Any = Closed("communicator")

    def __init__(self, address: Optional[int], world: "Optional[Comm]" = None):
        self._address = address
        self._calls = Calls() if world is None else world._calls
        self._world = world  # keeps the world open as long as its sub-communicators are in use
        # by address, of mem_alloc()
        self._allocated: "dict[Optional[int], Memory]" = {} if world is None else world._allocated
        self._parts: list[Any] = []  # EP objects and split communicators, closed before this one
        self._argument = address_argument(address)
        self._spare: List[Request] = []  # requests of blocking calls that have ended
        self._callback: "Optional[_ViewCallback]" = None
        self._last: Optional[OpInfoRecord] = None
        self.rank: int = self._number(lib.mep_comm_rank, ctypes.c_int32)
        self.size: int = self._number(lib.mep_comm_size, ctypes.c_int32)
        kind, number = ctypes.c_uint32(), ctypes.c_int32()
        check(lib.mep_comm_device(address, ctypes.byref(kind), ctypes.byref(number)))
        self._on_gpu = kind.value != _abi.MEP_DEVICE_HOST
        self.device: Optional[int] = number.value if self._on_gpu else None  # CUDA's number; None: host
        if world is not None:
            world._parts.append(self)

    def _number(self, function: Any, kind: Any) -> int:
        value = kind()
        check(function(self._address, ctypes.byref(value)))
        number: int = value.value
        return number

    def __repr__(self) -> str:
        if self._is_closed():
            return "<mep.Comm closed>"
        return f"<mep.Comm rank {self.rank} of {self.size}>"

    def __enter__(self) -> "Comm":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
            return
        try:  # the exception that is under way matters more than what goes wrong here
            self.abort(f"{kind.__name__}: {value}")
        except Error:
            pass
        try:
            self.close()
        except Error:
            pass

    def _is_closed(self) -> bool:
        return "_address" not in self.__dict__

    def close(self) -> None:
        """Leaves in order, after the operations of this rank have been finished, also those that Ctrl-C has
        left running. Idempotent."""
        if self._is_closed():
            return
        self._calls.wait()
        try:
            waitall([each for each in list(running) if each._comm is self])
        except Error:
            pass
        for part in reversed(list(self._parts)):
            part.close()
        if self._callback is not None:
            self.set_view_callback(None)
        # One of several threads gets it.
        address = self.__dict__.pop("_address", None)
        if address is None:
            return
        self.__dict__.pop("_argument", None)
        self._spare.clear()
        try:
            # After Ctrl-C it goes on in the background and must not be destroyed again.
            blocking(lib.mep_comm_destroy, address, calls=self._calls)
        except Error:
            self._address, self._argument = address, address_argument(address)
            raise
        finally:
            if self._is_closed() and self._world is not None:
                self._world._parts.remove(self)

    # ---- about the communicator -----------------------------------------------------------------

    @property
    def live(self) -> int:
        """Ranks in the present view."""
        return self._number(lib.mep_comm_live_count, ctypes.c_int32)

    @property
    def epoch(self) -> int:
        """1 at first; grows whenever members leave or come."""
        return self._number(lib.mep_comm_epoch, ctypes.c_uint64)

    @property
    def name(self) -> str:
        """The communicator's name, in the library's messages."""
        text = ctypes.c_char_p()
        check(lib.mep_comm_name(self._address, ctypes.byref(text)))
        return (text.value or b"").decode("utf-8", "replace")

    @name.setter
    def name(self, name: str) -> None:
        check(lib.mep_comm_set_name(self._address, name.encode()))

    def set_timeout(self, timeout: float) -> None:
        """The timeout of later operations in seconds, more than 0; less than a millisecond counts as one."""
        if timeout is None or not timeout > 0:
            raise error(_abi.MEP_ERR_INVALID_ARGUMENT,
                        f"timeout is {timeout!r}; give the longest wait in seconds, such as 30")
        check(lib.mep_comm_set_timeout(self._address, max(milliseconds(timeout), 1)))

    def transport(self, rank: int) -> str:
        """How a rank is reached, for people."""
        if not 0 <= rank < self.size:
            raise error(_abi.MEP_ERR_INVALID_ARGUMENT, f"rank {rank} is no rank of a communicator of {self.size} ranks")
        return self.query().transports[rank]

    def last_op(self) -> OpInfo:
        """About the last blocking operation that this rank finished."""
        if self._last is not None:
            return self._last.info()
        record = OpInfoRecord(self.size)
        check(lib.mep_comm_last_op(self._address, record.reference))
        return record.info()

    def query(self) -> CommInfo:
        """The values in force here, the limits, and how each rank is reached. Local, any thread."""
        reach = (ctypes.c_uint32 * self.size)()
        info = _abi.mep_comm_info_t()
        lib.mep_struct_init(ctypes.byref(info), ctypes.sizeof(info))
        names = (ctypes.c_char_p * self.size)()
        info.capacity, info.reach, info.transports = self.size, ctypes.addressof(reach), ctypes.addressof(names)
        check(lib.mep_comm_query(self._address, ctypes.byref(info)))
        made: Dict[str, Any] = {"device": self.device, "reach": [Reach(each) for each in reach],
                                "transports": [(each or b"").decode() for each in names]}
        return CommInfo._make(made.get(name, getattr(info, name)) for name in CommInfo._fields)

    def stats(self) -> CommStats:
        """Counts of calls, bytes, errors and changes of the members on this communicator. Local, any thread."""
        stats = _abi.mep_comm_stats_t()
        lib.mep_struct_init(ctypes.byref(stats), ctypes.sizeof(stats))
        check(lib.mep_comm_stats(self._address, ctypes.byref(stats)))
        return CommStats._make(getattr(stats, name) for name in CommStats._fields)

    def async_result(self) -> None:
        """Raises the first failure of stream operations since the last call."""
        check(lib.mep_comm_async_result(self._address))

    def mem_alloc(self, shape: Any, dtype: Any = "uint8") -> "Union[numpy.ndarray, DeviceArray]":
        """Zeroed memory of the library as an array, on a communicator with a GPU as a DeviceArray there. mem_free() must
        be called before the world is closed. Collectives take it as any other array."""
        if not isinstance(shape, tuple):
            shape = (shape,)
        number = dtype_number(dtype)
        item = numpy_dtype(number)
        size = math.prod(shape) * item.itemsize
        if any(length < 0 for length in shape) or size >= 1 << 63:
            raise ValueError(f"{shape} is no shape of an array")
        memory = ctypes.c_void_p()
        check(lib.mep_mem_alloc(self._address, size, 0, 0, ctypes.byref(memory)))
        if self.device is not None:
            return DeviceArray(memory.value, shape, number, self.device)
        owner = self._allocated[memory.value] = Memory()
        return array_at(memory.value, shape, item, writable=True, owner=owner)

    def mem_free(self, array: "Union[numpy.ndarray, DeviceArray]") -> None:
        """Gives memory of mem_alloc() back; it is freed with the last array over it, which may be a slice. That of a GPU
        is freed at once."""
        if isinstance(array, DeviceArray):
            check(lib.mep_mem_free(self._address, array._address))
            return
        address = array.ctypes.data
        owner = self._allocated.get(address) or Memory()
        check(lib.mep_mem_free_keep(self._address, address, ctypes.byref(owner.kept)))
        self._allocated.pop(address, None)

    def register(self, array: Any) -> int:
        """Lets the peers' GPUs read send buffers in this memory where they lie, where that is faster. array: what
        mem_alloc() gave, or a tensor over it or a part of it; of one size on all ranks. Collective, while the streams of
        the communicator are idle; ended by a view that admits a rank. Does nothing on hosts. Returns what deregister()
        takes."""
        memory, registration = buffer(array), _abi.mep_registration_t()
        check(lib.mep_comm_register(self._address, memory.address, memory.count * memory.itemsize,
                                    ctypes.byref(registration)))
        return registration.value

    def deregister(self, registration: int) -> None:
        """Ends what register() began. Collective in the same way."""
        check(lib.mep_comm_deregister(self._address, registration))

    # ---- how calls are carried out (they stand in _collective_calls.py and _message_calls.py) --------

    def _on_stream(self, stream: Any, kept: Any) -> bool:
        """Whether the call is enqueued; memory must be where the communicator works."""
        if not self._on_gpu and type(kept) is tuple and any(each.on_gpu for each in kept):
            raise ValueError("this communicator works on host memory, the array is on a GPU; make the "
                             "communicator with device=")
        return self._on_gpu or stream_address(stream) != 0

    def _start(self, function: Any, arguments: tuple[Any, ...], result: Any, keep: tuple[Any, ...],
               stream: Any = 0) -> Request:
        self._on_stream(stream, keep)
        request = Request(self, result)
        running[request] = keep  # before the library has it: Ctrl-C may come with its return
        begun = function(*arguments, self._argument, address_argument(stream_address(stream)), request._argument)
        if begun < 0:
            raise self._refusal(request, begun)
        return request

    def _refusal(self, request: Request, code: int) -> Error:
        problem = error(code, last_error())
        problem.info = self._news(code)
        if not request._address.value:
            request._finished = True
            running.pop(request, None)
        return problem

    def _news(self, code: Optional[int]) -> Optional[OpInfo]:
        """The view change that a call refused with `code` told of, if it did."""
        record = OpInfoRecord(self.size)
        if lib.mep_comm_last_op(self._address, record.reference) < 0:
            return None
        info = record.info()
        if info.seq != 0 or info.result != code:
            return None
        self._last = record
        return info

    def _finish(self, request: Request) -> Any:
        if joins_group(request):
            return request._result
        try:
            return request.wait()
        finally:
            if request.done:
                request._tell()

    # ---- membership -----------------------------------------------------------------------------

    def view(self) -> View:
        """The communicator's members now."""
        slots = (ctypes.c_int32 * self.size)()
        incarnations = (ctypes.c_uint64 * self.size)()
        states = (ctypes.c_uint32 * self.size)()
        view = _abi.mep_view_t()
        lib.mep_struct_init(ctypes.byref(view), ctypes.sizeof(view))
        view.capacity = self.size
        view.slots = ctypes.addressof(slots)
        view.incarnations = ctypes.addressof(incarnations)
        view.states = ctypes.addressof(states)
        check(lib.mep_comm_view(self._address, ctypes.byref(view)))
        return View(view.epoch, view.world_epoch, view.size, view.live, list(slots),
                    list(incarnations), [PeerState(state) for state in states])

    def peer_state(self, rank: int) -> PeerState:
        """The state of that rank as this one knows it now. Local."""
        state = ctypes.c_uint32()
        check(lib.mep_comm_peer_state(self._address, rank, ctypes.byref(state)))
        return PeerState(state.value)

    def lost_ranks(self, lost: Any, *, stream: Any = NO_STREAM) -> None:
        """Writes 1 to lost for each rank that has gone and is not forgotten, and 0 for the others: int32 [size], an array of
        the GPU on a GPU communicator. There it is enqueued on stream= and returns at once: after an operation of the
        stream that a loss ended, the loss shows."""
        given = buffer(lost, writable=True)
        if given.dtype != _abi.MEP_INT32 or given.count != self.size:
            raise ValueError(f"lost must be int32 [{self.size}]")
        check(lib.mep_comm_lost_ranks(self._address, given.address, stream_address(stream)))

    def forget_lost(self, *, stream: Any = NO_STREAM) -> None:
        """Forgets the losses that lost_ranks() has shown: they show no more. A rank that goes later, or that came back and
        goes again, shows."""
        check(lib.mep_comm_forget_lost(self._address, stream_address(stream)))

    def wait_view(self, epoch: int, timeout: float = 30.0) -> None:
        """Waits until self.epoch > epoch; TimeoutError concerns this call alone."""
        left = milliseconds(timeout)
        while True:
            part = min(left, SLICE_MS)
            try:
                check(lib.mep_comm_wait_view(self._address, epoch, part))
                return
            except TimeoutError:
                left -= part
                if left <= 0:
                    raise

    def set_view_callback(self, callback: Optional[Callable[[View], None]]) -> None:
        """Calls callback(view) on a thread of its own after view changes; changes in quick succession
        may be one call. None removes it."""
        if self._callback is not None:
            check(lib.mep_comm_set_view_callback(self._address, None, None))
            self._callback.stop()
            self._callback = None
        if callback is not None:
            self._callback = _ViewCallback(self, callback)

    def split(self, color: int, key: int = 0) -> "Optional[Comm]":
        """Ranks of one color form a communicator, ordered by (key, rank); color -1: None."""
        child = _abi.mep_comm_t()
        blocking(lib.mep_comm_split, self._address, color, key, ctypes.byref(child),
                 calls=self._calls, undo=lambda: _leave_unused(child))
        return Comm(child.value, self._world or self) if child.value else None

    def dup(self) -> "Comm":
        """A communicator of the same live ranks in the same order; its messages meet nobody else's."""
        duplicate = _abi.mep_comm_t()
        blocking(lib.mep_comm_dup, self._address, ctypes.byref(duplicate), calls=self._calls,
                 undo=lambda: _leave_unused(duplicate))
        return Comm(duplicate.value, self._world or self)

    def shrink(self) -> "Comm":
        """A communicator of the ranks that live, in the same order. Failures and revokes on the way do not prevent
        it; the next collective here reports them."""
        child = _abi.mep_comm_t()
        blocking(lib.mep_comm_shrink, self._address, ctypes.byref(child), calls=self._calls,
                 undo=lambda: _leave_unused(child))
        return Comm(child.value, self._world or self)

    def create_from_ranks(self, ranks: Sequence[int], name: str) -> "Comm":
        """A communicator of the listed ranks, in that order. Only they call it, each with the same list and name."""
        child = _abi.mep_comm_t()
        listed = (ctypes.c_int32 * max(len(ranks), 1))(*ranks)
        blocking(lib.mep_comm_create_from_ranks, self._address, listed, len(ranks), name.encode(),
                 ctypes.byref(child), calls=self._calls, undo=lambda: _leave_unused(child))
        return Comm(child.value, self._world or self)

    def agree(self, flag: int) -> int:
        """The bitwise AND of all live ranks' flags (64 bits); succeeds in spite of known failures."""
        result = ctypes.c_uint64()
        blocking(lib.mep_comm_agree, self._address, flag, ctypes.byref(result), calls=self._calls)
        return result.value

    def recover_ranks(self, ranks: Optional[Sequence[int]] = None, timeout: float = 30.0) -> int:
        """Admits ready replacements of absent ranks and returns how many came. None: whoever is
        ready. Collective on the world. A TimeoutError has the number in `admitted`."""
        wanted = (ctypes.c_int32 * max(len(ranks or ()), 1))(*(ranks or ()))
        admitted = ctypes.c_int32()
        try:
            blocking(lib.mep_recover_ranks, self._address, wanted if ranks else None,
                     len(ranks or ()), milliseconds(timeout), ctypes.byref(admitted),
                     calls=self._calls)
        except Error as problem:
            problem.admitted = admitted.value
            raise
        return admitted.value

    def grow(self, count: int, timeout: float = 30.0) -> "Comm":
        """A new communicator over the world grown by `count` ranks, up to max_size."""
        grown = _abi.mep_comm_t()
        blocking(lib.mep_comm_grow, self._address, count, milliseconds(timeout),
                 ctypes.byref(grown), calls=self._calls, undo=lambda: _leave_unused(grown))
        return Comm(grown.value, self._world or self)

    def attach(self, name: str) -> "Comm":
        """The joiner's side of a split: the communicator of that name."""
        comm = _abi.mep_comm_t()
        blocking(lib.mep_comm_attach, self._address, name.encode(), ctypes.byref(comm),
                 calls=self._calls, undo=lambda: _leave_unused(comm))
        return Comm(comm.value, self._world or self)

    def evict(self, rank: int) -> None:
        """Asks that a rank be removed although it may live."""
        check(lib.mep_comm_evict(self._address, rank))

    def revoke(self) -> None:
        """Ends all pending operations of the communicator on all members with RevokedError, once."""
        check(lib.mep_comm_revoke(self._address))

    def abort(self, reason: str = "") -> None:
        """Ends this rank's part at once, without waiting; the others see this rank fail, and their errors have the
        first 200 bytes of the reason."""
        check(lib.mep_comm_abort_with(self._address, reason.encode(errors="replace").replace(b"\0", b"?")))


class _ViewCallback:
    """The library writes to an eventfd on its control thread, without entering Python: its heartbeats
    must never wait for the interpreter lock. A Python thread reads it and calls back."""

    def __init__(self, comm: Comm, callback: Callable[[View], None]):
        libc = ctypes.CDLL(None)
        self._fd = libc.eventfd(0, os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError("eventfd failed")
        self._comm, self._callback, self._stopped = comm, callback, False
        # eventfd_write(fd, value) takes the first two arguments of a view callback: user, world_epoch.
        write = ctypes.cast(libc.eventfd_write, ctypes.c_void_p)
        try:
            check(lib.mep_comm_set_view_callback(comm._address, write, self._fd))
        except Error:
            os.close(self._fd)
            raise
        self._thread = threading.Thread(target=self._serve, name="mep-view", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            os.read(self._fd, 8)
            if self._stopped:
                return
            self._callback(self._comm.view())

    def stop(self) -> None:
        self._stopped = True
        os.write(self._fd, (1).to_bytes(8, "little"))
        if threading.current_thread() is not self._thread:
            self._thread.join()
        os.close(self._fd)
