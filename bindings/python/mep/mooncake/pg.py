"""The calls of Mooncake's process group, `mooncake.pg`, over MEP's backend of torch.distributed.

    from mep.mooncake import pg
    active_ranks = torch.ones(world_size, dtype=torch.int32)
    dist.init_process_group("mooncake-cpu", pg_options=pg.MooncakeBackendOptions(active_ranks))

Importing it registers "mooncake-cpu" for tensors of the CPU and "mooncake" for those of GPUs. All functions take a
process group, or its backend, and ranks of that group. docs/guide/mooncake.md says what differs from Mooncake.
"""
from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import os
import warnings
from typing import Any, Sequence

import torch
import torch.distributed as _dist
from torch.distributed import distributed_c10d as _c10d

import mep
import mep.torch as _mep_torch

MAX_RANKS = 64
_DEVICES = {"mooncake-cpu": "cpu", "mooncake": "cuda"}


class MooncakeBackendOptions:
    """MooncakeBackendOptions(active_ranks[, is_extension[, max_group_size]]) or
    MooncakeBackendOptions(max_group_size[, is_extension[, auto_deactivate_on_failure, auto_sync_on_failure]]).

    active_ranks: a tensor of int32 that the group fills, 1 for a rank that is there and 0 for one that is gone.
    is_extension: this process takes the place of a rank that is gone, once it calls join_group(). MEP_JOIN=1 in the
    environment says the same.
    """

    _WITH_TENSOR = ("active_ranks", "is_extension", "max_group_size")
    _WITHOUT = ("max_group_size", "is_extension", "auto_deactivate_on_failure", "auto_sync_on_failure")

    def __init__(self, *args: Any, **named: Any) -> None:
        has_tensor = "active_ranks" in named or bool(args) and isinstance(args[0], torch.Tensor)
        names = self._WITH_TENSOR if has_tensor else self._WITHOUT
        if len(args) > len(names):
            raise TypeError(f"MooncakeBackendOptions takes at most {len(names)} arguments: {', '.join(names)}")
        given: dict[str, Any] = dict(zip(names, args))
        for name, value in named.items():
            if name not in names or name in given:
                raise TypeError(f"MooncakeBackendOptions: {name} is no argument beside these: {', '.join(names)}")
            given[name] = value
        if names[0] not in given:
            raise TypeError("MooncakeBackendOptions needs active_ranks or max_group_size")
        self.active_ranks: torch.Tensor | None = given.get("active_ranks")
        self.is_extension = bool(given.get("is_extension", False))
        self.max_group_size = int(given.get("max_group_size", 0))
        # MEP does both by itself.
        self.auto_deactivate_on_failure = bool(given.get("auto_deactivate_on_failure", True))
        self.auto_sync_on_failure = bool(given.get("auto_sync_on_failure", True))

    def mirror(self, size: int, device: str) -> torch.Tensor:
        """The tensor for a group of `size` ranks; ValueError if it cannot be one."""
        longest = self.max_group_size or size
        if not size <= longest <= MAX_RANKS:
            raise ValueError(f"max_group_size is {longest}; it must be from {size}, the ranks of the group, "
                             f"to {MAX_RANKS}")
        if self.active_ranks is None:
            return torch.zeros(longest, dtype=torch.int32, device=device)
        if self.active_ranks.numel() < longest:
            raise ValueError(f"active_ranks has {self.active_ranks.numel()} entries; the group needs {longest}")
        return self.active_ranks


def _create(name: str, options: Any, pg_options: Any = None) -> Any:
    if pg_options is None:
        pg_options = MooncakeBackendOptions(options.group_size)
    if not isinstance(pg_options, MooncakeBackendOptions):
        raise TypeError(f"pg_options of the backend {name} must be MooncakeBackendOptions, "
                        f"not {type(pg_options).__name__}")
    device = _DEVICES[name]
    mirror = pg_options.mirror(options.group_size, device)
    joins = pg_options.is_extension or _mep_torch.is_replacement()
    group = _mep_torch.create(name, options, joins_later=joins, max_size=pg_options.max_group_size)
    group.set_active_ranks(mirror)
    return group


