"""Dispatches and combines of DeepEP's normal mode, for mep.deep_ep."""
from __future__ import annotations

import ctypes
import zlib
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch

import mep
from mep.ep import _REFUSED

from ._low_latency import BUFFERS, GROUP, LowLatency, check_host

_Rows = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
_LEAST = 6  # bits of the fewest tokens that an EP object is made for
_MOST_K = 64  # experts of a token


class Handle(tuple):
    """A tuple as DeepEP has it, of which the library reads nothing: (rank_prefix_matrix, None, None, recv_src_idx,
    is_token_in_rank, None). The routing lies beside it."""

    _use: "_Use"


class _Lane:
    """A buffer of an EP object, with the handles of the library that nobody uses."""

    def __init__(self, ep: "mep.Ep", buffer: int):
        self.ep, self.buffer = ep, buffer
        self.free: "List[mep.ep.Handle]" = []
        self.number = 0  # of its last dispatch
        self.holds = 0  # the dispatch that can be combined; 0: none

    def spot(self) -> "_Spot":
        return _Spot(self, self.free.pop() if self.free else self.ep.handle(self.buffer))


class Lanes:
    """An EP object, whose buffers are used in turn; `kind` makes the lane of a buffer."""

    def __init__(self, ep: "mep.Ep", kind: "Callable[[mep.Ep, int], Any]"):
        self.ep = ep
        self._lanes = [kind(ep, buffer) for buffer in range(BUFFERS)]
        self._turn = 0

    def next(self) -> Any:
        return self._lanes[self._turn]

    def used(self) -> None:
        self._turn = (self._turn + 1) % BUFFERS


class _Spot:
    """A routing in a lane: the rows that the lane has by it, or had."""

    def __init__(self, lane: _Lane, handle: "mep.ep.Handle"):
        self.lane, self.handle = lane, handle
        self.number = 0  # of its last dispatch in the lane

    def __del__(self) -> None:
        self.lane.free.append(self.handle)


class _Use:
    """The routing of a dispatch, for all that is done with its handle."""

    def __init__(self, owner: "HighThroughput", topk_idx: torch.Tensor, num_experts: int, most: int, has_topk: bool,
                 alignment: int = 0):
        """alignment: of the experts' groups in the expanded layout; 0: plain rows."""
        self.owner, self.topk_idx, self.num_experts = owner, topk_idx.clone(), num_experts
        self.most, self.has_topk, self.alignment = most, has_topk, alignment
        self.total = 0  # rows that arrive here, expanded with their padding
        self.rows = 0  # of the tensors: total, or what num_worst_tokens asks for
        self.spots: "Dict[tuple, _Spot]" = {}  # by (hidden, wire), in the order in which they came


