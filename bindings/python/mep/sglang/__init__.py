"""SGLang's `--moe-a2a-backend customized` over MEP. The entry point mep.plugins:sglang calls install() in each process of
SGLang."""
from __future__ import annotations

import functools
import importlib
from typing import Any, Callable

_MOE = "sglang.srt.layers.moe"


@functools.lru_cache(maxsize=None)
def install() -> None:
    """Has SGLang make MEP's dispatcher for `customized`, and treat that back-end as it treats `deepep` elsewhere: which
    layers and runners models choose, what they shard, and which sums they leave to the dispatcher. Once a process."""
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    for target, hook in ((f"{_MOE}.fused_moe_triton.layer.create_moe_dispatcher", _create),
                         (f"{_MOE}.utils.MoeA2ABackend.is_deepep", _is_deepep),
                         ("sglang.srt.server_args.ServerArgs.add_cli_args", _add_arguments)):
        hooks.HookRegistry.register(target, hook, hooks.HookType.AROUND)


def _create(original: "Callable[..., Any]", moe_runner_config: Any, quant_method: Any) -> Any:
    if not importlib.import_module(f"{_MOE}.utils").get_moe_a2a_backend().is_customized():
        return original(moe_runner_config, quant_method)
    from ._dispatcher import Dispatcher
    return Dispatcher(moe_runner_config)


def _is_deepep(original: "Callable[[Any], bool]", backend: Any) -> bool:
    return original(backend) or backend.is_customized()


def _add_arguments(original: "Callable[[Any], None]", parser: Any) -> None:
    """SGLang 0.5.23 has the back-end, but its parser does not list it."""
    original(parser)
    for action in parser._actions:
        if action.dest == "moe_a2a_backend" and "customized" not in action.choices:
            action.choices = [*action.choices, "customized"]


__all__ = ["install"]
