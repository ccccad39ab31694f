#!/usr/bin/env python3
"""Trains small models the ways that torch.distributed knows, over MEP, each compared bit by bit with one process.

    torchrun --nproc-per-node 2 torch_training.py [FOLDER]

Parts: DistributedDataParallel with unused parameters and with a static graph, fully_shard (FSDP2), tensor-parallel
layers of DTensor, both of them on a mesh of two dimensions where there are four ranks, a checkpoint, objects.
The checkpoint goes to FOLDER if there is one; a run that finds a checkpoint there, of any number of ranks, goes on
from that in place of writing it.

Any order of sums gives the same bits: inputs are small whole numbers, parameters are kept multiples of 1/128, learning
rate, momentum and numbers of ranks are powers of two, so that float64 holds each sum exactly. Ends with 0 if all
parameters are those of one process.
"""
import pathlib
import shutil
import sys
import tempfile
from typing import Any, Callable, Iterable, Optional

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as recompute

import mep.torch

Passes = Callable[[int], list[Any]]
STEPS, BATCH, WIDTH, HIDDEN, GRID = 20, 16, 10, 30, 128  # hidden units do not divide evenly among 4 ranks


class Heads(torch.nn.Module):
    """A pass uses one head of three; nothing uses the last."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(WIDTH, HIDDEN)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, 1) for _ in range(3))

    def forward(self, inputs: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](self.body(inputs).relu())


class Twice(torch.nn.Module):
    """Uses one layer twice and computes its activations again in the backward pass: DDP wants a static graph for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        once = recompute(self.layers[0], inputs.requires_grad_(), use_reentrant=True).relu()
        return self.layers[1](recompute(self.layers[0], once, use_reentrant=True).relu())


def perceptron(hidden: int = HIDDEN) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1),
                               torch.nn.LeakyReLU(0.25))


def onto_grid(parameters: Iterable[torch.Tensor]) -> None:
    with torch.no_grad():
        for one in parameters:
            local = one.to_local() if isinstance(one, DTensor) else one
            local.copy_((local * GRID).round() / GRID)


def fresh(make: Callable[..., torch.nn.Module], *arguments: int) -> Any:
    """The same model on each rank and in each run."""
    torch.manual_seed(0)
    model = make(*arguments).double()
    onto_grid(model.parameters())
    return model


def new_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=2.0**-7, momentum=0.5)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The data of a step for all ranks together."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randint(-2, 3, (BATCH, WIDTH), generator=generator).double()
    return inputs, 8 * (inputs.sum(1, keepdim=True) > 0).double()


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int], passes: Passes) -> None:
    """passes(step) says which parts of the batch go through the model, each with what the model is told besides."""
    for step in steps:
        optimizer.zero_grad()
        losses = [mse_loss(model(inputs, *more), wanted) for inputs, wanted, *more in passes(step)]
        (torch.stack(losses).sum() / len(losses)).backward()
        optimizer.step()
        onto_grid(model.parameters())


def whole(step: int) -> list[Any]:
    return [batch(step)]


def share(index: int, shares: int) -> Passes:
    """passes() of the rank that has one share of each batch."""
    return lambda step: [[tensor.chunk(shares)[index] for tensor in batch(step)]]


def alone(model: torch.nn.Module, passes: Passes = whole, steps: int = STEPS) -> torch.nn.Module:
    train(model, new_optimizer(model), range(steps), passes)
    return model


def expect_same(name: str, model: torch.nn.Module, reference: torch.nn.Module) -> None:
    """Raises if one bit differs; collective for sharded parameters."""
    for (key, one), other in zip(model.named_parameters(), reference.parameters(), strict=True):
        got = one.full_tensor() if isinstance(one, DTensor) else one
        if not torch.equal(got.view(torch.int64), other.view(torch.int64)):
            raise RuntimeError(f"{name}: {key} differs from that of one process by {(got - other).abs().max().item()}")


def unused_parameters(rank: int, ranks: int) -> str:
    model = fresh(Heads)
    # Ranks use different heads, so that each rank leaves some to others.
    def head(step: int, of: int) -> int:
        return (step + of) % 2

    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    train(parallel, new_optimizer(model), range(STEPS), lambda step: [[*share(rank, ranks)(step)[0], head(step, rank)]])
    expect_same("unused", model, alone(fresh(Heads), lambda step: [
        [*share(of, ranks)(step)[0], head(step, of)] for of in range(ranks)]))
    return "DistributedDataParallel, find_unused_parameters, another head on each rank"


