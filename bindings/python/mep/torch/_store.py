"""A store of torch.distributed for mep.init()."""
from __future__ import annotations

import time
from typing import Any


class Store:
    """A store of c10d (TCPStore, FileStore, PrefixStore ...) as mep.init(store=) and mep.join(store=) take one:

        mep.init(rank=rank, size=size, job="a name that no earlier job had", store=mep.torch.Store(store))
    """

    def __init__(self, store: Any):
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        """The value, once the key is there. TimeoutError of Python says that it did not come."""
        limit, pause = time.monotonic() + timeout, 0.001
        while not self._store.check([key]):  # a wait of TCPStore whose time is over prints a warning
            if time.monotonic() > limit:
                raise TimeoutError(f"{key} did not come")
            time.sleep(pause)
            pause = min(2 * pause, 0.032)
        value: bytes = self._store.get(key)
        return value
