#!/usr/bin/env python3
"""mep.sglang: its plug-in, and its dispatcher's sums and losses, with stand-ins for what it takes of SGLang."""
import argparse
import collections
import datetime
import enum
import os
import signal
import sys
import types
import unittest

import launch

MOST, HIDDEN, TOP_K, LOCAL = 6, 512, 3, 2
MOE = "layers.moe"
HOOKS = {}  # {target: hook}, of the stand-in for HookRegistry


class Dtype(enum.Enum):
    BF16, FP8, NVFP4 = "bf16", "fp8", "nvfp4"


class Mode(enum.Enum):
    NORMAL, LOW_LATENCY = "normal", "low_latency"

    def resolve(self, is_extend):
        return Mode.NORMAL if is_extend else Mode.LOW_LATENCY

    def is_low_latency(self):
        return self is Mode.LOW_LATENCY


class BaseDispatcher:
    def __init__(self):
        self.quant_config, self.overlap_args = {}, None


def stand_in(group=None, **elastic):
    """Puts modules of SGLang's names there. Returns what tests change: dtype, is_extend, counts, state, buffers."""
    now = types.SimpleNamespace(dtype=Dtype.BF16, is_extend=False, counts=[], buffers={}, backend="customized",
                                state=types.SimpleNamespace(**elastic) if elastic else None)
    of = types.SimpleNamespace
    tp_group = of(device_group=group, barrier=lambda: None)
    registry = of(register=lambda target, hook, kind: HOOKS.update({target: hook}))
    recorder = of(on_deepep_dispatch_low_latency=lambda counts: now.counts.append(counts.tolist()),
                  on_deepep_dispatch_normal=lambda counts, **_: now.counts.append(list(counts)))
    names = "hidden_states hidden_states_scale topk_ids topk_weights "
    low = collections.namedtuple("DeepEPLLDispatchOutput", names + "masked_m expected_m")
    normal = collections.namedtuple("DeepEPNormalDispatchOutput", names + "num_recv_tokens_per_expert")
    modules = {
        "plugins.hook_registry": dict(HookRegistry=registry, HookType=of(AROUND="around")),
        f"{MOE}.utils": dict(get_moe_a2a_backend=lambda: of(is_customized=lambda: now.backend == "customized"),
                             get_deepep_mode=lambda: Mode.NORMAL, DeepEPMode=Mode,
                             get_deepep_output_dtype=lambda asked: now.dtype),
        f"{MOE}.token_dispatcher.base": dict(BaseDispatcher=BaseDispatcher),
        f"{MOE}.token_dispatcher.deepep": dict(DeepEPLLDispatchOutput=low, DeepEPNormalDispatchOutput=normal),
        "runtime_context": dict(get_resources=lambda: now, get_parallel=lambda: of(tp_group=tp_group)),
        "layers.deep_gemm_wrapper": dict(ENABLE_JIT_DEEPGEMM=False, DEEPGEMM_BLACKWELL=False),
        "environ": dict(envs=of(SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=of(get=lambda: MOST),
                                SGLANG_IN_DEEPGEMM_PRECOMPILE_STAGE=of(get=lambda: True))),
        "layers.dp_attention": dict(get_is_extend_in_batch=lambda: now.is_extend),
        "elastic_ep.elastic_ep": dict(ElasticEPStateManager=of(instance=lambda: now.state)),
        "eplb.expert_distribution": dict(get_global_expert_distribution_recorder=lambda: recorder)}
    for name, values in modules.items():
        module = sys.modules["sglang.srt." + name] = types.ModuleType(name)
        vars(module).update(values)
    for name in ("sglang", "sglang.srt"):
        sys.modules[name] = types.ModuleType(name)
    return now


# --- In the ranks ------------------------------------------------------------------------------------------------

def begin(is_elastic=False):
    import torch
    import torch.distributed as dist
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['TEST_FOLDER']}/store", rank=rank,
                            world_size=ranks, timeout=datetime.timedelta(seconds=launch.LIMIT_S))
    elastic = {"active_ranks": torch.ones(ranks + 1, dtype=torch.int32)} if is_elastic else {}
    now = stand_in(dist.group.WORLD, **elastic)
    from mep import plugins
    os.environ["MEP_SGLANG"] = "1"
    plugins.sglang()
    config = types.SimpleNamespace(runner_backend=None, num_experts=LOCAL * ranks, num_local_experts=LOCAL)
    create = HOOKS[f"sglang.srt.{MOE}.fused_moe_triton.layer.create_moe_dispatcher"]
    return dist, now, rank, ranks, config, lambda: create(None, config, quant_method=None)


