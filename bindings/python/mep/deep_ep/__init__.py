"""DeepEP's calls over MEP's expert parallelism, for tensors of the CPU or of GPUs: `import mep.deep_ep as deep_ep`.

Low-latency and normal mode and the dispatches of ElasticBuffer and HybridEPBuffer are there; docs/guide/deep-ep.md says
what differs from DeepEP.
"""
from __future__ import annotations

import sys

import torch as _torch

from .buffer import Buffer, Config
from .elastic import ElasticBuffer, EPHandle
from .hybrid_ep_buffer import HybridEPBuffer
from .utils import EventHandle, EventOverlap

topk_idx_t = _torch.int64


def install() -> None:
    """Makes `deep_ep` this package, and `deep_ep.utils` and others its modules, for programs that import those. Call it
    before deep_ep is imported."""
    here = sys.modules[__name__]
    if sys.modules.get("deep_ep", here) is not here:
        raise ImportError("mep.deep_ep.install() comes before deep_ep is imported")
    for name, module in list(sys.modules.items()):
        if name == __name__ or name.startswith(__name__ + "."):
            sys.modules["deep_ep" + name[len(__name__):]] = module


__all__ = ["Buffer", "Config", "ElasticBuffer", "EPHandle", "EventHandle", "EventOverlap", "HybridEPBuffer", "install",
           "topk_idx_t"]
