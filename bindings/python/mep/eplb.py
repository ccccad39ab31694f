"""Where experts go so that ranks have even work: plans of replicas and places, and the moves of weights between plans.

    from mep import eplb
    now = eplb.plan(load, ranks=4, slots_per_rank=3)      # load [E]: rows per expert
    eplb.move_weights(comm, now.moves(before), weights)   # weights [slots_per_rank, ...] of this rank
    ep.set_expert_map(now.expert_map)

A plan depends on its arguments alone, and ties go to the lower number: ranks that plan from the same loads have the
same plan. docs/guide/expert-parallelism.md has the loop.
"""
from __future__ import annotations

import heapq
import importlib
import math
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy

from . import _abi
from ._buffers import array_at, buffer
from ._types import BufferLike
from .errors import NAMES, Error, error
from .request import Request, waitall

if TYPE_CHECKING:
    from .comm import Comm

EMPTY = -1  # a slot without an expert
_NEAR_ENOUGH = 1.01  # by the mean: no other start is tried
_MOST_TRIED, _SMALL_ONES = 1 << 22, 32  # they bound the work of a step
_LEAST_GAIN = 1 - 1e-12  # an exchange lowers the heaviest load at least by this factor, so rounding makes none


class Move(NamedTuple):
    """The weights of an expert go from one (rank, slot) to another. source None: no living rank has them."""

    expert: int
    source: Optional[Tuple[int, int]]
    target: Tuple[int, int]


