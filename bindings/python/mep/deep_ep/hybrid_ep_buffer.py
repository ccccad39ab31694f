"""deep_ep.HybridEPBuffer, the interface of DeepEP's branch hybrid-ep, over ElasticBuffer."""
from __future__ import annotations

import operator
import types
from typing import Any, Optional, Tuple

import torch

from ._high_throughput import _Rows
from .elastic import ElasticBuffer, EPHandle

MOST_EXPERTS = 64  # of a token, in the library

_Tensor = Optional[torch.Tensor]


def indices_to_map(topk_idx: torch.Tensor, topk_weights: _Tensor, num_of_tokens: int, num_of_experts: int
                   ) -> "Tuple[torch.Tensor, _Tensor]":
    """(routing_map [tokens, experts] bool, probs [tokens, experts] float32 or None). An index of -1 is no expert."""
    routing_map = _dense(topk_idx, torch.ones_like(topk_idx, dtype=torch.bool), num_of_tokens, num_of_experts)
    if topk_weights is None:
        return routing_map, None
    return routing_map, _dense(topk_idx, topk_weights.to(torch.float32), num_of_tokens, num_of_experts)


def _dense(index: torch.Tensor, values: torch.Tensor, tokens: int, experts: int) -> torch.Tensor:
    """[tokens, experts]: the value of each expert of a token, zero elsewhere. index: -1 for none."""
    made = torch.zeros(tokens, experts + 1, dtype=values.dtype, device=values.device)
    places = index.to(torch.int64)
    return made.scatter_(1, places.where(places >= 0, experts), values)[:, :experts].contiguous()


