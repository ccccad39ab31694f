"""A token dispatcher of SGLang over mep.deep_ep."""
from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from mep.deep_ep import Buffer


def _module(name: str) -> Any:
    return importlib.import_module(f"sglang.srt.{name}")


_moe = _module("layers.moe.utils")
_Base: Any = _module("layers.moe.token_dispatcher.base").BaseDispatcher
_formats = _module("layers.moe.token_dispatcher.deepep")
_context = _module("runtime_context")
_deep_gemm = _module("layers.deep_gemm_wrapper")
_envs = _module("environ").envs
_ALIGNMENT = 128  # of an expert's rows in normal mode, for DeepGEMM


def _elastic_state() -> Any:
    """None unless SGLang runs with --elastic-ep-backend."""
    return _module("elastic_ep.elastic_ep").ElasticEPStateManager.instance()


def _buffer_of(group: Any) -> Buffer:
    """The Buffer of this process. Lost ranks are left out only where SGLang has a state that shows them."""
    buffers = _context.get_resources().buffers
    if "mep" not in buffers:
        buffers["mep"] = Buffer(group, low_latency_mode=True, enable_shrink=_elastic_state() is not None)
    buffer: Buffer = buffers["mep"]
    return buffer


class Dispatcher(_Base):
    """Dispatch and combine of a layer: low-latency outputs when all requests decode, else normal ones, by --deepep-mode.
    _a and _b are the halves of a call, for two-batch overlap."""

    def __init__(self, config: Any):
        super().__init__()
        self.runner_backend, self.num_experts = config.runner_backend, config.num_experts
        self.group = _context.get_parallel().tp_group.device_group
        self._mode = _moe.get_deepep_mode()
        self._handles: Dict[int, Tuple[bool, Any]] = {}  # by subbatch: whether low latency, and the Buffer's handle
        self._second_halves: Dict[int, "Callable[[], Any]"] = {}
        ranks = self.group.size()
        if config.num_local_experts * ranks != self.num_experts:
            raise ValueError(f"MEP's dispatcher needs --ep-size {ranks}, equal to --tp-size: this rank has "
                             f"{config.num_local_experts} of {self.num_experts} experts")
        runner = self.runner_backend
        if runner is not None and (runner.is_triton() or runner.is_triton_kernels()):
            raise NotImplementedError(f"the MoE runner {runner.value} does not take the formats of MEP's dispatcher, which "
                                      "are those of DeepEP; --moe-runner-backend deep_gemm does")

    # ---- dispatch ---------------------------------------------------------------------------------------

    def dispatch(self, hidden_states: torch.Tensor, topk_output: Any, tbo_subbatch_index: Optional[int] = None) -> Any:
        self.dispatch_a(hidden_states, topk_output, tbo_subbatch_index)
        return self.dispatch_b(tbo_subbatch_index)

    def dispatch_a(self, hidden_states: torch.Tensor, topk_output: Any, tbo_subbatch_index: Optional[int] = None) -> None:
        batch, ids, weights = tbo_subbatch_index or 0, topk_output.topk_ids.to(torch.int64), topk_output.topk_weights
        if self._mode.resolve(_module("layers.dp_attention").get_is_extend_in_batch()).is_low_latency():
            self._second_halves[batch] = self._send_low_latency(batch, hidden_states, ids, weights)
        else:
            self._second_halves[batch] = lambda: self._dispatch_normal(batch, hidden_states, ids, weights)

    def dispatch_b(self, tbo_subbatch_index: Optional[int] = None) -> Any:
        found = self._second_halves.pop(tbo_subbatch_index or 0)()
        self._show_lost()
        return found

    def _send_low_latency(self, batch: int, x: torch.Tensor, ids: torch.Tensor,
                          weights: torch.Tensor) -> "Callable[[], Any]":
        buffer, fp8 = self._ready(), self._sends_fp8(_moe.DeepEPMode.LOW_LATENCY)
        packs = bool(fp8 and _deep_gemm.DEEPGEMM_BLACKWELL)
        rows, counts, handle, _, receive = buffer.low_latency_dispatch(
            x, ids, _envs.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK.get(), self.num_experts, use_fp8=fp8,
            round_scale=packs, use_ue8m0=packs, return_recv_hook=True)
        self._handles[batch] = True, handle
        expected = (x.shape[0] * buffer.group_size * ids.shape[1] + self.num_experts) // self.num_experts

        def finish() -> Any:
            receive()
            _recorder().on_deepep_dispatch_low_latency(counts)
            return _formats.DeepEPLLDispatchOutput(*_with_scales(rows), ids, weights, counts, expected)
        return finish

    def _dispatch_normal(self, batch: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> Any:
        buffer, given = self._ready(), x
        if _deep_gemm.ENABLE_JIT_DEEPGEMM and self._sends_fp8(_moe.DeepEPMode.NORMAL):
            packs = _deep_gemm.DEEPGEMM_SCALE_UE8M0
            kernels = importlib.import_module("sglang.kernels.ops.quantization.fp8_kernel")
            given = kernels.sglang_per_token_group_quant_fp8(x, 128, column_major_scales=packs, scale_tma_aligned=packs,
                                                             scale_ue8m0=packs)
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, self.num_experts)
        rows, local_ids, local_weights, counts, handle, _ = buffer.dispatch(
            given, topk_idx=ids, topk_weights=weights, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert, expert_alignment=_ALIGNMENT if _deep_gemm.ENABLE_JIT_DEEPGEMM else 1)
        self._handles[batch] = False, handle
        _recorder().on_deepep_dispatch_normal(counts, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
                                              num_tokens_per_expert=per_expert)
        return _formats.DeepEPNormalDispatchOutput(*_with_scales(rows), local_ids, local_weights, counts)

    # ---- combine ----------------------------------------------------------------------------------------

    def combine(self, combine_input: Any, tbo_subbatch_index: Optional[int] = None) -> torch.Tensor:
        self.combine_a(combine_input, tbo_subbatch_index)
        return self.combine_b(tbo_subbatch_index)

    def combine_a(self, combine_input: Any, tbo_subbatch_index: Optional[int] = None) -> None:
        if self.overlap_args is not None:
            raise NotImplementedError("single-batch overlap is not served; turn it off, two-batch overlap works")
        batch, buffer = tbo_subbatch_index or 0, self._ready()
        rows, ids, weights = combine_input
        is_low_latency, handle = self._handles.pop(batch)
        if not is_low_latency:
            self._second_halves[batch] = lambda: buffer.combine(rows, handle)[0]
            return
        sums, _, receive = buffer.low_latency_combine(rows, ids, weights, handle, return_recv_hook=True)

        def finish() -> torch.Tensor:
            receive()
            return sums
        self._second_halves[batch] = finish

    def combine_b(self, tbo_subbatch_index: Optional[int] = None) -> torch.Tensor:
        sums: torch.Tensor = self._second_halves.pop(tbo_subbatch_index or 0)()
        self._show_lost()
        return sums

    # ---- parts ------------------------------------------------------------------------------------------

    def _ready(self) -> Buffer:
        if _envs.SGLANG_IN_DEEPGEMM_PRECOMPILE_STAGE.get():  # the ranks compile kernels, for longer than a timeout
            _context.get_parallel().tp_group.barrier()
        return _buffer_of(self.group)

    def _sends_fp8(self, mode: Any) -> bool:
        asked = SimpleNamespace(quant_config=self.quant_config, runner_backend=self.runner_backend, dispatch_mode=mode)
        kind = _moe.get_deepep_output_dtype(asked).value
        if kind not in ("bf16", "fp8", "int8"):  # int8 is for NPUs; GPUs send fp8 in its place
            raise NotImplementedError(f"rows of {kind} are not served; --deepep-dispatcher-output-dtype bf16 or fp8")
        return bool(kind != "bf16")

    def _show_lost(self) -> None:
        """Writes 0 for ranks that are gone into SGLang's active ranks; on a GPU in stream order."""
        state = _elastic_state()
        if state is None or state.active_ranks is None:
            return
        buffer = _buffer_of(self.group)
        lost = torch.empty(buffer.group_size, dtype=torch.int32, device=state.active_ranks.device)
        buffer.low_latency_query_mask_buffer(lost)
        state.active_ranks[:buffer.group_size].mul_(1 - lost)


def _recorder() -> Any:
    return _module("eplb.expert_distribution").get_global_expert_distribution_recorder()


def _with_scales(rows: Any) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
    return rows if isinstance(rows, tuple) else (rows, None)
