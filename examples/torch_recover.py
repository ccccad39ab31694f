#!/usr/bin/env python3
"""Data-parallel training with PyTorch that loses a rank and takes in a replacement.

    mep_run -n 3 --respawn python3 torch_recover.py

Rank 1 kills itself on the way; mep_run starts it again. The store of torch.distributed is a file, since it must outlive
each rank. The step that was lost is done again, so the model is the same as without the death, and the
example ends by comparing it with a training in one process.
"""
import os
import pathlib
import signal
import tempfile

import torch
import torch.distributed as dist

import mep.torch

STEPS, DEATH, BATCH = 60, 25, 8
RANK, SIZE = int(os.environ["MEP_RANK"]), int(os.environ["MEP_SIZE"])
Part = tuple[torch.Tensor, torch.Tensor]


def say(text: str) -> None:
    print(f"rank {RANK}: {text}", flush=True)


def batch(step: int, rank: int) -> Part:
    """The part of a step's data that falls to a rank: inputs and what the model should make of them."""
    generator = torch.Generator().manual_seed(SIZE * step + rank)
    inputs = torch.randn(BATCH, 10, generator=generator, dtype=torch.float64)
    return inputs, inputs.sum(1, keepdim=True).sin()


def new_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, parts: list[Part]) -> float:
    optimizer.zero_grad()
    loss = torch.stack([torch.nn.functional.mse_loss(model(x), y) for x, y in parts]).mean()
    loss.backward()
    optimizer.step()
    return float(loss.item())


def resume(model: torch.nn.Module, step: int) -> tuple[torch.nn.Module, int]:
    """All ranks, a joiner too: the state of rank 0, and a DistributedDataParallel over all of them."""
    now = torch.tensor([step])
    dist.broadcast(now, 0)
    # Its constructor gives every rank the parameters of rank 0. SGD without momentum has no state besides.
    return torch.nn.parallel.DistributedDataParallel(model), int(now)


def main() -> None:
    store = pathlib.Path(tempfile.gettempdir()) / f"torch_recover_{os.environ['MEP_JOB']}"
    dist.init_process_group("mep", init_method=f"file://{store}", rank=RANK, world_size=SIZE)
    model, optimizer = new_model()
    parallel, step = resume(model, 0)
    say("takes the place of a lost rank" if mep.torch.is_replacement() else "starts")
    while step < STEPS:
        if RANK == 1 and step == DEATH and not mep.torch.is_replacement():
            say(f"kills itself at step {step}")
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            train(parallel, optimizer, [batch(step, RANK)])
            step += 1
        except dist.DistBackendError as error:
            say(f"step {step} is lost: {error}")
            lost = sorted(set(range(SIZE)) - set(mep.torch.living()))
            mep.torch.recover(lost, timeout=60)
            say(f"goes on with a new rank {lost}")
            parallel, step = resume(model, step)
    (alone, optimizer), loss = new_model(), 0.0
    for step in range(STEPS):
        loss = train(alone, optimizer, [batch(step, rank) for rank in range(SIZE)])
    for one, other in zip(alone.parameters(), model.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    if RANK == 0:
        say(f"{STEPS} steps, loss {loss:.6f}, the same model as in one process")
        store.unlink(missing_ok=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
