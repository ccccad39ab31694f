"""A communicator of MEP for the ranks of a process group."""
from __future__ import annotations

import collections
import uuid
from typing import Any, Dict, Optional

import torch
import torch.distributed as _dist

import mep
from mep.torch import Store, backend_of

_made: "Dict[str, int]" = collections.Counter()  # communicators that this process has made, by the name of the group


def store_of(group: Any) -> Any:
    known = _dist.distributed_c10d._world.pg_map.get(group)
    if known is not None and known[1] is not None:
        return known[1]
    try:
        return group.get_group_store()
    except (AttributeError, RuntimeError):
        raise TypeError(f"{group!r} has no store to meet by; make it by torch.distributed, or give comm=, a mep.Comm") \
            from None


def _most(group: Any, number: int) -> int:
    """The largest number that a rank of the group has."""
    kinds = {device.type for device in getattr(group, "_device_types", ())}
    most = torch.tensor([number], dtype=torch.int64, device="cpu" if "cpu" in kinds else "cuda")
    _dist.all_reduce(most, _dist.ReduceOp.MAX, group=group)
    return int(most)


class Place:
    """The place of this process in a communicator for the ranks of `group`, rank for rank.

    The ranks meet through the group's store and use nothing else of the group. Each makes its communicators of one
    group in the same order. together: all of them make this one now; so those of a group of MEP, in which a replacement has
    made fewer, agree on its number by the group.
    """

    def __init__(self, group: Any, together: bool = False):
        if not isinstance(group, _dist.ProcessGroup):
            raise TypeError(f"group is a {type(group).__name__}; it must be a process group with this process, or a "
                            "mep.Comm")
        self.rank, self.size = group.rank(), group.size()
        self.is_on_gpus = {device.type for device in getattr(group, "_device_types", ())} == {"cuda"}
        number = _made[group.group_name]
        if together and self.size > 1 and backend_of(group) is not None:
            number = _most(group, number)
        _made[group.group_name] = number + 1
        c10d: Any = _dist  # it does not say which of its names are public
        self._store = c10d.PrefixStore(f"mep/ep/{number}", store_of(group))

    def _options(self) -> dict[str, Any]:
        return {"rank": self.rank, "size": self.size, "store": Store(self._store),
                "job": self._store.get("job").decode()}

    def meet(self, partial: bool, device: Optional[int] = None) -> "mep.Comm":
        """Waits for the other ranks. partial: operations go on without ranks that are lost. device: CUDA's number of
        the GPU whose memory operations work on; None: host memory."""
        if self.rank == 0:
            self._store.set("on_gpus", str(device is not None))
            self._store.set("job", f"ep-{uuid.uuid4().hex}")
        return mep.init(partial=partial, **({} if device is None else {"device": device}), **self._options())

    def join(self, partial: bool) -> "mep.Comm":
        """In the place of a rank that is gone: waits for the others' recover_ranks(). On the current GPU, if they have
        GPUs."""
        on_gpus = self._store.get("on_gpus") == b"True"
        device = {"device": torch.cuda.current_device()} if on_gpus else {}
        return mep.join(partial=partial, **device, **self._options())
