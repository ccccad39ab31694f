#!/usr/bin/env python3
"""Calls that users of mpi4py type first, on worlds of threads: numbers, objects, strided and complex arrays, prefixes. Each value
is computed a second time from the inputs of all ranks. Needs NumPy and MEP_LIBRARY."""
import functools
import threading
import time
import unittest

import mep
import numpy as np
from python_test import Interface, ml_dtypes, on_threads

SIZES = (1, 2, 3)
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
          "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4))


def fold(op, values):
    return functools.reduce(UFUNCS[op], values)


def values_of(rank, shape, kind):
    """Small whole numbers, so that each order of a sum has the same bits."""
    numbers = np.random.default_rng(rank).integers(1, 5, size=shape)
    if np.dtype(kind).kind == "c":
        numbers = numbers + 1j * np.random.default_rng(rank + 100).integers(1, 5, size=shape)
    return np.asarray(numbers).astype(kind)


def spread(array):
    """The same values with gaps, backwards in memory."""
    array = np.asarray(array)
    memory = np.zeros(tuple(2 * length for length in array.shape), array.dtype)
    view = memory[(..., *(slice(None, None, -2) for _ in array.shape))]
    view[...] = array
    return view


class Case(unittest.TestCase):
    def on_each_size(self, work):
        for size in SIZES:
            with self.subTest(size=size):
                on_threads(size, work, timeout_ms=10000)

    def same(self, found, expected):
        self.assertIsInstance(found, type(expected))
        if isinstance(expected, np.ndarray):
            self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape))
        np.testing.assert_array_equal(found, expected)

    def says(self, kind, call, *words):
        with self.assertRaises(kind) as caught:
            call()
        for word in words:
            self.assertIn(word, str(caught.exception))
        return caught.exception


class Numbers(Case):
    def test_numbers(self):
        def work(comm):
            ranks = range(comm.size)
            self.same(comm.allreduce(comm.rank + 1), sum(r + 1 for r in ranks))
            self.same(comm.allreduce(comm.rank + 0.5, op="max"), max(r + 0.5 for r in ranks))
            self.same(comm.allreduce(comm.rank + 1j), sum(r + 1j for r in ranks))
            self.same(comm.allreduce(np.float32(comm.rank)), np.float32(sum(ranks)))
            self.same(comm.allreduce(True), comm.size)
            self.same(comm.allreduce(comm.rank == 0, "and"), comm.size == 1)
            self.same(comm.allreduce([comm.rank, 2]), np.array([sum(ranks), 2 * comm.size]))
            self.same(comm.allreduce((comm.rank, 0.5), "min"), np.array([0, 0.5]))
            self.same(comm.allreduce([]), np.array([]))
            for root in ranks:
                expected = sum(ranks) if comm.rank == root else None
                self.same(comm.reduce(comm.rank, root), expected)
                self.same(comm.reduce(comm.rank, "max", root), comm.size - 1 if comm.rank == root else None)
            self.same(comm.reduce([comm.rank], "max"), np.array([comm.size - 1]) if comm.rank == 0 else None)
            if ml_dtypes:
                self.same(comm.allreduce(ml_dtypes.bfloat16(2)), ml_dtypes.bfloat16(2 * comm.size))

        self.on_each_size(work)

    def test_operators_by_place(self):
        def work(comm):
            x = np.full(3, comm.rank, np.float32)
            self.same(comm.allreduce(x.copy(), "max"), np.full(3, comm.size - 1, np.float32))
            rows = np.full((comm.size, 2), comm.rank, np.int32)
            self.same(comm.reduce_scatter(rows, "max"), np.full(2, comm.size - 1, np.int32))
            out = np.zeros(3, np.float32)
            self.assertIs(comm.allreduce(x, "max", out=out), out)
            self.same(out, np.full(3, comm.size - 1, np.float32))
            self.assertIs(comm.reduce(x, 0, "min", out=out), out if comm.rank == 0 else None)
            self.same(x, np.full(3, comm.rank, np.float32))

        self.on_each_size(work)

    def test_texts(self):
        with mep.init(rank=0, size=1) as comm:
            x = np.ones(2)
            self.says(ValueError, lambda: comm.allreduce(x, "average"), "average", "sum, prod")
            for call in (lambda: comm.allreduce(x, max), lambda: comm.reduce(x, max), lambda: comm.reduce(x, np.add, 0)):
                self.says(TypeError, call, "an operator is one of the words sum, prod")
            for value in ("text", {}, None, [1, "two"], [[1], [2, 3]], 2**70, object()):
                self.says(TypeError, lambda: comm.allreduce(value), "a number of at most 64 bits, a list or tuple",
                          type(value).__name__)
            self.says(TypeError, lambda: comm.allreduce(3, np.zeros(1)), "give an array")
            self.says(TypeError, lambda: comm.allreduce(3, dtype="float64"), "give an array")
            self.says(TypeError, lambda: comm.allreduce(x, x, out=x), "recv and out")
            self.says(TypeError, lambda: comm.broadcast({"a": 1}), "dict", "comm.bcast(obj, root)")
            with mep.group():
                self.says(TypeError, lambda: comm.allreduce(3), "give an array")
                self.says(mep.UnsupportedError, lambda: comm.bcast(3), "mep.group()")
                self.says(mep.UnsupportedError, lambda: comm.scan(3), "mep.group()")
                self.says(TypeError, lambda: comm.gather({}), "dict")
                self.says(ValueError, lambda: comm.allreduce(np.ones(4)[::2]), "ascontiguousarray")

    def test_kinds_that_differ(self):
        def work(comm):
            self.says(mep.MismatchError, lambda: comm.allreduce(1 if comm.rank == 0 else 0.5), "int64", "float64")
            self.same(comm.allreduce(1), 2)

        on_threads(2, work, timeout_ms=10000)


