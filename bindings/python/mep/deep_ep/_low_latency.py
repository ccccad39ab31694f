"""Dispatches and combines of DeepEP's low-latency shapes, for mep.deep_ep and mep.mooncake.ep."""
from __future__ import annotations

import ctypes
import time
import weakref
from typing import Any, Callable, Dict, List, Optional

import torch

import mep
from mep.ep import _ABSENT, _REFUSED

BUFFERS = 2  # results that live at one time
GROUP = 128  # values that share a scale
_EVICTION_S = 60  # until the ranks must have decided to leave one out
# The rows that a dispatch sends: rows as they are; fp8 with scales of float32; fp8 with scales that are powers of two.
WIRES: "Dict[str, dict]" = {
    "bfloat16": {},
    "fp8": {"wire_type": "float8_e4m3"},
    "fp8_power": {"wire_type": "float8_e4m3", "scale_type": "ue8m0"},
}


class Handle(tuple):
    """(src_info, layout_range, max_tokens, hidden, num_experts) of a dispatch, for its combine."""

    _use: "_Use"


class _Use:
    """One dispatch and its combine: of a buffer, the number of its dispatch there, and what that sent."""

    def __init__(self, lane: "_Lane", topk_idx: torch.Tensor):
        self.lane, self.number, self.topk_idx = lane, lane.number, topk_idx


class _Lane:
    """A buffer of an EP object and its handle."""

    def __init__(self, ep: "mep.Ep", buffer: int):
        self.ep, self.buffer, self.handle = ep, buffer, ep.handle(buffer)
        self.number = 0  # of its last dispatch

    def memory(self, address: int, shape: tuple, dtype: torch.dtype, owner: Any) -> torch.Tensor:
        """Memory of the library, which `owner` keeps, as a tensor."""
        size = torch.Size(shape).numel() * dtype.itemsize
        raw = (ctypes.c_char * size).from_address(address)
        raw.owner = owner  # type: ignore[attr-defined]
        return torch.frombuffer(raw, dtype=dtype).view(shape)


class Lanes:
    """An EP object, whose buffers are used in turn; `kind` makes the lane of a buffer."""

    def __init__(self, ep: "mep.Ep", kind: "Callable[[mep.Ep, int], Any]"):
        self.ep = ep
        self._lanes = [kind(ep, buffer) for buffer in range(BUFFERS)]
        self._turn = 0

    def next(self) -> Any:
        return self._lanes[self._turn]

    def start_again(self) -> None:
        """From the first buffer, as a joiner begins."""
        self._turn = 0

    def used(self) -> None:
        self._turn = (self._turn + 1) % BUFFERS


def _leave(comm: "mep.Comm") -> None:
    try:
        comm.close()
    except mep.BusyError:  # a hook was not called
        comm.abort("a buffer was destroyed before a hook was called")
        comm.close()


def _leave_at_last(comm: "mep.Comm") -> None:
    try:
        _leave(comm)
    except mep.Error:
        pass


