"""Mooncake's process group and EP buffer over MEP: `from mep.mooncake import pg` in place of `from mooncake import pg`,
and `from mep.mooncake.ep import Buffer` in place of `from mooncake.mooncake_ep_buffer import Buffer`."""
from __future__ import annotations

import importlib
import importlib.util
import sys
import types

from . import ep, pg

# Releases of Mooncake before `pg` had its functions in `ep`.
_MODULES = {"pg": pg, "ep": pg, "mooncake_ep_buffer": ep}


def install() -> None:
    """Makes `mooncake.pg`, and `mooncake.ep` as its older name, this package's pg, and `mooncake.mooncake_ep_buffer`
    its ep, for programs that import those.

    Call it before either is imported. Other modules of an installed Mooncake stay what they are.
    """
    for name, module in _MODULES.items():
        if sys.modules.get(f"mooncake.{name}", module) is not module:
            raise ImportError(f"mep.mooncake.install() comes before mooncake.{name} is imported")
    package = sys.modules.get("mooncake")
    if package is None and importlib.util.find_spec("mooncake") is not None:
        package = importlib.import_module("mooncake")
    if package is None:
        package = types.ModuleType("mooncake")
        package.__path__ = []
        sys.modules["mooncake"] = package
    for name, module in _MODULES.items():
        sys.modules[f"mooncake.{name}"] = module
        setattr(package, name, module)


__all__ = ["ep", "install", "pg"]
