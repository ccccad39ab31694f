"""The backend "mep" of torch.distributed.

    import torch.distributed as dist, mep.torch
    dist.init_process_group("mep")            # under torchrun, mep_run or any launcher that c10d knows

It serves tensors of the CPU. The first import builds the binding for the PyTorch that is installed, which takes
about a minute and a C++ compiler; `python -m mep.torch` does that beforehand.
"""
from __future__ import annotations

import atexit
import datetime
import functools
import weakref
from typing import Any

import torch.distributed as _dist

from ._build import load as _load

_binding = _load()
ProcessGroupMep = _binding.ProcessGroupMep

# Groups that a program leaves without destroy_process_group() are left in order when it ends.
_groups: weakref.WeakSet[Any] = weakref.WeakSet()


def _create(backend: str, options: Any, pg_options: Any = None) -> Any:
    del pg_options
    timeout = options.timeout
    if not isinstance(timeout, datetime.timedelta):
        timeout = datetime.timedelta(seconds=float(timeout))
    group = ProcessGroupMep(options.store, options.group_rank, options.group_size, timeout,
                            f"torch-{options.group_id or 'world'}", backend)
    _groups.add(group)
    return group


def _leave_groups() -> None:
    for group in list(_groups):
        group.shutdown()


def register(name: str = "mep") -> None:
    """Registers the backend with torch.distributed under a name; importing mep.torch does it under "mep"."""
    if name.upper() in _dist.Backend._plugins:
        return
    _dist.Backend.register_backend(name, functools.partial(_create, name), extended_api=True, devices=["cpu"])


register()
atexit.register(_leave_groups)

__all__ = ["ProcessGroupMep", "register"]