class Objects(Case):
    def test_objects(self):
        def work(comm):
            def made(rank):
                return {"rank": rank, "of": (rank, "x" * 100000 * rank), "array": np.arange(rank)}

            def check(found, rank):
                self.assertEqual((found["rank"], found["of"]), (rank, (rank, "x" * 100000 * rank)))
                self.same(found["array"], np.arange(rank))

            for root in range(comm.size):
                for found in (comm.bcast(made(comm.rank), root), comm.bcast(made(root) if comm.rank == root else None, root=root)):
                    check(found, root)
                gathered = comm.gather(made(comm.rank), root=root)
                if comm.rank == root:
                    self.assertIsInstance(gathered, list)
                    for rank in range(comm.size):
                        check(gathered[rank], rank)
                else:
                    self.assertIsNone(gathered)
                check(comm.scatter([made(rank + root) for rank in range(comm.size)] if comm.rank == root else None, root),
                      comm.rank + root)
            for rank, each in enumerate(comm.allgather(made(comm.rank))):
                check(each, rank)
            for rank, each in enumerate(comm.alltoall([made(3 * comm.rank + to) for to in range(comm.size)])):
                check(each, 3 * rank + comm.rank)

        self.on_each_size(work)

    def test_any_value(self):
        def work(comm):
            x = np.arange(6.0).reshape(2, 3)
            for value in (None, 3, 2**70, "", "text", [], [1, 2], {}, {1}, np.float64(2), 1j):
                self.assertEqual(comm.bcast(value), value)
                self.assertEqual(comm.allgather(value), [value] * comm.size)
                self.assertEqual(comm.gather(value), [value] * comm.size if comm.rank == 0 else None)
            for array in (x, x[:, ::2], np.array(3.0), np.zeros((0, 2)), np.array(["a", None])):
                self.same(comm.bcast(array if comm.rank == 0 else None), array)
            self.assertEqual(comm.bcast(b"bytes"), b"bytes")
            # Buffers travel as arrays.
            self.same(comm.allgather(b"ab"), np.array([[97, 98]] * comm.size, np.uint8))
            self.same(comm.allgather(Interface(x)), np.stack([x] * comm.size))

        self.on_each_size(work)

    def test_objects_that_cannot_be_sent(self):
        """All ranks learn of it, and the next call works."""
        lock = threading.Lock()

        def work(comm):
            last = comm.size - 1
            bad = comm.rank == last
            value = lock if bad else {"a": 1}
            short = [1] * (comm.size - 1)
            begun = time.monotonic()
            for kind, call in ((TypeError, lambda: comm.bcast(value, last)), (TypeError, lambda: comm.gather(value, 0)),
                               (TypeError, lambda: comm.allgather(value)),
                               (TypeError, lambda: comm.scatter([value] * comm.size, last)),
                               (TypeError, lambda: comm.scatter(value, last)),
                               (ValueError, lambda: comm.scatter(short, last)),
                               (TypeError, lambda: comm.alltoall([value] * comm.size)),
                               (ValueError, lambda: comm.alltoall(short if bad else [1] * comm.size))):
                if bad:
                    self.says(kind, call)
                else:
                    self.says(mep.InvalidArgumentError, call, f"rank {last} has called it with an object that cannot be sent")
            self.assertLess(time.monotonic() - begun, 5)
            self.assertEqual(comm.allgather("x"), ["x"] * comm.size)

        self.on_each_size(work)

    def test_texts(self):
        with mep.init(rank=0, size=1) as comm:
            self.says(ValueError, lambda: comm.scatter([1, 2]), "a list of 1 objects, not 2")
            self.says(TypeError, lambda: comm.scatter({}), "dict", "a list of 1 objects")
            self.says(TypeError, lambda: comm.bcast(3, root="0"), "root is '0'")
            self.says(TypeError, lambda: comm.gather({}, root="0"), "root is '0'")
            self.says(mep.InvalidArgumentError, lambda: comm.bcast(3, 1), "1")
            self.says(TypeError, lambda: comm.gather({}, recv=np.zeros(1)), "dict")

    def test_arrays_that_meet_objects(self):
        def work(comm):
            x = np.ones(4)
            first = comm.rank == 0
            for call in (lambda: comm.gather(x if first else {}), lambda: comm.allgather({} if first else x),
                         lambda: comm.alltoall(x if first else [1, 2]), lambda: comm.bcast(x) if first else comm.broadcast(x),
                         lambda: comm.scatter([1, 2]) if first else comm.scatter(None, 0, x),
                         lambda: comm.allreduce(x) if first else comm.allgather(3)):
                begun = time.monotonic()
                problem = self.says(mep.MismatchError, call)
                self.assertLess(time.monotonic() - begun, 5)
                self.assertEqual("of an object" in problem.text, "this rank called" in problem.text.split(";")[-1])
            # Arrays of as many bytes as the record of an object has.
            if first:
                comm.allgather(np.zeros(14, np.int8))
            else:
                self.says(mep.MismatchError, lambda: comm.allgather({}), "met an array")
            self.assertEqual(comm.allgather(comm.rank), [0, 1])

        on_threads(2, work, timeout_ms=10000)

    def test_a_root_that_gives_an_array(self):
        """It may end before it hears of the others, as with arrays that differ; the next call then tells."""
        for array, obj in ((lambda comm: comm.broadcast(np.ones(4)), lambda comm: comm.bcast(None)),
                           (lambda comm: comm.scatter(np.ones(4)), lambda comm: comm.scatter(None))):
            def work(comm):
                heard = 0
                for call in (array if comm.rank == 0 else obj, mep.Comm.barrier):
                    try:
                        call(comm)
                    except mep.MismatchError:
                        heard += 1
                return heard

            self.assertTrue(all(on_threads(2, work, timeout_ms=10000)))

    def test_what_to_type_where_ranks_differ(self):
        def heard(comm, *calls):
            texts = []
            for call in calls:
                try:
                    call(comm)
                except mep.MismatchError as problem:
                    texts.append(str(problem))
            return texts

        def lengths(name):
            return lambda comm: heard(comm, lambda c: getattr(c, name)(np.ones(2 + c.rank)), mep.Comm.barrier)

        for text in on_threads(2, lengths("allgather"), timeout_ms=10000):
            self.assertIn("blocks of different lengths: comm.allgatherv(send)", text[0])
        self.assertIn("blocks of different lengths: comm.gatherv(send, root, counts)", on_threads(2, lengths("gather"), timeout_ms=10000)[0][0])

        def rows(comm):
            return heard(comm, lambda c: c.scatter(np.ones((2, 3)) if c.rank == 0 else None), mep.Comm.barrier)

        root, other = on_threads(2, rows, timeout_ms=10000)
        self.assertTrue(root and other)
        self.assertIn("comm.scatter(None, 0, recv), or let rank 0 give a list of rows", other[0])

    def test_a_rank_that_fails(self):
        calls = {
            "bcast": lambda comm: comm.bcast({"a": comm.rank}, 0),
            "gather": lambda comm: comm.gather({"a": comm.rank}, 0),
            "allgather": lambda comm: comm.allgather({"a": comm.rank}),
            "scatter": lambda comm: comm.scatter(["a"] * 3 if comm.rank == 0 else None, 0),
            "alltoall": lambda comm: comm.alltoall(["a"] * 3),
            "allreduce": lambda comm: comm.allreduce(1),
            "allgatherv": lambda comm: comm.allgatherv(np.ones(comm.rank)),
            "scan": lambda comm: comm.scan(1),
        }
        for name, call in calls.items():
            def work(comm):
                call(comm)
                if comm.rank == 1:
                    comm.abort("it raised before the call")
                    return None
                # A broadcast of another rank may end before it is known.
                problem = self.says(mep.PeerFailedError, lambda: [call(comm) for _ in range(100000)], "it raised before the call")
                self.assertEqual(problem.info.failed, [1])
                # The communicator goes on, and the absent rank's object is None.
                self.assertEqual(comm.allgather(comm.rank), [0, None, 2])
                self.assertEqual(comm.alltoall([comm.rank] * 3), [0, None, 2])
                self.assertEqual(comm.gather("x", 2), ["x", None, "x"] if comm.rank == 2 else None)
                self.assertEqual(comm.bcast("y", 2), "y")
                self.same(comm.allgatherv(np.ones(comm.rank + 1)), np.ones(4))
                self.assertEqual(comm.scan(3, "prod"), 3 if comm.rank == 0 else 9)
                self.assertEqual(comm.exscan(3), None if comm.rank == 0 else 3)
                self.says(mep.Error, lambda: comm.bcast("y", 1))
                self.says(mep.Error, lambda: comm.scatter(None, 1))
                return problem.info.seq

            with self.subTest(name):
                seq, _, other = on_threads(3, work, timeout_ms=10000)
                self.assertEqual(seq, other)

    def test_a_rank_that_fails_between_the_records_and_the_bytes(self):
        def work(comm):
            if comm.rank == 1:
                records = np.zeros(1, [("size", "<u8"), ("mark", "S6")])
                records["size"], records["mark"] = 1000, b"pickle"
                comm.allgather(records.view(np.int8))
                comm.abort("between")
                return None
            problem = self.says(mep.PeerFailedError, lambda: comm.allgather({}), "between")
            return problem.info.failed

        self.assertEqual(on_threads(3, work, timeout_ms=10000), [[1], None, [1]])


