"""How the ranks of mep.nixl_ep find each other by a store of torch.distributed."""
from __future__ import annotations

import time
import uuid
from typing import Any, Dict, Iterable, Optional, Tuple

import torch.distributed as _dist

import mep
from mep.torch import Store
from mep.torch._meeting import meet_among, meet_nobody
from mep.torch._store import wait


class Links:
    """The ranks that this one is connected with. A link has a name of its own each time that it is made, which both of
    its ranks know; keys that a process has left behind belong to no later link."""

    def __init__(self, rank: int):
        self.rank = rank
        self._names: "Dict[int, str]" = {}  # by the other rank
        self._store: Any = None

    def use(self, store: Any) -> None:
        c10d: Any = _dist  # it does not say which of its names are public
        self._store = c10d.PrefixStore("mep/nixl_ep", store)

    def __contains__(self, rank: int) -> bool:
        return rank == self.rank or rank in self._names

    def connect(self, ranks: Iterable[int], limit_s: float) -> None:
        """Makes links with ranks that make theirs with this one now."""
        store, rank = self._store, self.rank
        mine = {peer: uuid.uuid4().hex for peer in ranks}
        for peer, word in mine.items():
            store.set(f"hello/{rank}/{peer}", word)
        heard: "Dict[int, str]" = {}  # what each peer said last; at first it may be of a process that is gone

        def is_linked(peer: int) -> bool:
            if store.check([f"hello/{peer}/{rank}"]):
                word = store.get(f"hello/{peer}/{rank}").decode()
                if heard.get(peer) != word:
                    heard[peer] = word
                    store.set(f"heard/{rank}/{peer}/{word}", mine[peer])
            answer = f"heard/{peer}/{rank}/{mine[peer]}"  # no process but the present one has heard this word
            if not store.check([answer]) or store.get(answer).decode() != heard.get(peer):
                return False
            store.delete_key(answer)
            words = (mine[peer], heard[peer])
            self._names[peer] = "-".join(words if rank < peer else words[::-1])
            return True

        missing = set(mine)

        def all_are_linked() -> bool:
            missing.difference_update([peer for peer in missing if is_linked(peer)])
            return not missing
        if not wait(all_are_linked, limit_s):
            raise mep.TimeoutError(f"connect_ranks: ranks {sorted(missing)} did not connect with rank {rank} within "
                                   f"{limit_s:g} s; they call connect_ranks() with this rank and the same store")

    def disconnect(self, rank: int) -> None:
        self._names.pop(rank, None)

    def meet(self, ranks: "Tuple[int, ...]", size: int, device: Optional[int], limit_s: float) -> "mep.Comm":
        """A communicator of `size` places, in which `ranks` are there and the others have left. All of `ranks` call it,
        each as often as the others."""
        if len(ranks) == 1:
            return meet_nobody(self.rank, size, device)
        limit = time.monotonic() + limit_s
        job = self._job_of(ranks, size, limit)
        c10d: Any = _dist
        options: "Dict[str, Any]" = {"size": size, "job": job,
                                     "store": Store(c10d.PrefixStore(job, self._store)),
                                     **({} if device is None else {"device": device})}
        return meet_among(self.rank, ranks, options, limit - time.monotonic())

    def _job_of(self, ranks: "Tuple[int, ...]", size: int, limit: float) -> str:
        """The first of the ranks names the job. A rank asks for the name by the name of its link with that one."""
        first, what = ranks[0], f"{'-'.join(map(str, ranks))}of{size}"
        others = f"ranks {list(ranks)} did not come together: each must have the others connected and unmasked, no other " \
                 "rank, and the same num_experts in its dispatch"
        if self.rank != first:
            mine = uuid.uuid4().hex
            self._store.set(f"asks/{self._names[first]}/{what}", mine)
            return self._taken(f"job/{mine}", limit, others).decode()
        job = f"nixl-ep-{uuid.uuid4().hex}"
        asked = [self._taken(f"asks/{self._names[rank]}/{what}", limit, others).decode() for rank in ranks[1:]]
        for each in asked:
            self._store.set(f"job/{each}", job)
        return job

    def _taken(self, key: str, limit: float, otherwise: str) -> bytes:
        """The value of a key that one rank reads."""
        if not wait(lambda: bool(self._store.check([key])), limit - time.monotonic()):
            raise mep.TimeoutError(otherwise)
        value: bytes = self._store.get(key)
        self._store.delete_key(key)
        return value