def _register() -> None:
    for name, device in _DEVICES.items():
        if name.upper() in _dist.Backend._plugins:
            raise ImportError(f"mep.mooncake: the backend {name} is registered already; "
                              "import it in place of mooncake.pg")
        _dist.Backend.register_backend(name, functools.partial(_create, name), extended_api=True, devices=[device])


def _backend(group: Any) -> Any:
    """MEP's backend of a process group, which may be given itself."""
    if group is None:
        group = _dist.group.WORLD
    backend = _mep_torch.backend_of(group)
    if backend is not None:
        return backend
    raise TypeError(f"{group!r} is no process group of the backends {', '.join(_DEVICES)}")


# --- What a work says ---------------------------------------------------------------------------------

def get_failed_ranks_hint(work: Any) -> torch.Tensor:
    """int32, as long as active_ranks: 1 for each rank whose loss made this work fail. Waits for the end of the work."""
    work.wait()
    hint: torch.Tensor | None = _mep_torch.lost_ranks(work)
    if hint is None:
        raise TypeError(f"{work!r} is no work of the backends {', '.join(_DEVICES)}")
    return hint


def get_local_success(work: Any) -> bool:
    """Whether the work ended without the loss of a rank. Waits for its end."""
    return not bool(get_failed_ranks_hint(work).any())


# --- Who is there -------------------------------------------------------------------------------------

def get_active_ranks(group: Any) -> torch.Tensor:
    """The tensor that the group fills: 1 for a rank that is there. Ranks that are gone by now get their 0."""
    active: torch.Tensor = _backend(group).active_ranks()
    return active


def get_num_synced_ranks(group: Any) -> int:
    """How many ranks of the group are there, as this rank knows it now."""
    return len(_backend(group).living())


def get_current_epoch(group: Any) -> int:
    """The number of the group's view, which grows when ranks go or come."""
    epoch: int = _backend(group).epoch()
    return epoch


# --- Ranks that go and come ---------------------------------------------------------------------------

class ProposalStatus(enum.Enum):
    Rejected = 0
    Applied = 1
    AppliedWithDroppedRanks = 2


ViewUpdateStatus = ProposalStatus


@dataclasses.dataclass(frozen=True)
class ProposeViewUpdateResponse:
    """The outcome of a change: `dropped_ranks` of the group are not as was asked, and `reject_reason` says why."""

    status: ProposalStatus
    new_epoch: int
    dropped_ranks: list[int]
    reject_reason: str


class SyncAfterFailureStatus(enum.Enum):
    Reconciled = 0
    NoPending = 1
    Rejected = 2


@dataclasses.dataclass(frozen=True)
class SyncAfterFailureResponse:
    status: SyncAfterFailureStatus
    reject_reason: str


def _checked(backend: Any, ranks: Sequence[int], what: str) -> list[int]:
    most = backend.active_ranks().numel()
    for rank in ranks:
        if not 0 <= rank < most:
            raise ValueError(f"{what}: {rank} is no rank of a group of at most {most}; give max_group_size to "
                             "MooncakeBackendOptions for more")
    return list(ranks)


def _response(backend: Any, ranks: Sequence[int], dropped: list[int], reason: str) -> ProposeViewUpdateResponse:
    status = ProposalStatus.Applied
    if dropped:
        is_none = len(dropped) == len(set(ranks))
        status = ProposalStatus.Rejected if is_none else ProposalStatus.AppliedWithDroppedRanks
    return ProposeViewUpdateResponse(status, backend.epoch(), dropped, reason if dropped else "")


def get_peer_state(group: Any, ranks: Sequence[int]) -> list[bool]:
    """For each rank whether it is in the group, or waits in join_group() of the default group.

    All ranks that are there call it with the same ranks while one of these is gone, and get the same answer.
    """
    backend = _backend(group)
    ready: list[bool] = backend.peers_are_ready(_checked(backend, ranks, "get_peer_state"))
    return ready