class Arrays(Case):
    def collectives(self, comm, kind, shape, prepare):
        """Each collective on arrays that prepare() makes of values, against NumPy."""
        size, rank = comm.size, comm.rank
        x = [values_of(each, shape, kind) for each in range(size)]
        rows = [values_of(each + 10, (size, *shape), kind) for each in range(size)]
        total = np.asarray(fold("sum", x))
        mine = prepare(x[rank])
        self.assertIs(comm.allreduce(mine), mine)
        self.same(np.array(mine), total)
        out, before = prepare(np.zeros(shape, kind)), prepare(x[rank])
        self.assertIs(comm.allreduce(before, out), out)
        self.same(np.array(out), total)
        self.same(np.array(before), x[rank])
        for root in range(size):
            mine = prepare(x[rank])
            self.assertIs(comm.broadcast(mine, root), mine)
            self.same(np.array(mine), x[root])
            mine = prepare(x[rank])
            self.assertIs(comm.reduce(mine, root), mine if rank == root else None)
            self.same(np.array(mine), total if rank == root else x[rank])
            self.same(comm.gather(prepare(x[rank]), root), np.stack(x) if rank == root else None)
            out = prepare(np.zeros(shape, kind))
            self.assertIs(comm.scatter(prepare(rows[root]) if rank == root else None, root, out), out)
            self.same(np.array(out), np.asarray(rows[root][rank]))
        self.same(comm.allgather(prepare(x[rank])), np.stack(x))
        out = prepare(np.zeros((size, *shape), kind))
        self.assertIs(comm.allgather(prepare(x[rank]), out), out)
        self.same(np.array(out), np.stack(x))
        out = prepare(np.stack([x[rank]] * size))
        self.assertIs(comm.allgather(None, out), out)
        self.same(np.array(out), np.stack(x))
        self.same(comm.reduce_scatter(prepare(rows[rank])), np.asarray(fold("sum", rows)[rank]))
        self.same(comm.alltoall(prepare(rows[rank])), np.stack([each[rank] for each in rows]))
        blocks = [values_of(each, (2 * each + 1,), kind) for each in range(size)]
        counts = [len(each) for each in blocks]
        self.same(comm.allgatherv(prepare(blocks[rank]), counts), np.concatenate(blocks))
        self.same(comm.allgatherv(prepare(blocks[rank])), np.concatenate(blocks))
        self.same(comm.gatherv(prepare(blocks[rank]), 0, counts), np.concatenate(blocks) if rank == 0 else None)
        self.same(comm.reduce_scatterv(prepare(np.concatenate(blocks)), counts), blocks[rank] * size)
        gap = prepare(np.zeros(sum(counts) + 2, kind))
        displs = [1 + sum(counts[:each]) for each in range(size)]
        self.assertIs(comm.allgatherv(prepare(blocks[rank]), counts, gap, displs), gap)
        self.same(np.array(gap), np.concatenate([np.zeros(1, kind), *blocks, np.zeros(1, kind)]))
        self.same(comm.alltoallv(prepare(np.concatenate(blocks)), counts, [counts[rank]] * size),
                  np.concatenate([blocks[rank]] * size))

    def test_strided(self):
        def work(comm):
            for shape in SHAPES:
                for prepare in (np.array, spread, functools.partial(np.array, order="F")):
                    self.collectives(comm, np.float32, shape, prepare)

        self.on_each_size(work)

    def test_complex(self):
        def work(comm):
            for kind in (np.complex64, np.complex128):
                for shape in SHAPES:
                    for prepare in (np.array, spread):
                        self.collectives(comm, kind, shape, prepare)
            x = np.full(2, comm.rank + 1j)
            self.same(comm.allreduce(x, "avg"), np.full(2, sum(range(comm.size)) / comm.size + 1j))

        self.on_each_size(work)

    def test_what_is_between_stays(self):
        def work(comm):
            memory = np.full(9, 7.0)
            comm.allreduce(np.ones(3), memory[1:7:2])
            self.same(memory, np.array([7.0, comm.size, 7, comm.size, 7, comm.size, 7, 7, 7]))

        self.on_each_size(work)

    def test_texts(self):
        with mep.init(rank=0, size=1) as comm:
            z, f = np.ones(4, np.complex64), np.ones(8, np.float32)
            for op in ("min", "max", "prod", 2, 3, 4):
                self.says(TypeError, lambda: comm.allreduce(z, op=op), f"op is {op!r}", "complex64 takes sum and avg")
            self.says(TypeError, lambda: comm.scan(z, "max"), "complex64 takes sum and prod")
            self.says(ValueError, lambda: comm.allreduce(z, f), "same type", "complex64", "float32")
            self.says(ValueError, lambda: comm.allreduce(f, z), "same type", "complex64", "float32")
            self.says(ValueError, lambda: comm.allreduce(z, z.astype(complex)), "same type", "complex64", "complex128")
            self.says(ValueError, lambda: comm.allreduce(z, z[:2].copy()), "has 2 items, it must have 4")
            for array in (z[::2], f[::2], np.ones(4, complex)):
                array.flags.writeable = False
                comm.barrier()
                before = comm.last_op().seq
                self.says(ValueError, lambda: comm.allreduce(array), "read-only")
                self.assertEqual(comm.last_op().seq, before)
            f = np.ones(8, np.float32)
            overlapping = np.lib.stride_tricks.as_strided(f, (4, 3), (4, 4))
            self.says(ValueError, lambda: comm.allreduce(overlapping), "ascontiguousarray")
            self.same(comm.allgather(np.broadcast_to(f, (2, 8))), np.ones((1, 2, 8), np.float32))
            self.says(ValueError, lambda: comm.iallreduce(f[::2]), "ascontiguousarray")
            self.says(ValueError, lambda: comm.iallreduce(np.ones(2, np.complex64)), "array.view('float32')")
        with mep.init_all(2)[0] as comm:
            self.says(ValueError, lambda: comm.reduce_scatter(np.ones(3, complex)), "3 items, no multiple of 2 ranks")