def layout(topk_idx: torch.Tensor, num_experts: int, ranks: int) -> tuple:
    """(tokens per rank, tokens per expert, is_token_in_rank) of this rank's tokens. ValueError for wrong experts."""
    check_host(topk_idx=topk_idx)
    if topk_idx.dim() != 2 or topk_idx.dtype != torch.int64:
        raise ValueError(f"topk_idx is {topk_idx.dtype} {tuple(topk_idx.shape)}; it must be int64 [tokens, top-k]")
    if num_experts < 1 or num_experts % ranks != 0:
        raise ValueError(f"{num_experts} experts cannot be dealt to {ranks} ranks")
    chosen = topk_idx >= 0
    wrong = (topk_idx < -1) | (topk_idx >= num_experts)
    if wrong.any():
        token, k = wrong.nonzero()[0].tolist()
        raise ValueError(f"topk_idx: token {token} names expert {int(topk_idx[token, k])}; experts are 0 to "
                         f"{num_experts - 1}, -1 is none")
    ordered = topk_idx.sort(dim=1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        token, k = twice.nonzero()[0].tolist()
        raise ValueError(f"topk_idx: token {token} names expert {int(ordered[token, k])} twice")
    per_expert = torch.bincount(topk_idx[chosen], minlength=num_experts).to(torch.int32)
    rank_of = torch.where(chosen, topk_idx // (num_experts // ranks), ranks)
    in_rank = torch.zeros(len(topk_idx), ranks + 1, dtype=torch.bool, device="cpu").scatter_(1, rank_of, True)
    in_rank = in_rank[:, :ranks].contiguous()
    return in_rank.sum(0, dtype=torch.int32), per_expert, in_rank


class HighThroughput:
    """The calls over the communicator of `calls`."""

    lane_kind = _Lane
    expands = True  # has dispatch_expanded

    def __init__(self, calls: LowLatency):
        self._calls, self.comm = calls, calls.comm
        self._objects: "Dict[tuple, Lanes]" = {}
        self._most: "Dict[tuple, int]" = {}  # tokens of a rank that the last EP object of a shape has room for

    def close(self) -> None:
        for lanes in self._objects.values():
            lanes.ep.close()
        self._objects.clear()

    # ---- EP objects -------------------------------------------------------------------------------------

    def _agree(self, shape: tuple, tokens: int) -> int:
        """The most tokens that a rank's EP object has room for: a power of two, the same on all ranks. ValueError on
        all of them if their shapes differ."""
        check = zlib.crc32(repr(shape).encode()) & 0xffff
        bits = max(_LEAST, (tokens - 1).bit_length() if tokens else 0)
        agreed = self.comm.agree((check ^ 0xffff) << 48 | check << 32 | 0xffffffff ^ 1 << bits)
        if agreed >> 32 & 0xffff | agreed >> 48 != 0xffff:
            hidden, top_k, experts, wire, alignment = shape
            raise ValueError("the ranks' dispatches differ in their shape: that of this rank has rows of "
                             f"{hidden} {wire}, top-k {top_k}, {experts} experts"
                             + (f", expanded in groups of {alignment}" if alignment else ""))
        most = max(1 << (~agreed & 0xffffffff).bit_length() - 1, self._most.get(shape, 0))
        self._most[shape] = most
        return most

    def _lanes(self, most: int, shape: tuple) -> Lanes:
        key = (most, *shape)
        if key not in self._objects:
            hidden, top_k, experts, wire, alignment = shape
            options = dict(max_tokens_per_rank=most, hidden=hidden, top_k=top_k, num_experts=experts, input_type=wire,
                           num_buffers=BUFFERS, mode="high_throughput",
                           name="deep_ep-normal-" + "-".join(map(str, key)))
            if alignment:
                options.update(receive_layout="expanded", expert_alignment=alignment)
            self._objects[key] = Lanes(self._calls.again(lambda: self._object(options)), self.lane_kind)
        return self._objects[key]

    def _object(self, options: dict) -> "mep.Ep":
        return mep.Ep(self.comm, **options)

    # ---- arguments, the same on hosts and GPUs ----------------------------------------------------------

    def _check(self, **tensors: Optional[torch.Tensor]) -> None:
        """Refuses tensors that are not where this works."""
        check_host(**tensors)

    def _rows_of(self, x: Any) -> "Tuple[torch.Tensor, Optional[torch.Tensor], str]":
        """(values, scales, what the library calls their type) of a dispatch's x."""
        values, scales = x if isinstance(x, tuple) else (x, None)
        self._check(x=values, scales=scales)
        if values.dim() != 2:
            raise ValueError(f"x has shape {tuple(values.shape)}; it must be [tokens, hidden]")
        kind = torch.bfloat16 if scales is None else torch.float8_e4m3fn
        _expect("x", values, kind, tuple(values.shape))
        if scales is not None:
            _expect("the scales of x", scales, torch.float32, (len(values), (values.shape[1] + GROUP - 1) // GROUP))
            scales = scales.detach().contiguous()
        return values.detach().contiguous(), scales, _WIRES[kind]

    def _rows_again(self, x: Any, handle: Any) -> "Tuple[_Use, torch.Tensor, Optional[torch.Tensor]]":
        """(use, values, scales) of a dispatch by a handle."""
        use = self._use(handle)
        values, scales, _ = self._rows_of(x)
        if len(values) != len(use.topk_idx):
            raise ValueError(f"x has {len(values)} rows, the handle's dispatch had {len(use.topk_idx)} tokens")
        return use, values, scales

    def _check_sizes(self, alignment: int, worst: int, topk_idx: Optional[torch.Tensor]) -> None:
        if alignment < 1 or worst < 0:
            raise ValueError(f"expert_alignment is {alignment} and num_worst_tokens {worst}; they must be 1 at least "
                             "and 0 at least")
        if worst and topk_idx is None:
            raise ValueError("num_worst_tokens needs topk_idx")

    def _check_combine(self, x: torch.Tensor, handle: Any, topk_weights: Optional[torch.Tensor],
                       bias: Any) -> "Tuple[_Use, List[torch.Tensor]]":
        """(use, biases)"""
        use = self._use(handle)
        self._check(x=x, topk_weights=topk_weights)
        if x.dim() != 2 or x.dtype != torch.bfloat16 or len(x) != use.rows:
            raise ValueError(f"x is {x.dtype} {tuple(x.shape)}; it must be bfloat16 [{use.rows}, hidden], a row for "
                             "each of the dispatch")
        tokens, top_k = use.topk_idx.shape
        if topk_weights is not None:
            if not use.has_topk:
                raise ValueError("topk_weights go back only by the handle of a dispatch with topk_idx")
            _expect("topk_weights", topk_weights, torch.float32, (use.rows,) if use.alignment else (use.rows, top_k))
        biases = [] if bias is None else [bias] if isinstance(bias, torch.Tensor) else list(bias)
        for each in biases:
            self._check(bias=each)
            _expect("bias", each, torch.bfloat16, (tokens, x.shape[1]))
        return use, biases

    # ---- dispatch ---------------------------------------------------------------------------------------

    def dispatch(self, x: Any, is_token_in_rank: Optional[torch.Tensor], per_expert: Optional[torch.Tensor],
                 topk_idx: Optional[torch.Tensor], topk_weights: Optional[torch.Tensor], alignment: int,
                 worst: int) -> tuple:
        """(rows, or rows and scales; local experts; weights; counts; handle)"""
        values, scales, wire = self._rows_of(x)
        self._check_sizes(alignment, worst, topk_idx)
        ranks = self.comm.size
        indices, experts, topk_weights = _routing(len(values), ranks, is_token_in_rank, per_expert, topk_idx,
                                                  topk_weights)
        shape = (values.shape[1], indices.shape[1], experts, wire, 0)
        use = _Use(self, indices, experts, self._agree(shape, len(values)), topk_idx is not None)
        spot, got = self._send(use, values, scales, topk_weights)
        use.total, use.rows = got.total, worst or got.total
        counts = got.count.tolist() if topk_idx is not None else self._counts(per_expert)
        if worst:
            if got.total > worst:
                raise _too_many(got.total, worst, ranks)
            counts = []
        prefixes = torch.full((ranks, ranks), -1, dtype=torch.int32, device="cpu")
        prefixes[:, self.comm.rank] = (torch.from_numpy(got.layout_range.copy()) & 0xffffffff).cumsum(0)
        sources = torch.full((use.rows,), -1, dtype=torch.int32, device="cpu")
        sources[:got.total] = torch.from_numpy(got.src_info[:got.total].copy())
        handle = Handle((prefixes, None, None, sources, is_token_in_rank, None))
        handle._use = use
        local = weights = None
        view, top_k = spot.lane.ep._addresses(spot.lane.buffer), indices.shape[1]
        if topk_idx is not None:
            local = _copy(view.recv_topk_idx, use, (top_k,), torch.int32).long()
            local[got.total:] = -1
        if topk_weights is not None:
            weights = _copy(view.recv_topk_weights, use, (top_k,), torch.float32)
        return (self._received(use, spot, scales is not None), local, weights,
                [(count + alignment - 1) // alignment * alignment for count in counts], handle)

    def replay(self, x: Any, handle: Any) -> _Rows:
        """Rows that go where those of the handle's dispatch went."""
        use, values, scales = self._rows_again(x, handle)
        if use.alignment:
            return self._send_expanded(use, values, scales, None)[2]
        spot, _ = self._send(use, values, scales, None)
        return self._received(use, spot, scales is not None)

    # ---- dispatch in the expanded layout ----------------------------------------------------------------

    def dispatch_expanded(self, x: Any, is_token_in_rank: torch.Tensor, per_expert: torch.Tensor,
                          topk_idx: torch.Tensor, topk_weights: Optional[torch.Tensor], alignment: int, worst: int,
                          worst_expanded: int) -> tuple:
        """A dispatch whose rows, scales and weights are expanded: with `worst` there are worst_expanded of them. Local
        experts and handle are those of the rows before that."""
        values, scales, wire = self._rows_of(x)
        self._check_sizes(alignment, worst, topk_idx)
        ranks, rank = self.comm.size, self.comm.rank
        indices, experts, topk_weights = _routing(len(values), ranks, is_token_in_rank, per_expert, topk_idx,
                                                  topk_weights)
        shape = (values.shape[1], indices.shape[1], experts, wire, alignment)
        use = _Use(self, indices, experts, self._agree(shape, len(values)), True, alignment)
        local = self._local_experts(use)
        counts = torch.bincount(local.flatten() + 1, minlength=experts // ranks + 1)[1:]
        needed = int((counts + alignment - 1).div_(alignment, rounding_mode="floor").sum()) * alignment
        use.rows = max(worst_expanded, needed) if worst else needed
        spot, got, received = self._send_expanded(use, values, scales, topk_weights, shrinks=not worst)
        # A rank that was lost in between has sent nothing.
        local[(torch.from_numpy(got.layout_range.copy()) & 0xffffffff).sum(0) == 0] = -1
        arrived = (local >= 0).any(2)
        tokens, total = arrived.nonzero()[:, 1].to(torch.int32), int(arrived.sum())
        if worst and total > worst:
            raise _too_many(total, worst, ranks)
        prefixes = torch.full((ranks, ranks), -1, dtype=torch.int32, device="cpu")
        prefixes[:, rank] = arrived.sum(1).cumsum(0)
        behind = (worst or total) - total
        handle = Handle((prefixes, None, None, torch.nn.functional.pad(tokens, (0, behind), value=-1), is_token_in_rank,
                         None))
        handle._use = use
        weights = None
        if topk_weights is not None:
            view = spot.lane.ep._addresses(spot.lane.buffer)
            weights = _copy(view.recv_topk_weights, use, (), torch.float32)
        return (received, torch.nn.functional.pad(local[arrived], (0, 0, 0, behind), value=-1), weights,
                [] if worst else got.count.tolist(), handle)

    def _local_experts(self, use: _Use) -> torch.Tensor:
        """[ranks, most tokens, top-k] of all ranks' tokens, -1 for experts of other ranks. The library's expanded layout
        does not tell the k of a row."""
        here = use.num_experts // self.comm.size
        own = torch.full((use.most, use.topk_idx.shape[1]), -1, dtype=torch.int32, device="cpu")
        own[:len(use.topk_idx)] = use.topk_idx
        all_of_them = own.new_full((self.comm.size, *own.shape), -1)
        self._calls.again(lambda: self.comm.allgather(own, all_of_them))
        local = all_of_them.long() - self.comm.rank * here
        return local.masked_fill_((local < 0) | (local >= here), -1)

    def _send_expanded(self, use: _Use, values: torch.Tensor, scales: Optional[torch.Tensor],
                       weights: Optional[torch.Tensor], shrinks: bool = False
                       ) -> "Tuple[_Spot, mep.ep.Received, _Rows]":
        """Does _send, and gives use.rows rows, or rows and scales. shrinks: fewer, if fewer came."""
        rows = torch.empty(use.rows, values.shape[1], dtype=values.dtype, device="cpu")
        spot, got = self._send(use, values, scales, weights, **({"recv_x": rows} if rows.numel() else {}))
        use.total = got.total
        if shrinks:
            use.rows = got.total
        rows = rows[:use.rows]
        rows.view(torch.uint8)[got.total:] = 0
        if scales is None:
            return spot, got, rows
        return spot, got, (rows, _copy(spot.lane.ep._addresses(spot.lane.buffer).recv_scales, use, (scales.shape[1],),
                                       torch.float32))

    # ---- parts of dispatches ----------------------------------------------------------------------------


    def _send(self, use: _Use, values: torch.Tensor, scales: Optional[torch.Tensor],
              weights: Optional[torch.Tensor], **more: Any) -> "Tuple[_Spot, mep.ep.Received]":
        """Another dispatch of the routing, from the lane that it had for such rows, or else from the next one."""
        kind = (values.shape[1], _WIRES[values.dtype])
        lanes = self._lanes(use.most, (kind[0], use.topk_idx.shape[1], use.num_experts, kind[1], use.alignment))
        known = use.spots.get(kind)
        spot = known or lanes.next().spot()
        lane = spot.lane
        given = {"replay": True} if known else {"topk_idx": use.topk_idx, "topk_weights": weights}
        given.update(self._given(lane, more))
        try:
            got = self._calls.again(lambda: spot.handle.dispatch(values, x_scales=scales, **given))
        except mep.Error as problem:
            info = problem.info
            if not isinstance(problem, _REFUSED) and (info is None or info.seq != 0):
                lane.holds = 0
                if known is None:
                    lanes.used()
            raise
        if known is None:
            use.spots[kind] = spot
            lanes.used()
        lane.number += 1
        lane.holds = spot.number = lane.number
        return spot, got

    def _given(self, lane: _Lane, more: dict) -> dict:
        """Arguments of a dispatch from the lane besides its rows and its routing."""
        return more

    def _received(self, use: _Use, spot: _Spot, scaled: bool) -> _Rows:
        view, hidden = spot.lane.ep._addresses(spot.lane.buffer), spot.lane.ep.hidden
        if not scaled:
            return _copy(view.recv_x, use, (hidden,), torch.bfloat16)
        return (_copy(view.recv_x, use, (hidden,), torch.float8_e4m3fn),
                _copy(view.recv_scales, use, ((hidden + GROUP - 1) // GROUP,), torch.float32))

    def _counts(self, per_expert: torch.Tensor, **more: Any) -> List[int]:
        """Rows of each local expert, as the ranks say."""
        summed = torch.empty_like(per_expert)
        self._calls.again(lambda: self.comm.allreduce(per_expert.contiguous(), summed, **more))
        return summed.view(self.comm.size, -1)[self.comm.rank].tolist()

    # ---- combine ----------------------------------------------------------------------------------------

    def _use(self, handle: Any) -> _Use:
        use = getattr(handle, "_use", None)
        if not isinstance(use, _Use):
            raise TypeError(f"handle is a {type(handle).__name__}; it must be the object that a dispatch returned")
        if use.owner is not self:
            raise ValueError("the handle is that of another Buffer")
        return use

    def combine(self, x: torch.Tensor, handle: Any, topk_weights: Optional[torch.Tensor], bias: Any) -> tuple:
        """(sums, sums of the weights or None)"""
        use, biases = self._check_combine(x, handle, topk_weights, bias)
        (tokens, top_k), hidden = use.topk_idx.shape, x.shape[1]
        if topk_weights is not None:
            topk_weights = topk_weights[:use.total].detach().contiguous()
        y = x[:use.total].detach().contiguous()
        spot = self._ready(use, hidden)
        out = torch.empty(tokens, hidden, dtype=torch.bfloat16, device="cpu")
        weights = None if topk_weights is None else torch.empty(tokens, top_k, dtype=torch.float32, device="cpu")
        spot.lane.holds = 0
        self._calls.again(lambda: spot.handle.combine(out, y, topk_weights=topk_weights, out_topk_weights=weights))
        if biases:
            out = sum((each.detach().float() for each in biases), out.float()).to(torch.bfloat16)
        return out, weights

    def _ready(self, use: _Use, hidden: int, **more: Any) -> _Spot:
        """A lane that the rows of the handle can be combined from. Where later dispatches have used it, or the handle
        was combined, its dispatch is done again with zeros."""
        spots = [(kind, spot) for kind, spot in use.spots.items() if kind[0] == hidden]
        for _, spot in spots:
            if spot.number == spot.lane.holds:
                return spot
        values, scales = self._zeros(len(use.topk_idx), hidden, spots[0][0][1] if spots else "bfloat16")
        return self._send(use, values, scales, None, **more)[0]

    def _zeros(self, tokens: int, hidden: int, wire: str) -> "Tuple[torch.Tensor, Optional[torch.Tensor]]":
        """Rows and scales that a routing is dispatched with again."""
        scales = None if wire == "bfloat16" else torch.ones(tokens, (hidden + GROUP - 1) // GROUP,
                                                            dtype=torch.float32, device="cpu")
        return torch.zeros(tokens, hidden, dtype=_KINDS[wire], device="cpu"), scales


_WIRES = {torch.bfloat16: "bfloat16", torch.float8_e4m3fn: "float8_e4m3"}
_KINDS = {wire: kind for kind, wire in _WIRES.items()}


def _routing(tokens: int, ranks: int, is_token_in_rank: Optional[torch.Tensor], per_expert: Optional[torch.Tensor],
             topk_idx: Optional[torch.Tensor], topk_weights: Optional[torch.Tensor]) -> tuple:
    """(topk_idx, experts, topk_weights) for the library, which finds nothing wrong in them: an error of one rank alone
    would leave the others waiting."""
    if is_token_in_rank is None or per_expert is None:
        raise ValueError("a dispatch without a handle needs num_tokens_per_rank, is_token_in_rank and "
                         "num_tokens_per_expert; get_dispatch_layout() gives them")
    check_host(is_token_in_rank=is_token_in_rank, num_tokens_per_expert=per_expert, topk_weights=topk_weights)
    if tuple(is_token_in_rank.shape) != (tokens, ranks) or is_token_in_rank.dtype != torch.bool:
        raise ValueError(f"is_token_in_rank is {is_token_in_rank.dtype} {tuple(is_token_in_rank.shape)}; it must "
                         f"be bool [{tokens}, {ranks}]")
    if per_expert.dim() != 1 or per_expert.dtype != torch.int32 or len(per_expert) % ranks != 0:
        raise ValueError(f"num_tokens_per_expert is {per_expert.dtype} {tuple(per_expert.shape)}; it must be int32 "
                         f"[experts], a multiple of {ranks} of them")
    if topk_idx is not None:
        indices, experts = topk_idx.contiguous(), len(per_expert)
        if len(indices) != tokens:
            raise ValueError(f"topk_idx has {len(indices)} rows, x has {tokens}")
        if not torch.equal(layout(indices, experts, ranks)[2], is_token_in_rank):
            raise ValueError("is_token_in_rank is not what topk_idx says; get_dispatch_layout() gives it")
    else:
        if topk_weights is not None:
            raise ValueError("topk_weights need topk_idx")
        indices, experts = _ranks_as_experts(is_token_in_rank), ranks
    if topk_weights is not None:
        _expect("topk_weights", topk_weights, torch.float32, tuple(indices.shape))
        topk_weights = topk_weights.detach().contiguous()
    return indices, experts, topk_weights


def _too_many(total: int, worst: int, ranks: int) -> ValueError:
    return ValueError(f"{total} rows came, num_worst_tokens is {worst}; most are {ranks} times the most tokens of a "
                      "rank")


def _expect(name: str, tensor: torch.Tensor, kind: torch.dtype, shape: tuple) -> None:
    if tensor.dtype != kind or tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: {tensor.dtype} {tuple(tensor.shape)}; it must be {kind} {shape}")


def _ranks_as_experts(is_token_in_rank: torch.Tensor) -> torch.Tensor:
    """topk_idx of a problem in which each rank has one expert, itself."""
    width = min(is_token_in_rank.shape[1], _MOST_K)
    few = is_token_in_rank.shape[1] == width or len(is_token_in_rank) == 0
    if not few and int(is_token_in_rank.sum(1).max()) > width:
        raise ValueError(f"without topk_idx a token goes to {width} ranks at most")
    found, ranks = is_token_in_rank.to(torch.int8).sort(dim=1, descending=True, stable=True)
    return torch.where(found[:, :width] != 0, ranks[:, :width], -1)


def _copy(address: int, use: _Use, row: tuple, kind: torch.dtype) -> torch.Tensor:
    """The rows that arrived, of the library's memory; zeros in the others."""
    copied = torch.empty(use.rows, *row, dtype=kind, device="cpu")
    if use.total:
        ctypes.memmove(copied.data_ptr(), address, use.total * torch.Size(row).numel() * kind.itemsize)
    if use.rows > use.total:
        copied.view(torch.uint8).view(use.rows, -1)[use.total:] = 0
    return copied
