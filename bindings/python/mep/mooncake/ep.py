"""Mooncake's expert parallelism, `mooncake.mooncake_ep_buffer`, over MEP's, for tensors of the CPU or of GPUs.

    from mep.mooncake.ep import Buffer

docs/guide/mooncake.md says what differs from Mooncake.
"""
from __future__ import annotations

import math
from typing import Any, List, Optional, Tuple

import torch

import mep
from mep.deep_ep import EventOverlap
from mep.deep_ep._low_latency import LowLatency
from mep.deep_ep._meeting import Place
from mep.deep_ep._high_throughput import _Rows
from mep.deep_ep.buffer import _Hook, low_latency_bytes

from . import pg


class Buffer:
    """The ranks' part in dispatches and combines. All ranks of `group` make it; a communicator of its own is made. A
    replacement that has not joined its group makes it alone, and takes part from update_ep_member() on.

    A rank that is lost is left out, and no call raises for it. The sizes are accepted and change nothing.

    Where PyTorch has no GPU, the ranks meet here; else in the first dispatch, whose tensors' device is that of all
    further ones.
    """

    def __init__(self, group: Any, num_ep_buffer_bytes: int = 0, disable_p2p: bool = False):
        self.group, self.num_ep_buffer_bytes = group, num_ep_buffer_bytes
        self._place = Place(group)
        self.rank, self.group_size = self._place.rank, self._place.size
        self._calls: Optional[LowLatency] = None
        self._timeout_us: Optional[int] = None  # that the communicator has
        self._seen: Any = None  # the tensor of active ranks that was read last, and its version
        self._is_newcomer = _is_alone(group)
        if not self._is_newcomer and not torch.cuda.is_available():
            self._calls = LowLatency(self._place.meet(partial=True), goes_on=True, owned=True)

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
        calls = self._begin(active_ranks, timeout_us, async_finish, return_recv_hook, x)
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
        calls = self._begin(active_ranks, timeout_us, async_finish, return_recv_hook, topk_idx)
        sums, event, hook = calls.combine(x, topk_idx, topk_weights, handle, zero_copy, out, None, return_recv_hook,
                                          async_finish)
        return sums, event, self._end(active_ranks, hook)

    def get_next_combine_buffer(self, handle: tuple[Any, ...]) -> torch.Tensor:
        """[local experts, ranks * most tokens, hidden] of bfloat16: memory for a combine with zero_copy."""
        return self._joined().combine_buffer(handle)

    def update_ep_member(self) -> None:
        """Takes ranks in that the group has: replacements that it has recovered, and ranks that a 0 in active_ranks has
        left out. All ranks of the group call it, those too, with nothing pending."""
        if self._calls is None and not self._is_newcomer:
            raise RuntimeError("the Buffer was not used yet, so nothing is to be updated")
        if self._calls is not None:
            if self._calls.streams is not None:
                torch.cuda.synchronize(self._calls.comm.device)
            try:
                return self._calls.recover(_there(self.group, self.group_size))
            except mep.EvictedError:  # by a 0 in active_ranks; this rank comes back
                self._calls.close()
                self._timeout_us = None
        self._calls = LowLatency(self._place.join(partial=True), goes_on=True, owned=True, newcomer=True)

    def _joined(self, x: Optional[torch.Tensor] = None) -> LowLatency:
        """x: a tensor of the call that has one."""
        if self._calls is None and x is not None and not self._is_newcomer:
            device = x.device.index if x.is_cuda else None
            self._calls = LowLatency(self._place.meet(partial=True, device=device), goes_on=True, owned=True)
        if self._calls is None:
            raise RuntimeError("this rank is a replacement; call update_ep_member() after join_group(), as the others "
                               "do after recover_ranks()")
        return self._calls

    def _begin(self, active_ranks: torch.Tensor, timeout_us: int, async_finish: bool, with_hook: bool,
               x: torch.Tensor) -> LowLatency:
        if async_finish and with_hook:
            raise ValueError("async_finish and return_recv_hook exclude each other")
        calls = self._joined(x)
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


def _is_alone(group: Any) -> bool:
    """Whether this process is a replacement that has not joined its group."""
    try:
        return pg.get_current_epoch(group) == 0
    except TypeError:  # of another backend, which has no replacements
        return False


def _there(group: Any, size: int) -> List[int]:
    """The ranks that are in the group."""
    try:
        there: List[int] = pg.get_active_ranks(group)[:size].nonzero().flatten().tolist()
        return there
    except TypeError:
        return []


__all__ = ["Buffer", "EventOverlap"]
