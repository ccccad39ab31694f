"""A communicator of MEP for the ranks of a process group."""
from __future__ import annotations

import concurrent.futures
import secrets
import time
import uuid
from typing import Any, Dict, List, Optional, Sequence

import torch.distributed as _dist

import mep
from mep.torch import Store, backend_of
from mep.torch._store import wait

_WORD_BITS = 64  # on which the ranks of a group of MEP agree in one call
_NO_WORD = (1 << _WORD_BITS) - 1
_LIMIT_S = 60


def store_of(group: Any) -> Any:
    known = _dist.distributed_c10d._world.pg_map.get(group)
    if known is not None and known[1] is not None:
        return known[1]
    try:
        return group.get_group_store()
    except (AttributeError, RuntimeError):
        raise TypeError(f"{group!r} has no store to meet by; make it by torch.distributed, or give comm=, a mep.Comm") \
            from None


class Place:
    """The place of this process in a communicator for the ranks of `group`, rank for rank: agree(), then meet().

    The ranks of a group of MEP agree in it on each meeting, so a process that has just come need not know of earlier ones.
    Those of another group meet through its store and use nothing else of it; each agrees as often as the others.
    """

    def __init__(self, group: Any):
        if not isinstance(group, _dist.ProcessGroup):
            raise TypeError(f"group is a {type(group).__name__}; it must be a process group with this process, or a "
                            "mep.Comm")
        self.rank, self.size = group.rank(), group.size()
        self.is_on_gpus = {device.type for device in getattr(group, "_device_types", ())} == {"cuda"}
        self._backend = backend_of(group)
        self._store = store_of(group)
        self._job = self._key = ""  # the name of the meeting, or where the store has it
        self._ranks: "List[int]" = []  # that meet

    @property
    def is_alone(self) -> bool:
        """Whether this process has not joined its group."""
        return self._backend is not None and self._backend.epoch() == 0

    def agree(self) -> None:
        """Prepares a meeting of the ranks of the group that are there. All of them call it."""
        self._ranks = list(range(self.size))
        if self._backend is not None:
            self._job = f"ep-{self._agreed(self._backend):016x}"
            return
        # The store counts, so processes that are older than the group, or share its name, count the same.
        self._key = f"mep/ep/job/{self._store.add(f'mep/ep/made/{self.rank}', 1)}"
        if self.rank == 0:
            self._store.set(self._key, f"ep-{uuid.uuid4().hex}")

    def _agreed(self, backend: Any) -> int:
        """Agrees on who is there, and then on a word of the first of those."""
        for _ in range(self.size + 1):  # again if that one was lost between
            if self.size <= _WORD_BITS:
                there = backend.agree(sum(1 << rank for rank in backend.living()))
                self._ranks = [rank for rank in range(self.size) if there >> rank & 1]
            if self.rank not in self._ranks:
                break
            word: int = backend.agree(secrets.randbits(_WORD_BITS - 1) if self.rank == self._ranks[0] else _NO_WORD)
            if word != _NO_WORD:
                return word
        raise RuntimeError(f"rank {self.rank} did not meet the others of its group: this rank was left out, or rank 0 of "
                           f"more than {_WORD_BITS} is gone; join_group() or recover_ranks() comes first")

    def meet(self, partial: bool, device: Optional[int] = None, **more: Any) -> "mep.Comm":
        """Waits for the ranks that have agreed. partial: without the ranks of the group that are not there. device: CUDA's number of the GPU whose memory operations work on; None: host memory. more:
        options of mep.init()."""
        c10d: Any = _dist  # it does not say which of its names are public
        job = self._job or self._store.get(self._key).decode()
        options = {**more, **_where(device), "size": self.size, "job": job,
                   "store": Store(c10d.PrefixStore(f"mep/ep/{job}", self._store))}
        if not partial or len(self._ranks) == self.size:
            return mep.init(rank=self.rank, **options)
        if len(self._ranks) == 1:
            return meet_nobody(self.rank, self.size, device, **more)
        return meet_among(self.rank, self._ranks, options, _LIMIT_S)

    def meet_all(self, device: Optional[int]) -> "mep.Comm":
        """agree() and meet(), partial, again where a rank was lost between."""
        self.agree()
        while True:
            ranks = self._ranks
            try:
                return self.meet(partial=True, device=device)
            except mep.Error:
                self.agree()
                if self._ranks == ranks:
                    raise

    def meet_nobody(self, device: Optional[int]) -> "mep.Comm":
        """A communicator of as many places, which the others have left. Without agree()."""
        return meet_nobody(self.rank, self.size, device)


def _where(device: Optional[int]) -> "Dict[str, Any]":
    return {} if device is None else {"device": device}


def meet_nobody(rank: int, size: int, device: Optional[int], **more: Any) -> "mep.Comm":
    """A communicator of `size` places, in which `rank` is there and the others have left."""
    comms = mep.init_all(size, **more, **_where(device))
    for each in range(size):
        if each != rank:
            comms[each].close()
    return comms[rank]


def meet_among(rank: int, ranks: "Sequence[int]", options: "Dict[str, Any]", limit_s: float) -> "mep.Comm":
    """A communicator of options["size"] places, in which `ranks`, two or more in order, are there and the others have
    left. All of `ranks` call it. options: of mep.init(), without the rank."""
    limit = time.monotonic() + limit_s
    options = {**options, "init_timeout_ms": max(1, int(1000 * limit_s))}
    absent = [each for each in range(options["size"]) if each not in ranks]
    comm = _opened(rank, absent if rank == ranks[0] else [], options)
    if absent and rank != ranks[0]:
        comm.agree(0)
    if wait(lambda: comm.live <= len(ranks), limit - time.monotonic()):
        return comm
    comm.abort("the places of ranks that are not there were not left")
    comm.close()
    raise mep.TimeoutError(f"the places {absent} of ranks that are not there were not left within {limit_s:g} s")


def _opened(rank: int, absent: "Sequence[int]", options: "Dict[str, Any]") -> "mep.Comm":
    """The communicator of `rank`, after the places of `absent` were taken and left."""
    if not absent:
        return mep.init(rank=rank, **options)
    with concurrent.futures.ThreadPoolExecutor(len(absent)) as pool:
        places = [pool.submit(_take_and_leave, each, options) for each in absent]
        comm = mep.init(rank=rank, **options)
        comm.agree(0)
        for place in places:
            place.result()
    return comm


def _take_and_leave(rank: int, options: "Dict[str, Any]") -> None:
    comm = mep.init(rank=rank, **options)
    comm.agree(0)  # all have come
    comm.close()
