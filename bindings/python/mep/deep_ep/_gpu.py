"""Normal mode of mep.deep_ep on tensors of a GPU: enqueued on a stream of its own, with the results that the calls on
host tensors have."""
from __future__ import annotations

import time
from typing import Any, Callable, Optional

import torch

import mep
from mep._buffers import dtype_number
from mep._device import DeviceArray

from .utils.event import EventOverlap, Streams
from ._high_throughput import (Handle as RoutingHandle, HighThroughput, _KINDS, _Lane as _ThroughputLane, _Spot, _Use,
                               _expect, _ranks_as_experts)
from ._low_latency import GROUP, LowLatency


def _memory(address: int, shape: tuple, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory of the library as a tensor, which does not keep it."""
    raw = torch.uint8 if dtype == torch.float8_e4m3fn else dtype  # PyTorch's DLPack may lack 8-bit floats
    array = DeviceArray(address, shape, dtype_number(raw), device.index)
    return torch.from_dlpack(array).view(dtype)


def layout(streams: Streams, topk_idx: torch.Tensor, num_experts: int, ranks: int) -> tuple:
    """(tokens per rank, tokens per expert, is_token_in_rank). Entries that name no expert count as -1."""
    streams.check(topk_idx=topk_idx)
    if topk_idx.dim() != 2 or topk_idx.dtype != torch.int64:
        raise ValueError(f"topk_idx is {topk_idx.dtype} {tuple(topk_idx.shape)}; it must be int64 [tokens, top-k]")
    if num_experts < 1 or num_experts % ranks != 0:
        raise ValueError(f"{num_experts} experts cannot be dealt to {ranks} ranks")
    # A bin for each expert; entries outside of all bins are not counted.
    per_expert = torch.histc(topk_idx.to(torch.float32), num_experts, -0.5, num_experts - 0.5).to(torch.int32)
    local = num_experts // ranks
    owner = (topk_idx.clamp(-1, num_experts) + local).div_(local, rounding_mode="floor")  # 0: none; rank + 1; ranks + 1
    in_rank = torch.zeros(len(topk_idx), ranks + 2, dtype=torch.bool, device=topk_idx.device)
    in_rank = in_rank.scatter_(1, owner, True)[:, 1:ranks + 1].contiguous()
    return in_rank.sum(0, dtype=torch.int32), per_expert, in_rank


class _PinnedLane(_ThroughputLane):
    """A buffer of an EP object, its memory as tensors, and pinned memory for what its dispatches tell the host."""

    def __init__(self, ep: "mep.Ep", buffer: int):
        super().__init__(ep, buffer)
        view, device = ep._addresses(buffer), torch.device("cuda", ep._comm.device)
        rows, groups = ep._comm.size * ep.max_tokens_per_rank, (ep.hidden + GROUP - 1) // GROUP
        kind = torch.float8_e4m3fn if view.recv_scales else torch.bfloat16
        self.rows = [_memory(view.recv_x, (rows, ep.hidden), kind, device)]
        if view.recv_scales:
            self.rows.append(_memory(view.recv_scales, (rows, groups), torch.float32, device))
        self.topk_idx = _memory(view.recv_topk_idx, (rows, ep.top_k), torch.int32, device)
        self.topk_weights = _memory(view.recv_topk_weights, (rows, ep.top_k), torch.float32, device)
        self.sources = _memory(view.src_info, (rows,), torch.int32, device)
        self.device_ranges = _memory(view.layout_range, (ep._comm.size,), torch.int64, device)
        self.ranges = torch.empty(ep._comm.size, dtype=torch.int64, device="cpu", pin_memory=True)
        self.counts = torch.empty(ep.experts_per_rank, dtype=torch.int32, device="cpu", pin_memory=True)
        # None can be made while a graph is captured.
        self.free += [ep.handle(buffer) for _ in range(2)]


class GpuHighThroughput(HighThroughput):
    """Normal mode. Dispatches without num_worst_tokens wait for the counts on the host, not for the rows."""

    lane_kind = _PinnedLane
    expands = False  # the library refuses the layout on GPUs

    def __init__(self, calls: LowLatency, num_sms: "Callable[[], int]"):
        super().__init__(calls)
        self._streams, self._num_sms = calls.streams, num_sms

    def _object(self, options: dict) -> "mep.Ep":
        try:
            return mep.Ep(self.comm, num_sms=self._num_sms(), **options)
        except mep.UnsupportedError:  # ranks that share a GPU have less of it, all of them alike
            return mep.Ep(self.comm, **options)

    def dispatch_on(self, x: Any, is_token_in_rank: Optional[torch.Tensor], per_expert: Optional[torch.Tensor],
                    topk_idx: Optional[torch.Tensor], topk_weights: Optional[torch.Tensor], alignment: int, worst: int,
                    previous: Optional[EventOverlap], asynchronous: bool) -> tuple:
        """(rows, or rows and scales; local experts; weights; counts; handle; event)"""
        self._check_sizes(alignment, worst, topk_idx)
        if not worst and torch.cuda.is_current_stream_capturing():
            raise ValueError("a dispatch that waits for its counts cannot be captured; give num_worst_tokens")
        self._calls.raise_failure()
        # Copies are made on the own stream too: with `previous` that does not wait for the current one.
        with self._streams.running(previous) as stream:
            values, scales, wire = self._rows_of(x)
            indices, experts, weights = self._routing(len(values), is_token_in_rank, per_expert, topk_idx,
                                                      topk_weights)
            shape = (values.shape[1], indices.shape[1], experts, wire, 0)
            most = self._most_by(worst, len(values)) if worst else self._agree(shape, len(values))
            use = _Use(self, indices, experts, most, topk_idx is not None)
            spot, _ = self._send(use, values, scales, weights, stream=stream, **({} if worst else {"wait": True}))
            use.total = self._await(spot.lane) if not worst else worst
            use.rows = worst or use.total
            received = self._received(use, spot, scales is not None)
            local, own_weights, sources, prefixes = self._topk(use, spot.lane, bool(worst), weights is not None)
            told = [] if worst else spot.lane.counts.tolist()
            if topk_idx is None:
                told = self._counts(per_expert, stream=stream)
            counts = [(count + alignment - 1) // alignment * alignment for count in told]
        handle = RoutingHandle((prefixes, None, None, sources, is_token_in_rank, None))
        handle._use = use
        made = (*(received if isinstance(received, tuple) else (received,)), local, own_weights, sources, prefixes)
        given = (*(x if isinstance(x, tuple) else (x,)), topk_idx, topk_weights, is_token_in_rank, per_expert)
        event = self._streams.ended(asynchronous, made, given)
        return received, local, own_weights, counts, handle, event

    def replay_on(self, x: Any, handle: Any, previous: Optional[EventOverlap], asynchronous: bool) -> tuple:
        """(rows that go where those of the handle's dispatch went, event)"""
        self._calls.raise_failure()
        with self._streams.running(previous) as stream:
            use, values, scales = self._rows_again(x, handle)
            spot, _ = self._send(use, values, scales, None, stream=stream)
            received = self._received(use, spot, scales is not None)
        made = received if isinstance(received, tuple) else (received,)
        return received, self._streams.ended(asynchronous, made, x if isinstance(x, tuple) else (x,))

    def combine_on(self, x: torch.Tensor, handle: Any, topk_weights: Optional[torch.Tensor], bias: Any,
                   previous: Optional[EventOverlap], asynchronous: bool) -> tuple:
        """(sums, sums of the weights or None, event)"""
        use, biases = self._check_combine(x, handle, topk_weights, bias)
        (tokens, top_k), hidden = use.topk_idx.shape, x.shape[1]
        self._calls.raise_failure()
        with self._streams.running(previous) as stream:
            y = _contiguous(x)
            given = None if topk_weights is None else _contiguous(topk_weights)
            spot = self._ready(use, hidden, stream=stream)
            out = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=x.device)
            weights = None if given is None else torch.empty(tokens, top_k, dtype=torch.float32, device=x.device)
            spot.lane.holds = 0
            self._calls.again(lambda: spot.handle.combine(out, y, topk_weights=given, out_topk_weights=weights,
                                                          stream=stream))
            if biases:
                out = sum((each.detach().float() for each in biases), out.float()).to(torch.bfloat16)
        return out, weights, self._streams.ended(asynchronous, (out, weights), (x, topk_weights, *biases))

    # ---- parts ------------------------------------------------------------------------------------------

    def _check(self, **tensors: Optional[torch.Tensor]) -> None:
        self._streams.check(**tensors)

    def _routing(self, tokens: int, is_token_in_rank: Optional[torch.Tensor], per_expert: Optional[torch.Tensor],
                 topk_idx: Optional[torch.Tensor], topk_weights: Optional[torch.Tensor]) -> tuple:
        """(topk_idx, experts, topk_weights); values are not looked at, which would wait for the GPU."""
        if is_token_in_rank is None or per_expert is None:
            raise ValueError("a dispatch without a handle needs num_tokens_per_rank, is_token_in_rank and "
                             "num_tokens_per_expert; get_dispatch_layout() gives them")
        ranks = self.comm.size
        self._check(is_token_in_rank=is_token_in_rank, num_tokens_per_expert=per_expert, topk_idx=topk_idx,
                    topk_weights=topk_weights)
        _expect("is_token_in_rank", is_token_in_rank, torch.bool, (tokens, ranks))
        if per_expert.dim() != 1 or per_expert.dtype != torch.int32 or len(per_expert) % ranks != 0:
            raise ValueError(f"num_tokens_per_expert is {per_expert.dtype} {tuple(per_expert.shape)}; it must be int32 "
                             f"[experts], a multiple of {ranks} of them")
        if topk_idx is None:
            if topk_weights is not None:
                raise ValueError("topk_weights need topk_idx")
            return _ranks_as_experts(is_token_in_rank), ranks, None
        if topk_idx.dim() != 2 or topk_idx.dtype != torch.int64 or len(topk_idx) != tokens:
            raise ValueError(f"topk_idx is {topk_idx.dtype} {tuple(topk_idx.shape)}; it must be int64 [{tokens}, "
                             "top-k]")
        if topk_weights is not None:
            _expect("topk_weights", topk_weights, torch.float32, tuple(topk_idx.shape))
            topk_weights = _contiguous(topk_weights)
        return _contiguous(topk_idx), len(per_expert), topk_weights

    def _most_by(self, worst: int, tokens: int) -> int:
        """Tokens of a rank that `worst` rows allow: all ranks give the same, and need not agree on it."""
        most = 1 << max(0, (-(-worst // self.comm.size) - 1).bit_length())
        if tokens > most:
            raise ValueError(f"x has {tokens} rows; num_worst_tokens {worst} is enough for {most} on each of "
                             f"{self.comm.size} ranks")
        return most

    def _given(self, lane: Any, more: dict) -> dict:
        if not more.pop("wait", False):
            return more
        lane.ranges.fill_(-1)
        lane.counts.fill_(-1)
        return {**more, "recv_count_host": lane.counts, "layout_range": lane.ranges}

    def _await(self, lane: _PinnedLane) -> int:
        """Rows that arrive, as soon as the GPU has told. A dispatch that fails tells of none."""
        done = torch.cuda.Event()
        done.record(self._streams.own)
        ranges, counts = lane.ranges.numpy(), lane.counts.numpy()
        while (ranges < 0).any() or (counts < 0).any():
            if done.query():
                break
            time.sleep(0)
        total = int((ranges & 0xffffffff).sum())
        if total == 0 and done.query():
            self._calls.raise_failure()
        return total

    def _received(self, use: _Use, spot: _Spot, scaled: bool) -> Any:
        copies = tuple(each[:use.rows].clone() for each in spot.lane.rows)
        return copies if scaled else copies[0]

    def _topk(self, use: _Use, lane: _PinnedLane, worst: bool, weighs: bool) -> tuple:
        """(local experts, weights, tokens on their sources) of the rows, -1, 0 and -1 behind those that arrived; where
        the rows of each source end, in this rank's column. None for what the dispatch was not given."""
        local = lane.topk_idx[:use.rows].long() if use.has_topk else None
        weights = lane.topk_weights[:use.rows].clone() if weighs else None
        sources = lane.sources[:use.rows].clone()
        ends = (lane.device_ranges & 0xffffffff).cumsum(0)
        prefixes = torch.full((self.comm.size, self.comm.size), -1, dtype=torch.int32, device=sources.device)
        prefixes[:, self.comm.rank] = ends
        if worst:
            behind = torch.arange(use.rows, dtype=torch.int64, device=sources.device) >= ends[-1]
            sources.masked_fill_(behind, -1)
            for values, nothing in ((local, -1), (weights, 0)):
                if values is not None:
                    values.masked_fill_(behind.unsqueeze(1), nothing)
        return local, weights, sources, prefixes

    def _zeros(self, tokens: int, hidden: int, wire: str) -> tuple:
        values = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device=self._streams.device).to(_KINDS[wire])
        scales = None if wire == "bfloat16" else torch.ones(tokens, (hidden + GROUP - 1) // GROUP,
                                                            dtype=torch.float32, device=self._streams.device)
        return values, scales


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous()
