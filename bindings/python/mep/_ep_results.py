"""Results of dispatches and combines, and sizes."""
from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy

from . import _abi


class OpStatus:
    """The statement of a dispatch or combine when it ends, with room for the bits of `ranks` ranks.

    version (0: nothing has been written yet), result, epoch, seq, failed_count, bad_entries, and failed: the
    ranks that were missing, bit r % 64 of word r // 64; as many words as the communicator's size needs, or
    as there is room for.
    """

    def __init__(self, ranks: int = 256):
        header = ctypes.sizeof(_abi.mep_op_status_t)
        self._memory = (ctypes.c_uint64 * (header // 8 + (ranks + 63) // 64))()
        self._record = _abi.mep_op_status_t.from_buffer(self._memory)

    def __getattr__(self, name: str) -> int:
        if name not in ("version", "result", "epoch", "seq", "failed_count", "bad_entries"):
            raise AttributeError(f"OpStatus has no {name}")
        value: int = getattr(self._record, name)
        return value

    @property
    def failed(self) -> list[int]:
        first = ctypes.sizeof(self._record) // 8
        return list(self._memory[first:first + self._record.failed_words])


class EpSize:
    """Bytes that an EP object reserves on this rank."""

    def __init__(self, size: _abi.mep_ep_size_t):
        self.window_bytes: int = size.window_bytes
        self.resident_bytes: int = size.resident_bytes
        self.private_bytes: int = size.private_bytes


class Received:
    """A dispatch's results: arrays over the library's memory or over the buffers that were given.

    x [E_local, R*M, H], scales [E_local, R*M, ceil(H/128) or H/32] or None, count [E_local],
    src_info [E_local, R*M], layout_range [E_local, R], total: rows of all local experts; None of a dispatch on
    a stream, which has not ended yet. On a communicator with a GPU the library's memory is a DeviceArray.
    Valid until the buffer's combine starts or, without one, its next dispatch. The library's memory stays as long as
    an array over it, also when the EP object is closed.
    partial: a rank was missing (MEP_PARTIAL).

    High throughput: the first `total` rows of x [R*M, H] and scales [R*M, ceil(H/128) or H/32] are tokens, in the order
    of source rank, then token; topk_idx [R*M, K] has their local experts, -1 for those of other ranks, and
    topk_weights [R*M, K] the weights; src_info [R*M], layout_range [R]; count is rounded up to expert_alignment.

    Expanded: `total` rows, a token once for each of its local experts, grouped by expert: count[e] rows each, the last
    of them zeros where the group was rounded up. topk_weights has a value for each row, src_info -1 for the zeros,
    topk_idx is None; layout_range [E_local, R] counts from row 0 of x.
    """

    __slots__ = ("x", "scales", "count", "src_info", "layout_range", "topk_idx", "topk_weights", "total", "partial")

    def __init__(self, *, x: Any, scales: Any, count: Any, src_info: Any, layout_range: Any,
                 topk_idx: Any = None, topk_weights: Any = None,
                 total: Optional[int] = None, partial: bool = False):
        self.x, self.scales, self.count = x, scales, count
        self.src_info, self.layout_range = src_info, layout_range
        self.topk_idx, self.topk_weights = topk_idx, topk_weights
        self.total, self.partial = total, partial

    def rows(self, expert: int) -> numpy.ndarray:
        """The rows of one local expert, expanded with its zeros; host memory. Low latency: packed layout."""
        if self.layout_range.ndim == self.x.ndim == 2:  # expanded
            end = int(self.count[:expert + 1].sum())
            expanded: numpy.ndarray = self.x[end - int(self.count[expert]):end]
            return expanded
        found: numpy.ndarray = self.x[expert, : int(self.count[expert])]
        return found
