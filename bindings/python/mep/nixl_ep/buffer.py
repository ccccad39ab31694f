"""nixl_ep.Buffer over MEP, for tensors of the CPU or of GPUs."""
from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as _dist

import mep
from mep.deep_ep import Buffer as _Calls, EventHandle, EventOverlap
from mep.deep_ep._high_throughput import _Rows
from mep.deep_ep._low_latency import BUFFERS, Handle, _leave, _leave_at_last
from mep.deep_ep.buffer import _Hook, low_latency_bytes
from mep.torch._meeting import store_of

from ._links import Links


class _World:
    """The ranks that dispatch together, in a communicator with a place for each rank that may come."""

    def __init__(self, comm: "mep.Comm", ranks: "Tuple[int, ...]"):
        self.comm, self.ranks = comm, ranks
        self.calls = _Calls(comm=comm, low_latency_mode=True, enable_shrink=True)
        self._leaving = weakref.finalize(self, _leave_at_last, comm)  # at last when the process ends

    def gone(self) -> List[int]:
        absent = self.calls._open().absent()
        return [rank for rank in self.ranks if rank in absent]

    def wait(self) -> None:
        """Until what was called before is done."""
        streams = self.calls._open().streams
        if streams is not None:
            streams.order.synchronize()

    def close(self) -> None:
        self.calls.destroy()
        self._leaving.detach()
        _leave(self.comm)


