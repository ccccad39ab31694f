#!/usr/bin/env python3
"""Trains a small MoE transformer layer with PyTorch: attention and router data parallel, experts on different ranks.

    mep_run -n 4 python3 moe_layer.py
    mep_run -n 4 --allow-failures 1 python3 moe_layer.py --kill 1:20      rank 1 kills itself in step 20

The router prefers some experts, so popular ones get replicas on other ranks. When a rank is lost, the others go back to
the last copy of the state; experts that lived on the lost rank alone come from the copy that the next rank keeps of it.
Each rank ends by a training of the whole layer in one process and compares losses and parameters with it, up to TOLERANCE,
since float32 sums are in another order there. The dense part and replicas must be the same bit by bit on all their ranks.
"""
import argparse
import copy
import os
import signal
import sys
import zlib
from functools import partial
from typing import Any, Callable, Optional

import mep
import numpy as np
import torch
from mep import eplb
from torch import Tensor
from torch.nn.functional import layer_norm, mse_loss, scaled_dot_product_attention, silu

STEPS, EVERY = 40, 8  # EVERY steps: balance, and a copy of the state
BATCH, LENGTH, HIDDEN, INNER, EXPERTS, TOP_K = 12, 16, 32, 48, 8, 2
RATE, MOMENTUM, TOLERANCE, UNEVEN = 0.5, 0.9, 1e-5, 1.2
LOST = (mep.PeerFailedError, mep.PeerLeftError)
Moe = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layer(torch.nn.Module):
    """All but the experts: moe(rows, chosen, gates) gives the sum of gate * expert(row) over the experts of each row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same on each rank
        self.attention = torch.nn.Linear(HIDDEN, 3 * HIDDEN)
        self.router = torch.nn.Linear(HIDDEN, EXPERTS)
        with torch.no_grad():
            self.router.bias.copy_(4 * torch.linspace(1, 0, EXPERTS) ** 3)

    def forward(self, x: Tensor, moe: Moe) -> Tensor:
        query, key, value = self.attention(layer_norm(x, x.shape[-1:])).chunk(3, dim=-1)
        x = x + scaled_dot_product_attention(query, key, value)
        rows = layer_norm(x, x.shape[-1:]).flatten(0, 1)
        gates, chosen = self.router(rows).softmax(-1).topk(TOP_K)
        return x + moe(rows, chosen, gates).view_as(x)


def new_expert(number: int) -> Tensor:
    """Both matrices of an expert, flat."""
    return torch.randn(2 * HIDDEN * INNER, generator=torch.Generator().manual_seed(number)) / HIDDEN**0.5


def expert(values: Tensor, rows: Tensor) -> Tensor:
    into, back = values.chunk(2)
    return silu(rows @ into.view(HIDDEN, INNER)) @ back.view(INNER, HIDDEN)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The data of a step for all ranks together."""
    inputs = torch.randn(BATCH, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(step))
    return inputs, inputs + (2 * inputs).sin() + inputs.mean(1, keepdim=True)


class Dispatch(torch.autograd.Function):
    """Rows and gates to the ranks of their experts; gradients come back by a combine, summed over those ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gates: Tensor, chosen: Tensor, handle: mep.Handle,
                statistics: np.ndarray) -> tuple[Tensor, ...]:
        ctx.handle, ctx.gates = handle, gates.shape
        received = handle.dispatch(rows.detach(), chosen, gates.detach(), statistics=statistics)
        # Copies: the memory belongs to the senders again when the combine starts.
        mine = [torch.tensor(each[:received.total]) for each in (received.x, received.topk_weights, received.topk_idx)]
        ctx.mark_non_differentiable(mine[2])
        return tuple(mine)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Optional[Tensor], ...]:
        of_rows, of_gates, _ = grad_outputs
        gates = torch.empty(ctx.gates)
        rows = ctx.handle.combine(y=of_rows.contiguous(), topk_weights=of_gates.contiguous(), out_topk_weights=gates)
        return rows, gates, None, None, None


class Combine(torch.autograd.Function):
    """The sum of a token's results over ranks; its gradient goes to all of them, as the token did."""

    @staticmethod
    def forward(ctx: Any, results: Tensor, handle: mep.Handle) -> Tensor:
        ctx.handle = handle
        return handle.combine(y=results.detach())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Optional[Tensor], ...]:
        received = ctx.handle.dispatch(grad_outputs[0].contiguous(), replay=True)
        return torch.tensor(received.x[:received.total]), None


