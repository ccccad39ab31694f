"""deep_ep.ElasticBuffer, DeepEP's second interface, over the normal mode of Buffer."""
from __future__ import annotations

import functools
from typing import Any, List, Optional, Tuple, Union

import torch

from .utils.event import EventHandle, EventOverlap
from ._high_throughput import _Rows
from .buffer import Buffer, _not_served

_Event = Union[None, EventHandle, EventOverlap]


class _Expansion:
    """Rows once for each of their local experts: grouped by expert, in their order there, each group from a multiple
    of the alignment on. Nothing here waits for a GPU."""

    def __init__(self, local: torch.Tensor, counts: torch.Tensor, padded: torch.Tensor, rows: int):
        """local: [received, top-k] local experts, -1 for none. counts, padded: rows of each expert, and with its padding.
        rows: of the expanded tensors, as many as needed."""
        experts, starts = len(counts), padded.cumsum(0) - padded
        self.psum = (starts + counts).to(torch.int32)
        self.rows = rows
        keys = local.where(local >= 0, experts).flatten()
        order = keys.argsort(stable=True)
        groups = keys[order]
        # An entry's number among all that name its expert, from where these begin.
        nothing = counts.new_zeros(1)
        first = torch.cat((counts.cumsum(0) - counts, nothing))
        number = torch.arange(len(order), dtype=torch.int64, device=local.device) - first[groups]
        slot = torch.cat((starts, nothing))[groups] + number
        slot = slot.where(groups < experts, -1)
        self.slots = torch.empty_like(slot).scatter_(0, order, slot).view(local.shape)  # [received, top-k]

    @functools.cached_property
    def source(self) -> torch.Tensor:
        """The entry of `slots` that each expanded row is of, -1 for padding."""
        # The last place takes what has no slot.
        place = self.slots.flatten().where(self.slots.flatten() >= 0, self.rows)
        source = torch.full((self.rows + 1,), -1, dtype=torch.int64, device=place.device)
        entries = torch.arange(len(place), dtype=torch.int64, device=place.device)
        return source.scatter_(0, place, entries)[:-1]

    def spread(self, rows: torch.Tensor, columns: int = 1) -> torch.Tensor:
        """[received * columns, ..] -> [expanded, ..], zeros in the padding. columns: top-k, for values of each."""
        if len(rows) == 0:
            return rows.new_zeros(self.rows, *rows.shape[1:])
        top_k = self.slots.shape[1]
        index = self.source if columns == top_k else self.source.div(top_k, rounding_mode="floor")
        spread = rows.index_select(0, index.clamp(min=0))
        padding = (self.source < 0).view(-1, *[1] * (rows.dim() - 1))
        spread.view(_PLAIN[rows.element_size()]).masked_fill_(padding, 0)
        return spread

    def fold(self, expanded: torch.Tensor) -> torch.Tensor:
        """[expanded, hidden] -> [received, hidden]: float32 sums in ascending k, rounded once."""
        sums = torch.zeros(len(self.slots), expanded.shape[1], dtype=torch.float32, device=expanded.device)
        if len(expanded) == 0:
            return sums.to(expanded.dtype)
        for k in range(self.slots.shape[1]):
            slot = self.slots[:, k]
            sums += expanded.index_select(0, slot.clamp(min=0)).float().masked_fill_((slot < 0).unsqueeze(1), 0)
        return sums.to(expanded.dtype)

    def fold_values(self, expanded: torch.Tensor) -> torch.Tensor:
        """[expanded] -> [received, top-k], 0 where a row has no such expert."""
        if len(expanded) == 0:
            return expanded.new_zeros(self.slots.shape)
        values = expanded.index_select(0, self.slots.flatten().clamp(min=0)).view(self.slots.shape)
        return values.masked_fill_(self.slots < 0, 0)


_PLAIN = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _expect(name: str, tensor: torch.Tensor, kind: torch.dtype, shape: tuple) -> None:
    if tensor.dtype != kind or tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: {tensor.dtype} {tuple(tensor.shape)}; it must be {kind} {shape}")


def expert_counts(local: torch.Tensor, experts: int) -> torch.Tensor:
    """[experts] int64: rows of each local expert."""
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=local.device)
    keys = local.where(local >= 0, experts).flatten()
    return counts.index_add_(0, keys, torch.ones_like(keys))[:-1]


