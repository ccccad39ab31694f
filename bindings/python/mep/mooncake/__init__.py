"""Mooncake's process group over MEP: `from mep.mooncake import pg` in place of `from mooncake import pg`."""
from __future__ import annotations

import importlib
import importlib.util
import sys
import types

from . import pg

# Releases of Mooncake before `pg` had its functions in `ep`.
_NAMES = ("pg", "ep")


def install() -> None:
    """Makes `mooncake.pg`, and `mooncake.ep` as its older name, this package's pg, for programs that import those.

    Call it before either is imported. Other modules of an installed Mooncake stay what they are.
    """
    for name in _NAMES:
        if sys.modules.get(f"mooncake.{name}", pg) is not pg:
            raise ImportError(f"mep.mooncake.install() comes before mooncake.{name} is imported")
    package = sys.modules.get("mooncake")
    if package is None and importlib.util.find_spec("mooncake") is not None:
        package = importlib.import_module("mooncake")
    if package is None:
        package = types.ModuleType("mooncake")
        package.__path__ = []
        sys.modules["mooncake"] = package
    for name in _NAMES:
        sys.modules[f"mooncake.{name}"] = pg
        setattr(package, name, pg)


__all__ = ["install", "pg"]
