"""Entry points that pyproject.toml declares for programs that look for plugins. They do nothing until they are asked."""
import os


def deep_ep() -> None:
    """Makes `deep_ep` mep.deep_ep where MEP_DEEP_EP is set and not 0. mep.deep_ep, and with it PyTorch, is imported then
    alone."""
    if os.environ.get("MEP_DEEP_EP", "") not in ("", "0"):
        import mep.deep_ep
        mep.deep_ep.install()
