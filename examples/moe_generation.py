#!/usr/bin/env python3
"""Generation with a MoE model of Hugging Face transformers that loses a rank, goes on, and takes in a replacement.

    mep_run -n 3 --respawn --allow-failures 1 python3 moe_generation.py

Each rank serves a prompt of its own and has a third of each layer's experts, which mep.deep_ep reaches. Rank 1 kills itself
while it generates, and mep_run starts it again. The others finish their answers without the lost experts, then all take the
new rank in and generate again: the logits are those from before the death, bit by bit. The weights are random, so a
replacement makes its part anew where a service reads it from a file.
"""
import datetime
import os
import pathlib
import signal
import tempfile
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import mep.deep_ep as deep_ep
import mep.torch

RANK, SIZE = int(os.environ["MEP_RANK"]), int(os.environ["MEP_SIZE"])
VICTIM, DEATH = 1, 5  # the rank that dies, and after how many tokens of its answer
EXPERTS, PROMPT, ANSWER = 4 * SIZE, 12, 24
LONGEST = PROMPT + ANSWER  # tokens of a rank in a call
CLOSE = 0.05  # bfloat16 sums in another order than in one process


def say(text: str) -> None:
    print(f"rank {RANK}: {text}", flush=True)


class SpreadExperts(torch.nn.Module):
    """The experts of a layer, this rank's share of them; in place of transformers' own."""

    def __init__(self, experts: torch.nn.Module, buffer: deep_ep.Buffer):
        super().__init__()
        here = slice(RANK * EXPERTS // SIZE, (RANK + 1) * EXPERTS // SIZE)
        # Copies: the memory of the others' experts is free then.
        self.up, self.down = experts.gate_up_proj[here].clone(), experts.down_proj[here].clone()
        self.act, self.buffer = experts.act_fn, buffer

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        rows, count, handle, _, _ = self.buffer.low_latency_dispatch(x, chosen, LONGEST, EXPERTS, use_fp8=False)
        assert isinstance(rows, Tensor)  # bfloat16; fp8 comes with scales
        outputs = torch.empty_like(rows)
        for expert, number in enumerate(count.tolist()):
            gate, up = linear(rows[expert, :number], self.up[expert]).chunk(2, -1)
            outputs[expert, :number] = linear(self.act(gate) * up, self.down[expert])
        return self.buffer.low_latency_combine(outputs, chosen, weights.float(), handle)[0]


def new_model() -> torch.nn.Module:
    torch.manual_seed(0)  # the same on each rank
    config = Qwen3MoeConfig(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                            num_key_value_heads=2, head_dim=16, num_experts=EXPERTS, num_experts_per_tok=2,
                            moe_intermediate_size=96, norm_topk_prob=True, max_position_embeddings=128)
    return Qwen3MoeForCausalLM(config).bfloat16().eval()


def spread(model: torch.nn.Module, buffer: deep_ep.Buffer) -> None:
    for layer in model.model.layers:
        layer.mlp.experts = SpreadExperts(layer.mlp.experts, buffer)


def generate(model: torch.nn.Module, dies: bool = False) -> Tensor:
    """The logits of each token of this rank's answer. All ranks generate as many, since each takes part in every layer."""
    tokens = torch.randint(0, 256, (1, PROMPT), generator=torch.Generator().manual_seed(RANK))
    logits: list[Tensor] = []
    for step in range(ANSWER):
        if dies and RANK == VICTIM and step == DEATH:
            say("kills itself")
            os.kill(os.getpid(), signal.SIGKILL)
        with torch.no_grad():
            logits.append(model(tokens, use_cache=False).logits[0, -1].float())
        tokens = torch.cat([tokens, logits[-1].argmax().view(1, 1)], 1)
    return torch.stack(logits)


def gone(buffer: deep_ep.Buffer) -> list[int]:
    mask = torch.zeros(SIZE, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(mask)
    ranks: list[int] = mask.nonzero().flatten().tolist()
    return ranks


def main() -> None:
    torch.set_num_threads(1)
    model = new_model()
    alone = generate(model)  # in one process
    store = pathlib.Path(tempfile.gettempdir()) / f"moe_generation_{os.environ['MEP_JOB']}"
    dist.init_process_group("mep", init_method=f"file://{store}", rank=RANK, world_size=SIZE,
                            timeout=datetime.timedelta(seconds=120))
    buffer = deep_ep.Buffer(dist.group.WORLD, low_latency_mode=True, enable_shrink=True)
    spread(model, buffer)
    if mep.torch.is_replacement():
        say("takes the place of the lost rank")
        first = alone
    else:
        first = generate(model)
        generate(model, dies=True)
        lost = gone(buffer)
        say(f"has answered without ranks {lost}")
        began = time.monotonic()
        mep.torch.recover(lost, timeout=60)  # waits for the new process
        came = time.monotonic()
        buffer.update_ep_member()
        say(f"has rank {lost} back: {came - began:.1f} s until it came, {time.monotonic() - came:.3f} s for the buffer")
    again = generate(model)
    if gone(buffer):
        raise SystemExit(f"rank {RANK}: ranks {gone(buffer)} are gone")
    if not mep.torch.is_replacement() and not torch.equal(again, first):
        raise SystemExit(f"rank {RANK}: the logits are not those from before the death")
    difference = float((again - alone).abs().max())
    if difference > CLOSE:
        raise SystemExit(f"rank {RANK}: the logits differ from those of one process by {difference}")
    say(f"is whole again: {ANSWER} tokens, the logits as before; to those of one process {difference:.4f}")
    dist.barrier()  # a rank that left would be gone to those that still look
    buffer.destroy()
    dist.destroy_process_group()
    if RANK == 0:
        store.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
