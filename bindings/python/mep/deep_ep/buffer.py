"""deep_ep.Buffer over MEP, for tensors of the CPU or of GPUs."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple, Union

import torch

import mep
from mep.torch import backend_of
from mep.torch._meeting import Place

from .utils.event import EventHandle, EventOverlap
from ._high_throughput import HighThroughput, _Rows
from ._low_latency import BUFFERS, LowLatency

_Hook = Union[Callable[[], None], Any]  # Any: None without return_recv_hook


def _not_served(name: str, instead: str) -> None:
    raise NotImplementedError(f"{name} is not served; {instead}")


class Config:
    """Sizes of DeepEP's buffers. MEP has no use for them: its memory is made by the first dispatch."""

    def __init__(self, num_sms: int = 20, num_max_nvl_chunked_send_tokens: int = 6,
                 num_max_nvl_chunked_recv_tokens: int = 256, num_max_rdma_chunked_send_tokens: int = 6,
                 num_max_rdma_chunked_recv_tokens: int = 256):
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = num_max_rdma_chunked_recv_tokens

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0"""
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0"""
        return 0


def low_latency_bytes(max_tokens: int, hidden: int, num_ranks: int, num_experts: int) -> int:
    """Bytes that a rank's buffers take at most: rows, scales, places, and the outputs of the experts."""
    if num_ranks < 1 or num_experts % num_ranks != 0:
        raise ValueError(f"{num_experts} experts cannot be dealt to {num_ranks} ranks")
    row = 2 * hidden * 2 + (hidden + 127) // 128 * 4 + 4
    return BUFFERS * num_experts * max_tokens * row


def normal_bytes(max_tokens: int, hidden: int, num_ranks: int, top_k: int) -> int:
    """Bytes that a rank's buffers of normal mode take at most: rows that arrive, terms on their way, what belongs to them."""
    row = 3 * 2 * hidden + (hidden + 127) // 128 * 4 + 32 * max(top_k, 1) + 64
    return BUFFERS * (num_ranks * max_tokens * row + (64 << 10))