class Prefixes(Case):
    def test_prefixes(self):
        def work(comm):
            kinds = [np.int32, np.uint8, np.float16, np.float32, np.float64, np.complex64]
            kinds += [ml_dtypes.bfloat16] if ml_dtypes else []
            for kind in kinds:
                for shape in SHAPES:
                    x = [values_of(each, shape, kind) for each in range(comm.size)]
                    for op in UFUNCS:
                        if op in ("and", "or", "xor") and np.dtype(kind).kind not in "iu" or (
                                op in ("min", "max") and kind == np.complex64):
                            continue
                        mine = x[comm.rank].copy()
                        expected = np.asarray(fold(op, x[:comm.rank + 1]), kind)
                        self.same(comm.scan(mine, op=op), expected)
                        self.same(mine, x[comm.rank])
                        self.same(comm.scan(spread(mine), op), expected)
                        out = spread(np.zeros(shape, kind))
                        self.assertIs(comm.scan(mine, out, op), out)
                        self.same(np.array(out), expected)
                        self.same(comm.exscan(mine, op=op),
                                  np.asarray(fold(op, x[:comm.rank]), kind) if comm.rank else None)
            self.same(comm.scan(comm.rank + 1), (comm.rank + 1) * (comm.rank + 2) // 2)
            self.same(comm.scan([comm.rank, 0.5], "max"), np.array([comm.rank, 0.5]))
            self.same(comm.scan(comm.rank == 0, "or"), True)
            self.same(comm.exscan(True), comm.rank or None)
            self.same(comm.scan(np.array([comm.rank != 1]), "and"), np.array([comm.rank < 1]))

        self.on_each_size(work)

    def test_narrow_floats_are_rounded_once(self):
        def work(comm):
            mine = np.array([[2048, 1, 1][comm.rank]], np.float16)
            return comm.scan(mine)[0]

        self.assertEqual(on_threads(3, work), [2048, 2048, 2050])

    def test_texts(self):
        with mep.init(rank=0, size=1) as comm:
            self.says(ValueError, lambda: comm.scan(1, op="avg"), "op is 'avg'", "sum, prod, min")
            self.says(TypeError, lambda: comm.scan(0.5, "xor"), "xor takes whole numbers")
            self.says(TypeError, lambda: comm.scan(np.array([True])), "astype(int)")
            for value in ({}, b"bytes", Interface(np.ones(2))):
                self.says(TypeError, lambda: comm.scan(value), "scan takes a number", "or an array", type(value).__name__)
            self.says(ValueError, lambda: comm.scan(np.ones(2), np.ones(3)), "float64", "(2,)")
            self.says(ValueError, lambda: comm.scan(np.array(["a"])), "no type of MEP")


if __name__ == "__main__":
    unittest.main()
