"""Expert parallelism: dispatch tokens to experts, combine their results."""
from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, Optional, Union, cast

import numpy

from . import _abi
from ._buffers import (Buffer, Memory, array_at, buffer, dtype_name, dtype_number, maker,
                       numpy_dtype, rows_buffer, stream_address)
from ._call import Closed, Unique, blocking, check, lib
from ._device import DeviceArray, tensor_at
from ._ep_results import EpSize, OpStatus, Received
from ._type_numbers import RAW, SCALES, SIZES
from ._types import BufferLike, Given
from .errors import BusyError, Error, InvalidArgumentError, ThreadError, UnsupportedError
from .request import OpInfo, OpInfoRecord

if TYPE_CHECKING:
    from .comm import Comm

PHASES = ("both", "send", "receive")
_SCALES = {getattr(_abi, f"MEP_SCALE_{name.upper()}"): facts for name, facts in SCALES.items()}
_WORDS = {
    "layout": {"low_latency": _abi.MEP_EP_LOW_LATENCY, "slotted": _abi.MEP_EP_SLOTTED,
               "high_throughput": _abi.MEP_EP_HIGH_THROUGHPUT, "expanded": _abi.MEP_EP_EXPANDED},
    "scale_type": dict(zip(SCALES, _SCALES)),
    "scale_layout": {"row_major": _abi.MEP_SCALE_ROW_MAJOR,
                     "column_major": _abi.MEP_SCALE_COLUMN_MAJOR},
    "on_loss": {"fails": _abi.MEP_EP_LOSS_FAILS, "partial": _abi.MEP_EP_LOSS_PARTIAL,
                "uniform": _abi.MEP_EP_LOSS_UNIFORM, "in_step": _abi.MEP_EP_LOSS_IN_STEP},
}
_FLAGS = {"row_memory": _abi.MEP_EP_NO_ROW_MEMORY, "combine_memory": _abi.MEP_EP_NO_COMBINE_MEMORY}  # where it is False
_FIELDS = [field[0] for field in _abi.mep_ep_config_t._fields_ if field[0] not in ("struct_size", "flags")]


def _config(options: dict[str, Any]) -> _abi.mep_ep_config_t:
    config = _abi.mep_ep_config_t()
    lib.mep_struct_init(ctypes.byref(config), ctypes.sizeof(config))
    for name, value in options.items():
        if name in _FLAGS:
            config.flags |= 0 if value else _FLAGS[name]
            continue
        if name == "arrays":
            if value not in ("numpy", "torch"):
                raise ValueError(f"arrays is {value!r}, it must be numpy or torch")
            continue
        if name in ("mode", "receive_layout"):
            raise TypeError(f"unknown option {name!r}: give layout, one of {', '.join(_WORDS['layout'])}")
        if name not in _FIELDS:
            raise TypeError(f"unknown option {name!r}")
        if value is None:
            continue
        if name == "name":
            value = value.encode()
        elif name in ("input_type", "wire_type", "combine_type"):
            value = dtype_number(value) if value else 0
        elif name in _WORDS and isinstance(value, str):
            if value not in _WORDS[name]:
                raise ValueError(f"{name} is {value!r}, it must be one of {', '.join(_WORDS[name])}")
            value = _WORDS[name][value]
        try:
            setattr(config, name, value)
        except TypeError:
            raise TypeError(f"{name} is {value!r} of type {type(value).__name__}, it must be a whole number") from None
    return config


def _initial(kind: Any) -> Any:
    """A function that gives a struct of mep.h as mep_struct_init() sets it."""
    first = kind()
    lib.mep_struct_init(ctypes.byref(first), ctypes.sizeof(first))
    return lambda: kind.from_buffer_copy(first)


_ep_view = _initial(_abi.mep_ep_view_t)
_dispatch_options = _initial(_abi.mep_dispatch_options_t)
_combine_options = _initial(_abi.mep_combine_options_t)
_PARTS = {"both": "", "send": "_send", "receive": "_receive"}  # of the names of the calls, by phase