class Buffer:
    """The ranks' part in dispatches and combines. Made by all ranks of `group`, a process group of torch.distributed or
    a mep.Comm; from a process group a communicator of its own is made. comm: a mep.Comm in place of a group.

    enable_shrink: a rank that is lost is left out and shows in the mask; without it calls raise mep.PeerFailedError.
    The sizes and other options are accepted and change nothing.

    Where PyTorch has no GPU, or the group is one of GPUs alone (of "nccl", say), the ranks meet here. Else they meet in
    the first call with a tensor, whose device is that of all further ones, or in the first that needs the others, for
    the current GPU.
    """

    num_sms = 20

    def __init__(self, group: Any = None, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0,
                 low_latency_mode: bool = False, num_qps_per_rank: int = 24,
                 allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None,
                 use_fabric: bool = False):
        if (group is None) == (comm is None):
            raise ValueError("give a group or a comm")
        if comm is not None and not isinstance(comm, mep.Comm):
            raise TypeError(f"comm is a {type(comm).__name__}, it must be a mep.Comm")
        comm = group if isinstance(group, mep.Comm) else comm
        self.enable_shrink, self._destroyed, self.group = enable_shrink, False, group
        self._calls: Optional[LowLatency] = None
        self._normal: HighThroughput  # set with _calls
        self._place: Optional[Place] = None
        place: Union[mep.Comm, Place]
        if comm is not None:
            place = comm
            self._take(comm)
        else:
            place = self._come_together()
        self.rank, self.group_size = place.rank, place.size
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy = low_latency_mode, explicitly_destroy

    def _come_together(self) -> Place:
        place = self._place = Place(self.group)
        place.agree()
        if not torch.cuda.is_available():
            self._meet(None)
        elif place.is_on_gpus:
            self._meet(torch.cuda.current_device())
        return place

    def _meet(self, device: Optional[int]) -> LowLatency:
        assert self._place is not None  # no comm was given
        return self._take(self._place.meet(partial=self.enable_shrink, device=device))

    def _take(self, comm: "mep.Comm") -> LowLatency:
        owned = self._place is not None
        calls = self._calls = LowLatency(comm, self.enable_shrink, owned)
        self._normal = HighThroughput(calls, lambda: Buffer.num_sms)
        return calls

    def destroy(self) -> None:
        """Leaves, together with the other ranks. Tensors over its memory must not be used afterwards."""
        self._destroyed = True
        self._leave()

    def update_ep_member(self) -> None:
        """Takes ranks in that the group has: replacements (mep.torch.recover()), and ranks that were masked. The ranks of
        the group meet again, with the same options: those that have this Buffer call it, with nothing pending, and the
        replacements make theirs. Handles, tensors over memory of the library and captured graphs are void.

        The ranks meet here or in the next call, like those of a new Buffer. NotImplementedError if the Buffer was made from a
        mep.Comm, whose members the program itself takes in: make another Buffer over it.
        """
        self._check_not_destroyed()
        if self._place is None:
            raise NotImplementedError("update_ep_member: this Buffer was made from a mep.Comm; make another Buffer over it")
        backend = backend_of(self.group)
        gone = [] if backend is None else sorted(set(range(self.group_size)) - set(backend.living()))
        if gone:
            raise RuntimeError(f"update_ep_member: ranks {gone} of the group are gone; mep.torch.recover({gone}) comes first")
        self._leave()
        self.group_size = self._come_together().size

    def _leave(self) -> None:
        calls, self._calls = self._calls, None
        if calls is None:
            return
        if calls.streams is not None:
            calls.streams.order.synchronize()
        self._normal.close()
        calls.close()

    def _open(self, x: Any = None) -> LowLatency:
        """x: the tensor of the call, or a tuple that begins with it."""
        self._check_not_destroyed()
        if self._calls is None:
            tensor = x[0] if isinstance(x, tuple) else x
            if isinstance(tensor, torch.Tensor) and not tensor.is_cuda:
                return self._meet(None)
            return self._meet(tensor.device.index if tensor is not None else torch.cuda.current_device())
        return self._calls

    def _check_not_destroyed(self) -> None:
        if self._destroyed:
            raise RuntimeError("the buffer was destroyed; make another one")

    # ---- low-latency mode -------------------------------------------------------------------------------

    def low_latency_dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, num_max_dispatch_tokens_per_rank: int,
                             num_experts: int, cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
                             dispatch_wait_recv_cost_stats: Optional[torch.Tensor] = None, use_fp8: bool = True,
                             round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False, use_nvfp4: bool = False,
                             x_global_scale: Optional[torch.Tensor] = None
                             ) -> "Tuple[_Rows, torch.Tensor, tuple[Any, ...], EventOverlap, _Hook]":
        """Sends each row of x to its experts. Returns (recv_x or (recv_x, scales), recv_count, handle, event, hook).

        recv_x [local experts, ranks * most tokens, hidden] is memory of the library, valid until the combine of the
        handle starts. The first call with new sizes meets the other ranks to make their memory.
        dispatch_wait_recv_cost_stats, [ranks] int64, gets the nanoseconds added that this waited for each rank's rows.
        x_global_scale: belongs to use_nvfp4, which is not served.
        """
        calls = self._check_mode("low_latency_dispatch", async_finish, return_recv_hook, x)
        if use_nvfp4:
            _not_served("use_nvfp4", "send e4m3 rows (use_fp8=True), or bfloat16 and quantise what arrives")
        if use_ue8m0 and not (use_fp8 and round_scale):
            raise ValueError("use_ue8m0 needs use_fp8 and round_scale")
        wire = "bfloat16" if not use_fp8 else "fp8_power" if round_scale else "fp8"
        if calls.streams is not None:
            _refuse("dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats)
        return calls.dispatch(x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, wire, use_ue8m0,
                              cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats, return_recv_hook,
                              async_finish)

    def low_latency_combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor,
                            handle: tuple[Any, ...], use_logfmt: bool = False, zero_copy: bool = False,
                            async_finish: bool = False, return_recv_hook: bool = False,
                            out: Optional[torch.Tensor] = None,
                            combine_wait_recv_cost_stats: Optional[torch.Tensor] = None, overlap: bool = False,
                            packed_recv_count: Optional[torch.Tensor] = None,
                            comp_signal: Optional[torch.Tensor] = None, block_m: int = 0, threshold: int = 0,
                            num_sms: int = 0, src_signals: Optional[torch.Tensor] = None,
                            src_signal_expect_value: int = 0
                            ) -> "Tuple[torch.Tensor, EventOverlap, _Hook]":
        """Brings the experts' rows back and sums them by weight. Returns (sums, event, hook). A further combine of a handle
        costs a dispatch besides, and all ranks make it.

        zero_copy: the rows are in get_next_low_latency_combine_buffer(handle), and x is not looked at.
        combine_wait_recv_cost_stats: as of the dispatch. overlap: rows that are sent while the experts compute are not served;
        the arguments behind it belong to it.
        """
        calls = self._check_mode("low_latency_combine", async_finish, return_recv_hook, topk_idx)
        _refuse("use_logfmt", use_logfmt or None)
        if overlap:
            _not_served("overlap", "turn single-batch overlap off; two-batch overlap works")
        if calls.streams is not None:
            _refuse("combine_wait_recv_cost_stats", combine_wait_recv_cost_stats)
        return calls.combine(x, topk_idx, topk_weights, handle, zero_copy, out, combine_wait_recv_cost_stats,
                             return_recv_hook, async_finish)

    def _check_mode(self, name: str, async_finish: bool, return_recv_hook: bool, x: Any) -> LowLatency:
        if not self.low_latency_mode:
            raise ValueError(f"{name} needs a Buffer made with low_latency_mode=True")
        if async_finish and return_recv_hook:
            raise ValueError(f"{name}: async_finish and return_recv_hook exclude each other")
        return self._open(x)

    def get_next_low_latency_combine_buffer(self, handle: tuple[Any, ...]) -> torch.Tensor:
        """[local experts, ranks * most tokens, hidden] of bfloat16: memory for the experts' rows of this handle."""
        return self._open().combine_buffer(handle)

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Does nothing: the memory needs no cleaning."""
        self._open()

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """mask=True: the ranks that are there leave the rank out. All of them call it. It does not come back by
        mask=False, which raises for a rank that is gone."""
        calls = self._open()
        if not 0 <= rank_to_mask < self.group_size:
            raise ValueError(f"{rank_to_mask} is no rank of {self.group_size}")
        if mask:
            calls.leave_out(rank_to_mask)
        elif rank_to_mask in calls.absent():
            raise NotImplementedError(f"rank {rank_to_mask} was left out; update_ep_member() on all ranks brings it "
                                      "back, after mep.torch.recover() if its process ended")

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 for each rank that is gone and not forgotten, and 0 for the others: int32 [ranks]. On the Buffer's GPU
        it is an operation of the current stream, and nothing waits; a graph can capture it."""
        calls = self._calls or self._open()
        calls.mask.query(mask_status)

    def low_latency_clean_mask_buffer(self) -> None:
        """Forgets the ranks that a query has shown: the mask shows them no more, though they stay gone. A rank that goes
        later shows."""
        self._open().mask.forget()

    # ---- accepted: what has no meaning on hosts ---------------------------------------------------------

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                       num_experts: int) -> int:
        """Bytes that the buffers take at most. The first dispatch makes them; num_rdma_bytes changes nothing."""
        return low_latency_bytes(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: fp8 and low-latency mode are there."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Blocks of normal mode's kernels on a GPU, for Buffers whose first dispatch comes later."""
        if new_num_sms % 2 != 0:
            raise ValueError(f"{new_num_sms}: the number of SMs must be even")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event of the current stream; without a GPU one that has happened."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: Any = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> torch.Tensor:
        """An empty tensor: no part of the library's memory is the program's to write."""
        return torch.empty(0, dtype=dtype, device="cpu")

    def get_comm_stream(self) -> Any:
        """The stream that operations run on. NotImplementedError on hosts, which have none."""
        calls = self._open()
        if calls.streams is None:
            raise NotImplementedError("get_comm_stream: on hosts there are no streams")
        return calls.streams.own

    # ---- normal mode: high throughput -------------------------------------------------------------------

    def get_dispatch_layout(self, topk_idx: torch.Tensor, num_experts: int,
                            previous_event: Optional[EventOverlap] = None, async_finish: bool = False,
                            allocate_on_comm_stream: bool = False
                            ) -> "Tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, EventOverlap]":
        """(num_tokens_per_rank, None, num_tokens_per_expert, is_token_in_rank, event) of this rank's tokens."""
        self._open(topk_idx)
        (per_rank, per_expert, in_rank), event = self._normal.layout(topk_idx, num_experts, previous_event, async_finish)
        return per_rank, None, per_expert, in_rank, event

    def dispatch(self, x: _Rows, handle: Optional[tuple[Any, ...]] = None,
                 num_tokens_per_rank: Optional[torch.Tensor] = None,
                 num_tokens_per_rdma_rank: Optional[torch.Tensor] = None,
                 is_token_in_rank: Optional[torch.Tensor] = None, num_tokens_per_expert: Optional[torch.Tensor] = None,
                 topk_idx: Optional[torch.Tensor] = None, topk_weights: Optional[torch.Tensor] = None,
                 expert_alignment: int = 1, num_worst_tokens: int = 0, config: Optional[Config] = None,
                 previous_event: Optional[EventOverlap] = None, async_finish: bool = False,
                 allocate_on_comm_stream: bool = False
                 ) -> Tuple[_Rows, Optional[torch.Tensor], Optional[torch.Tensor], Optional[List[int]],
                            Optional[Tuple[Any, ...]], EventOverlap]:
        """Sends each row of x, bfloat16 or (e4m3, scales of float32), once to each rank that has experts of it.

        Returns (recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle, event): tensors of
        the caller's own, in the order of source rank, then token. handle: the routing of an earlier dispatch, whose
        number of tokens x has; only recv_x and event are returned then. num_worst_tokens: rows of the tensors, and no
        list. The first call with new sizes, or with more tokens, meets the other ranks to make their memory.
        """
        self._open(x)
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise ValueError("a dispatch with a handle takes neither topk_idx nor topk_weights")
            rows, event = self._normal.replay(x, handle, previous_event, async_finish)
            return rows, None, None, None, None, event
        return self._normal.dispatch(x, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights,
                                     expert_alignment, num_worst_tokens, previous_event, async_finish)

    def combine(self, x: torch.Tensor, handle: tuple[Any, ...], topk_weights: Optional[torch.Tensor] = None,
                bias: Union[None, torch.Tensor, Tuple[torch.Tensor, torch.Tensor]] = None,
                config: Optional[Config] = None, previous_event: Optional[EventOverlap] = None,
                async_finish: bool = False, allocate_on_comm_stream: bool = False
                ) -> "Tuple[torch.Tensor, Optional[torch.Tensor], EventOverlap]":
        """Brings a row back for each that the handle's dispatch brought and sums them, without weights; and so the
        values of topk_weights. bias: one or two [tokens, hidden] that are added. Returns (sums, sums of topk_weights or
        None, event)."""
        self._open(x)
        return self._normal.combine(x, handle, topk_weights, bias, previous_event, async_finish)

    def internode_dispatch(self, *arguments: Any, **named: Any) -> Any:
        _not_served("internode_dispatch", "dispatch does the same between hosts")

    def internode_combine(self, *arguments: Any, **named: Any) -> Any:
        _not_served("internode_combine", "combine does the same between hosts")


def _refuse(name: str, value: Any) -> None:
    if value is not None:
        raise NotImplementedError(f"{name} is not served")
