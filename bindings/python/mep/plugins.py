"""Entry points that pyproject.toml declares for programs that look for plugins. They do nothing until they are asked."""
import importlib
import os


def deep_ep() -> None:
    """Makes `deep_ep` mep.deep_ep where MEP_DEEP_EP is set and not 0. mep.deep_ep, and with it PyTorch, is imported then
    alone."""
    _install("deep_ep")


def nixl_ep() -> None:
    """Makes `nixl_ep` mep.nixl_ep where MEP_NIXL_EP is set and not 0."""
    _install("nixl_ep")


def _install(face: str) -> None:
    if os.environ.get(f"MEP_{face.upper()}", "") not in ("", "0"):
        importlib.import_module(f"mep.{face}").install()