def most_expanded(received: int, top_k: int, experts: int, alignment: int) -> int:
    """Expanded rows that `received` rows for `experts` experts give at most."""
    rows = received * min(top_k, experts) + experts * (alignment - 1)
    return -(-rows // alignment) * alignment


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

    def __init__(self, *, base: tuple, do_expand: bool, num_experts: int, expert_alignment: int,
                 num_max_tokens_per_rank: int, num_sms: int, topk_idx: torch.Tensor):
        self._base = base
        self._expansion: Optional[_Expansion] = None
        self._by_library = False  # expanded rows are the library's, and so are their sums
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

    def _note(self, rank: int, local: torch.Tensor, counts: List[int], experts: int) -> None:
        """Takes in how the dispatch ended. local: [received, top-k]; counts: empty where it did not wait."""
        ends = self._base[0][:, rank].contiguous()
        tokens = self._base[3]
        rows = torch.arange(len(tokens), dtype=torch.int32, device=tokens.device)
        source = torch.searchsorted(ends, rows, right=True).clamp(max=len(ends) - 1)
        token = (source * self.num_max_tokens_per_rank + tokens).where(tokens >= 0, -1).to(torch.int32)
        self.num_recv_tokens, self.num_recv_tokens_per_expert_list = len(tokens), counts
        self.psum_num_recv_tokens_per_scaleup_rank = ends
        self.recv_topk_idx = local
        columns = [token.unsqueeze(1), rows.unsqueeze(1)]
        self._counts = expert_counts(local, experts)
        padded = (self._counts + self.expert_alignment - 1) // self.expert_alignment * self.expert_alignment
        if self.do_expand:
            most = sum(counts) if counts else most_expanded(len(local), local.shape[1], experts, self.expert_alignment)
            self._expansion = _Expansion(local, self._counts, padded, most)
            self.num_expanded_tokens = self._expansion.rows
            self.psum_num_recv_tokens_per_expert = self._expansion.psum
            self.num_unaligned_recv_tokens_per_expert = self._counts.to(torch.int32)
            columns.append(self._expansion.slots.to(torch.int32))
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
        self.num_bytes, self.num_max_tokens_per_rank = num_bytes or 0, num_max_tokens_per_rank
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
        """0: the first dispatch makes the memory, and num_bytes changes nothing."""
        return 0

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
               most: int, alignment: int, num_sms: int, copies: bool, waits: bool, expands: bool) -> tuple:
        """(received, weights, handle)"""
        tokens = len(x[0] if isinstance(x, tuple) else x)
        if most < 1 or tokens > most:
            raise ValueError(f"x has {tokens} rows, num_max_tokens_per_rank is {most}")
        index = topk_idx.clone() if copies else topk_idx
        _, _, per_expert, in_rank, _ = self._buffer.get_dispatch_layout(index, num_experts)
        worst, experts = 0 if waits else self.num_ranks * most, num_experts // self.num_ranks
        by_library = expands and self._buffer._normal.expands
        if by_library:
            received, local, weights, counts, base = self._buffer._normal.dispatch_expanded(
                x, in_rank, per_expert, index, topk_weights, alignment, worst,
                most_expanded(worst, index.shape[1], experts, alignment))
        else:
            received, local, weights, counts, base, _ = self._buffer._normal.dispatch(
                x, in_rank, per_expert, index, topk_weights, alignment, worst, None, False, room=most)
        handle = EPHandle(base=base, do_expand=expands, num_experts=num_experts, expert_alignment=alignment,
                          num_max_tokens_per_rank=most, num_sms=num_sms, topk_idx=index)
        handle._by_library = by_library
        handle._note(self.rank_idx, local, counts, experts)
        return *self._shown(received, weights, handle), handle

    def _again(self, x: _Rows, handle: EPHandle, topk_weights: Optional[torch.Tensor]) -> tuple:
        """(received, weights) by the handle's routing. Weights go with a dispatch of the same routing."""
        if topk_weights is None:
            received = self._buffer.dispatch(x, handle=self._base_of(handle))[0]
            return self._shown(received, None, handle)
        waits = bool(handle.num_recv_tokens_per_expert_list)
        received, weights, fresh = self._first(
            x, handle.topk_idx, topk_weights, handle.num_experts, handle.num_max_tokens_per_rank,
            handle.expert_alignment, handle.num_sms, False, waits, handle.do_expand)
        handle._base = fresh._base
        return received, weights

    @staticmethod
    def _shown(received: _Rows, weights: Optional[torch.Tensor], handle: EPHandle) -> tuple:
        """(received, weights) as the handle's layout has them."""
        expansion = handle._expansion
        if expansion is None or handle._by_library:
            return received, weights
        if isinstance(received, tuple):
            received = tuple(expansion.spread(each) for each in received)
        else:
            received = expansion.spread(received)
        if weights is not None:
            weights = expansion.spread(weights.flatten(), weights.shape[1])
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
        expansion = handle._expansion
        if expansion is not None:
            if x.dim() != 2 or len(x) != expansion.rows:
                raise ValueError(f"x is {tuple(x.shape)}; it must be [{expansion.rows}, hidden], a row for each expanded "
                                 "one of the dispatch")
            if topk_weights is not None:
                _expect("topk_weights", topk_weights, torch.float32, (expansion.rows,))
        if expansion is not None and not handle._by_library:
            x = expansion.fold(x)
            topk_weights = None if topk_weights is None else expansion.fold_values(topk_weights)
        sums, weights, _ = self._buffer.combine(x, base, topk_weights=topk_weights, bias=bias)
        return sums, weights, self._ending(async_with_compute_stream)

    @staticmethod
    def _base_of(handle: Any) -> tuple:
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
