"""Entry points that pyproject.toml declares for programs that look for plugins. They do nothing until they are asked."""
import importlib
import os


def deep_ep() -> None:
    """Makes `deep_ep` mep.deep_ep where MEP_DEEP_EP is set and not 0. mep.deep_ep, and with it PyTorch, is imported then
    alone."""
    if _install("deep_ep"):
        # Without it vLLM's deepep_v2 asks NCCL's communicator for GIN, and refuses to run where there is none.
        os.environ.setdefault("EP_DISABLE_GIN", "1")


def nixl_ep() -> None:
    """Makes `nixl_ep` mep.nixl_ep where MEP_NIXL_EP is set and not 0."""
    _install("nixl_ep")


def sglang() -> None:
    """Serves SGLang's `--moe-a2a-backend customized` by mep.sglang where MEP_SGLANG is set and not 0."""
    _install("sglang")


def _install(face: str) -> bool:
    """Returns whether the environment asks for it."""
    is_asked = os.environ.get(f"MEP_{face.upper()}", "") not in ("", "0")
    if is_asked:
        importlib.import_module(f"mep.{face}").install()
    return is_asked
