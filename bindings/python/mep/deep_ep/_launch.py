"""Runs the module that MEP_DEEP_EP names in the place of mep.deep_ep._program."""
from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any, Dict

import mep.deep_ep


class _Spec(importlib.machinery.ModuleSpec):
    """The name is that of mep.deep_ep._program, for multiprocessing; relative imports go by the module's package."""

    package: str

    @property
    def parent(self) -> str:
        return self.package


def run(namespace: Dict[str, Any]) -> None:
    """namespace: globals of mep.deep_ep._program, as __main__ or, in a child, as __mp_main__. A package is run by its
    __main__, which children do not import."""
    mep.deep_ep.install()
    name = os.environ["MEP_DEEP_EP"]
    found: Any = importlib.util.find_spec(name)
    is_child = namespace["__name__"] != "__main__"
    if found is not None and found.submodule_search_locations is not None:
        if is_child:
            return
        name += ".__main__"
        found = importlib.util.find_spec(name)
    code = found.loader.get_code(name) if found is not None and found.loader is not None else None
    if found is None or code is None:
        raise ImportError(f"python -m mep.deep_ep: there is no module {name} to run", name=name)
    spec = _Spec(namespace["__spec__"].name, found.loader, origin=found.origin)
    spec.package = found.name.rpartition(".")[0]
    spec.has_location, spec.cached = found.has_location, found.cached
    if not is_child:
        sys.argv[0] = found.origin or name
    for mine in ("run", "__doc__"):
        namespace.pop(mine, None)
    namespace.update(__file__=found.origin, __cached__=found.cached, __loader__=found.loader, __package__=spec.package,
                     __spec__=spec)
    exec(code, namespace)