class LowLatency:
    """The calls over one communicator. goes_on: a rank that is lost is left out, and no call raises for it; the
    communicator was made with partial=True then. owned: the communicator is closed with this, at last when the process
    ends."""

    lane_kind = _Lane

    def __init__(self, comm: "mep.Comm", goes_on: bool, owned: bool, newcomer: bool = False):
        self.comm, self.goes_on, self._newcomer = comm, goes_on, newcomer
        self._objects: "Dict[tuple, Lanes]" = {}
        self._leaving = weakref.finalize(self, _leave_at_last, comm) if owned else None

    def close(self) -> None:
        """Frees the EP objects, and leaves the communicator if it is owned."""
        if self._leaving is None:
            for lanes in self._objects.values():
                lanes.ep.close()
        else:
            self._leaving.detach()
            _leave(self.comm)
        self._objects.clear()

    # ---- who is there -----------------------------------------------------------------------------------

    def absent(self) -> List[int]:
        """Ranks that are gone, as this rank knows it now."""
        return [rank for rank, state in enumerate(self.comm.view().states) if state in _ABSENT]

    def leave_out(self, rank: int) -> None:
        """Leaves a rank out from now on; the ranks decide on it together. Returns when that is decided, so that it cuts
        no operation that this rank begins afterwards. mep.TimeoutError: it was not decided."""
        if rank in self.absent():
            return
        self.comm.evict(rank)
        limit = time.monotonic() + _EVICTION_S
        while rank not in self.absent():
            if time.monotonic() > limit:
                raise mep.TimeoutError(f"rank {rank} was not left out within {_EVICTION_S} s")
            time.sleep(0.0005)

    def recover(self, there: List[int], timeout: float = 60.0) -> None:
        """Takes in the replacements of ranks that are gone and in `there`. All ranks that are there call it, with
        nothing pending. mep.TimeoutError says that one did not come."""
        absent = self.absent()
        known = self.comm.agree(sum(1 << rank for rank in range(self.comm.size) if rank not in absent))
        wanted = [rank for rank in there if not known >> rank & 1]
        if wanted:
            self.again(lambda: self.comm.recover_ranks(wanted, timeout))
        for lanes in self._objects.values():
            lanes.start_again()

    def again(self, call: "Callable[[], Any]") -> Any:
        """Does the call, again where it did nothing but tell of ranks that have gone."""
        for _ in range(self.comm.size):
            try:
                return call()
            except (mep.PeerFailedError, mep.PeerLeftError) as problem:
                # Making an EP object has no info: it fails on all ranks.
                if not self.goes_on or problem.info is not None and problem.info.seq != 0:
                    raise
        return call()

    # ---- dispatch ---------------------------------------------------------------------------------------

    def _lanes(self, max_tokens: int, hidden: int, top_k: int, num_experts: int, wire: str) -> Lanes:
        key = (max_tokens, hidden, top_k, num_experts, wire)
        if key not in self._objects:
            options = dict(max_tokens_per_rank=max_tokens, hidden=hidden, top_k=top_k, num_experts=num_experts,
                           num_buffers=BUFFERS, name="deep_ep-" + "-".join(map(str, key)), **WIRES[wire])
            self._objects[key] = Lanes(self.again(lambda: self._object(options)), self.lane_kind)
        return self._objects[key]

    def _object(self, options: dict) -> "mep.Ep":
        if self._newcomer:
            try:
                return mep.Ep.attach(self.comm, **options)
            except mep.NotFoundError:
                pass  # new to the others too
        return mep.Ep(self.comm, **options)

    def raise_failure(self) -> None:
        """Raises what an operation before has met and no call has told."""

    def _check(self, **tensors: Optional[torch.Tensor]) -> None:
        """Refuses tensors that are not where this works."""
        check_host(**tensors)

    def _check_waits(self, name: str, waits: Optional[torch.Tensor]) -> None:
        _check_counters(name, waits, (torch.int64,))
        if waits is not None and tuple(waits.shape) != (self.comm.size,):
            raise ValueError(f"{name} has shape {tuple(waits.shape)}, it must be [{self.comm.size}]")

    def _begin(self, x: torch.Tensor, topk_idx: torch.Tensor, max_tokens: int, num_experts: int, wire: str,
               statistics: Optional[torch.Tensor]) -> tuple:
        """(lanes, addresses of the next lane's memory, its rows [local experts, ranks * most tokens, hidden])"""
        self._check(x=x, topk_idx=topk_idx)
        if x.dim() != 2 or topk_idx.dim() != 2:
            raise ValueError(f"x has shape {tuple(x.shape)} and topk_idx {tuple(topk_idx.shape)}; they must be "
                             "[tokens, hidden] and [tokens, top-k]")
        self.raise_failure()
        hidden = x.shape[1]
        lanes = self._lanes(max_tokens, hidden, topk_idx.shape[1], num_experts, wire)
        lane, ep = lanes.next(), lanes.ep
        experts, rows = ep.experts_per_rank, self.comm.size * max_tokens
        if statistics is not None and tuple(statistics.shape) != (experts,):
            raise ValueError(f"cumulative_local_expert_recv_stats has shape {tuple(statistics.shape)}, it must be "
                             f"[{experts}]")
        addresses = ep._addresses(lane.buffer)
        found = lane.memory(addresses.recv_x, (experts, rows, hidden),
                            torch.bfloat16 if wire == "bfloat16" else torch.float8_e4m3fn, self)
        return lanes, addresses, found

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, max_tokens: int, num_experts: int, wire: str,
                 packed_scales: bool, statistics: Optional[torch.Tensor], with_hook: bool,
                 waits: Optional[torch.Tensor] = None) -> tuple:
        """(rows, or rows and scales; counts; handle; hook or None)"""
        _check_counters("cumulative_local_expert_recv_stats", statistics, (torch.int32, torch.int64))
        self._check_waits("dispatch_wait_recv_cost_stats", waits)
        lanes, addresses, found = self._begin(x, topk_idx, max_tokens, num_experts, wire, statistics)
        lane, (experts, rows, hidden) = lanes.next(), found.shape
        scales = None if wire == "bfloat16" else _Scales(
            lane.memory(addresses.recv_scales, (experts, rows, (hidden + GROUP - 1) // GROUP),
                        torch.float32 if wire == "fp8" else torch.uint8, self), packed_scales)
        outputs = {"recv_count": torch.zeros(experts, dtype=torch.int32),
                   "src_info": torch.zeros(experts, rows, dtype=torch.int32),
                   "layout_range": torch.zeros(experts, self.comm.size, dtype=torch.int64),
                   "statistics": statistics, "wait_ns": waits}

        def received() -> None:
            if scales is not None:
                scales.fill(outputs["recv_count"].tolist())

        def receive() -> None:
            self.again(lambda: lane.handle.dispatch(phase="receive", **outputs))
            received()

        self._send(lanes, lambda: lane.handle.dispatch(x, topk_idx, phase="send") if with_hook
                   else lane.handle.dispatch(x, topk_idx, **outputs))
        if not with_hook:
            received()
        handle = Handle((outputs["src_info"], outputs["layout_range"], max_tokens, hidden, num_experts))
        handle._use = _Use(lane, topk_idx.clone())
        return (found if scales is None else (found, scales.tensor), outputs["recv_count"], handle,
                _once(receive) if with_hook else None)

    def _send(self, lanes: Lanes, call: "Callable[[], Any]") -> None:
        """Takes the buffer, on all ranks the same, unless the call has changed nothing."""
        def used() -> None:
            lanes.next().number += 1
            lanes.used()
        try:
            self.again(call)
        except mep.Error as problem:
            info = problem.info
            if not isinstance(problem, _REFUSED) and (info is None or info.seq != 0):
                used()
            raise
        used()

    # ---- combine ----------------------------------------------------------------------------------------

    def _use(self, handle: Any) -> _Use:
        use = getattr(handle, "_use", None)
        if not isinstance(use, _Use):
            raise TypeError(f"handle is a {type(handle).__name__}; it must be the object that the dispatch returned")
        if use.number != use.lane.number:
            raise RuntimeError(f"the handle is that of an older dispatch; {BUFFERS} results live at one time, and "
                               "later dispatches have used its buffer")
        return use

    def combine_buffer(self, handle: Any) -> torch.Tensor:
        lane = self._use(handle).lane
        _, _, max_tokens, hidden, _ = handle
        shape = (lane.ep.experts_per_rank, self.comm.size * max_tokens, hidden)
        return lane.memory(lane.ep._addresses(lane.buffer).combine_input, shape, torch.bfloat16, self)

    def combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: Any,
                zero_copy: bool, with_hook: bool, out: Optional[torch.Tensor],
                waits: Optional[torch.Tensor] = None) -> tuple:
        """(sums, hook or None)"""
        use = self._use(handle)
        check_host(x=x, topk_idx=topk_idx, topk_weights=topk_weights, out=out)
        self._check_waits("combine_wait_recv_cost_stats", waits)
        if not torch.equal(topk_idx, use.topk_idx):
            raise ValueError("topk_idx is not that of the dispatch; to leave an expert out of the sum give it the "
                             "weight 0")
        tokens, hidden, run = topk_idx.shape[0], handle[3], use.lane.handle.combine
        if out is None:
            out = torch.empty(tokens, hidden, dtype=torch.bfloat16)
        y = None if zero_copy else x

        def receive() -> None:
            self.again(lambda: run(out, weights=topk_weights, wait_ns=waits, phase="receive"))

        if not with_hook:
            self.again(lambda: run(out, y, weights=topk_weights, wait_ns=waits))
            return out, None
        self.again(lambda: run(y=y, phase="send"))
        return out, _once(receive)


