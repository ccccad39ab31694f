#!/usr/bin/env python3
"""Plans of experts against an exhaustive search and against what they promise, moves of weights on worlds of threads
against a replay of the list. Needs NumPy and MEP_LIBRARY. Two seconds."""
import itertools
import threading
import unittest

import mep
import numpy as np
from mep import eplb

from python_test import on_threads

try:
    import torch
except ImportError:
    torch = None


def least_possible(load, ranks, slots):
    """The heaviest load of the best plan of all: every choice of different experts for every rank."""
    rows = [choice for count in range(slots + 1) for choice in itertools.combinations(range(len(load)), count)]
    has = np.zeros((len(rows), len(load)))
    for row, choice in enumerate(rows):
        has[row, list(choice)] = 1
    every = has[np.array(list(itertools.combinations_with_replacement(range(len(rows)), ranks)))]
    count = every.sum(axis=1)
    every, count = every[(count > 0).all(axis=1)], count[(count > 0).all(axis=1)]
    return (every * (load / count)[:, None]).sum(axis=2).max(axis=1).min()


def random_load(random, experts):
    return random.choice([random.integers(0, 100, experts), random.integers(1, 4, experts),
                          (random.pareto(1, experts) * 100).astype(np.int64)]).astype(float)


def check(test, plan, load, ranks, slots, living=None, limit=None):
    """All that a plan of one layer says, derived anew from its slots."""
    living = np.ones(ranks, bool) if living is None else np.asarray(living, bool)
    table = plan.physical_to_logical.reshape(ranks, slots)
    test.assertTrue((table[~living] == -1).all())
    for row in table:
        own = row[row >= 0]
        test.assertEqual(len(set(own)), len(own), "a rank has an expert twice")
    count = np.array([(table == expert).sum() for expert in range(len(load))])
    test.assertTrue((count >= 1).all())
    if limit is not None:
        test.assertLessEqual(count.max(), limit)
    np.testing.assert_array_equal(plan.replicas, count)
    test.assertEqual(plan.expert_map.dtype, np.int32)
    for expert, row in enumerate(plan.expert_map):
        used = [place for place in row if place != -1]
        test.assertEqual(sorted(used), [place for place in range(ranks * slots) if table.flat[place] == expert])
    loads = np.array([sum(load[expert] / count[expert] for expert in row if expert >= 0) for row in table])
    np.testing.assert_allclose(plan.rank_load, loads)
    mean = loads[living].mean()
    test.assertAlmostEqual(plan.imbalance, loads.max() / mean if mean else 1.0)