def _gathered(index: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """The inverse of _dense, in float32; zero where the index is -1."""
    return dense.to(torch.float32).gather(1, index.clamp(min=0)).masked_fill(index < 0, 0)


def _sized(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """The first rows, or these and zeros behind them."""
    if len(tensor) >= rows:
        return tensor[:rows]
    # A cat does not take e4m3 on all devices.
    made = torch.zeros(rows, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
    made[:len(tensor)] = tensor
    return made


class HybridEPHandle(Tuple[Any, ...]):
    """The tuple of a dispatch with DeepEP's positions, None where MEP has nothing like it. The routing lies beside it: a
    copy of the tuple is no handle.

    Without permute: 3: [1] int32, the received rows. 4: local_expert_routing_map [received, local experts] bool. 5: the
    rank's tokens. 6: sizes. With permute: 3, 4 likewise. 7: tokens_per_expert int32 without padding. 8: the rank's
    tokens. 9: sizes. 10: overflow_flag [1] int32, 1 where rows or experts were dropped.
    """

    _base: EPHandle
    _rows: int  # of the tensors that the dispatch returned
    _counts: _Tensor  # with padding, for each local expert; None without permute


class HybridEPBuffer:
    """The ranks' part in dispatches and combines of a process group of torch.distributed, or of a mep.Comm.

    max_num_of_tokens_per_rank: room for tokens at first; a dispatch with more makes more. use_fp8 is not looked at, the
    rows tell. The sizes of kernels and other options are accepted and change nothing.

    In a dispatch without a handle the ranks agree on the most tokens of a rank and the most experts of a token, for which
    the host waits. With non_blocking on a GPU only the first waits: later ones take the largest numbers so far, and leave
    out what a token has beyond that.
    """

    def __init__(self, group: Any, hidden_dim: int, max_num_of_tokens_per_rank: int, num_local_experts: int,
                 use_fp8: bool = False, num_sms_dispatch_api: Optional[int] = None,
                 num_sms_combine_api: Optional[int] = None, num_sms_preprocessing_api: Optional[int] = None,
                 num_blocks_permute: Optional[int] = None, num_blocks_unpermute: Optional[int] = None,
                 load_cached_kernels: bool = False, use_shared_buffer: bool = True,
                 enable_custom_allgather: bool = False, num_of_hybrid_ep_ranks_per_nvlink_domain: Optional[int] = None,
                 use_mnnvl: Optional[bool] = None):
        self.runtime = ElasticBuffer(group)
        self.group, self.rank, self.group_size = group, self.runtime.rank_idx, self.runtime.num_ranks
        self.config = types.SimpleNamespace(
            hidden_dim=hidden_dim, max_num_of_tokens_per_rank=max_num_of_tokens_per_rank,
            num_of_experts_per_rank=num_local_experts, num_of_ranks_per_node=self.group_size, num_of_nodes=1)
        self.configurer = types.SimpleNamespace(buffer_config=self.config)
        self._experts_of_token = 0  # the ranks' number; 0: not agreed on

    def destroy(self) -> None:
        """Leaves, together with the other ranks."""
        self.runtime.destroy()

    def empty_jit_cache(self) -> None:
        """Does nothing: no kernels are compiled."""

    def update_template_config(self, hidden_dim: Optional[int] = None, num_of_tokens_per_rank: Optional[int] = None,
                               num_local_experts: Optional[int] = None, **options: Any) -> Any:
        """Room for more tokens of a rank, the same on all ranks; nothing else has an effect. Returns the sizes."""
        sizes = self.config
        sizes.max_num_of_tokens_per_rank = max(sizes.max_num_of_tokens_per_rank, num_of_tokens_per_rank or 0)
        return self.config

    # ---- rows grouped by expert -------------------------------------------------------------------------

    def dispatch_with_permute(self, *, hidden: torch.Tensor, topk_idx: _Tensor = None, topk_weights: _Tensor = None,
                              num_of_experts_per_rank: Optional[int] = None, num_of_experts: Optional[int] = None,
                              use_fp8: Optional[bool] = None, routing_map: _Tensor = None, probs: _Tensor = None,
                              scaling_factor: _Tensor = None, num_permuted_tokens: Optional[int] = None,
                              pad_multiple: Optional[int] = None, handle: Optional[Tuple[Any, ...]] = None,
                              non_blocking: bool = False, fuse_permute_dispatch: bool = False,
                              num_dispatched_tokens: Optional[int] = None, use_host_meta: Optional[bool] = None
                              ) -> "Tuple[torch.Tensor, _Tensor, _Tensor, torch.Tensor, HybridEPHandle]":
        """Sends each row of hidden to its experts: bfloat16, or e4m3, also as uint8, with scaling_factor.

        Returns (rows, probs of the rows or None, scales or None, tokens_per_expert int64, handle). Rows are grouped by
        local expert, in the order of source rank and token; a group is padded with zeros to pad_multiple rows, which
        tokens_per_expert counts. tokens_per_expert is on the host, with non_blocking where the rows are. handle: the
        routing of an earlier dispatch; routing_map and topk_idx are not looked at then. num_permuted_tokens: the rows
        that are returned; those behind are dropped, and overflow_flag of the handle says so. non_blocking needs it.
        """
        alignment = pad_multiple or 1
        non_blocking = not use_host_meta if use_host_meta is not None else non_blocking
        wanted = None if num_permuted_tokens is None else operator.index(num_permuted_tokens)
        if non_blocking and (wanted is None or wanted < 0 or wanted % alignment != 0):
            raise ValueError(f"num_permuted_tokens is {wanted}; non_blocking needs a multiple of pad_multiple, "
                             f"{alignment}")
        if handle is not None:
            base = self._base_of(handle, hidden, expanded=True)
            self._check_pad(base, pad_multiple)
            weights = None if probs is None else _gathered(base.topk_idx, self._checked(probs, base))
            received, weights, _ = self._dispatch(_given(hidden, scaling_factor), handle=base, topk_weights=weights,
                                                  do_expand=True)
            return self._grouped(hidden, received, weights, wanted, handle)
        x, experts = _given(hidden, scaling_factor), self._experts(num_of_experts_per_rank)
        index, weights, dropped = self._routing(hidden, routing_map, probs, topk_idx, topk_weights, num_of_experts, experts,
                                                waits=not non_blocking)
        received, got, base = self._dispatch(
            x, topk_idx=index, topk_weights=weights, do_expand=True, num_experts=experts, expert_alignment=alignment,
            do_cpu_sync=not non_blocking, num_max_tokens_per_rank=max(self.config.max_num_of_tokens_per_rank, 1))
        counts = base.num_unaligned_recv_tokens_per_expert
        if non_blocking:
            padded = (counts.to(torch.int64) + alignment - 1) // alignment * alignment
            overflow = ((padded.sum() > wanted) | dropped).to(torch.int32).reshape(1)
        else:
            padded = torch.tensor(base.num_recv_tokens_per_expert_list, dtype=torch.int64, device="cpu")
            too_many = wanted is not None and 0 <= wanted < base.num_expanded_tokens
            overflow = torch.full((1,), int(too_many), dtype=torch.int32, device=hidden.device)
        made = HybridEPHandle((None, None, None, *self._received(base, len(padded)), None, None, counts, len(hidden),
                               self.config, overflow))
        made._base, made._counts = base, padded
        made._rows = base.num_expanded_tokens if wanted is None or wanted < 0 else wanted
        return self._grouped(hidden, received, got if weights is not None else None, made._rows, made)

    def combine_with_unpermute(self, *, hidden: torch.Tensor, probs: _Tensor = None, handle: Optional[Tuple[Any, ...]] = None,
                               pad_multiple: Optional[int] = None, fuse_unpermute_combine: bool = False,
                               num_dispatched_tokens: Optional[int] = None) -> "Tuple[torch.Tensor, _Tensor]":
        """Brings the rows of a dispatch_with_permute back and sums those of a token, without weights. probs: a value for
        each row. Returns (sums, [tokens, experts] float32 with those values or None)."""
        base = self._base_of(handle, None, expanded=True)
        self._check_pad(base, pad_multiple)
        self._check_rows("hidden", hidden, handle)
        if probs is not None:
            self._check_rows("probs", probs, handle)
            probs = _sized(probs.to(torch.float32).reshape(-1), base.num_expanded_tokens).contiguous()
        rows = _sized(hidden, base.num_expanded_tokens).contiguous()
        return self._combine(rows, probs, base)

    # ---- rows in the order in which they come -----------------------------------------------------------

    def dispatch(self, hidden: torch.Tensor, scaling_factor: _Tensor = None, topk_idx: _Tensor = None,
                 topk_weights: _Tensor = None, num_of_experts: Optional[int] = None, probs: _Tensor = None,
                 routing_map: _Tensor = None, num_dispatched_tokens_tensor: _Tensor = None,
                 num_dispatched_tokens: Optional[int] = None, handle: Optional[Tuple[Any, ...]] = None
                 ) -> "Tuple[torch.Tensor, _Tensor, _Tensor, HybridEPHandle]":
        """Sends each row of hidden once to each rank with experts of it. Returns (rows, probs [rows, experts] or None,
        scales or None, handle); rows are in the order of source rank and token, probs are zero for experts elsewhere."""
        made: Any = handle
        if handle is not None:
            base = self._base_of(handle, hidden, expanded=False)
            if probs is None and topk_weights is not None and topk_idx is not None:
                probs = _dense(topk_idx, topk_weights, len(hidden), base.num_experts)
            weights = None if probs is None else _gathered(base.topk_idx, self._checked(probs, base))
            received, got, _ = self._dispatch(_given(hidden, scaling_factor), handle=base, topk_weights=weights)
        else:
            x, experts = _given(hidden, scaling_factor), self._experts(None)
            index, weights, _ = self._routing(hidden, routing_map, probs, topk_idx, topk_weights, num_of_experts, experts,
                                              waits=True)
            received, got, base = self._dispatch(
                x, topk_idx=index, topk_weights=weights, num_experts=experts,
                num_max_tokens_per_rank=max(self.config.max_num_of_tokens_per_rank, 1))
            known = self._received(base, experts // self.group_size)
            made = HybridEPHandle((None, None, None, *known, len(hidden), self.config))
            made._base, made._counts, made._rows = base, None, base.num_recv_tokens
        values, scales = _taken(hidden, received)
        here = None if weights is None else _dense(self._global(base), got, len(values), base.num_experts)
        return values, here, scales, made

    def combine(self, hidden: torch.Tensor, probs: _Tensor = None, handle: Optional[Tuple[Any, ...]] = None
                ) -> "Tuple[torch.Tensor, _Tensor]":
        """Brings the rows of a dispatch back and sums those of a token, without weights. probs: [rows, experts]. Returns
        (sums, [tokens, experts] float32 or None)."""
        base = self._base_of(handle, None, expanded=False)
        self._check_rows("hidden", hidden, handle)
        if probs is not None:
            self._check_rows("probs", probs, handle)
            probs = _gathered(self._global(base), self._checked(probs, base))
        return self._combine(hidden.contiguous(), probs, base)

    # ---- parts ------------------------------------------------------------------------------------------

    def _experts(self, of_a_rank: Optional[int]) -> int:
        return (of_a_rank or self.config.num_of_experts_per_rank) * self.group_size

    def _routing(self, hidden: torch.Tensor, routing_map: _Tensor, probs: _Tensor, topk_idx: Any,
                 topk_weights: _Tensor, given_experts: Optional[int], experts: int, waits: bool) -> "Tuple[Any, ...]":
        """(topk_idx [tokens, K] with -1 for none, its weights or None, whether experts of a token were left out)"""
        tokens = len(hidden)
        if routing_map is not None:
            given_experts = routing_map.shape[-1]
        elif topk_idx is None:
            raise ValueError("a dispatch without a handle needs routing_map or topk_idx")
        if given_experts not in (None, experts):
            raise ValueError(f"there are {given_experts} experts, {self.group_size} ranks with "
                             f"{experts // self.group_size} each have {experts}")
        if routing_map is not None:
            _expect("routing_map", routing_map, torch.bool, (tokens, experts))
            widest = routing_map.sum(1).max() if tokens else torch.zeros((), dtype=torch.int64, device=hidden.device)
        else:
            _expect("topk_idx", topk_idx, None, (tokens, min(topk_idx.shape[-1], experts)))
            widest = torch.full((), topk_idx.shape[1], dtype=torch.int64, device=hidden.device)
        if routing_map is None and topk_weights is not None:
            _expect("topk_weights", topk_weights, None, tuple(topk_idx.shape))
        elif probs is not None:
            _expect("probs", probs, None, (tokens, experts))
        width = self._agreed(hidden, widest, tokens, experts, waits)
        if routing_map is not None:
            numbers = torch.arange(experts, dtype=torch.int64, device=hidden.device).where(routing_map, experts)
            index = numbers.topk(width, 1, largest=False, sorted=True).values
            index = index.masked_fill(index == experts, -1)
        else:
            index = topk_idx.to(torch.int64).contiguous()
        dropped = widest > width
        index = torch.nn.functional.pad(index, (0, width - index.shape[1]), value=-1)  # leaves out what is too wide
        if routing_map is None and topk_weights is not None:
            weights = torch.nn.functional.pad(topk_weights.to(torch.float32), (0, width - topk_idx.shape[1]))
            return index, weights.masked_fill(index < 0, 0), dropped
        if probs is None:
            return index, None, dropped
        return index, _gathered(index, probs), dropped

    def _agreed(self, hidden: torch.Tensor, widest: torch.Tensor, tokens: int, experts: int, waits: bool) -> int:
        """K of this dispatch on all ranks: a power of two, so that few EP objects are made. Takes in the most tokens too.
        A dispatch on a GPU that must not wait takes what is known."""
        calls = self.runtime._buffer._open(hidden)
        most = max(self.config.max_num_of_tokens_per_rank, tokens)
        if waits or calls.streams is None or self._experts_of_token == 0:
            mine = torch.stack((widest, torch.full_like(widest, most)))
            most_of_all = torch.empty_like(mine)
            if calls.streams is None:
                calls.again(lambda: calls.comm.allreduce(mine, most_of_all, op="max"))
            else:
                current, own = torch.cuda.current_stream(calls.streams.device), calls.streams.own
                own.wait_stream(current)
                calls.again(lambda: calls.comm.allreduce(mine, most_of_all, op="max", stream=own))
                current.wait_stream(own)
            found, most = most_of_all.tolist()
            if found > MOST_EXPERTS:
                raise ValueError(f"a token has {found} experts; at most {MOST_EXPERTS} work")
            if found > 0:
                self._experts_of_token = max(self._experts_of_token, 1 << (found - 1).bit_length())
        self.config.max_num_of_tokens_per_rank = most
        return min(max(self._experts_of_token, 1), experts)

    def _dispatch(self, x: _Rows, **named: Any) -> "Tuple[Any, ...]":
        """(received, weights, handle)"""
        received, _, weights, handle, _ = self.runtime.dispatch(x, **named)
        return received, weights, handle

    def _combine(self, rows: torch.Tensor, weights: _Tensor, base: EPHandle) -> "Tuple[torch.Tensor, _Tensor]":
        sums, back, _ = self.runtime.combine(rows, base, topk_weights=weights)
        return sums, None if back is None else _dense(base.topk_idx, back, len(sums), base.num_experts)

    @staticmethod
    def _grouped(hidden: torch.Tensor, received: _Rows, weights: _Tensor, rows: Optional[int], handle: Any) -> "Tuple[Any, ...]":
        """The values of dispatch_with_permute."""
        length: int = handle._rows if rows is None or rows < 0 else rows
        values, scales = (part if part is None else _sized(part, length) for part in _taken(hidden, received))
        return values, None if weights is None else _sized(weights, length), scales, handle._counts, handle

    def _received(self, base: EPHandle, experts: int) -> "Tuple[Any, ...]":
        """(received rows [1] int32, local_expert_routing_map)"""
        local: Any = base.recv_topk_idx
        number = base.psum_num_recv_tokens_per_scaleup_rank[-1:].to(torch.int32)
        return number, _dense(local, torch.ones_like(local, dtype=torch.bool), len(local), experts)

    def _global(self, base: EPHandle) -> torch.Tensor:
        """[received, K]: numbers of this rank's experts among all, -1 for none."""
        local: Any = base.recv_topk_idx
        return (local + self.rank * (base.num_experts // self.group_size)).masked_fill(local < 0, -1)

    def _checked(self, probs: torch.Tensor, base: EPHandle) -> torch.Tensor:
        _expect("probs", probs, None, (len(probs), base.num_experts))
        return probs

    @staticmethod
    def _base_of(handle: Any, hidden: _Tensor, expanded: bool) -> EPHandle:
        if not isinstance(handle, HybridEPHandle):
            raise TypeError(f"handle is a {type(handle).__name__}; it must be the object that a dispatch returned")
        if handle._base.do_expand != expanded:
            raise ValueError("the handle is that of a dispatch " + ("without" if expanded else "with") + " permute")
        tokens = len(handle._base.topk_idx)
        if hidden is not None and len(hidden) != tokens:
            raise ValueError(f"hidden has {len(hidden)} rows, the handle's dispatch had {tokens}")
        return handle._base

    @staticmethod
    def _check_pad(base: EPHandle, pad_multiple: Optional[int]) -> None:
        if pad_multiple and pad_multiple != base.expert_alignment:
            raise ValueError(f"pad_multiple is {pad_multiple}, the handle's dispatch had {base.expert_alignment}")

    @staticmethod
    def _check_rows(name: str, tensor: torch.Tensor, handle: Any) -> None:
        if len(tensor) != handle._rows:
            raise ValueError(f"{name} has {len(tensor)} rows, the handle's dispatch gave {handle._rows}")


def _expect(name: str, tensor: torch.Tensor, kind: Optional[torch.dtype], shape: Tuple[Any, ...]) -> None:
    if (kind is not None and tensor.dtype != kind) or tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: {tensor.dtype} {tuple(tensor.shape)}; it must be {kind or 'of'} {shape}")


def _given(hidden: torch.Tensor, scaling_factor: _Tensor) -> _Rows:
    """hidden as ElasticBuffer takes it. Scales of bfloat16 have no meaning, and DeepEP does not look at them either."""
    if hidden.dtype == torch.bfloat16:
        return hidden.contiguous()
    if hidden.dtype not in (torch.uint8, torch.float8_e4m3fn):
        raise ValueError(f"hidden is of {hidden.dtype}; it must be of bfloat16, float8_e4m3fn or its bytes, uint8")
    if scaling_factor is None:
        raise ValueError(f"hidden of {hidden.dtype} needs scaling_factor")
    return hidden.contiguous().view(torch.float8_e4m3fn), scaling_factor.contiguous()


def _taken(hidden: torch.Tensor, received: _Rows) -> "Tuple[torch.Tensor, _Tensor]":
    """(rows of hidden's type, scales or None)"""
    values, scales = received if isinstance(received, tuple) else (received, None)
    return (values.view(torch.uint8) if hidden.dtype == torch.uint8 else values), scales