class Buffer:
    """This rank's part in dispatches and combines of ranks that come and go.

    A dispatch and its combine are those of this rank and of the ranks that are connected and not masked here. They have the
    same ranks unmasked and give the same num_experts, else they wait for each other, and mep.TimeoutError ends that. A mask is
    this rank's own: it leaves nobody out, and goes back by mask=False. With all others masked the calls concern this rank
    alone. The first dispatch of ranks that have not dispatched together before meets them.

    A rank that dies shows in query_mask_buffer(), its rows do not come, the sums lack its experts, and no call raises for
    it. connect_ranks() with its rank takes a new process in.

    All ranks that stay call connect_ranks() and disconnect_ranks() alike, between the same two dispatches; so do the ranks
    with update_mask_buffer() for a rank that is to come. The sizes are accepted and change nothing, except num_ranks and
    num_experts_per_rank. timeout_ms: of dispatches and combines; None: MEP's own. A rank that lives and does not come in
    that time is not masked: mep.TimeoutError names it.
    """

    meeting_timeout_s = 300.0  # until the other ranks must have called connect_ranks(), or dispatched with this one

    def __init__(self, disable_ll_nvlink: bool = False, explicitly_destroy: bool = False, rank: int = 0,
                 low_latency_mode: bool = True, group: Optional[_dist.ProcessGroup] = None, comm: Any = None,
                 tcp_store_group: Any = None, timeout_ms: Optional[int] = None):
        if not low_latency_mode:
            raise NotImplementedError("low_latency_mode=False is not served; deep_ep.Buffer has dispatches of many tokens")
        if comm is not None:
            raise NotImplementedError("comm, of mpi4py, is not served; give tcp_store_group or group")
        if timeout_ms is not None and timeout_ms <= 0:
            raise ValueError(f"timeout_ms is {timeout_ms}; it must be above 0, or None")
        self.rank, self.group_size, self.num_rdma_bytes = rank, 0, 0
        self.explicitly_destroy, self.low_latency_mode, self.timeout_ms = explicitly_destroy, True, timeout_ms
        self._local = 0  # experts of a rank
        self._links = Links(rank)
        self._masked: "set[int]" = set()
        self._dead: "set[int]" = set()  # of those that are connected
        self._newcomers: "set[int]" = set()  # connected, and in no dispatch so far
        self._worlds: "Dict[Tuple[Tuple[int, ...], int], _World]" = {}  # by ranks and places
        self._last: Optional[_World] = None
        self._left: "List[_World]" = []  # to be closed when the others have gone on too
        self._dispatches = 0  # since then
        self._destroyed = False
        self.set_tcp_store_group(store_of(group) if group is not None and tcp_store_group is None else tcp_store_group)

    # ---- who is there -----------------------------------------------------------------------------------

    def update_memory_buffers(self, num_ranks: int, num_experts_per_rank: int, num_rdma_bytes: int = 0,
                              num_nvl_bytes: int = 0) -> None:
        """num_ranks: so many ranks there may be. Once, before the ranks connect; the first dispatch makes the memory."""
        if self.group_size:
            raise RuntimeError("update_memory_buffers was called before; make another Buffer for other sizes")
        if not 0 <= self.rank < num_ranks or num_experts_per_rank < 1:
            raise ValueError(f"rank {self.rank} of {num_ranks} ranks with {num_experts_per_rank} experts each cannot be")
        self.group_size, self._local, self.num_rdma_bytes = num_ranks, num_experts_per_rank, num_rdma_bytes
        self._masked = set(range(num_ranks)) - {self.rank}

    def set_tcp_store_group(self, tcp_store_group: Any) -> None:
        """The store of c10d that the ranks meet by from now on: one that all of them have. None: no more ranks connect;
        those that are connected still meet by the store before."""
        self.tcp_store_group = tcp_store_group
        if tcp_store_group is not None:
            self._links.use(tcp_store_group)

    def connect_ranks(self, remote_ranks: Sequence[int], activate: bool = True) -> None:
        """Connects with those of the ranks that are not connected, or that are gone; they connect with this one. Returns when
        that is done. activate=False: they stay masked until update_mask_buffer(rank, False)."""
        ranks = self._checked("connect_ranks", remote_ranks) - {self.rank}
        gone = self._gone()
        fresh = {rank for rank in ranks if rank not in self._links or rank in gone}
        if fresh:
            if self.tcp_store_group is None:
                raise ValueError("connect_ranks needs a store: set_tcp_store_group(store)")
            self._forget(fresh)
            try:
                self._links.connect(sorted(fresh), self.meeting_timeout_s)
            finally:
                self._newcomers.update(rank for rank in fresh if rank in self._links)
        if activate:
            self._masked -= ranks

    def disconnect_ranks(self, remote_ranks: Sequence[int]) -> None:
        """Masks the ranks and ends the connections with them. Dispatches and combines that other ranks have not
        received yet go on."""
        ranks = self._checked("disconnect_ranks", remote_ranks)
        if self.rank in ranks:
            raise ValueError(f"disconnect_ranks: {self.rank} is this rank itself; destroy() leaves")
        self._forget(ranks)

    def update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """mask: this rank's next dispatches do not concern that one. False: they do again."""
        self._checked("update_mask_buffer", [rank_to_mask])
        if mask and rank_to_mask == self.rank:
            raise ValueError(f"update_mask_buffer: {rank_to_mask} is this rank itself")
        if not mask and rank_to_mask not in self._links:
            raise ValueError(f"update_mask_buffer: rank {rank_to_mask} is not connected; connect_ranks([{rank_to_mask}]) "
                             "comes first")
        (self._masked.add if mask else self._masked.discard)(rank_to_mask)

    def query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 for each rank that is masked or gone, and 0 for the others: int32 [num_ranks]."""
        if mask_status.dtype != torch.int32 or tuple(mask_status.shape) != (self.group_size,):
            raise ValueError(f"mask_status is {mask_status.dtype} {tuple(mask_status.shape)}; it must be int32 "
                             f"[{self.group_size}]")
        if self._last is not None:
            self._last.wait()
        shown = self._masked.union(self._gone())
        mask_status.copy_(torch.tensor([int(rank in shown) for rank in range(self.group_size)], dtype=torch.int32,
                                       device="cpu"))

    def clean_mask_buffer(self) -> None:
        """Unmasks the ranks that are connected. A rank that is gone stays so."""
        self._masked = {rank for rank in range(self.group_size) if rank not in self._links}

    def destroy(self) -> None:
        """Leaves. Tensors over its memory must not be used afterwards."""
        self._destroyed = True
        self._leave(list(self._worlds))
        self._close_left()

    def _checked(self, name: str, ranks: Sequence[int]) -> "set[int]":
        self._check_not_destroyed()
        if not self.group_size:
            raise RuntimeError(f"{name}: update_memory_buffers() comes first")
        for rank in ranks:
            if not 0 <= rank < self.group_size:
                raise ValueError(f"{name}: {rank} is no rank of {self.group_size}")
        return set(ranks)

    def _check_not_destroyed(self) -> None:
        if self._destroyed:
            raise RuntimeError("the buffer was destroyed; make another one")

    def _gone(self) -> "set[int]":
        """Connected ranks that are gone, as this rank knows it now."""
        if self._last is not None and self._last not in self._left:
            self._dead.update(self._last.gone())
        return self._dead

    def _forget(self, ranks: "set[int]") -> None:
        self._gone()
        for rank in ranks:
            self._links.disconnect(rank)
        self._masked |= ranks
        self._newcomers -= ranks
        self._dead -= ranks
        self._leave([key for key in self._worlds if not ranks.isdisjoint(key[0])])

    def _leave(self, keys: "List[Tuple[Tuple[int, ...], int]]") -> None:
        for key in keys:
            self._left.append(self._worlds.pop(key))
            self._dispatches = 0

    def _close_left(self) -> None:
        left, self._left = self._left, []
        for world in left:
            world.wait()
            world.close()

    def _world(self, x: torch.Tensor, num_experts: Optional[int]) -> "Tuple[_World, int]":
        """The ranks of the next dispatch, and its experts."""
        self._checked("dispatch", ())
        ranks = tuple(rank for rank in range(self.group_size) if rank not in self._masked)
        places = (num_experts or (ranks[-1] + 1) * self._local) // self._local
        if num_experts not in (None, places * self._local) or not ranks[-1] < places <= self.group_size:
            raise ValueError(f"dispatch: num_experts is {num_experts}; it must be a multiple of {self._local}, the experts of "
                             f"a rank, from {(ranks[-1] + 1) * self._local} to {self.group_size * self._local}")
        world = self._worlds.get((ranks, places))
        if x.is_cuda and torch.cuda.is_current_stream_capturing() and (world is None or len(ranks) < self.group_size):
            raise NotImplementedError(f"dispatch: a captured graph would stay with ranks {list(ranks)} when others come; turn "
                                      "CUDA graphs off (--enforce-eager), or capture with all ranks after a dispatch")
        if world is None:
            world = self._met(x, ranks, places)
        if self._left:
            # The others have begun the first dispatch, so they have ended what they had in the worlds before.
            self._dispatches += 1
            if self._dispatches > BUFFERS:
                self._close_left()
        self._last = world
        return world, places * self._local

    def _met(self, x: torch.Tensor, ranks: "Tuple[int, ...]", places: int) -> _World:
        gone = self._gone()
        there = tuple(rank for rank in ranks if rank not in gone)
        comm = self._links.meet(there, places, x.device.index if x.is_cuda else None, self.meeting_timeout_s)
        if self.timeout_ms is not None:
            comm.set_timeout(self.timeout_ms / 1000)
        if not self._newcomers.isdisjoint(ranks):  # all of them have newcomers, and go on here
            self._leave(list(self._worlds))
            self._newcomers -= set(ranks)
        world = self._worlds[ranks, places] = _World(comm, there)
        return world

    # ---- dispatch and combine ---------------------------------------------------------------------------

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, num_max_dispatch_tokens_per_rank: int,
                 num_experts: Optional[int] = None, cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
                 dispatch_wait_recv_cost_stats: Optional[torch.Tensor] = None, use_fp8: bool = True,
                 round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                 return_recv_hook: bool = False
                 ) -> "Tuple[_Rows, torch.Tensor, tuple[Any, ...], EventOverlap, _Hook]":
        """Sends each row of x to its experts, as mep.deep_ep.Buffer.low_latency_dispatch() does. num_experts: of all ranks
        that have a place, those that are not there too; the rows are [experts of a rank, places * most tokens, hidden].
        None: as many as the unmasked ranks need. Expert e is of rank e // num_experts_per_rank; rows to a rank that is masked
        or gone go nowhere. Returns (recv_x or (recv_x, scales), recv_count, handle, event, hook)."""
        world, experts = self._world(x, num_experts)
        found, count, handle, event, hook = world.calls.low_latency_dispatch(
            x, topk_idx, num_max_dispatch_tokens_per_rank, experts, cumulative_local_expert_recv_stats,
            dispatch_wait_recv_cost_stats, use_fp8, round_scale, use_ue8m0, async_finish, return_recv_hook)
        assert isinstance(handle, Handle)
        handle.world = world
        return found, count, handle, event, hook

    def combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: tuple[Any, ...],
                use_logfmt: bool = False, zero_copy: bool = False, async_finish: bool = False,
                return_recv_hook: bool = False, out: Optional[torch.Tensor] = None,
                combine_wait_recv_cost_stats: Optional[torch.Tensor] = None
                ) -> "Tuple[torch.Tensor, EventOverlap, _Hook]":
        """Brings the experts' rows back to the ranks of the dispatch and sums them by weight. Returns (sums, event, hook)."""
        return _world_of(handle).calls.low_latency_combine(
            x, topk_idx, topk_weights, handle, use_logfmt, zero_copy, async_finish, return_recv_hook, out,
            combine_wait_recv_cost_stats)

    low_latency_dispatch, low_latency_combine = dispatch, combine

    def get_next_combine_buffer(self, handle: tuple[Any, ...]) -> torch.Tensor:
        """Memory for a combine with zero_copy, in the shape of the dispatch's rows, of bfloat16."""
        return _world_of(handle).calls.get_next_low_latency_combine_buffer(handle)

    # ---- accepted: what has no meaning here -------------------------------------------------------------

    @staticmethod
    def get_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
        """Bytes that the buffers take at most. The first dispatch makes them."""
        return low_latency_bytes(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    get_low_latency_buffer_size_hint = get_rdma_size_hint

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: Any = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> torch.Tensor:
        """An empty tensor: no part of the library's memory is the program's to write."""
        return torch.empty(0, dtype=dtype, device="cpu")

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: fp8 is there."""
        return True

    @staticmethod
    def capture() -> EventOverlap:
        """An event of the current stream; without a GPU one that has happened."""
        return EventOverlap(EventHandle())


def _world_of(handle: Any) -> _World:
    world = getattr(handle, "world", None)
    if not isinstance(world, _World):
        raise TypeError(f"handle is a {type(handle).__name__}; it must be the object that the dispatch returned")
    return world


__all__ = ["Buffer"]