class Plan:
    """Places of experts. With a load [layers, E] each array has the axis of layers first; layer() gives one of them.

    physical_to_logical int64 [ranks * slots_per_rank]: the expert of each slot, -1 for an empty one.
    expert_map int32 [E, max_replicas]: what Ep.set_expert_map() takes.
    replicas int64 [E], rank_load float64 [ranks]: loads if each expert's rows are split evenly over its replicas.
    imbalance: the heaviest load of a living rank by the mean of those; 1 is even. A float, with layers an array.
    active bool [ranks]: the ranks that the plan reckons with.
    """

    def __init__(self, physical_to_logical: numpy.ndarray, load: numpy.ndarray, *, ranks: int, hosts: int,
                 active: numpy.ndarray, max_replicas: int):
        self.ranks, self.hosts, self.active = ranks, hosts, active
        self.physical_to_logical = physical_to_logical
        self.slots_per_rank: int = physical_to_logical.shape[-1] // ranks
        self.experts: int = load.shape[-1]
        self._load = load
        slots = physical_to_logical.reshape(-1, ranks * self.slots_per_rank)
        layers = len(slots)
        experts_map = numpy.full((layers, self.experts, max_replicas), EMPTY, numpy.int32)
        replicas = numpy.zeros((layers, self.experts), numpy.int64)
        rank_load = numpy.zeros((layers, ranks))
        imbalance = numpy.ones(layers)
        for layer, loads in enumerate(load.reshape(layers, -1).tolist()):
            for place, expert in enumerate(slots[layer].tolist()):
                if expert != EMPTY:
                    experts_map[layer, expert, replicas[layer, expert]] = place
                    replicas[layer, expert] += 1
            shares = [each / max(count, 1) for each, count in zip(loads, replicas[layer].tolist())] + [0.0]
            sums = [math.fsum(shares[expert] for expert in row) for row in slots[layer].reshape(ranks, -1).tolist()]
            rank_load[layer] = sums
            mean = math.fsum(sums) / int(active.sum())
            imbalance[layer] = max(sums) / mean if mean > 0 else 1.0
        whole = load.shape[:-1]
        self.expert_map = experts_map.reshape(*whole, self.experts, max_replicas)
        self.replicas = replicas.reshape(*whole, self.experts)
        self.rank_load = rank_load.reshape(*whole, ranks)
        self.imbalance: Any = imbalance if whole else float(imbalance[0])

    def layer(self, number: int) -> "Plan":
        """The plan of one layer."""
        if self.physical_to_logical.ndim == 1:
            raise ValueError("the plan was made from a load [E] and has no layers")
        return Plan(self.physical_to_logical[number], self._load[number], ranks=self.ranks, hosts=self.hosts,
                    active=self.active, max_replicas=self.expert_map.shape[-1])

    def expert_load(self, rows: Any) -> numpy.ndarray:
        """Rows per slot under this plan, [ranks, slots_per_rank], as rows per expert, int64 [E]: `statistics` of dispatch,
        gathered from all ranks, become what plan() takes. With layers first where the plan has them."""
        slots = self.physical_to_logical
        counted = numpy.asarray(rows).reshape(slots.shape)
        if counted.dtype.kind not in "iu":
            raise ValueError(f"rows hold {counted.dtype}, they must be whole numbers")
        found = numpy.zeros((*slots.shape[:-1], self.experts + 1), numpy.int64)
        for index in numpy.ndindex(slots.shape[:-1]):  # -1 is the last one, which is dropped
            numpy.add.at(found[index], slots[index], counted[index].astype(numpy.int64))
        return found[..., :-1]

    def moves(self, previous: "Plan", lost: Iterable[int] = ()) -> Any:
        """The copies that lead here from `previous`: a list of Move; with layers one list for each.

        A source is on the same rank, else on the same host, else on the rank that sends least so far. Ranks that are
        not active here are no sources, nor those in `lost`: replacements, which have no weights yet.
        """
        kept = (previous.ranks, previous.slots_per_rank, previous.physical_to_logical.shape)
        if (self.ranks, self.slots_per_rank, self.physical_to_logical.shape) != kept:
            raise ValueError(f"the previous plan is for {kept[0]} ranks of {kept[1]} slots and has slots {kept[2]}, this one "
                             f"for {self.ranks} of {self.slots_per_rank} and has {self.physical_to_logical.shape}")
        gone = {int(rank) for rank in lost} | set(numpy.flatnonzero(~self.active).tolist())
        if self.physical_to_logical.ndim == 1:
            return self._moves(self.physical_to_logical.tolist(), previous.physical_to_logical.tolist(), gone)
        return [self._moves(new, old, gone) for new, old in
                zip(self.physical_to_logical.tolist(), previous.physical_to_logical.tolist())]

    def _moves(self, new: List[int], old: List[int], gone: set[int]) -> List[Move]:
        per_rank, per_host = self.slots_per_rank, self.ranks // self.hosts
        places: List[List[int]] = [[] for _ in range(self.experts)]
        for place, expert in enumerate(old):
            if expert != EMPTY and place // per_rank not in gone:
                places[expert].append(place)
        sends, moves = [0] * self.ranks, []
        for target, expert in enumerate(new):
            to = target // per_rank
            if expert == EMPTY or target in places[expert]:
                continue
            source = min(places[expert], default=None, key=lambda place: (
                place // per_rank != to, place // per_rank // per_host != to // per_host,
                sends[place // per_rank], place))
            if source is not None and source // per_rank != to:
                sends[source // per_rank] += 1
            moves.append(Move(expert, None if source is None else divmod(source, per_rank), divmod(target, per_rank)))
        return moves


def plan(load: Any, ranks: int, slots_per_rank: int, *, hosts: int = 1, groups: Optional[int] = None,
         active: Any = None, previous: Optional[Plan] = None, max_replicas: Optional[int] = None) -> Plan:
    """Gives experts replicas by their load and the ranks even shares of it.

    load [E] or [layers, E]: 0 or more each. hosts: ranks r of one r // (ranks / hosts) share a host.
    groups: experts g * E / groups to (g + 1) * E / groups - 1 stay on one host, if hosts divides groups and the living
    ranks of the hosts have room; without it, and else, experts go anywhere.
    active [ranks]: ranks with 0 get no expert. previous: ranks and slots keep the experts that they have there, as far as
    the shares allow. max_replicas: the most of an expert, and the width of expert_map; by default what the slots allow.

    Two replicas of an expert are on two ranks; slots that have no use otherwise stay empty. Where experts go anywhere the
    heaviest load is less than twice the least one possible, and mostly next to it.
    """
    return _plan(load, ranks, slots_per_rank, hosts, groups, active, previous, max_replicas, False)


def _plan(load: Any, ranks: int, slots_per_rank: int, hosts: int, groups: Optional[int], active: Any,
          previous: Optional[Plan], max_replicas: Optional[int], fills: bool) -> Plan:
    loads = _loads(load)
    ranks, slots_per_rank, hosts = _whole(ranks, "ranks"), _whole(slots_per_rank, "slots_per_rank"), _whole(hosts, "hosts")
    experts = loads.shape[-1]
    if ranks % hosts:
        raise ValueError(f"{ranks} ranks are not the same number on each of {hosts} hosts")
    if groups is not None and experts % _whole(groups, "groups"):
        raise ValueError(f"{experts} experts cannot be {groups} groups of one size")
    living = numpy.ones(ranks, bool) if active is None else numpy.array(active).astype(bool)
    if living.shape != (ranks,):
        raise ValueError(f"active has shape {living.shape}, it must be [{ranks}]")
    room = int(living.sum()) * slots_per_rank
    if room < experts:
        raise ValueError(f"{experts} experts need a slot each; {int(living.sum())} living ranks of {slots_per_rank} have {room}: "
                         f"{experts - room} slots are missing")
    width = min(ranks, ranks * slots_per_rank - experts + 1) if max_replicas is None else _whole(max_replicas, "max_replicas")
    kept = None
    if previous is not None:
        if (previous.ranks, previous.slots_per_rank) != (ranks, slots_per_rank):
            raise ValueError(f"the previous plan is for {previous.ranks} ranks of {previous.slots_per_rank} slots, not for "
                             f"{ranks} of {slots_per_rank}")
        kept = previous.physical_to_logical.reshape(-1, ranks, slots_per_rank).tolist()
    rows = loads.reshape(-1, experts).tolist()
    if kept is not None and len(kept) != len(rows):
        raise ValueError(f"the previous plan has {len(kept)} layers, the load has {len(rows)}")
    made = [_place(row, _Machine(ranks, slots_per_rank, hosts, groups, living.tolist(), width, fills),
                   kept[layer] if kept else [[EMPTY] * slots_per_rank] * ranks) for layer, row in enumerate(rows)]
    return Plan(numpy.array(made, numpy.int64).reshape(*loads.shape[:-1], -1), loads, ranks=ranks, hosts=hosts,
                active=living, max_replicas=width)


def unmapped(experts: int, ranks: int, slots_per_rank: int, *, hosts: int = 1) -> Plan:
    """The places that an EP object has without a map: expert e in slot e. It is the first `previous`; its load is even."""
    experts, ranks = _whole(experts, "experts"), _whole(ranks, "ranks")
    slots = numpy.full(ranks * _whole(slots_per_rank, "slots_per_rank"), EMPTY, numpy.int64)
    if experts > len(slots):
        raise ValueError(f"{experts} experts need a slot each; {ranks} ranks of {slots_per_rank} have {len(slots)}: "
                         f"{experts - len(slots)} slots are missing")
    slots[:experts] = numpy.arange(experts)
    return Plan(slots, numpy.ones(experts), ranks=ranks, hosts=_whole(hosts, "hosts"), active=numpy.ones(ranks, bool),
                max_replicas=1)


def rebalance_experts(weight: Any, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int) -> tuple[Any, ...]:
    """plan() with the arguments and results of DeepSeek's EPLB. weight [layers, E], an array of NumPy or a tensor of
    PyTorch; returns the same kind, int64: physical_to_logical_map [layers, num_replicas], logical_to_physical_map
    [layers, E, most replicas] with -1 for none, expert_count [layers, E]. All slots have an expert: where they are more
    than E on each rank, some have it twice.
    """
    is_tensor = hasattr(weight, "detach")
    loads = _loads(weight)
    if loads.ndim != 2:
        raise ValueError(f"weight has shape {loads.shape}, it must be [layers, experts]")
    if _whole(num_replicas, "num_replicas") % _whole(num_gpus, "num_gpus"):
        raise ValueError(f"{num_replicas} replicas are not the same number on each of {num_gpus} GPUs")
    by_host = _whole(num_groups, "num_groups") % _whole(num_nodes, "num_nodes") == 0
    made = _plan(loads, num_gpus, num_replicas // num_gpus, num_nodes if by_host else 1, num_groups if by_host else None,
                 None, None, None, True)
    slots = made.physical_to_logical
    for row in slots.reshape(-1, made.slots_per_rank):
        empty = numpy.flatnonzero(row == EMPTY)
        if len(empty):  # then each rank of the host has all experts of the host, and each gets the same again
            row[empty] = numpy.resize(numpy.unique(row[row != EMPTY]), len(empty))
    experts = loads.shape[1]
    count = numpy.zeros(loads.shape, numpy.int64)
    for layer, row in enumerate(slots):
        count[layer] = numpy.bincount(row, minlength=experts)
    places = numpy.full((*loads.shape, int(count.max(initial=0))), EMPTY, numpy.int64)
    for layer, row in enumerate(slots):
        order = numpy.argsort(row, kind="stable")
        begin = numpy.cumsum(count[layer]) - count[layer]
        places[layer, row[order], numpy.arange(len(row)) - begin[row[order]]] = order
    if not is_tensor:
        return slots, places, count
    torch: Any = importlib.import_module("torch")
    return torch.from_numpy(slots), torch.from_numpy(places), torch.from_numpy(count)


# ---- how a plan is made ---------------------------------------------------------------------------


class _Machine(NamedTuple):
    ranks: int
    slots: int  # of each rank
    hosts: int
    groups: Optional[int]
    living: List[bool]
    most: int  # replicas of an expert
    fills: bool  # no slot stays empty that another expert could have


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, numpy.integer)) or value < 1:
        raise ValueError(f"{name} is {value!r}, it must be a whole number from 1 up")
    return int(value)


def _loads(load: Any) -> numpy.ndarray:
    if hasattr(load, "detach"):  # a tensor, of any type and device
        load = load.detach().cpu().double().numpy()
    loads = numpy.array(load, numpy.float64)
    if loads.ndim not in (1, 2) or loads.shape[-1] == 0:
        raise ValueError(f"the load has shape {loads.shape}, it must be [experts] or [layers, experts]")
    if not numpy.isfinite(loads).all() or (loads < 0).any():
        raise ValueError("a load is negative or not finite; it must be 0 or more")
    return loads


def _place(load: List[float], machine: _Machine, previous: List[List[int]]) -> List[int]:
    """The expert of each slot, in one layer."""
    slots = [[EMPTY] * machine.slots for _ in range(machine.ranks)]
    for experts, ranks in _parts(load, machine, previous):
        bins = _pack([load[each] for each in experts], len(ranks), machine.slots, min(len(ranks), machine.most), machine.fills)
        packed = [[experts[each] for each in content] for content in bins]
        for content, at in zip(packed, _match(packed, [previous[rank] for rank in ranks])):
            slots[ranks[at]] = _arrange(content, previous[ranks[at]])
    return [expert for row in slots for expert in row]


def _parts(load: List[float], machine: _Machine, previous: List[List[int]]) -> List[Tuple[List[int], List[int]]]:
    """Parts that are planned apart: (experts, living ranks) of each host where groups stay on hosts, else of all."""
    per_host = machine.ranks // machine.hosts
    ranks = [[rank for rank in range(host * per_host, (host + 1) * per_host) if machine.living[rank]]
             for host in range(machine.hosts)]
    everything = [(list(range(len(load))), [rank for each in ranks for rank in each])]
    if machine.groups is None or machine.groups % machine.hosts:
        return everything
    size = len(load) // machine.groups
    sums = [math.fsum(load[group * size:(group + 1) * size]) for group in range(machine.groups)]
    widths = [len(each) for each in ranks]
    if len(set(widths)) == 1:
        packed = _pack(sums, machine.hosts, machine.groups // machine.hosts, 1, True)
    else:
        room = [width * machine.slots // size for width in widths]
        if sum(room) < machine.groups:
            return everything
        packed, total = [[] for _ in ranks], [0.0] * machine.hosts
        for group in sorted(range(machine.groups), key=lambda each: (-sums[each], each)):
            host = min((each for each in range(machine.hosts) if len(packed[each]) < room[each]),
                       key=lambda each: ((total[each] + sums[group]) / widths[each], each))
            packed[host].append(group)
            total[host] += sums[group]
    experts = [[group * size + each for group in sorted(content) for each in range(size)] for content in packed]
    parts = []
    for width in sorted(set(widths) - {0}):  # hosts of one width may change places
        alike = [host for host in range(machine.hosts) if widths[host] == width]
        before = [[expert for rank in ranks[host] for expert in previous[rank]] for host in alike]
        for host, at in zip(alike, _match([experts[each] for each in alike], before)):
            if experts[host]:
                parts.append((experts[host], ranks[alike[at]]))
    return parts


def _replicate(load: List[float], room: int, most: int) -> List[int]:
    """Replicas of each expert: each further one goes where a share is largest, which makes the largest share least."""
    counts = [1] * len(load)
    shares = [(-each, 1, expert) for expert, each in enumerate(load)]
    heapq.heapify(shares)
    for _ in range(room - len(load)):
        while shares and shares[0][1] >= most:
            heapq.heappop(shares)
        if not shares:
            break
        _, count, expert = shares[0]
        counts[expert] = count + 1
        heapq.heapreplace(shares, (-load[expert] / (count + 1), count + 1, expert))
    return counts


def _pack(load: List[float], bins: int, slots: int, most: int, fills: bool) -> List[List[int]]:
    """Puts replicas of all i, at most `most` <= bins of each, into bins of `slots`, no two of one i into one bin.

    Many replicas may be too large for two in a bin and too small for one, so half of them may be better than all.
    """
    spare = bins * slots - len(load)
    best = _packed(load, len(load) + spare, bins, slots, most, fills)
    if spare > 1 and not fills and best.heaviest() > _NEAR_ENOUGH * math.fsum(load) / bins:
        other = _packed(load, len(load) + spare // 2, bins, slots, most, fills)
        if other.heaviest() < best.heaviest() * _LEAST_GAIN:
            best = other
    return best.items()


def _packed(load: List[float], room: int, bins: int, slots: int, most: int, fills: bool) -> "_Packing":
    """Items come in descending size and in rounds, one for each bin, the larger ones for what is lighter. So no bin is
    heavier than another by more than the largest item. Those of one i lie behind each other, in two rounds at most; those in
    the second begin it, so all bins are still free then, and enough of them lack i.
    """
    counts = _replicate(load, room, most)
    shares = [each / count for each, count in zip(load, counts)]
    items = [i for i in sorted(range(len(load)), key=lambda each: (-shares[each], each)) for _ in range(counts[i])]
    packed: List[List[int]] = [[] for _ in range(bins)]
    total = [0.0] * bins
    for first in range(0, len(items), bins):
        free = sorted(range(bins), key=lambda each: (total[each], each))
        for item in items[first:first + bins]:
            taken = next(each for each in free if item not in packed[each])
            free.remove(taken)
            packed[taken].append(item)
            total[taken] += shares[item]
    made = _Packing(packed, load, counts, slots, most, fills)
    made.improve()
    return made


class _Packing:
    """Bins of items that get better by steps: each makes the heaviest bin lighter and no other one as heavy."""

    def __init__(self, packed: List[List[int]], load: List[float], counts: List[int], slots: int, most: int, fills: bool):
        self.none = len(load)  # stands in slots that are empty
        self.load = numpy.array([*load, 0.0])
        self.counts = numpy.array([*counts, len(packed) * slots + 1])
        self.most, self.fills = most, fills
        self.size = self.load / self.counts
        self.content = numpy.full((len(packed), slots), self.none)
        self.held = numpy.zeros((len(packed), self.none + 1), bool)
        for each, items in enumerate(packed):
            self.content[each, :len(items)] = items
            self.held[each, items] = True
        self._sum()

    def _sum(self) -> None:
        self.total = numpy.array([math.fsum(row) for row in self.size[self.content].tolist()])

    def heaviest(self) -> float:
        return float(self.total.max())

    def items(self) -> List[List[int]]:
        return [[item for item in row if item != self.none] for row in self.content.tolist()]

    def improve(self) -> None:
        for _ in range(4 * self.content.size):
            if not self._exchange() and not self._replace():
                break
            self._sum()

    def _put(self, at: int, slot: int, item: int) -> None:
        self.held[at, self.content[at, slot]] = False
        self.content[at, slot] = item
        self.held[at, item] = item != self.none

    def _exchange(self) -> bool:
        """An item of the heaviest bin for a smaller one, or for none, of another bin."""
        heavy = int(self.total.argmax())
        mine = self.content[heavy]
        less = self.size[mine][:, None, None] - self.size[self.content][None]  # [slot of the heavy bin, bin, slot there]
        heaviest = numpy.maximum(self.total[heavy] - less, self.total[None, :, None] + less)
        heaviest[self.held[:, mine].T[:, :, None] | self.held[heavy, self.content][None]] = numpy.inf
        heaviest[:, heavy] = numpy.inf
        best = int(heaviest.argmin())
        if not heaviest.flat[best] < self.total[heavy] * _LEAST_GAIN:
            return False
        slot, other, there = (int(each) for each in numpy.unravel_index(best, heaviest.shape))
        gives, takes = int(mine[slot]), int(self.content[other, there])
        self._put(heavy, slot, takes)
        self._put(other, there, gives)
        return True

    def _replace(self) -> bool:
        """One replica less of an item that has several, one more of another: either one more of what is in the heaviest
        bin, in one of the lightest bins, or one less there, with a small one in its place."""
        heavy = int(self.total.argmax())
        light = numpy.argsort(self.total, kind="stable")[:max(1, _MOST_TRIED // (self.content.size * self.content.shape[1]))]
        bins, slots = numpy.nonzero(self.counts[self.content[light]] > 1)
        every = light[bins], slots
        slots = numpy.flatnonzero(self.counts[self.content[heavy]] > 1)
        mine = numpy.full(len(slots), heavy), slots
        small = numpy.argsort(self.load / (self.counts + 1), kind="stable")[:_SMALL_ONES]
        usable = self.counts < self.most
        usable[self.none] = not self.fills
        best, found = self.total[heavy] * _LEAST_GAIN, None
        for (bins, slots), items in ((every, self.content[heavy]), (mine, small)):
            items = items[usable[items]]
            if len(bins) == 0 or len(items) == 0:
                continue
            gone = self.content[bins, slots]
            grown, shrunk = self.load[gone] / (self.counts[gone] - 1), self.load[items] / (self.counts[items] + 1)
            less = self.total + self.held[:, items].T * (shrunk - self.size[items])[:, None]  # [item, bin]
            more = self.held[:, gone].T * (grown - self.size[gone])[:, None]  # [replica that goes, bin]
            loads = more[:, None, :] + less[None]
            loads[numpy.arange(len(gone)), :, bins] += shrunk[None] - grown[:, None]
            heaviest = loads.max(axis=2)
            heaviest[self.held[bins[:, None], items[None]]] = numpy.inf
            least = int(heaviest.argmin())
            if heaviest.flat[least] < best:
                best = heaviest.flat[least]
                at, item = divmod(least, len(items))
                found = int(bins[at]), int(slots[at]), int(items[item])
        if found is None:
            return False
        at, slot, item = found
        for changed, by in ((int(self.content[at, slot]), -1), (item, 1)):
            if changed != self.none:
                self.counts[changed] += by
        self.size = self.load / self.counts
        self._put(at, slot, item)
        return True


def _match(contents: List[List[int]], places: List[List[int]]) -> List[int]:
    """A place for each content, one with much of it first."""
    common = numpy.zeros((len(contents), len(places)), numpy.int64)
    before = [set(each) - {EMPTY} for each in places]
    for one, content in enumerate(contents):
        own = set(content)
        for other, held in enumerate(before):
            common[one, other] = len(own & held)
    found, taken = [-1] * len(contents), set()
    for pair in numpy.argsort(-common, axis=None, kind="stable").tolist():
        one, other = divmod(pair, len(places))
        if found[one] < 0 and other not in taken:
            found[one] = other
            taken.add(other)
    return found


def _arrange(experts: List[int], previous: List[int]) -> List[int]:
    """The experts of a rank in its slots, those that were there where they were."""
    new = sorted(set(experts) - set(previous))
    row = [each if each in experts else EMPTY for each in previous]
    return [new.pop(0) if each == EMPTY and new else each for each in row]


# ---- weights --------------------------------------------------------------------------------------


def move_weights(comm: "Comm", moves: Iterable[Move], weights: Union[BufferLike, Sequence[BufferLike]]) -> None:
    """Carries out the moves of one layer: weights, an array of NumPy or a CPU tensor [slots_per_rank, ...], or a list of
    these, has this rank's slots. Collective over the ranks that live, which give the same moves; messages are on a communicator of its own.

    All ranks have the new weights then, or an error and the old ones: the rows that arrive lie beside the weights until
    every rank has all of its own. MEP's errors are those of messages and collectives; ValueError: a move has no source, a
    slot is not there, or ranks gave different moves.
    """
    flag, problem, wanted = 0, None, []
    parts: List[numpy.ndarray] = []
    arrived: _Rows = {}
    try:
        given = [buffer(each, writable=True) for each in (weights if isinstance(weights, (list, tuple)) else [weights])]
        parts = [_bytes(each) for each in given]  # `given` keeps their owners alive
        counts = sorted({len(part) for part in parts})
        if len(counts) != 1:
            raise ValueError(f"the arrays of weights have {' and '.join(map(str, counts)) or 'no'} slots; they must all have the same")
        wanted = [_checked(Move(*each), counts[0], comm.size) for each in moves]
        if len({move.target for move in wanted}) != len(wanted):
            raise ValueError("two moves have the same target")
        arrived = {move.target[1]: [numpy.empty_like(part[0]) for part in parts] for move in wanted
                   if move.target[0] == comm.rank}
        found = zlib.crc32(repr(([part.shape for part in parts], wanted)).encode())
        flag = found | (found ^ 0xFFFFFFFF) << 32  # the AND of two different ones is neither
    except (TypeError, ValueError, MemoryError) as refused:
        problem = refused
    own = comm.dup()
    try:
        if own.agree(flag) != flag or problem is not None:
            raise problem or ValueError("the ranks gave different moves, or weights of different sizes, or one of them was "
                                        "refused its own; nothing was moved")
        failure = _exchange_messages(comm, own, wanted, parts, arrived)
        if own.agree(failure is None) != 1:
            raise failure or error(_abi.MEP_ERR_PEER_FAILED, "another rank did not get its weights; nothing was moved")
        for slot, rows in arrived.items():
            for part, row in zip(parts, rows):
                part[slot] = row
    finally:
        own.close()


_Rows = Dict[int, List[numpy.ndarray]]  # slot -> its row of each array


def _bytes(memory: Any) -> numpy.ndarray:
    """The weights as bytes, [slots, bytes]."""
    if memory.on_gpu:
        raise ValueError("the weights are on a GPU; messages are for host memory: copy them there and back")
    if not memory.shape or memory.shape[0] == 0:
        raise ValueError(f"the weights have shape {memory.shape}, it must be [slots_per_rank, ...]")
    count = memory.shape[0]
    return array_at(memory.address, (count, memory.count // count * memory.itemsize), numpy.uint8, writable=True)


def _checked(move: Move, slots: int, ranks: int) -> Move:
    if move.source is None:
        raise ValueError(f"no living rank has the weights of expert {move.expert}; load them from elsewhere and leave the move out")
    (giver, given), (taker, taken) = move.source, move.target
    for rank, slot in (move.source, move.target):
        if not (0 <= rank < ranks and 0 <= slot < slots):
            raise ValueError(f"expert {move.expert}: slot {slot} of rank {rank} is not there; {ranks} ranks have "
                             f"{slots} each")
    return Move(int(move.expert), (int(giver), int(given)), (int(taker), int(taken)))


def _exchange_messages(comm: "Comm", own: "Comm", moves: List[Move], parts: List[numpy.ndarray],
                       arrived: _Rows) -> Optional[Error]:
    """Fills `arrived`, by slot, and returns the first failure. Messages to and from others go on after one."""
    slot_of_world = comm.view().slots
    rank_of = {slot: rank for rank, slot in enumerate(own.view().slots)}  # after a loss ranks of `own` have other numbers
    requests: List[Tuple[Move, Request]] = []
    failure: Optional[Error] = None

    def failed(move: Move, code: int) -> Error:
        assert move.source is not None
        return error(code, f"the weights of expert {move.expert} did not get from rank {move.source[0]} to rank "
                           f"{move.target[0]}: {NAMES.get(code, code)}; nothing was moved")

    for tag, move in enumerate(moves):
        assert move.source is not None  # _checked() has seen to it
        (giver, given), (taker, taken) = move.source, move.target
        if giver == taker == comm.rank:
            for part, row in zip(parts, arrived[taken]):
                row[:] = part[given]
        elif comm.rank in (giver, taker):
            peer = rank_of.get(slot_of_world[taker if giver == comm.rank else giver])
            if peer is None:
                failure = failure or failed(move, _abi.MEP_ERR_PEER_FAILED)
                continue
            try:
                for row in [part[given] for part in parts] if giver == comm.rank else arrived[taken]:  # in one order: one tag
                    requests.append((move, (own.isend if giver == comm.rank else own.irecv)(row, peer, tag)))
            except Error as refused:
                failure = failure or failed(move, refused.code)
    try:
        waitall(request for _, request in requests)
    except Error:
        for move, request in requests:
            code = request.info().result
            if code < 0:
                failure = failure or failed(move, code)
    return failure
