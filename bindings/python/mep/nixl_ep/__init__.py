"""NIXL EP's calls over MEP's expert parallelism, for tensors of the CPU or of GPUs: `import mep.nixl_ep as nixl_ep`.

Low latency alone, with ranks that come and go; docs/guide/nixl-ep.md says what differs from NIXL EP.
"""
from __future__ import annotations

import sys

import torch as _torch

from mep.deep_ep import EventOverlap

from .buffer import Buffer

topk_idx_t = _torch.int64


def install() -> None:
    """Makes `nixl_ep` this package, and `nixl_ep.buffer` its module, for programs that import those. Call it before nixl_ep
    is imported."""
    here = sys.modules[__name__]
    if sys.modules.get("nixl_ep", here) is not here:
        raise ImportError("mep.nixl_ep.install() comes before nixl_ep is imported")
    sys.modules["nixl_ep"], sys.modules["nixl_ep.buffer"] = here, sys.modules[f"{__name__}.buffer"]


__all__ = ["Buffer", "EventOverlap", "install", "topk_idx_t"]