class Plans(unittest.TestCase):
    def test_against_the_best_of_all(self):
        random, excess = np.random.default_rng(5), []
        for case in range(120):
            ranks = int(random.integers(2, 5))
            slots = int(random.integers(1, 4 if ranks < 4 else 3))
            experts = int(random.integers(2, min(ranks * slots, 6) + 1))
            load = random_load(random, experts)
            with self.subTest(case=case, load=load, ranks=ranks, slots=slots):
                plan = eplb.plan(load, ranks, slots)
                check(self, plan, load, ranks, slots)
                excess.append(plan.rank_load.max() / (least_possible(load, ranks, slots) or 1))
                self.assertLessEqual(excess[-1], 5 / 4)
        self.assertLess(np.mean(excess), 1.01)

    def test_random_ones_keep_the_rules(self):
        random = np.random.default_rng(4)
        for case in range(60):
            ranks, slots = int(random.integers(2, 9)), int(random.integers(1, 6))
            experts = int(random.integers(1, ranks * slots + 1))
            load = random_load(random, experts)
            with self.subTest(case=case, load=load, ranks=ranks, slots=slots):
                plan = eplb.plan(load, ranks, slots)
                check(self, plan, load, ranks, slots)
                # The mean and the largest share, where replicas make that least: neither can be less.
                counts = np.ones(experts)
                for _ in range(ranks * slots - experts):
                    counts[np.argmax(np.where(counts < ranks, load / counts, -1))] += 1
                self.assertLess(plan.rank_load.max(), load.sum() / ranks + (load / counts).max() + 1e-9)

    def test_large_ones_are_next_to_even(self):
        random = np.random.default_rng(6)
        load = np.round(random.lognormal(5, 1, (3, 256)))
        plan = eplb.plan(load, 32, 9)
        self.assertEqual((plan.expert_map.shape, plan.replicas.shape, plan.rank_load.shape, plan.imbalance.shape),
                         ((3, 256, 32), (3, 256), (3, 32), (3,)))
        self.assertLess(plan.imbalance.max(), 1.01)
        self.assertLess(np.mean([eplb.plan(np.round(random.lognormal(5, 1, 64)), 8, 8).imbalance for _ in range(20)]), 1.2)
        for layer in range(3):
            alone = eplb.plan(load[layer], 32, 9)
            np.testing.assert_array_equal(alone.physical_to_logical, plan.physical_to_logical[layer])
            check(self, plan.layer(layer), load[layer], 32, 9)

    def test_the_same_loads_make_the_same_plan(self):
        for load in (np.zeros(12), np.ones(12), np.arange(12) % 3):
            first, second = eplb.plan(load, 4, 4), eplb.plan(list(load.astype(float)), 4, 4)
            np.testing.assert_array_equal(first.expert_map, second.expert_map)
            check(self, first, load, 4, 4)
        # Ties go to the lower number.
        np.testing.assert_array_equal(eplb.plan(np.zeros(4), 3, 2).replicas, [2, 2, 1, 1])
        np.testing.assert_array_equal(eplb.plan(np.ones(4), 2, 2).physical_to_logical, [0, 2, 1, 3])

    def test_more_slots_than_replicas_have_use_for(self):
        plan = eplb.plan([5, 1], 2, 4)
        check(self, plan, [5, 1], 2, 4)
        self.assertEqual((plan.physical_to_logical >= 0).sum(), 4)
        self.assertEqual(plan.imbalance, 1)
        limited = eplb.plan(np.arange(6), 4, 3, max_replicas=2)
        check(self, limited, np.arange(6), 4, 3, limit=2)
        self.assertEqual(limited.expert_map.shape, (6, 2))

    def test_groups_stay_on_hosts(self):
        random = np.random.default_rng(7)
        for case in range(30):
            hosts, width, slots = int(random.integers(1, 4)), int(random.integers(1, 4)), int(random.integers(2, 5))
            groups, size = hosts * int(random.integers(1, 3)), int(random.integers(1, 3))
            if groups * size > hosts * width * slots:
                continue
            load = random_load(random, groups * size)
            with self.subTest(case=case, load=load):
                plan = eplb.plan(load, hosts * width, slots, hosts=hosts, groups=groups)
                check(self, plan, load, hosts * width, slots)
                hosts_of = [{int(place) // slots // width for place in row if place != -1} for row in plan.expert_map]
                of_group = [set.union(*hosts_of[group * size:(group + 1) * size]) for group in range(groups)]
                self.assertTrue(all(len(each) == 1 for each in of_group))
                self.assertEqual([sum(each == {host} for each in of_group) for host in range(hosts)],
                                 [groups // hosts] * hosts)
        # Hosts do not divide groups: experts go anywhere.
        self.assertEqual(eplb.plan([9, 9, 9], 4, 1, hosts=2, groups=3).imbalance, 4 / 3)

    def test_around_lost_ranks(self):
        random = np.random.default_rng(8)
        for case in range(40):
            ranks, slots = int(random.choice([4, 6, 8])), int(random.integers(2, 5))
            living = random.random(ranks) < 0.7
            living[random.integers(ranks)] = True
            room = int(living.sum()) * slots
            experts = int(random.integers(1, room + 4))
            load = random_load(random, experts)
            for options in ({}, {"hosts": 2, "groups": experts}):
                with self.subTest(case=case, living=living, experts=experts, **options):
                    if experts > room:
                        with self.assertRaisesRegex(ValueError, f": {experts - room} slots are missing"):
                            eplb.plan(load, ranks, slots, active=living, **options)
                    else:
                        check(self, eplb.plan(load, ranks, slots, active=living, **options), load, ranks, slots, living)
        # No host has room for both groups, and one for none: experts go anywhere.
        check(self, eplb.plan(np.ones(6), 4, 2, hosts=2, groups=2, active=[1, 0, 1, 1]), np.ones(6), 4, 2, [1, 0, 1, 1])
        # The width of the map is the same before and after.
        self.assertEqual(eplb.plan(np.ones(5), 4, 2).expert_map.shape,
                         eplb.plan(np.ones(5), 4, 2, active=[1, 0, 1, 1]).expert_map.shape)

    def test_refusals(self):
        for wrong, text in ((lambda: eplb.plan([1, -1], 2, 1), "negative"), (lambda: eplb.plan([np.nan], 2, 1), "finite"),
                            (lambda: eplb.plan(np.ones((1, 1, 1)), 2, 1), "shape"), (lambda: eplb.plan([], 2, 1), "shape"),
                            (lambda: eplb.plan([1], 0, 1), "ranks is 0"), (lambda: eplb.plan([1], 1, 1.5), "slots_per_rank"),
                            (lambda: eplb.plan([1], 3, 1, hosts=2), "hosts"), (lambda: eplb.plan([1], 2, 1, groups=2), "groups"),
                            (lambda: eplb.plan([1], 2, 1, active=[1]), "active"), (lambda: eplb.plan([1] * 5, 2, 2), "1 slots are"),
                            (lambda: eplb.plan([1], 2, 1, previous=eplb.unmapped(1, 2, 2)), "previous plan is for"),
                            (lambda: eplb.unmapped(5, 2, 2), "1 slots are"),
                            (lambda: eplb.plan([1], 2, 1).layer(0), "no layers"),
                            (lambda: eplb.plan([1], 2, 1).moves(eplb.unmapped(1, 2, 2)), "previous plan is for"),
                            (lambda: eplb.plan([1], 2, 1).expert_load([1.5, 0]), "whole numbers"),
                            (lambda: eplb.rebalance_experts(np.ones((1, 4)), 5, 1, 1, 2), "5 replicas"),
                            (lambda: eplb.rebalance_experts(np.ones(4), 4, 1, 1, 2), "layers")):
            with self.assertRaisesRegex(ValueError, text):
                wrong()


class Statistics(unittest.TestCase):
    def test_rows_of_slots_are_rows_of_experts(self):
        plan = eplb.plan([4, 1, 1], 2, 2)
        rows = np.array([[10, 3], [20, 5]])
        wanted = [sum(int(rows.flat[place]) for place in range(4) if plan.physical_to_logical[place] == expert)
                  for expert in range(3)]
        np.testing.assert_array_equal(plan.expert_load(rows), wanted)
        layers = eplb.plan([[4, 1, 1]] * 2, 2, 2)
        np.testing.assert_array_equal(layers.expert_load([rows, 2 * rows]), [wanted, np.array(wanted) * 2])
        np.testing.assert_array_equal(eplb.unmapped(3, 2, 2).expert_load(rows), [10, 3, 20])


class DeepSeek(unittest.TestCase):
    """Arguments and results of rebalance_experts."""

    def test_shapes_and_values(self):
        random = np.random.default_rng(9)
        for layers, experts, replicas, groups, nodes, gpus in ((2, 12, 16, 4, 2, 8), (3, 8, 12, 3, 2, 4), (1, 4, 24, 2, 2, 4),
                                                              (1, 3, 12, 1, 1, 2), (2, 16, 16, 4, 1, 4)):
            weight = random.integers(1, 200, (layers, experts))
            slots, places, count = eplb.rebalance_experts(weight, replicas, groups, nodes, gpus)
            self.assertEqual((slots.shape, count.shape), ((layers, replicas), (layers, experts)))
            self.assertEqual(places.shape, (layers, experts, count.max()))
            self.assertEqual({each.dtype for each in (slots, places, count)}, {np.dtype(np.int64)})
            for layer in range(layers):
                for expert in range(experts):
                    own = np.flatnonzero(slots[layer] == expert)
                    self.assertEqual(count[layer, expert], len(own))
                    self.assertGreaterEqual(len(own), 1)
                    np.testing.assert_array_equal(places[layer, expert, :len(own)], own)
                    self.assertTrue((places[layer, expert, len(own):] == -1).all())
                    parts = nodes if groups % nodes == 0 else 1  # hosts that are planned apart
                    self.assertEqual(len(set(own // (replicas // parts))), 1)
                    if replicas // gpus <= experts // parts:
                        self.assertEqual(len(set(own // (replicas // gpus))), len(own), "twice on a rank")

    def test_no_rank_has_an_expert_twice(self):
        random = np.random.default_rng(12)
        for case in range(40):
            gpus, slots, experts = int(random.integers(2, 7)), int(random.integers(2, 5)), int(random.integers(4, 9))
            if gpus * slots >= experts >= slots:
                table = eplb.rebalance_experts(random_load(random, experts)[None], gpus * slots, 1, 1, gpus)[0]
                self.assertTrue(all(len(set(row)) == slots for row in table.reshape(gpus, slots).tolist()), table)

    def test_all_slots_have_an_expert(self):
        # A plan of MEP leaves one empty here, since that is better.
        self.assertTrue((eplb.plan([82, 95, 6], 2, 2).physical_to_logical < 0).any())
        self.assertEqual(eplb.rebalance_experts(np.array([[82, 95, 6]]), 4, 1, 1, 2)[2].sum(), 4)
        for load, slots, ranks in (([91, 556, 328], 2, 2), ([73, 17, 36, 46], 3, 2), ([65, 4, 41, 88], 2, 4)):
            table = eplb.rebalance_experts(np.array([load]), slots * ranks, 1, 1, ranks)[0].reshape(ranks, slots)
            self.assertTrue(all(len(set(row)) == slots for row in table.tolist()), table)

    @unittest.skipIf(torch is None, "PyTorch is absent")
    def test_tensors(self):
        weight = torch.tensor([[90, 132, 40, 61], [20, 107, 104, 64]])
        found = eplb.rebalance_experts(weight, 6, 2, 1, 3)
        wanted = eplb.rebalance_experts(weight.numpy(), 6, 2, 1, 3)
        for tensor, array in zip(found, wanted):
            self.assertEqual(tensor.dtype, torch.int64)
            np.testing.assert_array_equal(tensor.numpy(), array)


def replay(moves, old, slots):
    """The slots after the moves, each of which reads what was there before all of them."""
    new = list(old)
    for expert, source, target in moves:
        assert old[source[0] * slots + source[1]] == expert
        new[target[0] * slots + target[1]] = expert
    return new


class Moves(unittest.TestCase):
    def test_lead_from_plan_to_plan(self):
        random = np.random.default_rng(10)
        for case in range(40):
            hosts, slots = int(random.choice([1, 2])), int(random.integers(1, 5))
            ranks = hosts * int(random.integers(1, 4))
            experts = int(random.integers(1, ranks * slots + 1))
            before = eplb.plan(random_load(random, experts), ranks, slots, hosts=hosts)
            plan = eplb.plan(random_load(random, experts), ranks, slots, hosts=hosts, previous=before)
            moves = plan.moves(before)
            after = replay(moves, before.physical_to_logical.tolist(), slots)
            wanted = plan.physical_to_logical
            np.testing.assert_array_equal(np.where(wanted >= 0, after, -1), wanted)
            width = ranks // hosts
            for expert, source, target in moves:
                # No expert moves inside its rank, and none comes from another host that is on this one.
                self.assertNotEqual(source[0], target[0])
                near = [place for place in range(ranks * slots) if before.physical_to_logical[place] == expert
                        and place // slots // width == target[0] // width]
                self.assertEqual(source[0] // width == target[0] // width, bool(near))

    def test_a_plan_equal_up_to_order_moves_nothing(self):
        random = np.random.default_rng(11)
        for case in range(30):
            hosts, width, slots = int(random.integers(1, 4)), int(random.integers(1, 4)), int(random.integers(1, 5))
            groups = hosts * int(random.integers(1, 3))
            size = hosts * width * slots // groups
            if size == 0:
                continue
            load = random_load(random, groups * size)
            plan = eplb.plan(load, hosts * width, slots, hosts=hosts, groups=groups)
            # Slots, ranks of a host and hosts in another order; rank r of host h has what `order` says.
            table = plan.physical_to_logical.reshape(hosts, width, slots)
            table = np.array([random.permuted(random.permutation(host), axis=1) for host in random.permutation(table)])
            other = eplb.Plan(table.reshape(-1), load, ranks=hosts * width, hosts=hosts, active=np.ones(hosts * width, bool),
                              max_replicas=hosts * width)
            again = eplb.plan(load, hosts * width, slots, hosts=hosts, groups=groups, previous=other)
            self.assertEqual(again.moves(other), [])
            np.testing.assert_array_equal(again.physical_to_logical, other.physical_to_logical)
            self.assertAlmostEqual(again.imbalance, plan.imbalance)

    def test_sources_that_are_gone(self):
        before = eplb.unmapped(4, 4, 2)  # 0 1 | 2 3 | |
        active = [True, False, True, True]
        moves = eplb.plan(np.ones(4), 4, 2, active=active, previous=before).moves(before)
        self.assertEqual({move.expert: move.source for move in moves if move.expert > 1}, {2: None, 3: None})
        self.assertTrue(all(move.source is None or move.source[0] == 0 for move in moves))
        # A replacement has the place, and no weights.
        plan = eplb.plan(np.ones(4), 4, 2, previous=before)
        fresh = plan.moves(before, lost=[0])
        self.assertEqual([move.source for move in fresh if move.expert < 2], [None] * int(plan.replicas[:2].sum()))
        # A rank that has the expert in another slot copies that.
        swapped = [eplb.Plan(np.array(slots), np.ones(2), ranks=2, hosts=1, active=np.ones(2, bool), max_replicas=2)
                   for slots in ([0, 1, 0, 1], [0, 1, 1, 0])]
        self.assertEqual(swapped[1].moves(swapped[0]), [eplb.Move(1, (1, 1), (1, 0)), eplb.Move(0, (1, 0), (1, 1))])
        layers = eplb.plan(np.ones((2, 4)), 4, 2)
        self.assertEqual(layers.moves(layers), [[], []])


def weights_of(plan, rank, shape=(3, 5), dtype=np.float32):
    """Rows that are known by their expert; empty slots have -1."""
    own = plan.physical_to_logical.reshape(plan.ranks, -1)[rank]
    return np.broadcast_to(own.reshape(-1, *[1] * len(shape)), (len(own), *shape)).astype(dtype)


class Weights(unittest.TestCase):
    def plans(self, seed, ranks=4, slots=3, experts=8):
        random = np.random.default_rng(seed)
        before = eplb.plan(random.integers(0, 100, experts), ranks, slots)
        return before, eplb.plan(random.integers(0, 100, experts), ranks, slots)  # without `previous`: many moves

    def check(self, weights, plan, rank):
        wanted = weights_of(plan, rank, weights.shape[1:], weights.dtype)
        used = plan.physical_to_logical.reshape(plan.ranks, -1)[rank] >= 0
        np.testing.assert_array_equal(weights[used], wanted[used])

    def test_arrive(self):
        for seed, shape, dtype in ((1, (3, 5), np.float32), (2, (), np.int8), (3, (100, 1000), np.float64)):
            before, plan = self.plans(seed)
            moves = plan.moves(before)
            places = [(move.source, move.target) for move in moves]
            self.assertTrue({source for source, _ in places} & {target for _, target in places}, "none is both")

            def work(comm):
                weights = weights_of(before, comm.rank, shape, dtype)
                eplb.move_weights(comm, moves, weights)
                self.check(weights, plan, comm.rank)

            on_threads(4, work)

    def test_several_arrays(self):
        before, plan = self.plans(5)

        def work(comm):
            weights = [weights_of(before, comm.rank, *kind) for kind in (((7, 900), np.float32), ((), np.int64), ((0,), np.int8))]
            eplb.move_weights(comm, plan.moves(before), weights)
            for each in weights:
                self.check(each, plan, comm.rank)

        on_threads(4, work)

    def test_inside_a_rank(self):
        def work(comm):
            weights = np.arange(6).reshape(3, 2)
            eplb.move_weights(comm, [eplb.Move(0, (0, 0), (0, 1)), eplb.Move(1, (0, 1), (0, 0))], weights)
            np.testing.assert_array_equal(weights, [[2, 3], [0, 1], [4, 5]])
            eplb.move_weights(comm, [], weights)

        on_threads(1, work)

    @unittest.skipIf(torch is None, "PyTorch is absent")
    def test_tensors(self):
        before, plan = self.plans(4)

        def work(comm):
            weights = torch.from_numpy(weights_of(before, comm.rank)).to(torch.bfloat16)
            eplb.move_weights(comm, plan.moves(before), weights)
            self.check(weights.float().numpy(), plan, comm.rank)

        on_threads(4, work)

    def test_all_ranks_refuse_what_one_refuses(self):
        move = [eplb.Move(0, (0, 0), (1, 1))]
        bad = ((lambda rank: (move, np.zeros((2, 3))[:, ::2] if rank else np.zeros((2, 2))), "contiguous"),
               (lambda rank: (move, np.zeros((2, 2 + rank))), "different"),
               (lambda rank: ([] if rank else move, np.zeros((2, 2))), "different"),
               (lambda rank: (move * 2, np.zeros((2, 2))), "same target"),
               (lambda rank: ([eplb.Move(7, None, (1, 1))], np.zeros((2, 2))), "expert 7; load"),
               (lambda rank: ([eplb.Move(7, (0, 2), (1, 1))], np.zeros((2, 2))), "slot 2 of rank 0"),
               (lambda rank: (move, [np.zeros((2, 2)), np.zeros((3, 2))]), "2 and 3 slots"),
               (lambda rank: (None, np.zeros((2, 2))), "iterable"),
               (lambda rank: (move, np.float32(1) if rank else np.zeros((2, 2))), "different|single value"))

        def work(comm):
            for given, text in bad:
                moves, weights = given(comm.rank)
                with self.assertRaisesRegex((ValueError, TypeError), f"{text}|ranks gave"):
                    eplb.move_weights(comm, moves, weights)
                if isinstance(weights, np.ndarray):
                    self.assertTrue((weights == 0).all())

        on_threads(2, work)

    def test_a_rank_that_is_lost_on_the_way(self):
        """Rank 2 goes when all have begun. Nobody has new weights, also not those who got all of theirs."""
        moves = [eplb.Move(0, (0, 0), (1, 0)), eplb.Move(1, (1, 0), (0, 0)), eplb.Move(2, (2, 0), (3, 1)), eplb.Move(3, (3, 0), (2, 1))]
        comms = mep.init_all(4)
        found = [None] * 4

        def work(comm):
            weights = np.full((2, 3000), comm.rank, np.float64)
            if comm.rank == 2:
                own = comm.dup()
                own.agree(2 ** 64 - 1)
                comm.abort("gone on purpose")
                return
            try:
                eplb.move_weights(comm, moves, weights)
            except mep.PeerFailedError as problem:
                found[comm.rank] = (str(problem), (weights == comm.rank).all())

        threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for rank in (0, 1, 3):
            self.assertIsNotNone(found[rank], f"rank {rank} had no error")
            self.assertTrue(found[rank][1], f"rank {rank} has new weights")
        for comm in comms:
            comm.close()


if __name__ == "__main__":
    unittest.main()
