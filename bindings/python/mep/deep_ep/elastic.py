"""deep_ep.ElasticBuffer, DeepEP's second interface, over the normal mode of Buffer."""
from __future__ import annotations

from typing import Any, List, Optional, Tuple, Union

import torch

import mep

from .utils.event import EventHandle, EventOverlap
from ._high_throughput import Handle, _Rows
from .buffer import Buffer, _not_served, normal_bytes

_Event = Union[None, EventHandle, EventOverlap]


def _expect(name: str, tensor: torch.Tensor, kind: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != kind or tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: {tensor.dtype} {tuple(tensor.shape)}; it must be {kind} {shape}")


def expert_counts(local: torch.Tensor, experts: int) -> torch.Tensor:
    """[experts] int64: rows of each local expert."""
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=local.device)
    keys = local.where(local >= 0, experts).flatten()
    return counts.index_add_(0, keys, torch.ones_like(keys))[:-1]


class EPHandle:
    """The routing of a dispatch, for its combine and for further dispatches.

    num_recv_tokens: rows of the received tensors without expansion. num_recv_tokens_per_expert_list: rounded up to
    expert_alignment; empty where the dispatch did not wait (do_cpu_sync=False). psum_num_recv_tokens_per_scaleup_rank
    [ranks] int32: rows of the ranks up to each. psum_num_recv_tokens_per_expert [local experts] int32: rounded rows of
    the experts up to each; with do_expand where the rows of each end, before its padding.
    num_unaligned_recv_tokens_per_expert [local experts] int32, with do_expand. recv_src_metadata int32 [received, 2], or
    with do_expand [received, 2 + top-k]: source rank * num_max_tokens_per_rank + token, the row, and the expanded row
    for each k, -1 for none.
    """

    def __init__(self, *, base: Handle, do_expand: bool, num_experts: int, expert_alignment: int,
                 num_max_tokens_per_rank: int, num_sms: int, topk_idx: torch.Tensor):
        self._base = base
        self._counts: torch.Tensor  # rows of each local expert
        self.do_expand, self.num_experts, self.expert_alignment = do_expand, num_experts, expert_alignment
        self.num_max_tokens_per_rank, self.num_sms, self.topk_idx = num_max_tokens_per_rank, num_sms, topk_idx
        self.num_recv_tokens = self.num_expanded_tokens = 0
        self.num_recv_tokens_per_expert_list: List[int] = []
        self.recv_topk_idx: Optional[torch.Tensor] = None
        self.psum_num_recv_tokens_per_scaleup_rank: torch.Tensor
        self.psum_num_recv_tokens_per_expert: torch.Tensor
        self.num_unaligned_recv_tokens_per_expert: Optional[torch.Tensor] = None
        self.recv_src_metadata: torch.Tensor

    @property
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        """[tokens, top-k] int32: where a token goes. DeepEP names slots of its buffers, which tests compare between
        dispatches of one routing; here these are the experts, -1 for none."""
        return self.topk_idx.to(torch.int32)

    def _note(self, rank: int, rows: int, local: torch.Tensor, counts: List[int], experts: int) -> None:
        """Takes in how the dispatch ended. rows: of its tensors. local: [received, top-k]; counts: empty where it did not
        wait."""
        ends = self._base[0][:, rank].contiguous()
        tokens = self._base[3]
        numbers = torch.arange(len(tokens), dtype=torch.int32, device=tokens.device)
        source = torch.searchsorted(ends, numbers, right=True).clamp(max=len(ends) - 1)
        token = (source * self.num_max_tokens_per_rank + tokens).where(tokens >= 0, -1).to(torch.int32)
        self.num_recv_tokens, self.num_recv_tokens_per_expert_list = len(tokens), counts
        self.psum_num_recv_tokens_per_scaleup_rank = ends
        self.recv_topk_idx = local
        columns = [token.unsqueeze(1), numbers.unsqueeze(1)]
        self._counts = expert_counts(local, experts)
        padded = (self._counts + self.expert_alignment - 1) // self.expert_alignment * self.expert_alignment
        if self.do_expand:
            self.num_expanded_tokens = rows
            self.psum_num_recv_tokens_per_expert = (padded.cumsum(0) - padded + self._counts).to(torch.int32)
            self.num_unaligned_recv_tokens_per_expert = self._counts.to(torch.int32)
            columns.append(self._base.slots)
        else:
            self.psum_num_recv_tokens_per_expert = padded.cumsum(0).to(torch.int32)
        self.recv_src_metadata = torch.cat(columns, 1)


