"""Mooncake's process group over MEP: `from mep.mooncake import pg` in place of `from mooncake import pg`."""
from __future__ import annotations

from . import pg

__all__ = ["pg"]
