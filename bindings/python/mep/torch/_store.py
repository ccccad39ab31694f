"""A store of torch.distributed for mep.init()."""
from __future__ import annotations

import time
from typing import Any, Callable


def wait(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether the condition came true in the time."""
    limit, pause = time.monotonic() + limit_s, 0.001
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.032)
    return True


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
        if not wait(lambda: self._store.check([key]), timeout):  # one of TCPStore that times out prints a warning
            raise TimeoutError(f"{key} did not come")
        value: bytes = self._store.get(key)
        return value