class _Scales:
    """Scales of received rows as DeepEP has them: the rows of an expert lie next to each other, group by group."""

    def __init__(self, source: torch.Tensor, packed: bool):
        experts, rows, groups = source.shape
        if packed and groups % 4 != 0:
            raise ValueError(f"use_ue8m0 packs 4 scales of {GROUP} values in a word; hidden must be a multiple of "
                             f"{4 * GROUP}")
        self._source = source.view(torch.int32) if packed else source
        self.tensor = torch.zeros(experts, self._source.shape[2], rows,
                                  dtype=torch.int32 if packed else torch.float32).transpose(1, 2)

    def fill(self, counts: List[int]) -> None:
        for target, source, count in zip(self.tensor, self._source, counts):
            values = source[:count]
            if values.dtype == torch.uint8:  # exponents of two, as float32 has them
                values = (values.to(torch.int32) << 23).view(torch.float32)
            target[:count] = values


def check_host(**tensors: Optional[torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device.type != "cpu":
            raise NotImplementedError(f"{name} is on {tensor.device}; tensors of GPUs are not served yet")


def _check_counters(name: str, counters: Optional[torch.Tensor], kinds: tuple) -> None:
    """Refuses tensors that the library could not add to: before anything is sent, though receiving uses them."""
    check_host(**{name: counters})
    if counters is not None and (counters.dtype not in kinds or not counters.is_contiguous()):
        raise ValueError(f"{name} is {counters.dtype} with strides {counters.stride()}; it must be dense, of "
                         f"{' or '.join(map(str, kinds))}")


def _once(call: "Callable[[], None]") -> "Callable[[], None]":
    """A hook, which receives when it is called first."""
    pending = [call]

    def hook() -> None:
        if pending:
            pending[-1]()
            pending.clear()
    return hook