class Job:
    def __init__(self, comm: mep.Comm, kill: tuple[int, ...]) -> None:
        self.comm, self.kill, self.here = comm, kill, list(range(comm.size))
        self.slots = slots = -(-EXPERTS // max(comm.size - 1, 1)) + 1  # one rank less still has room, also for replicas
        self.layer = Layer()
        self.optimizer = torch.optim.SGD(self.layer.parameters(), RATE, MOMENTUM)
        self.load = np.ones(EXPERTS)  # nothing is known yet
        self.plan = eplb.plan(self.load, comm.size, slots, max_replicas=1)
        # Values and momentum of the experts here, then those of the rank before this one as they were at the last copy.
        self.weights = torch.zeros(2 * slots, 2, 2 * HIDDEN * INNER)
        for slot, number in self.own():
            self.weights[slot, 0] = new_expert(number)
        self.step, self.rows = 0, np.zeros(slots, np.int64)
        self.losses: list[float] = []
        self.uneven: list[float] = []
        self.ep = mep.Ep(comm, layout="high_throughput", hidden=HIDDEN, top_k=TOP_K, num_experts=EXPERTS, input_type="float32",
                         experts_per_rank=slots, max_replicas=comm.size, max_tokens_per_rank=BATCH * LENGTH)
        self.ep.set_expert_map(np.pad(self.plan.expert_map, ((0, 0), (0, comm.size - 1)), constant_values=eplb.EMPTY))
        self.handle = self.ep.handle()
        self.keep()

    def say(self, text: str) -> None:
        if self.comm.rank == self.here[0]:
            print(text, flush=True)

    def own(self) -> list[tuple[int, int]]:
        """(slot, expert) of this rank."""
        mine = self.plan.physical_to_logical.reshape(-1, self.slots)[self.comm.rank]
        return [(slot, number) for slot, number in enumerate(mine.tolist()) if number != eplb.EMPTY]

    def after(self, rank: int, steps: int = 1) -> int:
        """The rank that keeps a copy of the experts of `rank`."""
        return self.here[(self.here.index(rank) + steps) % len(self.here)]

    def keep(self) -> None:
        """The state that a repetition starts from. One collective, so all ranks have it or all still have the one before."""
        mine = self.weights[:self.slots]
        to, of = np.zeros((2, self.comm.size), np.int64)
        to[self.after(self.comm.rank)] = of[self.after(self.comm.rank, -1)] = mine.numel()
        self.weights[self.slots:] = self.comm.alltoallv(mine, to, of).view_as(mine)
        self.rows[:] = 0
        self.kept = (self.step, self.plan, {rank: self.after(rank) for rank in self.here}, self.weights.clone(),
                     copy.deepcopy(self.layer.state_dict()), copy.deepcopy(self.optimizer.state_dict()))

    def place(self, keepers: dict[int, int]) -> tuple[int, int]:
        """New places by the load. Returns how many experts moved, and how many came from a copy."""
        here = np.isin(np.arange(self.comm.size), self.here)
        before, self.plan = self.plan, eplb.plan(self.load, self.comm.size, self.slots, active=here, previous=self.plan)
        moves = self.plan.moves(before)
        lost = [at for at, move in enumerate(moves) if move.source is None]  # lost ranks alone had these
        for at in lost:
            places = np.flatnonzero(before.physical_to_logical == moves[at].expert)
            found = [(keepers[place // self.slots], self.slots + place % self.slots) for place in places.tolist()
                     if keepers[place // self.slots] in self.here]
            if not found:
                raise RuntimeError(f"expert {moves[at].expert} is lost with its copy")
            moves[at] = moves[at]._replace(source=found[0])
        eplb.move_weights(self.comm, moves, self.weights)
        self.ep.set_expert_map(self.plan.expert_map)
        return len(moves), len(lost)

    def balance(self) -> None:
        every = self.comm.allgather(self.rows).reshape(self.comm.size, self.slots)
        busy = every.sum(axis=1)[self.here]
        self.uneven.append(busy.max() / busy.mean())
        self.load = self.plan.expert_load(every)
        text = f"step {self.step}: loss {self.losses[-1]:.4f}, the busiest rank had {self.uneven[-1]:.2f} times the mean"
        if self.uneven[-1] > UNEVEN:
            text += f"; {self.place({})[0]} experts move, {self.plan.imbalance:.2f} expected"
        self.say(text)
        self.keep()

    def recover(self) -> None:
        """Back to the last copy, around the ranks that are gone."""
        there = (np.arange(self.comm.size) == self.comm.rank).astype(np.int32)
        self.comm.allreduce(there, op="max")
        self.here = np.flatnonzero(there).tolist()
        failed, (self.step, self.plan, keepers, weights, layer, optimizer) = self.step, self.kept
        self.weights.copy_(weights)
        self.layer.load_state_dict(layer)
        self.optimizer.load_state_dict(copy.deepcopy(optimizer))
        del self.losses[self.step:]
        moved, copies = self.place(keepers)
        self.say(f"step {failed} is lost with rank {np.flatnonzero(there == 0).tolist()}: {moved} experts move, {copies} of them "
                 f"from a copy; again from step {self.step}")
        self.keep()

    def moe(self, values: Tensor, rows: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        rows, gates, slots = Dispatch.apply(rows, gates, chosen, self.handle, self.rows)
        results = torch.zeros_like(rows)
        for slot, _ in self.own():
            at, k = (slots == slot).nonzero(as_tuple=True)
            results = results.index_add(0, at, gates[at, k, None] * expert(values[slot], rows[at]))
        return Combine.apply(results, self.handle)

    def gradients(self, values: Tensor) -> list[Tensor]:
        """The loss and gradients for the dense part, of this rank's part of the batch; values.grad has those of experts."""
        inputs, wanted = (tensor[self.here.index(self.comm.rank)::len(self.here)] for tensor in batch(self.step))
        loss = mse_loss(self.layer(inputs, partial(self.moe, values)), wanted, reduction="sum") / (BATCH * LENGTH * HIDDEN)
        if self.kill == (self.comm.rank, self.step):
            os.kill(os.getpid(), signal.SIGKILL)
        self.optimizer.zero_grad()
        loss.backward()
        grads = [parameter.grad for parameter in self.layer.parameters()]
        return [loss.detach(), *(each for each in grads if each is not None)]  # each of them has one

    def train(self) -> None:
        values = self.weights[:self.slots, 0].detach().requires_grad_()
        # One sum for the dense part and for experts that have replicas. Gradients of the others are whole already.
        number_of = {number: at for at, number in enumerate(np.flatnonzero(self.plan.replicas > 1).tolist())}
        shared = [(number_of[number], slot) for slot, number in self.own() if number in number_of]
        replicas = torch.zeros(len(number_of), values.shape[1])
        try:
            dense = self.gradients(values)
            assert values.grad is not None
            for at, slot in shared:
                replicas[at] = values.grad[slot]
        except LOST:  # perhaps here alone: make the same collective, which tells all ranks
            dense = [torch.tensor(torch.nan), *(torch.zeros_like(parameter) for parameter in self.layer.parameters())]
        sums = torch.cat([each.flatten() for each in (*dense, replicas)])
        self.comm.allreduce(sums)  # succeeds on all ranks or on none; only then do parameters change
        assert values.grad is not None
        *parts, summed = sums.split([each.numel() for each in (*dense, replicas)])
        for each, part in zip(dense, parts):
            each.copy_(part.view_as(each))
        for at, slot in shared:
            values.grad[slot] = summed.view_as(replicas)[at]
        self.optimizer.step()
        value, momentum = self.weights[:self.slots].unbind(1)
        value.sub_(momentum.mul_(MOMENTUM).add_(values.grad), alpha=RATE)
        self.losses.append(parts[0].item())
        self.step += 1

    def run(self) -> None:
        lost = False
        while self.step < STEPS:
            try:
                if lost:
                    self.recover()
                elif self.step % EVERY == 0 and self.step > 0:
                    self.balance()
                lost = False
                self.train()
            except LOST:  # on every survivor, from the same collective
                lost = True


def train_alone() -> tuple[Layer, Tensor, list[float]]:
    layer = Layer()
    experts = torch.nn.Parameter(torch.stack([new_expert(number) for number in range(EXPERTS)]))
    optimizer, losses = torch.optim.SGD([*layer.parameters(), experts], RATE, MOMENTUM), []

    def moe(rows: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        every = torch.stack([expert(values, rows) for values in experts], dim=1)
        return (every[torch.arange(len(rows))[:, None], chosen] * gates[..., None]).sum(1)

    for step in range(STEPS):
        inputs, wanted = batch(step)
        loss = mse_loss(layer(inputs, moe), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return layer, experts, losses


def check(job: Job) -> tuple[list[str], float]:
    """(texts that say what is wrong, the largest difference)"""
    layer, experts, losses = train_alone()
    pairs = [("the loss", torch.tensor(job.losses), torch.tensor(losses))]
    pairs += [(name, one, other) for (name, one), other in zip(job.layer.named_parameters(), layer.parameters())]
    pairs += [(f"expert {number}", job.weights[slot, 0], experts[number]) for slot, number in job.own()]
    off = {name: (one - other).abs().max().item() for name, one, other in pairs}
    wrong = [f"{name} is off by {each:.1e}" for name, each in off.items() if not each <= TOLERANCE]

    digests = np.zeros(job.slots + 1, np.int64)
    digests[-1] = zlib.crc32(torch.nn.utils.parameters_to_vector(job.layer.parameters()).detach().numpy().tobytes())
    for slot, _ in job.own():
        digests[slot] = zlib.crc32(job.weights[slot].numpy().tobytes())
    every = job.comm.allgather(digests).reshape(job.comm.size, -1)
    if len(set(every[job.here, -1].tolist())) > 1:
        wrong.append("ranks differ in the dense part")
    wrong += [f"replicas of expert {number} differ" for number in range(EXPERTS)
              if len(set(every[:, :-1].flatten()[job.plan.physical_to_logical == number].tolist())) > 1]
    if job.uneven[-1] - 1 > max(UNEVEN - 1, (job.uneven[0] - 1) / 2):
        wrong.append("the ranks are too uneven")
    return wrong, max(off.values())


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--kill", metavar="RANK:STEP", default="-1:-1", help="that rank kills itself in that step")
    kill = tuple(map(int, options.parse_args().kill.split(":")))
    torch.set_num_threads(1)
    with mep.init() as comm:
        job = Job(comm, kill)
        job.run()
        wrong, off = check(job)
        sys.stdout.write(f"rank {comm.rank} of {comm.size}: loss {job.losses[0]:.4f} to {job.losses[-1]:.4f}, uneven "
                         f"{job.uneven[0]:.2f} to {job.uneven[-1]:.2f}, at most {off:.1e} from one process: "
                         f"{'; '.join(wrong) + ', WRONG' if wrong else 'all right'}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