def layer(dispatcher, rank, ranks, seed, absent=(), batch=None, between=lambda: None):
    """A layer whose expert e multiplies by 1 + e / 8, and its sums compared with those in float64."""
    import torch
    draw = torch.Generator().manual_seed(100 * seed + rank)
    x = torch.randn(rank % MOST + 2, HIDDEN, generator=draw).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(LOCAL * ranks, generator=draw)[:TOP_K] for _ in x]).to(torch.int32)
    ids[0, 1] = -1
    weights = torch.rand(ids.shape, generator=draw)
    out = dispatcher.dispatch(x, types.SimpleNamespace(topk_ids=ids, topk_weights=weights), tbo_subbatch_index=batch)
    rows = out.hidden_states.float()
    if out.hidden_states_scale is not None:
        rows = rows * out.hidden_states_scale.repeat_interleave(128, -1)
    if hasattr(out, "masked_m"):
        factors = 1 + torch.arange(rank * LOCAL, (rank + 1) * LOCAL).view(-1, 1, 1) / 8
        assert out.expected_m >= 1
    else:
        local = out.topk_ids >= 0
        factors = ((1 + (out.topk_ids + rank * LOCAL) / 8) * out.topk_weights * local).sum(-1, keepdim=True)
        assert [int((out.topk_ids == each).sum()) for each in range(LOCAL)] == out.num_recv_tokens_per_expert
    between()
    sums = dispatcher.combine(((rows * factors).to(torch.bfloat16), out.topk_ids, out.topk_weights),
                              tbo_subbatch_index=batch)
    there = (ids >= 0) & ~torch.isin(ids // LOCAL, torch.tensor(sorted(absent), dtype=torch.int32))
    expected = x.double() * ((1 + ids.double() / 8) * weights.double() * there).sum(-1, keepdim=True)
    error = 2 ** -6 if out.hidden_states_scale is None else 2 ** -3
    assert sums.dtype == torch.bfloat16 and torch.allclose(sums.double(), expected, rtol=error, atol=error), \
        (sums.double() - expected).abs().max()


def rank_sums():
    """Both formats in turn, two subbatches under way at one time, and what is refused."""
    dist, now, rank, ranks, config, create = begin()
    dispatchers = [create(), create()]
    for seed, (dtype, extend) in enumerate(((Dtype.BF16, False), (Dtype.BF16, True), (Dtype.FP8, False))):
        now.dtype, now.is_extend = dtype, extend
        layer(dispatchers[seed % 2], rank, ranks, seed)
        layer(dispatchers[0], rank, ranks, seed, batch=0,
              between=lambda: layer(dispatchers[0], rank, ranks, 10 + seed, batch=1))
    assert list(now.buffers) == ["mep"] and len(now.counts) == 9, now.counts
    now.dtype = Dtype.NVFP4
    launch.refused(NotImplementedError, "nvfp4", layer, dispatchers[0], rank, ranks, 0)
    config.runner_backend = types.SimpleNamespace(value="triton", is_triton=lambda: True)
    launch.refused(NotImplementedError, "triton", create)
    config.num_local_experts = config.num_experts
    launch.refused(ValueError, "--ep-size", create)
    now.buffers["mep"].destroy()
    dist.destroy_process_group()


def rank_lost():
    """With SGLang's elastic state a lost rank gets 0 there, and the others go on."""
    _, now, rank, ranks, _, create = begin(is_elastic=True)
    dispatcher = create()
    layer(dispatcher, rank, ranks, 0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def knows():
        dispatcher._show_lost()
        return now.state.active_ranks.tolist() == [1, 0, 1, 1]
    assert now.state.active_ranks[[0, 2, 3]].tolist() == [1, 1, 1]
    launch.wait_until(knows, "rank 1 lives")
    layer(dispatcher, rank, ranks, 1, absent={1})
    now.buffers["mep"].destroy()


def rank_strict():
    """Without such a state a loss is an error."""
    import mep
    _, _, rank, ranks, _, create = begin()
    dispatcher = create()
    layer(dispatcher, rank, ranks, 0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    launch.refused(mep.PeerFailedError, "", lambda: [layer(dispatcher, rank, ranks, 0) for _ in range(1000)])


class Door(unittest.TestCase):
    def test_plug_in(self):
        from mep import plugins
        now = stand_in()
        os.environ.pop("MEP_SGLANG", None)
        plugins.sglang()
        self.assertEqual(HOOKS, {})
        os.environ["MEP_SGLANG"] = "1"
        self.addCleanup(os.environ.pop, "MEP_SGLANG")
        plugins.sglang()
        create, is_deepep, add = (HOOKS[f"sglang.srt.{name}"] for name in (
            f"{MOE}.fused_moe_triton.layer.create_moe_dispatcher", f"{MOE}.utils.MoeA2ABackend.is_deepep",
            "server_args.ServerArgs.add_cli_args"))
        now.backend = "none"
        self.assertEqual(create(lambda *given: given, "config", quant_method="method"), ("config", "method"))
        for backend in (True, False):
            self.assertIs(is_deepep(lambda _: False, types.SimpleNamespace(is_customized=lambda: backend)), backend)
        parser = argparse.ArgumentParser()
        add(lambda given: given.add_argument("--moe-a2a-backend", choices=["none"]), parser)
        self.assertEqual(parser.parse_args(["--moe-a2a-backend", "customized"]).moe_a2a_backend, "customized")

    def test_sums(self):
        launch.run(__file__, "sums", 2)

    def test_lost_rank(self):
        launch.run(__file__, "lost", 3, expected=[0, -signal.SIGKILL, 0])

    def test_loss_is_an_error(self):
        launch.run(__file__, "strict", 3, expected=[0, -signal.SIGKILL, 0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