class Ep(Unique):
    """An EP object; collective over comm. Options have the names of mep_ep_config_t: hidden, top_k,
    num_experts, max_tokens_per_rank (required), name, layout ("low_latency", "slotted", "high_throughput" or
    "expanded"), experts_per_rank, num_buffers, input_type, wire_type, combine_type (names such as "bfloat16"),
    scale_type ("float32", "ue8m0" or "ue8m0_32": mep_scale_type_t), timeout_ms, max_replicas, on_loss ("fails", "partial",
    "uniform" or "in_step": mep_ep_loss_t), ...; row_memory=False is MEP_EP_NO_ROW_MEMORY, combine_memory=False
    MEP_EP_NO_COMBINE_MEMORY. arrays="torch": the library's memory is shown as tensors of PyTorch, which has all its types;
    else as arrays of NumPy, and on a GPU as DeviceArray. Closed by close(), `with`, or with its communicator.

    row_bytes and side_bytes: rows of a format that MEP does not know, and their side words, which travel as they are. x is
    [T, n] of any type whose rows have row_bytes, x_scales likewise of side_bytes; received rows are uint8.
    """

    _address: Any = Closed("EP object")

    def __init__(self, comm: "Comm", *, hidden: int, top_k: int, num_experts: int,
                 max_tokens_per_rank: int, **options: Any):
        options.update(hidden=hidden, top_k=top_k, num_experts=num_experts,
                       max_tokens_per_rank=max_tokens_per_rank)
        self._open(comm, lib.mep_ep_create, options)

    def _open(self, comm: "Comm", function: Any, options: dict[str, Any]) -> None:
        self._comm = comm
        self._handles: list[Handle] = []
        # buffer -> (epoch, seq) of the last operation there whose error had its OpInfo
        self._told: dict[int, tuple[int, int]] = {}
        self._has_tensors = options.get("arrays") == "torch"
        config, address = _config(options), _abi.mep_ep_t()
        blocking(function, comm._address, ctypes.byref(config), ctypes.byref(address),
                 calls=comm._calls, undo=lambda: lib.mep_ep_destroy(address))
        self._memory = Memory()
        self._address = address.value
        comm._parts.append(self)
        # The defaults of mep.h, so that arrays can be given their shapes.
        self.hidden: int = config.hidden
        self.top_k: int = config.top_k
        self.num_experts: int = config.num_experts
        self.experts_per_rank: int = config.experts_per_rank or -(-config.num_experts // comm.size)
        self.max_tokens_per_rank: int = config.max_tokens_per_rank
        self.num_buffers: int = config.num_buffers or 2
        self.row_bytes: int = config.row_bytes
        self.side_bytes: int = config.side_bytes
        self.input_type: int = _abi.MEP_UINT8 if self.row_bytes else config.input_type or _abi.MEP_BFLOAT16
        self.wire_type: int = config.wire_type or self.input_type
        is_summed = self.input_type in (_abi.MEP_BFLOAT16, _abi.MEP_FLOAT16, _abi.MEP_FLOAT32)
        self.combine_type: int = config.combine_type or (self.input_type if is_summed else _abi.MEP_BFLOAT16)
        self.max_replicas: int = config.max_replicas or 1
        self.high_throughput: bool = config.layout >= _abi.MEP_EP_HIGH_THROUGHPUT
        self.expanded: bool = config.layout == _abi.MEP_EP_EXPANDED
        self.expert_alignment: int = config.expert_alignment or 1
        group, scale = _SCALES[config.scale_type]
        self._scale = dtype_number("uint8" if self.row_bytes else scale)
        self._row_width: int = self.row_bytes or self.hidden
        self._scale_width: int = self.side_bytes if self.row_bytes else -(-self.hidden // group)

    @classmethod
    def attach(cls, comm: "Comm", **options: Any) -> "Ep":
        """Joiner's side: the EP object `name` of a communicator that it joined."""
        ep = cls.__new__(cls)
        ep._open(comm, lib.mep_ep_attach, options)
        return ep

    @staticmethod
    def buffer_size(comm: "Comm", **options: Any) -> EpSize:
        """The memory that an EP object with these options would reserve. Local."""
        config, size = _config(options), _abi.mep_ep_size_t()
        lib.mep_struct_init(ctypes.byref(size), ctypes.sizeof(size))
        check(lib.mep_ep_buffer_size(comm._address, ctypes.byref(config), ctypes.byref(size)))
        return EpSize(size)

    def __enter__(self) -> "Ep":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.close()

    def close(self) -> None:
        """Frees handles and object. Idempotent. BusyError while an operation runs. Arrays over its memory, also after
        the communicator is closed, and slices of them, can be read and written as long as they live; the memory
        is freed with the last. A DeviceArray is not to be used any more."""
        if "_address" not in self.__dict__:
            return
        self._comm._calls.wait()
        for handle in list(self._handles):
            handle.close()
        address = self.__dict__.pop("_address", None)
        if address is None:
            return
        try:
            check(lib.mep_ep_destroy_keep(address, ctypes.byref(self._memory.kept)))
        except Error:
            self._address = address
            raise
        del self._memory
        self._comm._parts.remove(self)

    def handle(self, buffer: int = 0) -> "Handle":
        """A handle for dispatches and combines on one of the buffers."""
        return Handle(self, buffer)

    def set_expert_map(self, expert_map: Any) -> None:
        """Logical experts -> places: int32 [E, max_replicas], rank * E_local + local expert, -1 unused; columns that
        are missing are unused too. None: back to physical ids. Collective."""
        if expert_map is None:
            blocking(lib.mep_ep_set_expert_map, self._address, None, calls=self._comm._calls)
            return
        given = numpy.asarray(expert_map)
        places = numpy.array(given, dtype=numpy.int32, order="C")
        if given.dtype.kind not in "iu" or not numpy.array_equal(given, places):
            raise ValueError("the map must hold integers of 32 bits")
        if places.ndim == 2 and len(places) == self.num_experts and places.shape[1] < self.max_replicas:
            places = numpy.pad(places, ((0, 0), (0, self.max_replicas - places.shape[1])), constant_values=-1)
        if places.size != self.num_experts * self.max_replicas:
            raise ValueError(f"the map has {places.size} entries, it must have "
                             f"{self.num_experts} x {self.max_replicas}")
        blocking(lambda ep, kept: lib.mep_ep_set_expert_map(ep, kept.ctypes.data), self._address, places,
                 calls=self._comm._calls)

    def _addresses(self, buffer: int) -> _abi.mep_ep_view_t:
        view: _abi.mep_ep_view_t = _ep_view()
        check(lib.mep_ep_buffer_view(self._address, buffer, ctypes.byref(view)))
        return view

    def _array(self, address: Optional[int], shape: tuple[int, ...], number: int, writable: bool = False) -> Any:
        """Memory of the library as an array of NumPy, on a GPU as what its packages take; or as a tensor of PyTorch."""
        if self._has_tensors:
            return tensor_at(address, shape, number, self._comm.device, self._memory)
        if self._comm.device is not None:
            return DeviceArray(address, shape, number, self._comm.device)
        return array_at(address, shape, numpy_dtype(number), writable, self._memory)

    @property
    def _groups(self) -> tuple[int, ...]:
        """The first axis of all that has rows: local experts, of high throughput none."""
        return () if self.high_throughput else (self.experts_per_rank,)

    @property
    def _group_rows(self) -> int:
        """Rows of each group at most."""
        rows = self._comm.size * self.max_tokens_per_rank
        if not self.expanded:
            return rows
        unit = self.expert_alignment
        most = rows * min(self.top_k, self.experts_per_rank) + self.experts_per_rank * (unit - 1)
        return -(-most // unit) * unit

    @property
    def _ranges(self) -> tuple[int, ...]:
        """The shape of layout_range."""
        return ((self.experts_per_rank,) if self.expanded else self._groups) + (self._comm.size,)

    @property
    def _weights_of_row(self) -> int:
        return 1 if self.expanded else self.top_k

    def view(self, buffer: int = 0) -> Received:
        """The library's memory of one buffer, known before the first dispatch."""
        view = self._addresses(buffer)
        rows = (*self._groups, self._group_rows)
        scales = topk_idx = topk_weights = None
        if view.recv_scales:
            scales = self._array(view.recv_scales, (*rows, self._scale_width), self._scale)
        if view.recv_topk_idx:
            topk_idx = self._array(view.recv_topk_idx, (*rows, self.top_k), _abi.MEP_INT32)
        if view.recv_topk_weights:
            values = rows if self.expanded else (*rows, self.top_k)
            topk_weights = self._array(view.recv_topk_weights, values, _abi.MEP_FLOAT32)
        return Received(
            x=self._array(view.recv_x, (*rows, self._row_width), self.wire_type),
            scales=scales,
            count=self._array(view.recv_count, (self.experts_per_rank,), _abi.MEP_INT32),
            src_info=self._array(view.src_info, rows, _abi.MEP_INT32),
            layout_range=self._array(view.layout_range, self._ranges, _abi.MEP_INT64),
            topk_idx=topk_idx, topk_weights=topk_weights,
        )

    def combine_input(self, buffer: int = 0) -> Any:
        """[E_local, R*M, H] of the library's memory, of high throughput [R*M, H], expanded more: write y here and give combine no y.
        A DeviceArray on a communicator with a GPU, or a tensor: see arrays of mep.Ep."""
        memory = self._addresses(buffer).combine_input
        return self._array(memory, (*self._groups, self._group_rows, self.hidden), self.combine_type, writable=True)

    def last_op(self, buffer: int = 0) -> OpInfo:
        """About the last dispatch or combine finished on that buffer."""
        record = OpInfoRecord(self._comm.size)
        check(lib.mep_ep_last_op(self._address, buffer, record.reference))
        return record.info()

    def _news(self, buffer: int, code: int) -> Optional[OpInfo]:
        """All that is known of the dispatch or combine that has just ended by the error `code`. One that only reported
        that ranks have gone has no number: of it seq is 0, and failed are the ranks that are absent now."""
        try:
            if self._comm.device is None:  # last_op() wants the streams of a GPU idle
                info = self.last_op(buffer)
                number = (info.epoch, info.seq)
                if info.result == code and self._told.get(buffer) != number:
                    self._told[buffer] = number
                    return info
        except Error:
            pass  # nothing has finished on the buffer
        if code not in (_abi.MEP_ERR_PEER_FAILED, _abi.MEP_ERR_PEER_LEFT):
            return None
        try:
            view = self._comm.view()
        except Error:
            return None
        absent = [rank for rank, state in enumerate(view.states) if state in _ABSENT]
        return OpInfo(view.epoch, 0, code, [], absent, True)


_ABSENT = (_abi.MEP_PEER_DEAD, _abi.MEP_PEER_LEFT, _abi.MEP_PEER_EXCLUDED)
_REFUSED = (BusyError, InvalidArgumentError, ThreadError, UnsupportedError)  # such a call has changed nothing


class Handle(Unique):
    """The routing of one dispatch, for its combine. One thread at a time."""

    _address: Any = Closed("handle")

    def __init__(self, ep: Ep, buffer: int):
        address = _abi.mep_ep_handle_t()
        check(lib.mep_ep_handle_create(ep._address, buffer, ctypes.byref(address)))
        self._address = address.value
        self._ep, self._buffer, self._tokens, self._rows_received = ep, buffer, 0, 0
        self._view = ep.view(buffer)
        self._new_array = maker(None)  # of the kind of the last x
        self._own_y = ep._addresses(buffer).combine_input
        self.partial = False  # of the last dispatch or combine: a rank was missing (MEP_PARTIAL)
        ep._handles.append(self)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.close()

    def close(self) -> None:
        if "_address" not in self.__dict__:
            return
        self._ep._comm._calls.wait()
        address = self.__dict__.pop("_address", None)
        if address is None:
            return
        try:
            check(lib.mep_ep_handle_destroy(address))
        except Error:
            self._address = address
            raise
        del self._view
        self._ep._handles.remove(self)

    def dispatch(self, x: Optional[BufferLike] = None, topk_idx: Optional[BufferLike] = None,
                 topk_weights: Optional[BufferLike] = None, *, phase: str = "both",
                 x_scales: Optional[BufferLike] = None, recv_x: Optional[BufferLike] = None,
                 recv_scales: Optional[BufferLike] = None, recv_count: Optional[BufferLike] = None,
                 recv_count_host: Optional[BufferLike] = None, src_info: Optional[BufferLike] = None,
                 layout_range: Optional[BufferLike] = None, recv_topk_idx: Optional[BufferLike] = None,
                 recv_topk_weights: Optional[BufferLike] = None, statistics: Optional[BufferLike] = None,
                 wait_ns: Optional[BufferLike] = None, timeout_ms: int = 0, op_status: Optional[OpStatus] = None,
                 stream: Any = 0, replay: bool = False) -> Union[Received, Any]:  # Any: None of phase "send"
        """Sends each token to its experts and receives what came for the local ones.

        x [T, H], topk_idx [T, K] int32 or int64, topk_weights [T, K] float32 or None. Rows of x and
        x_scales may have a stride. phase: "both", "send" (returns None) or "receive" (no x).
        Without recv_x and the others the result shows the library's own memory.
        statistics, [E_local] int64 or int32, gets the rows of each local expert added, and wait_ns, [R] int64, the
        nanoseconds that this call waited for each rank. timeout_ms: of this call; 0: the object's. The last two are
        of calls that receive on host communicators.
        replay, of high throughput: x goes where the handle's last dispatch went, without topk_idx. Without x the routing
        goes alone, so that the handle can be combined again; the rows are undefined then.
        """
        ep, args, address = self._ep, _dispatch_options(), stream_address(stream)
        _check_phase(phase, wait_ns, timeout_ms)
        keep: list[Any] = []
        plain: list[Any] = []
        tokens = self._tokens
        if replay and x is None:
            args.flags = _abi.MEP_DISPATCH_REPLAY | _abi.MEP_DISPATCH_NO_ROWS
            plain = [None, None, None, tokens]
        elif phase != "receive":
            routing = weights = None
            rows = self._rows(x, None if ep.row_bytes else ep.input_type, ep._row_width, "x", keep)
            tokens = rows[2]
            args.x_stride_bytes = rows[1]
            if x_scales is not None:
                scales = self._rows(x_scales, None if ep.row_bytes else ep._scale, ep._scale_width, "x_scales", keep)
                if scales[2] != tokens:
                    raise ValueError(f"x_scales has {scales[2]} rows, x has {tokens}")
                args.x_scales, args.x_scales_stride_bytes = scales[0], scales[1]
            if replay:
                args.flags = _abi.MEP_DISPATCH_REPLAY
            else:
                indices = self._flat(topk_idx, None, rows[2] * ep.top_k, "topk_idx", keep)
                if indices.dtype not in (_abi.MEP_INT32, _abi.MEP_INT64):
                    raise ValueError(f"topk_idx holds {dtype_name(indices.dtype)}, it must hold int32 or int64; "
                                     "topk_idx.astype(numpy.int64) converts it")
                routing, args.topk_idx_type = indices.address, indices.dtype
            self._new_array = maker(x)
            if topk_weights is not None:
                weights = self._flat(topk_weights, "float32", rows[2] * ep.top_k, "topk_weights", keep).address
            plain = [rows[0], routing, weights, tokens]
        given = {"recv_x": recv_x, "recv_scales": recv_scales, "recv_count": recv_count,
                 "recv_count_host": recv_count_host, "src_info": src_info, "layout_range": layout_range,
                 "recv_topk_idx": recv_topk_idx, "recv_topk_weights": recv_topk_weights, "statistics": statistics}
        total = ctypes.c_int64()
        if phase != "send":
            plain.append(None)  # self._view shows the library's memory
            self._outputs(args, given, keep)
            self._limits(args, wait_ns, timeout_ms, keep)
            if not ep._comm._on_gpu:
                args.recv_total = ctypes.addressof(total)
                keep.append(total)
            self._status(args, op_status, keep)
        try:
            result = self._call("mep_dispatch" + _PARTS[phase], [*plain, args], keep, address)
        except BaseException as problem:
            # Whatever has begun has taken the routing; combine tells the library what it reckons with.
            self._tokens = self._tokens if isinstance(problem, _REFUSED) else tokens
            raise
        self._tokens = tokens
        if phase == "send":
            return None
        self._rows_received = total.value
        own = self._view
        return Received(
            x=own.x if recv_x is None else recv_x,
            scales=own.scales if recv_scales is None else recv_scales,
            count=own.count if recv_count is None else recv_count,
            src_info=own.src_info if src_info is None else src_info,
            layout_range=own.layout_range if layout_range is None else layout_range,
            topk_idx=own.topk_idx if recv_topk_idx is None else recv_topk_idx,
            topk_weights=own.topk_weights if recv_topk_weights is None else recv_topk_weights,
            total=None if ep._comm._on_gpu else total.value, partial=result == _abi.MEP_PARTIAL)

    def combine(self, out: Optional[Given] = None, y: Optional[BufferLike] = None, *,
                weights: Optional[BufferLike] = None, bias: Optional[BufferLike] = None, renormalize: bool = False,
                phase: str = "both", topk_weights: Optional[BufferLike] = None,
                out_topk_weights: Optional[BufferLike] = None, wait_ns: Optional[BufferLike] = None,
                timeout_ms: int = 0, op_status: Optional[OpStatus] = None, stream: Any = 0) -> Given:
        """out[t] = bias + sum over k of weight[t, k] * y(row of token t at its k-th expert); of high throughput
        bias + sum over ranks of y(row of token t there), without weights.

        y: the experts' rows, placed as dispatch placed them; None: combine_input(buffer). out [T, H],
        a new array without it, of the kind of the last x (NumPy, ml_dtypes or PyTorch), which host communicators
        alone make. weights [T, K]; None: those of the dispatch. Returns out.
        topk_weights, of high throughput: [total, K] float32, expanded [total], that go back with the rows;
        out_topk_weights [T, K] gets the sums of what came back. wait_ns and timeout_ms: as of dispatch.
        """
        ep, args = self._ep, _combine_options()
        _check_phase(phase, wait_ns, timeout_ms)
        keep: list[Any] = []
        plain: list[Any] = []
        if phase != "receive":
            plain.append(self._own_y)
            if y is not None:
                # In high throughput the rows that arrived are enough.
                items = None if ep.high_throughput else (ep.experts_per_rank * ep._comm.size *
                                                         ep.max_tokens_per_rank * ep.hidden)
                given = self._flat(y, ep.combine_type, items, "y", keep)
                if items is None and given.count < self._rows_received * ep.hidden:
                    raise ValueError(f"y has {given.count} items, the {self._rows_received} rows that arrived need "
                                     f"{self._rows_received * ep.hidden}")
                plain[0] = given.address or self._own_y
            if topk_weights is not None:
                count = self._rows_received * ep._weights_of_row if ep._comm.device is None else None
                args.topk_weights = self._flat(topk_weights, "float32", count, "topk_weights", keep).address
        if phase != "send":
            args.flags = _abi.MEP_COMBINE_RENORMALIZE if renormalize else 0
            args.num_tokens = self._tokens
            if weights is not None:
                args.weights = self._flat(weights, "float32", self._tokens * ep.top_k, "weights",
                                          keep).address
            if out_topk_weights is not None:
                args.recv_topk_weights = self._flat(out_topk_weights, "float32", self._tokens * ep.top_k,
                                                    "out_topk_weights", keep, writable=True).address
            if bias is not None:
                args.bias = self._flat(bias, ep.combine_type, ep.hidden, "bias", keep).address
            if out is None and ep._comm.device is not None:
                raise TypeError("out is missing: on a communicator with a GPU give an array there, "
                                f"[{self._tokens}, {ep.hidden}] {dtype_name(ep.combine_type)}")
            if out is None:
                out = self._new_array((self._tokens, ep.hidden), ep.combine_type)
            rows = self._rows(out, ep.combine_type, ep.hidden, "out", keep, writable=True)
            if rows[2] != self._tokens:
                raise ValueError(f"out has {rows[2]} rows, the dispatch had {self._tokens} tokens")
            # NULL is what the library takes for no tokens, and for nothing else.
            plain.append(rows[0] if self._tokens != 0 else None)
            args.out_stride_bytes = rows[1] if self._tokens != 0 else 0
            self._limits(args, wait_ns, timeout_ms, keep)
            self._status(args, op_status, keep)
        self._call("mep_combine" + _PARTS[phase], [*plain, args], keep, stream_address(stream))
        return cast(Given, out)

    def _limits(self, args: Any, wait_ns: Any, timeout_ms: int, keep: list[Any]) -> None:
        args.timeout_ms = timeout_ms
        if wait_ns is not None:
            args.wait_ns = self._flat(wait_ns, "int64", self._ep._comm.size, "wait_ns", keep, writable=True).address

    @staticmethod
    def _status(args: Any, op_status: Optional[OpStatus], keep: list[Any]) -> None:
        if op_status is None:
            return
        if not isinstance(op_status, OpStatus):
            raise TypeError(f"op_status is a {type(op_status).__name__}, it must be a mep.OpStatus")
        args.op_status = ctypes.addressof(op_status._memory)
        args.op_status_bytes = ctypes.sizeof(op_status._memory)
        keep.append(op_status)

    def _call(self, name: str, arguments: list[Any], keep: list[Any], stream: int) -> int:
        function = getattr(lib, name)
        if self._ep._comm.device is None and any(getattr(each, "on_gpu", False) for each in keep):
            raise ValueError("this communicator works on host memory, an array is on a GPU; make the "
                             "communicator with device=")
        try:
            if stream or self._ep._comm._on_gpu:
                result = check(function(self._address, *arguments, stream))
            else:
                # `keep` rides along so that the buffers live as long as the call does.
                result = blocking(lambda handle, arguments, keep: function(handle, *arguments, None),
                                  self._address, arguments, keep, calls=self._ep._comm._calls)
        except Error as problem:
            if not isinstance(problem, _REFUSED):
                problem.info = self._ep._news(self._buffer, problem.code)
            raise
        self.partial = result == _abi.MEP_PARTIAL
        return result

    def _outputs(self, args: Any, given: dict[str, Any], keep: list[Any]) -> None:
        """Buffers of the caller for what is received; their sizes are fixed by the EP object."""
        given = {name: value for name, value in given.items() if value is not None}
        if not given:
            return
        ep = self._ep
        experts = ep.experts_per_rank
        rows = (1 if ep.high_throughput else experts) * ep._group_rows
        if "recv_x" in given:
            found = buffer(given["recv_x"], writable=True)
            if not ep.row_bytes:
                _expect(found, ep.wire_type, "recv_x")
            if found.count == 0:  # which C takes for as large as its own
                raise ValueError("recv_x is empty")
            args.recv_x, args.recv_capacity = found.address, found.count * found.itemsize
            keep.append(found)
        sizes = {"recv_scales": (ep._scale, rows * ep._scale_width),
                 "recv_count": ("int32", experts), "recv_count_host": ("int32", experts),
                 "src_info": ("int32", rows), "layout_range": ("int64", math.prod(ep._ranges)),
                 "recv_topk_idx": ("int32", rows * ep.top_k), "recv_topk_weights": ("float32", rows * ep._weights_of_row),
                 "statistics": (None, experts)}
        for name, (kind, count) in sizes.items():
            if name in given:
                if name == "recv_scales" and ep.row_bytes:  # any type
                    kind, count = None, count // max(buffer(given[name]).itemsize, 1)
                found = self._flat(given[name], kind, count, name, keep, writable=True)
                setattr(args, name, found.address)
                if name == "statistics":
                    args.statistics_type = found.dtype
                    if found.dtype not in (_abi.MEP_INT32, _abi.MEP_INT64):
                        raise ValueError(f"statistics holds {dtype_name(found.dtype)}, it must hold int64 or int32")

    @staticmethod
    def _flat(value: Any, kind: Any, count: Optional[int], name: str, keep: list[Any],
              writable: bool = False) -> Buffer:
        if value is None:
            raise TypeError(f"{name} is missing")
        found = buffer(value, writable=writable)
        if kind is not None:
            _expect(found, dtype_number(kind), name)
        if count is not None and found.count != count:
            raise ValueError(f"{name} has {found.count} items, it must have {count}")
        keep.append(found)
        return found

    @staticmethod
    def _rows(value: Any, kind: Optional[int], width: int, name: str, keep: list[Any],
              writable: bool = False) -> tuple[Any, ...]:
        """(address, stride in bytes, number of rows) of a [rows, width] array; kind None: of any type, width in bytes."""
        if value is None:
            raise TypeError(f"{name} is missing")
        found, stride = rows_buffer(value, name, writable)
        if kind is not None:
            _expect(found, kind, name)
        if len(found.shape) != 2 or found.shape[1] * (found.itemsize if kind is None else 1) != width:
            wanted = f"[rows, n], {width} bytes a row" if kind is None else f"[rows, {width}]"
            raise ValueError(f"{name} has shape {found.shape}, it must be {wanted}")
        keep.append(found)
        return found.address, stride, found.shape[0]


def _check_phase(phase: str, wait_ns: Any, timeout_ms: int) -> None:
    if phase not in PHASES:
        raise ValueError(f"phase is {phase!r}, it must be one of {', '.join(PHASES)}")
    if phase == "send" and (wait_ns is not None or timeout_ms != 0):
        raise ValueError("wait_ns and timeout_ms belong to the phase that receives")
    if not 0 <= timeout_ms < 1 << 32:
        raise ValueError(f"timeout_ms is {timeout_ms}, it must be from 1 to 2^32 - 1, or 0: the object's")


def _expect(found: Buffer, kind: int, name: str) -> None:
    """Types must agree; an unsigned integer may hold a type that NumPy lacks."""
    raw = {1: _abi.MEP_UINT8, 2: _abi.MEP_UINT16}.get(SIZES[kind])
    if found.dtype != kind and found.dtype != raw:
        hint = ""
        if kind in RAW:
            name_of_type, bits = RAW[kind]
            hint = f", as ml_dtypes has it or as bits in {bits}; array.astype(ml_dtypes.{name_of_type}) converts it"
        raise ValueError(f"{name} holds {dtype_name(found.dtype)}, it must hold {dtype_name(kind)}{hint}")