class ElasticBuffer:
    """The ranks' part in dispatches and combines of a process group of torch.distributed, or of a mep.Comm.

    num_max_tokens_per_rank: the default of dispatch. use_fp8_dispatch: not looked at, x tells. The sizes and other
    options are accepted and change nothing: MEP's memory is made by the first dispatch. `domain`: one domain of all
    ranks. Results are the same bytes in every run, with and without `deterministic`.
    """

    def __init__(self, group: Any, num_bytes: Optional[int] = None, num_cpu_bytes: int = 0,
                 num_max_tokens_per_rank: int = 0, hidden: int = 0, num_topk: int = 0, use_fp8_dispatch: bool = False,
                 deterministic: bool = False, allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True,
                 prefer_overlap_with_compute: bool = True, sl_idx: int = 3, num_allocated_qps: int = 0,
                 num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100, explicitly_destroy: bool = False):
        self._buffer = Buffer(group, explicitly_destroy=explicitly_destroy)
        self.group, self.rank_idx, self.num_ranks = group, self._buffer.rank, self._buffer.group_size
        if num_bytes is None:
            num_bytes = normal_bytes(num_max_tokens_per_rank, hidden, self.num_ranks, num_topk)
        self.num_bytes, self.num_max_tokens_per_rank = num_bytes, num_max_tokens_per_rank
        self.deterministic, self.allow_hybrid_mode = deterministic, allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_allocated_qps, self.explicitly_destroy = num_allocated_qps, explicitly_destroy
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()

    def destroy(self) -> None:
        """Leaves, together with the other ranks."""
        self._buffer.destroy()

    @staticmethod
    def get_buffer_size_hint(group: Any, num_max_tokens_per_rank: int, hidden: int, num_topk: int = 0,
                             use_fp8_dispatch: bool = False, allow_hybrid_mode: bool = True,
                             allow_multiple_reduction: bool = True) -> int:
        """Bytes that the buffers take at most. The first dispatch makes them; num_bytes changes nothing."""
        ranks = group.size if isinstance(group, mep.Comm) else torch.distributed.get_world_size(group)
        return normal_bytes(num_max_tokens_per_rank, hidden, ranks, num_topk)

    def get_physical_domain_size(self) -> Tuple[int, int]:
        """(1, ranks)"""
        return 1, self.num_ranks

    def get_logical_domain_size(self) -> Tuple[int, int]:
        """(1, ranks)"""
        return 1, self.num_ranks

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, *arguments: Any, **named: Any) -> int:
        """Blocks of a kernel: Buffer.num_sms."""
        return Buffer.num_sms

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Queue pairs: as many as were asked for; they change nothing."""
        return self.num_allocated_qps

    @staticmethod
    def capture() -> EventHandle:
        """An event of the current stream; without a GPU one that has happened."""
        return EventHandle()

    def get_comm_stream(self) -> Any:
        return self._buffer.get_comm_stream()

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Until all ranks have come; the current stream waits."""
        calls = self._buffer._open()
        on_gpu = calls.streams is not None
        if with_cpu_sync and on_gpu:
            torch.cuda.synchronize()
        stream = {"stream": torch.cuda.current_stream()} if on_gpu else {}
        calls.again(lambda: calls.comm.barrier(**stream))
        if with_cpu_sync and on_gpu:
            torch.cuda.synchronize()

    def dispatch(self, x: _Rows, topk_idx: Optional[torch.Tensor] = None, topk_weights: Optional[torch.Tensor] = None,
                 cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None, num_experts: Optional[int] = None,
                 num_max_tokens_per_rank: Optional[int] = None, expert_alignment: Optional[int] = None,
                 num_sms: int = 0, num_qps: int = 0, previous_event: _Event = None,
                 previous_event_before_epilogue: _Event = None, async_with_compute_stream: bool = False,
                 allocate_on_comm_stream: bool = False, handle: Optional[EPHandle] = None, do_handle_copy: bool = True,
                 do_cpu_sync: Optional[bool] = None, do_expand: bool = False, do_zero_padding: bool = False,
                 use_tma_aligned_col_major_sf: bool = False
                 ) -> "Tuple[_Rows, Optional[torch.Tensor], Optional[torch.Tensor], EPHandle, EventOverlap]":
        """Sends each row of x, bfloat16 or (e4m3, scales), once to each rank that has experts of it.

        Returns (recv_x, recv_topk_idx, recv_topk_weights, handle, event). Rows are in the order of source rank, then
        token; with do_expand a row is there once for each of its local experts, grouped by expert in that order, the
        padding is zero, recv_topk_idx is None, and recv_topk_weights has a value for each expanded row. handle: the
        routing of an earlier dispatch. do_cpu_sync=False: tensors for the most rows that can come, which the handle's
        sums count. use_tma_aligned_col_major_sf: scales lie column by column, columns on 16 bytes.
        """
        if handle is not None and topk_idx is not None:
            raise ValueError("a dispatch with a handle takes no topk_idx")
        if handle is None and (topk_idx is None or num_experts is None):
            raise ValueError("a dispatch without a handle needs topk_idx and num_experts")
        for event in (previous_event, previous_event_before_epilogue):
            if event is not None:
                event.current_stream_wait()
        if handle is not None:
            self._base_of(handle)
            again = (("num_experts", num_experts), ("expert_alignment", expert_alignment),
                     ("num_max_tokens_per_rank", num_max_tokens_per_rank))
            for name, value in again:
                if value is not None and value != getattr(handle, name):
                    raise ValueError(f"{name} is {value}, the handle's dispatch had {getattr(handle, name)}")
            if do_expand != handle.do_expand:
                raise ValueError(f"do_expand is {do_expand}, the handle's dispatch had {handle.do_expand}")
            if do_cpu_sync:
                raise ValueError("a dispatch with a handle waits for no counts; leave do_cpu_sync out")
            received, weights = self._again(x, handle, topk_weights)
        else:
            assert topk_idx is not None and num_experts is not None  # by what was checked above
            most = num_max_tokens_per_rank or self.num_max_tokens_per_rank
            received, weights, handle = self._first(
                x, topk_idx, topk_weights, num_experts, most, expert_alignment or 1, num_sms or Buffer.num_sms,
                do_handle_copy, do_cpu_sync is not False, do_expand)
        if cumulative_local_expert_recv_stats is not None:
            self._count(handle, cumulative_local_expert_recv_stats)
        if use_tma_aligned_col_major_sf and isinstance(received, tuple):
            received = received[0], _column_major(received[1])
        local = None if handle.do_expand else handle.recv_topk_idx
        return received, local, weights, handle, self._ending(async_with_compute_stream)

    def _first(self, x: _Rows, topk_idx: torch.Tensor, topk_weights: Optional[torch.Tensor], num_experts: int,
               most: int, alignment: int, num_sms: int, copies: bool, waits: bool, expands: bool
               ) -> Tuple[_Rows, Optional[torch.Tensor], EPHandle]:
        """(received, weights, handle)"""
        tokens = len(x[0] if isinstance(x, tuple) else x)
        if most < 1 or tokens > most:
            raise ValueError(f"x has {tokens} rows, num_max_tokens_per_rank is {most}")
        index = topk_idx.clone() if copies else topk_idx
        _, _, per_expert, in_rank, _ = self._buffer.get_dispatch_layout(index, num_experts)
        worst, experts = 0 if waits else self.num_ranks * most, num_experts // self.num_ranks
        received, local, weights, counts, base, _ = self._buffer._normal.dispatch(
            x, in_rank, per_expert, index, topk_weights, alignment, worst, None, False, room=most, expands=expands)
        handle = EPHandle(base=base, do_expand=expands, num_experts=num_experts, expert_alignment=alignment,
                          num_max_tokens_per_rank=most, num_sms=num_sms, topk_idx=index)
        handle._note(self.rank_idx, len(received[0] if isinstance(received, tuple) else received), local, counts, experts)
        return received, weights, handle

    def _again(self, x: _Rows, handle: EPHandle, topk_weights: Optional[torch.Tensor]
               ) -> Tuple[_Rows, Optional[torch.Tensor]]:
        """(received, weights) by the handle's routing. Weights go with a dispatch of the same routing."""
        if topk_weights is None:
            return self._buffer.dispatch(x, handle=self._base_of(handle))[0], None
        waits = bool(handle.num_recv_tokens_per_expert_list)
        received, weights, fresh = self._first(
            x, handle.topk_idx, topk_weights, handle.num_experts, handle.num_max_tokens_per_rank,
            handle.expert_alignment, handle.num_sms, False, waits, handle.do_expand)
        handle._base = fresh._base
        return received, weights

    def combine(self, x: torch.Tensor, handle: EPHandle, topk_weights: Optional[torch.Tensor] = None,
                bias: Union[None, torch.Tensor, Tuple[torch.Tensor, torch.Tensor]] = None, num_sms: int = 0,
                num_qps: int = 0, previous_event: _Event = None, previous_event_before_epilogue: _Event = None,
                async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False
                ) -> "Tuple[torch.Tensor, Optional[torch.Tensor], EventOverlap]":
        """Brings a row back for each of the handle's dispatch and sums them, without weights, and so the values of
        topk_weights. With do_expand x and topk_weights have the expanded rows: those of a row are summed first, in
        float32 in ascending k, and rounded. Returns (sums, sums of topk_weights or None, event)."""
        for event in (previous_event, previous_event_before_epilogue):
            if event is not None:
                event.current_stream_wait()
        base = self._base_of(handle)
        sums, weights, _ = self._buffer.combine(x, base, topk_weights=topk_weights, bias=bias)
        return sums, weights, self._ending(async_with_compute_stream)

    @staticmethod
    def _base_of(handle: Any) -> Handle:
        if not isinstance(handle, EPHandle):
            raise TypeError(f"handle is a {type(handle).__name__}; it must be the EPHandle that a dispatch returned")
        return handle._base

    def _count(self, handle: EPHandle, stats: torch.Tensor) -> None:
        _expect("cumulative_local_expert_recv_stats", stats, torch.int32, (len(handle._counts),))
        stats += handle._counts.to(torch.int32)

    @staticmethod
    def _ending(asked: bool) -> EventOverlap:
        """The current stream has waited for the operation already."""
        return EventOverlap(EventHandle() if asked else None)

    # ---- not served -------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("engram_", "pp_", "agrs_")) or name in ("create_agrs_session", "destroy_agrs_session",
                                                                    "all_gather"):
            _not_served(f"ElasticBuffer.{name}", "dispatch and combine are")
        raise AttributeError(f"ElasticBuffer has no attribute {name!r}")


def _column_major(scales: torch.Tensor) -> torch.Tensor:
    """The same values, each column in a piece of memory that begins on 16 bytes."""
    rows, columns = scales.shape
    unit = 16 // scales.element_size()
    memory = scales.new_zeros(columns, -(-rows // unit) * unit)
    memory[:, :rows] = scales.t()
    return memory.t()[:rows]
