"""Dispatches and combines of DeepEP's low-latency shapes, for mep.deep_ep and mep.mooncake.ep."""
from __future__ import annotations

import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

import mep
from mep.ep import _ABSENT, _REFUSED
from mep.errors import error
from mep.torch import _binding

from .utils.event import EventHandle, EventOverlap, Streams, ending

BUFFERS = 2  # results that live at one time
GROUP = 128  # values that share a scale
_EVICTION_S = 60  # until the ranks must have decided to leave one out
# The rows that a dispatch sends: rows as they are; fp8 with scales of float32; fp8 with scales that are powers of two.
WIRES: "Dict[str, Dict[str, Any]]" = {
    "bfloat16": {},
    "fp8": {"wire_type": "float8_e4m3"},
    "fp8_power": {"wire_type": "float8_e4m3", "scale_type": "ue8m0"},
}


class Handle(Tuple[Any, ...]):
    """(src_info, layout_range, max_tokens, hidden, num_experts) of a dispatch, for its combine."""

    _use: Any
    world: Any  # of mep.nixl_ep: whose dispatch it was


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
    """The calls over one communicator. goes_on: a rank that is lost is left out, and no call raises for it. owned: the communicator is closed with this, at last when the process
    ends. On a GPU a failure is raised by a later call, as operations on a stream are.
    """

    def __init__(self, comm: "mep.Comm", goes_on: bool, owned: bool):
        self.comm, self.goes_on = comm, goes_on
        self.streams = None if comm.device is None else Streams(comm.device)
        self.mask = _binding.Mask(comm, self.streams and self.streams.order)
        self._objects: "Dict[Tuple[Any, ...], Any]" = {}  # lanes of the binding, by sizes and kind of rows
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

    def again(self, call: "Callable[[], Any]") -> Any:
        """Does the call, again where it did nothing but tell of ranks that have gone."""
        for _ in range(self.comm.size):
            try:
                return call()
            except mep.Error as problem:
                if not self._only_tells(problem):
                    raise
        return call()

    def _only_tells(self, problem: "mep.Error") -> bool:
        # Making an EP object has no info: it fails on all ranks.
        return (self.goes_on and isinstance(problem, (mep.PeerFailedError, mep.PeerLeftError))
                and (problem.info is None or problem.info.seq == 0))

    def failed(self, ep: "mep.Ep", buffer: int, code: int, text: str) -> "tuple[mep.Error, bool]":
        """For the binding, after a dispatch or combine: (exception, whether the call counts as made)."""
        problem = error(code, text)
        begun = not isinstance(problem, _REFUSED)
        if begun:
            problem.info = ep._news(buffer, code)
        return problem, begun and (self.goes_on or problem.info is None or problem.info.seq != 0)

    def make_ep(self, **options: Any) -> "mep.Ep":
        """An EP object, made by all ranks."""
        return mep.Ep(self.comm, on_loss="in_step" if self.goes_on else "fails", **options)

    # ---- arguments --------------------------------------------------------------------------------------

    def check(self, **tensors: Optional[torch.Tensor]) -> None:
        """Refuses tensors that are not where this works."""
        check_host(**tensors) if self.streams is None else self.streams.check(**tensors)

    def raise_failure(self) -> None:
        """Raises what an operation before has met on the GPU and no call has told."""
        if self.streams is not None and not self.goes_on:
            self.comm.async_result()

    def _lanes(self, x: torch.Tensor, topk_idx: torch.Tensor, max_tokens: int, num_experts: int, wire: str) -> Any:
        if x.dim() != 2 or topk_idx.dim() != 2:
            self.check(x=x, topk_idx=topk_idx)
            raise ValueError(f"x has shape {tuple(x.shape)} and topk_idx {tuple(topk_idx.shape)}; they must be "
                             "[tokens, hidden] and [tokens, top-k]")
        key = (max_tokens, x.shape[1], topk_idx.shape[1], num_experts, wire)
        lanes = self._objects.get(key)
        if lanes is None:
            self.check(x=x, topk_idx=topk_idx)
            self.raise_failure()
            options = dict(max_tokens_per_rank=max_tokens, hidden=key[1], top_k=key[2], num_experts=num_experts,
                           num_buffers=BUFFERS, name="deep_ep-" + "-".join(map(str, key)), **WIRES[wire])
            if self.streams is not None and "wire_type" in options:
                options["scale_layout"] = "column_major"
            ep = self.again(lambda: self.make_ep(**options))
            lanes = self._objects[key] = _binding.LowLatencyLanes(
                ep, [ep.handle(buffer) for buffer in range(BUFFERS)], self.streams and self.streams.order,
                has_power_scales=wire == "fp8_power", tells_failures=not self.goes_on)
        return lanes

    # ---- calls ------------------------------------------------------------------------------------------

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, max_tokens: int, num_experts: int, wire: str,
                 packed_scales: bool, statistics: Optional[torch.Tensor], waits: Optional[torch.Tensor],
                 with_hook: bool, asynchronous: bool) -> tuple[Any, ...]:
        """(rows, or rows and scales; counts; handle; event; hook or None)"""
        lanes = self._lanes(x, topk_idx, max_tokens, num_experts, wire)
        rows, scales, count, info, ranges, use, hook = lanes.dispatch(
            self, x, topk_idx, statistics, waits, packed_scales, with_hook, asynchronous)
        handle = Handle((info, ranges, max_tokens, x.shape[1], num_experts))
        handle._use = use
        return (rows if scales is None else (rows, scales), count, handle,
                self._ending(asynchronous, (x, topk_idx, statistics)), hook)

    def combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: Any,
                zero_copy: bool, out: Optional[torch.Tensor], waits: Optional[torch.Tensor], with_hook: bool,
                asynchronous: bool) -> tuple[Any, ...]:
        """(sums, event, hook or None)"""
        sums, hook = _use_of(handle).combine(self, None if zero_copy else x, topk_idx, topk_weights, out, waits,
                                             with_hook, asynchronous)
        return sums, self._ending(asynchronous, (x, topk_weights, out)), hook

    def combine_buffer(self, handle: Any) -> torch.Tensor:
        memory: torch.Tensor = _use_of(handle).combine_buffer(self)
        return memory

    def _ending(self, asked: bool, given: tuple[Any, ...]) -> EventOverlap:
        if self.streams is None or not asked:
            return ending(asked)
        return EventOverlap(EventHandle(self.streams.own), given)


def _use_of(handle: Any) -> Any:
    use = getattr(handle, "_use", None)
    if not isinstance(use, _binding.LowLatencyLanes.Use):
        raise TypeError(f"handle is a {type(handle).__name__}; it must be the object that the dispatch returned")
    return use


def check_host(**tensors: Optional[torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device.type != "cpu":
            raise NotImplementedError(f"{name} is on {tensor.device}; this Buffer works on the CPU: give it tensors of the CPU")