def static_graph(rank: int, ranks: int) -> str:
    model = fresh(Twice)
    parallel = DistributedDataParallel(model, static_graph=True)
    train(parallel, new_optimizer(model), range(STEPS), share(rank, ranks))
    expect_same("static graph", model, alone(fresh(Twice)))
    return "DistributedDataParallel, static_graph, a layer used twice"


def sharded(mesh: DeviceMesh) -> tuple[Any, torch.optim.Optimizer]:
    model = fresh(perceptron)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, new_optimizer(model)


def shards(rank: int, ranks: int) -> str:
    model, optimizer = sharded(init_device_mesh("cpu", (ranks,)))
    train(model, optimizer, range(STEPS), share(rank, ranks))
    rows = model[0].weight.to_local().shape[0]
    expect_same("fully_shard", model, alone(fresh(perceptron)))
    return f"fully_shard, {rows} of {HIDDEN} rows of the first layer on this rank"


def split_layers(mesh: DeviceMesh) -> tuple[torch.nn.Module, int]:
    hidden = HIDDEN // 4 * 4
    return parallelize_module(fresh(perceptron, hidden), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), hidden


def tensor_parallel(rank: int, ranks: int) -> str:
    model, hidden = split_layers(init_device_mesh("cpu", (ranks,)))
    train(model, new_optimizer(model), range(STEPS), whole)
    expect_same("tensor-parallel", model, alone(fresh(perceptron, hidden)))
    return f"tensor-parallel, {hidden // ranks} of {hidden} hidden units on this rank"


def two_dimensions(rank: int, ranks: int) -> str:
    if ranks < 4:
        return "fully_shard over tensor-parallel layers: left out, it takes 4 ranks"
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    model, hidden = split_layers(mesh["tensor"])
    fully_shard(model, mesh=mesh["data"])
    train(model, new_optimizer(model), range(STEPS), share(mesh["data"].get_local_rank(), ranks // 2))
    expect_same("two dimensions", model, alone(fresh(perceptron, hidden)))
    return f"fully_shard over tensor-parallel layers, a mesh of {ranks // 2} x 2"


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ranks: int) -> dict[str, Any]:
    parameters, state = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": state, "ranks": ranks}


def resume(folder: pathlib.Path, mesh: DeviceMesh, index: int, ranks: int, group: Optional[dist.ProcessGroup]) -> int:
    """A fresh model takes the state of the checkpoint and goes on. Returns how many ranks had written that."""
    model, optimizer = sharded(mesh)
    state = state_of(model, optimizer, 0)
    load(state, checkpoint_id=folder, process_group=group)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    train(model, optimizer, range(STEPS, 2 * STEPS), share(index, ranks))
    expect_same("checkpoint", model, alone(fresh(perceptron), steps=2 * STEPS))
    return int(state["ranks"])


def checkpoint(rank: int, ranks: int) -> str:
    where: list[Any] = [sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(where)  # of rank 0
    folder = pathlib.Path(where[0])
    found = [(folder / ".metadata").exists()]
    dist.broadcast_object_list(found)
    mesh = init_device_mesh("cpu", (ranks,))
    if not found[0]:
        model, optimizer = sharded(mesh)
        train(model, optimizer, range(STEPS), share(rank, ranks))
        save(state_of(model, optimizer, ranks), checkpoint_id=folder)
    wrote = resume(folder, mesh, rank, ranks, None)
    # Half of the ranks can load it as well.
    half = ranks // 2
    group: Any = dist.new_group(range(half))
    if rank < half:
        resume(folder, DeviceMesh.from_group(group, "cpu"), rank, half, group)
    dist.barrier()
    if rank == 0 and len(sys.argv) < 2:
        shutil.rmtree(folder)
    return f"a checkpoint of {wrote} ranks, loaded on {ranks} and on {half}, training goes on"


def objects(rank: int, ranks: int) -> str:
    sent = {"rank": rank, "text": "x" * 1000 * rank}
    got: list[Any] = [None] * ranks
    dist.all_gather_object(got, sent)
    if got != [{"rank": of, "text": "x" * 1000 * of} for of in range(ranks)]:
        raise RuntimeError(f"all_gather_object gave {got}")
    return "all_gather_object, another size from each rank"


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("mep")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks < 2 or ranks & (ranks - 1) or ranks > BATCH:
        sys.exit(f"torch_training wants 2, 4, 8 or 16 ranks, and has {ranks}")
    for part in (unused_parameters, static_graph, shards, tensor_parallel, two_dimensions, checkpoint, objects):
        text = part(rank, ranks)
        if rank == 0:
            print(f"{part.__name__}: {text}", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"torch_training: {ranks} ranks, all parameters as in one process, bit by bit", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