def recover_ranks(group: Any, ranks: Sequence[int], timeout: float = 60.0) -> ProposeViewUpdateResponse:
    """Takes replacements of the ranks in, and waits `timeout` seconds for them. All ranks that are there call it, with
    nothing pending, and the replacements call join_group(): for the default group first, then for each other group.
    Ranks beyond the group's size are newcomers: the group grows by them, up to max_group_size.
    """
    backend = _backend(group)
    _mep_torch.check_members_may_change("recover_ranks()")
    ranks = _checked(backend, ranks, "recover_ranks")
    backend.recover(ranks, datetime.timedelta(seconds=timeout))
    _tell_pytorch(group, backend)
    there = set(backend.living())
    dropped = sorted(set(ranks) - there)
    return _response(backend, ranks, dropped, f"no replacement of {dropped} came in {timeout} s")


activate_ranks = recover_ranks


def _tell_pytorch(group: Any, backend: Any) -> None:
    """PyTorch knows the ranks of a group by a table of its own."""
    table: Any = _c10d._world.pg_group_ranks.get(_dist.group.WORLD if group is None else group)
    if table is not None and len(table) != backend.size():
        table.clear()
        table.update({rank: place for place, rank in enumerate(backend.ranks_of_world())})


def join_group(group: Any) -> None:
    """The side of recover_ranks() of a replacement, of a newcomer, or of a living rank that was left out: waits for the
    others.

    Before it the operations of a replacement, of a newcomer and of a rank that left by itself do the part of this rank
    alone; those of a rank that the others left out fail.
    """
    backend = _backend(group)
    backend.join()
    _tell_pytorch(group, backend)


def deactivate_ranks(group: Any, ranks: Sequence[int]) -> ProposeViewUpdateResponse:
    """Leaves living ranks out of the default group, and so of all groups; this rank itself leaves. One rank calls it.
    Ranks that are gone are only confirmed. join_group() takes a rank back.
    """
    backend = _backend(group)
    backend.deactivate(_checked(backend, ranks, "deactivate_ranks"))
    return _response(backend, ranks, [], "")


def sync_after_failure(group: Any) -> SyncAfterFailureResponse:
    """Does nothing: the ranks have agreed on what failed when a work tells of it."""
    _backend(group)
    return SyncAfterFailureResponse(SyncAfterFailureStatus.NoPending, "")


# --- Before init_process_group ------------------------------------------------------------------------

def set_device_filter(devices: Sequence[str]) -> None:
    """Uses only these RDMA devices: MEP_HCA."""
    if devices:
        os.environ["MEP_HCA"] = ",".join(devices)
    else:
        os.environ.pop("MEP_HCA", None)


def set_host_ip(host: str) -> None:
    """Takes the address and does nothing: MEP finds its addresses by the store, and MEP_NET_IF chooses interfaces."""
    del host


def set_transfer_engine(engine: Any) -> None:
    """Takes Mooncake's engine and does nothing: MEP has transports of its own."""
    del engine


def set_collective_timeout_us(us: int) -> None:
    """After so long a silence a rank is suspected: MEP_SUSPECT_MS. A rank that is only late is no failure."""
    os.environ["MEP_SUSPECT_MS"] = str(_milliseconds(us, "set_collective_timeout_us"))


def set_fault_reconciliation_window_us(us: int) -> None:
    """Takes the time and does nothing: what failed together is settled together, without a window."""
    _milliseconds(us, "set_fault_reconciliation_window_us")


def set_p2p_timeout_us(us: int) -> None:
    """Takes the time and does nothing: a message waits for its peer as long as the group's timeout says."""
    _milliseconds(us, "set_p2p_timeout_us")


def _milliseconds(us: int, name: str) -> int:
    if us <= 0:
        raise ValueError(f"{name}: {us} is no time above 0 microseconds")
    return max(1, (us + 999) // 1000)


def extend_group_size_to(group: Any, size: int) -> None:
    """Does nothing, as in Mooncake."""
    del size
    _backend(group)
    warnings.warn("extend_group_size_to does nothing: the size of a group does not change", stacklevel=2)


def get_preferred_hca(group: Any, location: str) -> str:
    """The RDMA device near "cpu", "cuda:0" or a PCI address, as "mlx5_0". mep.MepError if there is none."""
    _backend(group)
    return mep.preferred_hca(location.replace("cuda:", "gpu:")).partition(":")[0]


_register()
