"""MEP as a backend of CollectiveX, the benchmark of expert parallelism in SemiAnalysis's InferenceX.

`bench/` of experimental/CollectiveX and this folder are on Python's path; `run_ep.py` there takes its class by

    from collectivex_mep import MEPBackend as Backend

The process group is any of PyTorch's. CollectiveX times on GPUs; its oracle runs on tensors of the CPU too.
"""
from __future__ import annotations

import types

import torch
import torch.distributed as dist
from ep_backend import EPBackend  # type: ignore[import-not-found]  # of CollectiveX

from mep.deep_ep import Buffer

BLOCK = 128  # values for each scale of e4m3 rows


def to_fp8(rows):
    """e4m3 rows, and for each block of a row its scale."""
    blocks = rows.view(rows.shape[0], -1, BLOCK)
    largest = blocks.abs().float().amax(dim=2).clamp(1e-4)
    values = (blocks * (448 / largest).unsqueeze(2)).to(torch.float8_e4m3fn)
    return values.view(rows.shape), largest / 448


def from_fp8(values, scales):
    """The same for rows in any number of dimensions."""
    blocks = values.float().view(*values.shape[:-1], -1, BLOCK)
    return (blocks * scales.float().unsqueeze(-1)).view(values.shape).to(torch.bfloat16)


class MEPBackend(EPBackend):
    name = "mep"
    maturity = "candidate"  # engines select it as DeepEP
    SUPPORTED_MODES = ("normal", "low-latency")
    SUPPORTED_PRECISIONS = ("bf16", "fp8")
    receive_layout = "token-rank"
    combine_weight_semantics = "unweighted-rank-sum"
    requires_fresh_pair = False
    kernel_generation = "mep-normal"

    def __init__(self, args, rank, world_size, local_rank, device):
        super().__init__(args, rank, world_size, local_rank, device)
        if args.experts % world_size != 0:
            raise ValueError(f"mep: {args.experts} experts cannot be dealt to {world_size} ranks")
        self.experts_per_rank = args.experts // world_size
        self.is_fp8 = self.precision == "fp8"
        self.stage_device_work = self.is_fp8
        self.quantize = to_fp8
        if self.is_fp8:
            self.dispatch_dtype, self.dispatch_value_bytes = "fp8-e4m3fn", 1
            self.dispatch_scale_bytes_per_copy = args.hidden // BLOCK * 4
            self.quantize = self.fused_quantize(to_fp8)
        self.is_low_latency = self.mode == "low-latency"
        if self.is_low_latency:
            self.kernel_generation = "mep-low-latency"
            self.receive_layout = "token-expert"
            self.combine_weight_semantics = "weighted-kernel-sum"
            # Received rows are the library's memory until the combine.
            self.requires_fresh_pair = True

    def create_buffer(self, spec):
        self.most_tokens = spec.max_tokens_per_rank
        self.buffer = Buffer(dist.group.WORLD, low_latency_mode=self.is_low_latency, explicitly_destroy=True)

    def semantic_payload(self, x):
        return from_fp8(*self.quantize(x)) if self.is_fp8 else x

    def _validate_quantizer(self, x):
        if self.is_fp8:
            self.assert_quantize_identity(to_fp8, self.quantize, x)

    def dispatch(self, problem):
        if self.is_low_latency:
            rows, counts, handle, _, _ = self.buffer.low_latency_dispatch(
                problem.dispatch_x, problem.topk_idx, self.most_tokens, self.args.experts, use_fp8=self.is_fp8)
            return types.SimpleNamespace(rows=rows, counts=counts, handle=handle)
        per_rank, _, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(problem.topk_idx, self.args.experts)
        x = self.quantize(problem.dispatch_x) if self.is_fp8 else problem.dispatch_x
        rows, experts, weights, _, handle, _ = self.buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            topk_idx=problem.topk_idx, topk_weights=problem.topk_weights)
        return types.SimpleNamespace(rows=rows, experts=experts, weights=weights, handle=handle)

    def _received(self, handle):
        """The received rows as bfloat16."""
        return from_fp8(*handle.rows) if self.is_fp8 else handle.rows

    def stage(self, problem, handle):
        handle.combine_input = self._received(handle)

    def combine(self, problem, handle):
        return self._combine(problem, handle, handle.combine_input)

    def _combine(self, problem, handle, rows):
        if self.is_low_latency:
            return self.buffer.low_latency_combine(rows, problem.topk_idx, problem.topk_weights, handle.handle)[0]
        return self.buffer.combine(rows, handle.handle)[0]

    def recv_tokens(self, handle):
        if self.is_low_latency:
            return int(handle.counts.sum())
        return int((handle.rows[0] if self.is_fp8 else handle.rows).shape[0])

    def inspect_dispatch(self, problem, handle):
        rows, first = self._received(handle), self.rank * self.experts_per_rank
        if self.is_low_latency:
            counts = handle.counts.to(torch.int64)
            slots = torch.arange(rows.shape[1], device=rows.device)
            # Where rows of the padded layout are: of which expert, and in which slot.
            handle.places = (slots < counts.unsqueeze(1)).nonzero(as_tuple=True)
            return types.SimpleNamespace(payload=rows[handle.places], expert_ids=first + handle.places[0],
                                         local_expert_counts=counts)
        local = handle.experts.to(torch.int64)
        is_local = local >= 0
        return types.SimpleNamespace(payload=rows, expert_ids=torch.where(is_local, first + local, local),
                                     weights=handle.weights.float(),
                                     local_expert_counts=torch.bincount(local[is_local],
                                                                        minlength=self.experts_per_rank))

    def combine_transformed(self, problem, handle, transformed):
        rows = transformed.to(torch.bfloat16)
        if self.is_low_latency:
            padded = torch.zeros_like(self._received(handle))
            padded[handle.places] = rows
            rows = padded
        return self._combine(problem, handle, rows)

    def finalize(self, rc):
        self.buffer.destroy()
        return super().finalize(rc)
