"""Mooncake's expert parallelism, `mooncake.mooncake_ep_buffer`, over MEP's, for tensors of the CPU or of GPUs.

    from mep.mooncake.ep import Buffer

docs/guide/mooncake.md says what differs from Mooncake.
"""
from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import torch

from mep.deep_ep import EventOverlap
from mep.deep_ep._low_latency import LowLatency
from mep.deep_ep._high_throughput import _Rows
from mep.deep_ep.buffer import _Hook, low_latency_bytes
from mep.torch._meeting import Place


class Buffer:
    """The ranks' part in dispatches and combines. All ranks of `group` make it; a communicator of its own is made. The
    ranks meet in the first dispatch, whose tensors' device is that of all further ones. A process that has not joined its
    group dispatches alone.

    A rank that is lost is left out, and no call raises for it. The sizes are accepted and change nothing.
    """

    def __init__(self, group: Any, num_ep_buffer_bytes: int = 0, disable_p2p: bool = False):
        self.group, self.num_ep_buffer_bytes = group, num_ep_buffer_bytes
        self._calls: Optional[LowLatency] = None
        self._is_alone = False  # with _calls: they were made before this process had joined
        self._take_place()

    def _take_place(self) -> None:
        self._place = Place(self.group)
        self.rank, self.group_size = self._place.rank, self._place.size
        self._timeout_us: Optional[int] = None  # that the communicator has
        self._seen: Any = None  # the tensor of active ranks that was read last, and its version

    @staticmethod
    def get_ep_buffer_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                num_experts: int) -> int:
        """Bytes that the buffers take at most. The first dispatch makes them."""
        return low_latency_bytes(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, active_ranks: torch.Tensor,
                 num_max_dispatch_tokens_per_rank: int, num_experts: int, timeout_us: int,
                 use_fp8: Optional[bool] = True, async_finish: bool = False, return_recv_hook: bool = False
                 ) -> "Tuple[_Rows, torch.Tensor, tuple[Any, ...], EventOverlap, _Hook]":
        """Sends each row of x to its experts. Returns (recv_x or (recv_x, scales), recv_count, handle, event, hook), as
        mep.deep_ep does. active_ranks, int32 [ranks] or longer: a rank with 0 is left out for good; one that is gone
        gets 0.
        """
        self._meet(x)
        calls = self._begin(active_ranks, timeout_us, async_finish, return_recv_hook)
        wire = "bfloat16" if use_fp8 is False else "fp8"
        found, count, handle, event, hook = calls.dispatch(
            x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, wire, False, None, None, return_recv_hook,
            async_finish)
        return found, count, handle, event, self._end(active_ranks, hook)

    def combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, active_ranks: torch.Tensor,
                timeout_us: int, handle: tuple[Any, ...], zero_copy: bool = False, async_finish: bool = False,
                return_recv_hook: bool = False, out: Optional[torch.Tensor] = None
                ) -> "Tuple[torch.Tensor, EventOverlap, _Hook]":
        """Brings the experts' rows back and sums them by weight. Returns (sums, event, hook). Once per handle."""
        calls = self._begin(active_ranks, timeout_us, async_finish, return_recv_hook)
        sums, event, hook = calls.combine(x, topk_idx, topk_weights, handle, zero_copy, out, None, return_recv_hook,
                                          async_finish)
        return sums, event, self._end(active_ranks, hook)

    def get_next_combine_buffer(self, handle: tuple[Any, ...]) -> torch.Tensor:
        """[local experts, ranks * most tokens, hidden] of bfloat16: memory for a combine with zero_copy."""
        return self._joined().combine_buffer(handle)

    def update_ep_member(self) -> None:
        """Takes ranks in that the group has: replacements that it has recovered, ranks that it has grown by, and ranks that
        a 0 in active_ranks has left out. All ranks of the group call it that have this Buffer, with nothing pending; a
        process that comes may make its Buffer then. The ranks meet in the next dispatch. Handles, tensors over memory of the
        library and captured graphs are void.
        """
        calls, self._calls = self._calls, None
        if calls is not None:
            if calls.streams is not None:
                calls.streams.order.synchronize()
            calls.close()
        self._take_place()

    def _meet(self, x: torch.Tensor) -> None:
        """Before each dispatch, of x."""
        if self._is_alone and not self._place.is_alone:
            self.update_ep_member()
        if x.is_cuda and (self._calls is None or self._is_alone) and torch.cuda.is_current_stream_capturing():
            raise NotImplementedError("a graph cannot capture a dispatch in which ranks meet, or that of a rank that has not "
                                      "joined its group: dispatch once with all ranks before the capture")
        if self._calls is not None:
            return
        device = x.device.index if x.is_cuda else None
        self._is_alone = self._place.is_alone
        comm = self._place.meet_nobody(device) if self._is_alone else self._place.meet_all(device)
        self._calls = LowLatency(comm, goes_on=True, owned=True)

    def _joined(self) -> LowLatency:
        if self._calls is None:
            raise RuntimeError("the ranks have not met since the Buffer was made or updated; a dispatch comes first")
        return self._calls

    def _begin(self, active_ranks: torch.Tensor, timeout_us: int, async_finish: bool, with_hook: bool) -> LowLatency:
        if async_finish and with_hook:
            raise ValueError("async_finish and return_recv_hook exclude each other")
        calls = self._joined()
        calls.check(active_ranks=active_ranks)
        if active_ranks.dtype != torch.int32 or active_ranks.dim() != 1 or len(active_ranks) < self.group_size:
            raise ValueError(f"active_ranks is {active_ranks.dtype} {tuple(active_ranks.shape)}; it must be int32 "
                             f"[{self.group_size}], or longer for ranks that may come")
        if timeout_us == 0 or timeout_us < -1:
            raise ValueError(f"timeout_us is {timeout_us}; it must be -1, without end, or above 0")
        if timeout_us != self._timeout_us:
            calls.comm.set_timeout(math.inf if timeout_us < 0 else timeout_us / 1e6)
            self._timeout_us = timeout_us
        # Reading one in GPU memory waits for the GPU, so it is done where the program has written since.
        seen = self._seen is not None and self._seen[0] is active_ranks and self._seen[1] == active_ranks._version
        if not seen:
            for rank in (active_ranks[:self.group_size] == 0).nonzero().flatten().tolist():
                calls.leave_out(rank)
        return calls

    def _end(self, active_ranks: torch.Tensor, hook: _Hook) -> _Hook:
        """Writes who is gone, after the call and after its hook."""
        def show() -> None:
            absent = self._joined().absent()
            if absent:
                active_ranks[absent] = 0
            self._seen = (active_ranks, active_ranks._version)

        show()
        if hook is None:
            return None

        def receive() -> None:
            hook()
            show()
        return receive


__all__ = ["Buffer", "EventOverlap"]
