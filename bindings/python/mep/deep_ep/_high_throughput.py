"""Dispatches and combines of DeepEP's normal mode, for mep.deep_ep."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple, Union

import torch

import mep
from mep.torch import _binding

from .utils.event import EventHandle, EventOverlap, ending
from ._low_latency import LowLatency

_Rows = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
_Calls = _binding.HighThroughput


class Handle(Tuple[Any, ...]):
    """A tuple as DeepEP has it, of which the library reads nothing: (rank_prefix_matrix, None, None, recv_src_idx,
    is_token_in_rank, None). The routing lies beside it."""

    _use: Any
    slots: Optional[torch.Tensor]


class HighThroughput:
    """The calls over the communicator of `calls`. On a GPU dispatches without num_worst_tokens wait for the counts on
    the host, not for the rows. num_sms: blocks of kernels there, of the EP objects that are made next."""

    def __init__(self, calls: LowLatency, num_sms: "Callable[[], int]"):
        self._calls, self._num_sms = calls, num_sms
        self._eps: List[mep.Ep] = []
        streams = calls.streams
        self._binding = _Calls(calls.comm, streams and streams.order, tells_failures=not calls.goes_on)
        self.failed = calls.failed

    def close(self) -> None:
        for ep in self._eps:
            ep.close()
        self._eps.clear()

    # ---- for the binding --------------------------------------------------------------------------------

    def make(self, most: int, hidden: int, top_k: int, experts: int, sides: int, alignment: int,
             number: int) -> "mep.Ep":
        """An EP object. sides: words of 4 bytes beside a row of fp8, its scales in whatever format; 0: rows of bf16.
        alignment: of the experts' groups in the expanded layout; 0: plain rows. number: tells objects of one shape apart."""
        key = (most, hidden, top_k, experts, sides, alignment, number)
        options = dict(max_tokens_per_rank=most, hidden=hidden, top_k=top_k, num_experts=experts, num_buffers=1,
                       name="deep_ep-normal-" + "-".join(map(str, key)))
        if sides:
            options.update(row_bytes=hidden, side_bytes=4 * sides)
        if alignment:
            options.update(layout="expanded", expert_alignment=alignment, row_memory=False)
        else:
            options.update(layout="high_throughput", combine_memory=False)
        ep: mep.Ep = self._calls.again(lambda: self._made(options))
        self._eps.append(ep)
        return ep

    def _made(self, options: dict[str, Any]) -> "mep.Ep":
        if self._calls.streams is not None:
            try:
                return self._calls.make_ep(num_sms=self._num_sms(), **options)
            except mep.UnsupportedError:  # ranks that share a GPU have less of it, all of them alike
                pass
        return self._calls.make_ep(**options)

    def add_up(self, per_expert: torch.Tensor) -> List[int]:
        """Rows of each local expert, as the ranks say."""
        comm, given, streams = self._calls.comm, per_expert.contiguous(), self._calls.streams
        summed = torch.empty_like(given)
        if streams is None:
            self._calls.again(lambda: comm.allreduce(given, summed))
        else:
            current = torch.cuda.current_stream(streams.device)
            streams.own.wait_stream(current)
            self._calls.again(lambda: comm.allreduce(given, summed, stream=streams.own))
            current.wait_stream(streams.own)
        rows: List[int] = summed.view(comm.size, -1)[comm.rank].tolist()
        return rows

    # ---- calls ------------------------------------------------------------------------------------------

    def layout(self, topk_idx: torch.Tensor, num_experts: int, previous: Optional[EventOverlap],
               asynchronous: bool) -> tuple[Any, ...]:
        """((tokens per rank, tokens per expert, is_token_in_rank) of this rank's tokens, event)"""
        found = self._binding.layout(topk_idx, num_experts, self._order(previous, asynchronous))
        return found, self._ending(asynchronous, (topk_idx,))

    def dispatch(self, x: _Rows, is_token_in_rank: Optional[torch.Tensor], per_expert: Optional[torch.Tensor],
                 topk_idx: Optional[torch.Tensor], topk_weights: Optional[torch.Tensor], alignment: int, worst: int,
                 previous: Optional[EventOverlap], asynchronous: bool, room: int = 0,
                 expands: bool = False) -> tuple[Any, ...]:
        """(rows, or rows and scales; local experts; weights; counts; handle; event). room: the most tokens of a rank, the
        same on all ranks; on a GPU they need not agree on it then. expands: a row for each local expert of a token, in
        groups of `alignment`; handle.slots [tokens, top-k] are the rows of each token."""
        values, scales, local, weights, counts, prefixes, sources, slots, use = self._binding.dispatch(
            self, _rows(x), is_token_in_rank, per_expert, topk_idx, topk_weights, alignment, worst, room, expands,
            self._order(previous, asynchronous))
        given = (*(x if isinstance(x, tuple) else (x,)), topk_idx, topk_weights, is_token_in_rank, per_expert)
        handle = Handle((prefixes, None, None, sources, is_token_in_rank, None))
        handle._use, handle.slots = use, slots
        return (_received(values, scales), local, weights, counts, handle, self._ending(asynchronous, given))

    def replay(self, x: _Rows, handle: Any, previous: Optional[EventOverlap], asynchronous: bool) -> tuple[Any, ...]:
        """(rows that go where those of the handle's dispatch went, event)"""
        found = self._binding.replay(self, self._use(handle), _rows(x), self._order(previous, asynchronous))
        return _received(*found), self._ending(asynchronous, x if isinstance(x, tuple) else (x,))

    def combine(self, x: torch.Tensor, handle: Any, topk_weights: Optional[torch.Tensor], bias: Any,
                previous: Optional[EventOverlap], asynchronous: bool) -> tuple[Any, ...]:
        """(sums, sums of the weights or None, event)"""
        biases = [] if bias is None else [bias] if isinstance(bias, torch.Tensor) else list(bias)
        sums, weights = self._binding.combine(self, self._use(handle), x, topk_weights, biases,
                                              self._order(previous, asynchronous))
        return sums, weights, self._ending(asynchronous, (x, topk_weights, *biases))

    # ---- parts ------------------------------------------------------------------------------------------

    def _use(self, handle: Any) -> Any:
        use: Any = getattr(handle, "_use", None)
        if not isinstance(use, _Calls.Use):
            raise TypeError(f"handle is a {type(handle).__name__}; it must be the object that a dispatch returned")
        if use.owner is not self._binding:
            raise ValueError("the handle is that of another Buffer")
        return use

    def _order(self, previous: Optional[EventOverlap], asynchronous: bool) -> Any:
        """Behind `previous`, or behind all that the current stream has."""
        if previous is None or previous.event is None or self._calls.streams is None:
            return _Calls.Order(True, asynchronous)
        previous.event.wait_on(self._calls.streams.own)
        return _Calls.Order(False, asynchronous)

    def _ending(self, asked: bool, given: tuple[Any, ...]) -> EventOverlap:
        """asked: an event to wait for; else the current stream waits."""
        if self._calls.streams is None or not asked:
            return ending(asked)
        return EventOverlap(EventHandle(self._calls.streams.own), given)


def _rows(x: Any) -> Any:
    return _Calls.Rows(*x) if isinstance(x, tuple) else _Calls.Rows(x)


def _received(values: torch.Tensor, scales: Optional[torch.Tensor]) -> _Rows:
    return values if scales is None else (values, scales)
