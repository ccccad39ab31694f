"""The backend "mep" of torch.distributed.

    import torch.distributed as dist, mep.torch
    dist.init_process_group("mep")            # under torchrun, mep_run or any launcher that c10d knows

It serves tensors of the CPU and of CUDA GPUs. The first import builds the binding for the PyTorch that is installed, which takes
one to two minutes and a C++ compiler where the package mep-torch has none for it; `python -m mep.torch` does that beforehand.
"""
from __future__ import annotations

import atexit
import datetime
import functools
import os
from typing import Any, Sequence

import torch as _torch
import torch.distributed as _dist

import mep

from ._build import load as _load
from ._store import Store

_binding: Any = _load()
_c10d: Any = _dist  # it does not say which of its names are public
ProcessGroupMep = _binding.ProcessGroupMep
lost_ranks = _binding.lost_ranks
_DEVICES = ["cpu", "cuda"] if _torch.version.cuda else ["cpu"]


def check_members_may_change(what: str) -> None:
    """RuntimeError where PyTorch makes a group of gloo beside each group of MEP, which no replacement can come into."""
    if is_checked_by_gloo():
        raise RuntimeError(f"{what} does not work with TORCH_DISTRIBUTED_DEBUG=DETAIL: PyTorch then makes a group of gloo "
                           "beside each group, in which all its first ranks meet. Unset the variable, or set it to INFO, "
                           "on all ranks.")


def is_checked_by_gloo() -> bool:
    return bool(_dist.is_gloo_available() and _c10d.get_debug_level() == _c10d.DebugLevel.DETAIL)


def create(backend: str, options: Any, pg_options: Any = None, joins_later: bool = False, max_size: int = 0) -> Any:
    """Makes a process group for PyTorch, by what register_backend(extended_api=True) gives.

    joins_later: of a replacement, which takes its place by join() of the group and is alone until then.
    max_size: up to how many ranks the default group may grow; 0: it does not.
    """
    del pg_options
    if getattr(options, "enable_reconfigure", False):
        check_members_may_change("enable_reconfigure=True")
        return ProcessGroupMep.make_reconfigurable(options.store, options.group_rank, options.group_size,
                                                   _timeout_of(options), backend)
    joins = is_replacement() or joins_later
    if joins:
        check_members_may_change("replacing a rank")
    timeout = _timeout_of(options)
    ranks = list(options.global_ranks_in_group)
    if ranks:
        group = ProcessGroupMep.make_group(options.store, ranks, options.group_rank, options.group_id, timeout,
                                           backend)
        if group is not None:
            return group
    place = _binding.Place()
    place.rank, place.size, place.max_size, place.timeout = options.group_rank, options.group_size, max_size, timeout
    place.job = f"torch-{options.group_id or 'world'}"
    place.is_replacement, place.joins_later = joins, joins_later
    return ProcessGroupMep.make_world(options.store, place, not ranks, backend)


def _timeout_of(options: Any) -> datetime.timedelta:
    timeout = options.timeout
    return timeout if isinstance(timeout, datetime.timedelta) else datetime.timedelta(seconds=float(timeout))


def is_replacement() -> bool:
    """Whether this process takes the place of a rank that is gone: MEP_JOIN=1, which `mep_run --respawn` sets."""
    return os.environ.get("MEP_JOIN") == "1"


def backend_of(group: Any) -> Any:
    """MEP's backend of a process group, which may be given itself; None: it has none."""
    candidates = [group]
    if isinstance(group, _dist.ProcessGroup):
        candidates = []
        for device in ("cpu", "cuda"):
            try:
                candidates.append(group._get_backend(_torch.device(device)))
            except RuntimeError:
                continue  # it has none for this device
    for backend in candidates:
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        if isinstance(backend, ProcessGroupMep):
            return backend
    return None


def living() -> list[int]:
    """The ranks of the default group that are there, as this rank knows it now."""
    ranks: list[int] = _binding.living()
    return ranks


def recover(ranks: Sequence[int] = (), timeout: float = 30.0) -> int:
    """Admits replacements of ranks that are gone to the default group, which keeps its size, and says how many came.

    All ranks that are there call it, with the same arguments and with nothing pending. It waits `timeout` seconds for
    replacements of `ranks`, and raises DistBackendError if one has not come by then; without ranks it takes in whoever
    is ready and does not wait. A replacement is a process with MEP_JOIN=1 that calls init_process_group("mep") with the
    rank to take, the same store, and then makes the same groups; it waits there until the others call recover().
    With TORCH_DISTRIBUTED_DEBUG=DETAIL both raise RuntimeError at once.
    """
    check_members_may_change("mep.torch.recover()")
    came: int = _binding.recover(list(ranks), datetime.timedelta(seconds=timeout))
    return came


def shrink(timeout: datetime.timedelta | None = None) -> Any:
    """A new group of the ranks of the default group that are there. They all call it, after the same error.

    They have made the same number of groups before: PyTorch names the new one by that.
    """
    return _dist.new_group(living(), timeout=timeout, use_local_synchronization=True)


def comm(group: Any = None, partial: bool = False, device: int | None = None, **options: Any) -> mep.Comm:
    """A communicator of MEP for the ranks of a process group of any backend, rank for rank; None: of the default group. It
    is apart from the group, and the caller closes it. All ranks of the group call it. device: CUDA's number of the GPU whose
    memory it works on; None: host memory. partial: in a group of MEP without the ranks that are gone. options: others of mep.init().
    """
    from ._meeting import Place
    place = Place(_dist.group.WORLD if group is None else group)
    place.agree()
    return place.meet(partial, device, **options)


def register(name: str = "mep") -> None:
    """Registers the backend with torch.distributed under a name; importing mep.torch does it under "mep"."""
    if name.upper() in _dist.Backend._plugins:
        return
    _dist.Backend.register_backend(name, functools.partial(create, name), extended_api=True, devices=_DEVICES)


register()
# Groups that a program leaves without destroy_process_group() are left in order when it ends.
atexit.register(_binding.shut_all_down)

__all__ = ["ProcessGroupMep", "Store", "backend_of", "comm", "is_replacement", "living", "recover", "register", "shrink"]
