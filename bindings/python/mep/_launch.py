"""`python -m FACE MODULE ARGUMENTS...`, FACE mep.deep_ep, mep.mooncake or mep.nixl_ep: runs a module as `python -m` does, with
the names of the other library as the face's in it and in the children that multiprocessing starts. A child spawned finds the module by an
environment variable, and runs it in the place of FACE._program."""
from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import runpy
import sys
from typing import Any, Dict


class _Spec(importlib.machinery.ModuleSpec):
    """The name is that of FACE._program, for multiprocessing; relative imports go by the module's package."""

    package: str

    @property
    def parent(self) -> str:
        return self.package


def _variable(face: str) -> str:
    return "MEP_" + face.rpartition(".")[2].upper()


def main(face: str) -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(f"usage: python -m {face} MODULE ARGUMENTS...")
    del sys.argv[0]
    os.environ[_variable(face)] = sys.argv[0]  # for children
    runpy.run_module(f"{face}._program", run_name="__main__", alter_sys=True)


def run(namespace: Dict[str, Any], face: str) -> None:
    """namespace: globals of FACE._program, as __main__ or, in a child, as __mp_main__. A package is run by its
    __main__, which children do not import."""
    importlib.import_module(face).install()
    name = os.environ[_variable(face)]
    found: Any = importlib.util.find_spec(name)
    is_child = namespace["__name__"] != "__main__"
    if found is not None and found.submodule_search_locations is not None:
        if is_child:
            return
        name += ".__main__"
        found = importlib.util.find_spec(name)
    code = found.loader.get_code(name) if found is not None and found.loader is not None else None
    if found is None or code is None:
        raise ImportError(f"python -m {face}: there is no module {name} to run", name=name)
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
