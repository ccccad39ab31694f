#!/usr/bin/env python3
"""The Python package on worlds of threads: values, types, buffers of other libraries, errors, Ctrl-C,
asyncio, expert parallelism. Needs NumPy and MEP_LIBRARY."""
import array
import asyncio
import builtins
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
import unittest

import mep
from mep._buffers import buffer, dtype_number
import numpy as np

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


def on_threads(count, work, **options):
    """work(comm) on each rank of a world of threads; returns the results in rank order."""
    comms = mep.init_all(count, **options)
    results, failures = [None] * count, []

    def run(rank):
        try:
            results[rank] = work(comms[rank])
        except BaseException as problem:
            failures.append(problem)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for comm in comms:
        comm.close()
    if failures:
        raise failures[0]
    return results


class Interface:
    """An object that has __array_interface__ and is no ndarray."""

    def __init__(self, values):
        self.values = values
        self.__array_interface__ = values.__array_interface__


class DLPack:
    """An object that has DLPack alone."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, stream=None):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class Basics(unittest.TestCase):
    def test_module(self):
        self.assertEqual(mep.library_version(), mep.__version__)
        self.assertEqual(mep.result_string(-6), "MEP_ERR_TIMEOUT")
        self.assertEqual([mep.dtype_size(t) for t in ("int8", "bfloat16", np.float64, 14)], [1, 2, 8, 1])

    def test_every_collective_has_its_method(self):
        from mep._collectives import COLLECTIVES

        self.assertTrue(COLLECTIVES)
        for name in COLLECTIVES:
            self.assertTrue(callable(getattr(mep.Comm, name.removeprefix("mep_"), None)), name)

    def test_preferred_hca(self):
        with self.assertRaises(mep.NotFoundError) as caught:
            mep.preferred_hca("gpu:4000")
        self.assertIn("gpu:4000", caught.exception.text)
        with self.assertRaises(mep.InvalidArgumentError):
            mep.preferred_hca("nowhere")

    def test_world_of_one(self):
        with mep.init(rank=0, size=1) as comm:
            self.assertEqual((comm.rank, comm.size, comm.live, comm.epoch), (0, 1, 1, 1))
            self.assertEqual(comm.transport(0), "self")
            comm.name = "of one"
            self.assertEqual(comm.name, "of one")
            view = comm.view()
            self.assertEqual((view.size, view.live, view.states), (1, 1, [mep.PeerState.ALIVE]))
            self.assertEqual(comm.peer_state(0), mep.PeerState.ALIVE)
            comm.barrier()
            info = comm.last_op()
            self.assertEqual((info.result, info.contributors, info.failed), (0, [0], []))
            comm.barrier()
            self.assertEqual(comm.last_op().seq, info.seq + 1)
            comm.allreduce(array.array("h", [1, 2, 3]))
            info = comm.query()
            self.assertEqual((info.size, info.device, info.reach), (comm.size, None, [mep.Reach.SELF]))
            stats = comm.stats()
            self.assertEqual((stats.collectives, stats.collective_bytes, stats.errors_other), (3, 6, 0))
        self.assertEqual(repr(comm), "<mep.Comm closed>")
        comm.close()

    def test_memory(self):
        with mep.init(rank=0, size=1) as comm:
            memory = comm.mem_alloc((3, 4), "float32")
            self.assertEqual((memory.shape, memory.dtype, memory.sum()), ((3, 4), np.float32, 0))
            memory[:] = 2
            comm.allreduce(memory)
            comm.mem_free(memory)

    def test_errors(self):
        with mep.init(rank=0, size=1) as comm:
            x = np.ones(4, np.float32)
            with self.assertRaises(mep.InvalidArgumentError) as caught:
                comm.broadcast(x, root=3)
            self.assertEqual((caught.exception.code, caught.exception.name),
                             (-1, "MEP_ERR_INVALID_ARGUMENT"))
            self.assertIn("3", caught.exception.text)
            self.assertIsInstance(caught.exception, ValueError)
            with self.assertRaises(NotImplementedError):
                comm.allreduce(x, op="xor")
            with self.assertRaises(builtins.TimeoutError):
                comm.wait_view(comm.epoch, timeout=0.02)
            with self.assertRaises((mep.NotFoundError, mep.UnsupportedError)):
                comm.attach("nothing has this name")
            with self.assertRaises(ValueError):
                comm.allreduce(x, op="average")
            with self.assertRaises(ValueError):
                comm.allreduce(x, np.ones(5, np.float32))
            with self.assertRaises(ValueError):
                comm.allreduce(x, np.ones(4, np.float64))
            with self.assertRaises(ValueError):
                comm.iallreduce(np.ones((4, 4), np.float32)[:, 1])
            with self.assertRaises(TypeError):
                comm.iallreduce(3.0)
            with self.assertRaises(ValueError):
                comm.allreduce(b"1234")  # read-only
        self.assertEqual(len({cls.code for cls in mep.Error.__subclasses__()}), 23)
        with self.assertRaises(TypeError):
            mep.init(rang=0)

    def test_object_without_library(self):
        environment = dict(os.environ, MEP_LIBRARY="/nowhere/libmep.so")
        done = subprocess.run([sys.executable, "-c", "import mep"], env=environment, text=True,
                              stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/libmep.so", done.stderr)
        environment["MEP_LIBRARY"] = __file__
        done = subprocess.run([sys.executable, "-c", "import mep"], env=environment, text=True,
                              stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, f"OSError: {__file__} does not load: .*apt install")


class Collectives(unittest.TestCase):
    def test_values(self):
        def work(comm):
            x = np.arange(100, dtype=np.int32) + comm.rank
            total = comm.allreduce(x, np.empty_like(x))
            np.testing.assert_array_equal(total, 3 * np.arange(100) + 3)
            self.assertIs(comm.allreduce(x, op="max"), x)
            np.testing.assert_array_equal(x, np.arange(100) + 2)
            rows = comm.allgather(np.float64([comm.rank, 10.0]))
            np.testing.assert_array_equal(rows, [[0, 10], [1, 10], [2, 10]])
            own = np.zeros((3, 2), np.int16)
            own[comm.rank] = comm.rank + 1
            comm.allgather(None, own)
            np.testing.assert_array_equal(own, [[1, 1], [2, 2], [3, 3]])
            y = np.full(5, comm.rank, np.uint8)
            comm.broadcast(y, root=2)
            np.testing.assert_array_equal(y, 2)
            comm.barrier()
            self.assertEqual(comm.agree(0b110 | comm.rank), 0b110)
            return comm.last_op().contributors

        self.assertEqual(on_threads(3, work), [[0, 1, 2]] * 3)

    def test_blocks(self):
        def work(comm):
            mine = np.arange(6, dtype=np.int32).reshape(3, 2) + 10 * comm.rank
            # Block r of rank s holds 2 r + 10 s and one more.
            np.testing.assert_array_equal(comm.reduce_scatter(mine), [6 * comm.rank + 30, 6 * comm.rank + 33])
            comm.reduce_scatter(mine, mine[comm.rank], op="max")  # in place
            np.testing.assert_array_equal(mine[comm.rank], [2 * comm.rank + 20, 2 * comm.rank + 21])
            theirs = comm.alltoall(np.int16([10 * comm.rank + r for r in range(3)]))
            np.testing.assert_array_equal(theirs, [comm.rank, 10 + comm.rank, 20 + comm.rank])
            rows = comm.gather(np.full(2, comm.rank, np.uint8), root=1)
            if comm.rank == 1:
                np.testing.assert_array_equal(rows, [[0, 0], [1, 1], [2, 2]])
                own = np.full((3, 1), 7.0)
                self.assertIs(comm.gather(None, 1, own), own)
                np.testing.assert_array_equal(own, [[0], [7], [2]])
            else:
                self.assertIsNone(rows)
                comm.gather(np.float64([comm.rank]), 1)
            blocks = np.arange(6.0) if comm.rank == 2 else None
            part = np.zeros(2)
            self.assertIs(comm.scatter(blocks, 2, part), part)
            np.testing.assert_array_equal(part, [2 * comm.rank, 2 * comm.rank + 1])
            comm.scatter(blocks, 2, None if comm.rank == 2 else part)
            x = np.float32([comm.rank, 1])
            total = comm.reduce(x, 0)
            self.assertIs(total, x if comm.rank == 0 else None)
            if comm.rank == 0:
                np.testing.assert_array_equal(x, [3, 3])
            request = comm.ialltoall(np.int64([comm.rank] * 3))
            np.testing.assert_array_equal(request.wait(), [0, 1, 2])
            for wrong in (lambda: comm.alltoall(np.zeros(4)), lambda: comm.reduce_scatter(np.zeros(3), np.zeros(2)),
                          lambda: comm.reduce(x, 0, op="plus")):
                with self.assertRaises(ValueError):
                    wrong()
            with self.assertRaises(mep.InvalidArgumentError):
                comm.alltoall(mine, mine)
            return comm.last_op().seq

        self.assertEqual(len(set(on_threads(3, work))), 1)

    def test_counts(self):
        def work(comm):
            r, counts = comm.rank, [1, 0, 2]
            mine = np.full(counts[r], r + 1, np.int32)
            np.testing.assert_array_equal(comm.allgatherv(mine, counts), [1, 3, 3])
            spread = np.zeros(6, np.int32)
            self.assertIs(comm.allgatherv(mine, counts, spread, [5, 0, 1]), spread)
            np.testing.assert_array_equal(spread, [0, 3, 3, 0, 0, 1])
            comm.allgatherv(None, counts, spread, [5, 0, 1])  # in place
            self.assertEqual(list(spread), [0, 3, 3, 0, 0, 1])
            rows = comm.gatherv(mine, 1, counts if r == 1 else None)
            np.testing.assert_array_equal(rows, [1, 3, 3] if r == 1 else None)
            part = np.zeros(counts[r], np.int32)
            comm.scatterv(np.int32([7, 8, 9]) if r == 0 else None, 0, counts if r == 0 else None, part)
            np.testing.assert_array_equal(part, [[7], [], [8, 9]][r])
            sums = comm.reduce_scatterv(np.int32([1, 2, 3]) * (r + 1), counts)
            np.testing.assert_array_equal(sums, [[6], [], [12, 18]][r])
            # Rank s has s items for rank r of r.
            given, gotten = [r] * 3, [0, 1, 2]
            request = comm.ialltoallv(np.repeat(np.int64([10, 11, 12]) + 10 * r, r), given, gotten)
            np.testing.assert_array_equal(request.wait(), [20 + r, 30 + r, 30 + r])
            for wrong in (lambda: comm.allgatherv(mine, [1, 2]), lambda: comm.allgatherv(mine, [5, 5, 5]),
                          lambda: comm.alltoallv(mine, [9, 9, 9], [9, 9, 9]),
                          lambda: comm.reduce_scatterv(mine, [-1, 0, 0])):
                with self.assertRaises(ValueError):
                    wrong()
            with self.assertRaises(mep.MismatchError):
                comm.alltoallv(np.zeros(3, np.int8), [1, 1, 1], [1, 1, 1 if r else 2])
            return comm.last_op().seq

        self.assertEqual(len(set(on_threads(3, work))), 1)

    def test_buffers_of_others(self):
        def work(comm):
            values = np.full(4, comm.rank + 1.0, np.float32)
            comm.allreduce(Interface(values))
            np.testing.assert_array_equal(values, 3)
            comm.allreduce(DLPack(values))
            np.testing.assert_array_equal(values, 6)
            plain = array.array("d", [1.0, 2.0])
            comm.allreduce(plain)
            self.assertEqual(list(plain), [2.0, 4.0])
            data = bytearray([comm.rank] * 3)
            comm.allreduce(memoryview(data), op="max")
            self.assertEqual(data, bytearray([1, 1, 1]))

        on_threads(2, work)

    def test_types_without_numpy(self):
        """bfloat16 and 8-bit floats travel as unsigned integers with a dtype; 1.5 + 1.5 = 3."""
        def work(comm):
            for name, raw, one_and_half, three in (("bfloat16", np.uint16, 0x3FC0, 0x4040),
                                                   ("float8_e4m3", np.uint8, 0x3C, 0x44),
                                                   ("float8_e5m2", np.uint8, 0x3E, 0x42)):
                x = np.full(7, one_and_half, raw)
                comm.allreduce(x, dtype=name)
                np.testing.assert_array_equal(x, three)
            with self.assertRaises(ValueError):
                comm.allreduce(np.zeros(4, np.uint8), dtype="bfloat16")
            if ml_dtypes:
                x = np.full(7, 1.5, ml_dtypes.bfloat16)
                comm.allreduce(x)
                np.testing.assert_array_equal(x.astype(np.float32), 3)
            half, flags = np.full(3, 0.5, np.float16), np.array([True, comm.rank == 0])
            comm.allreduce(half)
            comm.allreduce(flags, op="and")
            np.testing.assert_array_equal(half, 1)
            np.testing.assert_array_equal(flags, [True, False])

        on_threads(2, work)

    def test_requests(self):
        gate = threading.Event()

        def work(comm):
            if comm.rank == 1:
                gate.wait(60)
                comm.barrier()
                return comm.allreduce(np.ones(9))
            first = comm.ibarrier()
            self.assertFalse(first.test())
            with self.assertRaises(mep.InProgressError):
                first.wait(0.01)
            self.assertEqual(first.info().result, mep.InProgressError.code)
            second = comm.iallreduce(np.ones(9))
            gate.set()
            while not first.test():
                select.select([first], [], [], 0.05)
            self.assertEqual(second.wait().sum(), 18)
            self.assertTrue(second.done)
            return second.wait()  # again: the same answer

        self.assertEqual([float(result.sum()) for result in on_threads(2, work)], [18, 18])

    def test_asyncio(self):
        async def both(comm):
            first, second = np.ones(4), np.full(4, 2.0)
            return await asyncio.gather(comm.iallreduce(first), comm.iallreduce(second))

        for first, second in on_threads(2, lambda comm: asyncio.run(both(comm))):
            np.testing.assert_array_equal([first, second], [[2] * 4, [4] * 4])

    def test_split(self):
        def work(comm):
            part = comm.split(comm.rank % 2, -comm.rank)
            if comm.rank == 3:
                self.assertIsNone(comm.split(-1))
            else:
                comm.split(0).close()
            ranks = part.allgather(np.int32([comm.rank]))
            return ranks.ravel().tolist()

        self.assertEqual(on_threads(4, work), [[2, 0], [3, 1], [2, 0], [3, 1]])


class CudaArray:
    """Memory that says it is on a GPU; nobody may touch it here."""

    def __init__(self, address, shape, typestr):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": typestr, "strides": None, "version": 3}


class CudaStream:
    def __init__(self, address):
        self.cuda_stream = address


class CudaStreamProtocol:
    def __init__(self, address):
        self.address = address

    def __cuda_stream__(self):
        return (0, self.address)


class DeviceArrays(unittest.TestCase):
    """Device arrays as far as they work without a GPU: where they are, and that hosts refuse them."""

    def test_array(self):
        found = mep._buffers.buffer(CudaArray(0x7000, (3, 5), "<f4"), writable=True)
        self.assertEqual((found.address, found.count, found.on_gpu), (0x7000, 15, True))
        self.assertEqual(found.dtype, mep._buffers.dtype_number("float32"))
        bfloat = mep._buffers.buffer(CudaArray(0x7000, (4,), "<u2"), dtype="bfloat16")
        self.assertEqual((bfloat.dtype, bfloat.itemsize), (mep._buffers.dtype_number("bfloat16"), 2))
        self.assertFalse(mep._buffers.buffer(np.zeros(3)).on_gpu)

    def test_memory_of_the_library(self):
        array = mep.DeviceArray(0x4000, (3, 5), dtype_number("bfloat16"), 1)
        found = buffer(array)
        self.assertEqual((found.address, found.shape, found.dtype, found.on_gpu),
                         (0x4000, (3, 5), dtype_number("bfloat16"), True))
        self.assertEqual((array.__dlpack_device__(), len(array)), ((2, 1), 3))
        self.assertFalse(hasattr(array, "__cuda_array_interface__"))
        named = mep.DeviceArray(0x4000, (4,), dtype_number("int32"), 0)
        self.assertEqual(named.__cuda_array_interface__["typestr"], "<i4")
        self.assertEqual(buffer(named).dtype, dtype_number("int32"))
        for wrong in (lambda: array[0], lambda: np.asarray(array), lambda: np.add(array, 1)):
            with self.assertRaisesRegex(TypeError, "from_dlpack"):
                wrong()

    def test_host_comm_refuses_it(self):
        with mep.init(rank=0, size=1) as comm:
            self.assertIsNone(comm.device)
            for call in (comm.allreduce, comm.broadcast):
                with self.assertRaises(ValueError) as caught:
                    call(CudaArray(0x7000, (4,), "<f4"))
                self.assertIn("GPU", str(caught.exception))
            with self.assertRaises(mep.UnsupportedError):
                comm.allreduce(np.zeros(4), stream=CudaStream(0x1234))

    def test_streams(self):
        address = mep._buffers.stream_address
        self.assertEqual([address(7), address(None), address(CudaStream(0x1234)),
                          address(CudaStreamProtocol(0x99))], [7, 0, 0x1234, 0x99])
        with self.assertRaises(TypeError):
            address("main")

    def test_device_that_is_not_there(self):
        with self.assertRaises(mep.Error):
            mep.init(rank=0, size=1, device=9999)


class Failures(unittest.TestCase):
    def test_info_of_a_reporting_call(self):
        # Nothing was under way when the rank went: the next call reports it, and has its number.
        def work(comm):
            if comm.rank == 1:
                comm.abort()
                return None
            while comm.live == 3:
                time.sleep(0.001)
            with self.assertRaises(mep.PeerFailedError) as caught:
                comm.barrier()
            return caught.exception.info.failed, caught.exception.info.seq

        self.assertEqual(on_threads(3, work, timeout_ms=5000), [([1], 1), None, ([1], 1)])

    def test_info_names_the_failed(self):
        def work(comm):
            if comm.rank == 1:
                comm.abort("ValueError: no such expert\0\u00e9")
                return None
            with self.assertRaises(mep.PeerFailedError) as caught:
                comm.barrier()
            self.assertIn("ValueError: no such expert?\u00e9", str(caught.exception))
            self.assertEqual(caught.exception.info.failed, [1])
            self.assertEqual(comm.live, 2)
            lost = np.full(3, 7, np.int32)
            for shown in ([0, 1, 0], [0, 0, 0]):
                comm.lost_ranks(lost)
                self.assertEqual(lost.tolist(), shown)
                comm.forget_lost()
            return comm.allreduce(np.ones(1))[0]

        self.assertEqual(on_threads(3, work, timeout_ms=5000), [2, None, 2])

    def test_view_callback(self):
        called = threading.Event()
        views = []

        def work(comm):
            if comm.rank == 1:
                self.assertTrue(ready.wait(60))
                comm.abort()
                return
            comm.set_view_callback(lambda view: (views.append(view), called.set()))
            ready.set()
            try:
                comm.barrier()
            except mep.PeerFailedError:
                pass
            self.assertTrue(called.wait(60))
            comm.set_view_callback(None)

        ready = threading.Event()
        on_threads(2, work, timeout_ms=5000)
        self.assertEqual(views[-1].live, 1)

    def interrupted(self, statement):
        """Runs statement on rank 0 of two, of which rank 1 never comes, and sends SIGINT."""
        program = ("import mep, numpy as np, signal, sys\n"
                   "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                   "comms = mep.init_all(2, timeout_ms=60000)\n"
                   "comm = comms[0]\n"
                   "try:\n"
                   "    print('waiting', flush=True)\n"
                   f"    {statement}\n"
                   "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
                   "    import os; os._exit(7)\n")
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "waiting\n")
        try:
            child.wait(0.5)  # so that the call waits by now; right as well if it does not
        except subprocess.TimeoutExpired:
            pass
        child.send_signal(signal.SIGINT)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
        output = child.stdout.read()
        child.stdout.close()
        self.assertIn("interrupted", output)
        self.assertEqual(child.wait(), 7)

    def test_control_c_in_a_collective(self):
        self.interrupted("comm.allreduce(np.ones(4))")

    def test_control_c_in_a_blocking_call(self):
        self.interrupted("comm.agree(1)")


class ExpertParallelism(unittest.TestCase):
    TOKENS, HIDDEN, TOP_K, EXPERTS = 6, 256, 2, 4

    def routing(self, rank):
        t = np.arange(self.TOKENS)
        idx = np.stack([(rank + t) % self.EXPERTS, (rank + t + 1 + t % 3) % self.EXPERTS], axis=1)
        idx[2, 1] = -1
        weights = np.random.default_rng(rank).random((self.TOKENS, self.TOP_K), np.float32)
        return idx, weights

    def layer(self, comm, input_type, wire_type, make, read, split_phases):
        idx, weights = self.routing(comm.rank)
        values = np.random.default_rng(7 + comm.rank).random((self.TOKENS, self.HIDDEN), np.float32)
        x = make(values)
        options = dict(hidden=self.HIDDEN, top_k=self.TOP_K, num_experts=self.EXPERTS,
                       max_tokens_per_rank=self.TOKENS, input_type=input_type, wire_type=wire_type)
        self.assertGreater(mep.Ep.buffer_size(comm, **options).window_bytes, 0)
        with mep.Ep(comm, **options) as ep, ep.handle() as handle:
            y = ep.combine_input()
            if split_phases:
                self.assertIsNone(handle.dispatch(x, idx, weights, phase="send"))
                received = handle.dispatch(phase="receive")
            else:
                received = handle.dispatch(x, idx, weights)
            self.assertEqual(received.total, int(np.sum(received.count)))
            for e in range(ep.experts_per_rank):
                rows = received.rows(e)
                if received.scales is not None:
                    scales = np.repeat(received.scales[e, : len(rows)], 128, axis=1)
                    rows = rows.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales
                factor = comm.rank * ep.experts_per_rank + e + 1
                y[e, : len(rows)] = make(read(rows) * factor)
            out = handle.combine()
            self.assertEqual(ep.last_op().contributors, [0, 1])
            self.assertFalse(handle.partial)
        factor = (weights * np.where(idx < 0, 0, idx + 1)).sum(axis=1, keepdims=True)
        return np.max(np.abs(read(out) - factor * read(x)))

    def test_float32(self):
        errors = on_threads(2, lambda comm: self.layer(
            comm, "float32", None, lambda v: v, np.asarray, False))
        self.assertLess(max(errors), 1e-4)

    @unittest.skipUnless(ml_dtypes, "ml_dtypes is not installed")
    def test_bfloat16_phases(self):
        errors = on_threads(2, lambda comm: self.layer(
            comm, "bfloat16", None, lambda v: v.astype(ml_dtypes.bfloat16),
            lambda v: np.asarray(v).astype(np.float32), True))
        self.assertLess(max(errors), 0.1)

    @unittest.skipUnless(ml_dtypes, "ml_dtypes is not installed")
    def test_float8_wire(self):
        errors = on_threads(2, lambda comm: self.layer(
            comm, "bfloat16", "float8_e4m3", lambda v: np.asarray(v).astype(ml_dtypes.bfloat16),
            lambda v: np.asarray(v).astype(np.float32), False))
        self.assertLess(max(errors), 0.5)

    def test_own_buffers_and_strides(self):
        def work(comm):
            ep = mep.Ep(comm, hidden=64, top_k=1, num_experts=2, max_tokens_per_rank=4,
                        input_type="float32")
            handle = ep.handle(1)
            wide = np.arange(4 * 80, dtype=np.float32).reshape(4, 80)
            idx = np.full((4, 1), 1 - comm.rank, np.int32)  # all to the other rank
            recv = np.zeros((1, 8, 64), np.float32)
            count, info = np.zeros(1, np.int32), np.zeros((1, 8), np.int32)
            statistics = np.full(1, 10, np.int64)
            status = mep.OpStatus()
            got = handle.dispatch(wide[:, :64], idx, recv_x=recv, recv_count=count, src_info=info,
                                  statistics=statistics, op_status=status)
            self.assertIs(got.x, recv)
            self.assertEqual((count[0], statistics[0], got.total, status.result), (4, 14, 4, 0))
            self.assertEqual((status.version, status.failed_count, status.failed), (2, 0, [0]))
            np.testing.assert_array_equal(recv[0, :4], wide[:, :64])
            np.testing.assert_array_equal(info[0, :4], range(4))
            out = np.zeros((4, 80), np.float32)
            handle.combine(out[:, :64], y=recv * 2, bias=np.ones(64, np.float32))
            np.testing.assert_array_equal(out[:, :64], wide[:, :64] * 2 + 1)
            np.testing.assert_array_equal(out[:, 64:], 0)
            with self.assertRaises(mep.InvalidArgumentError):
                handle.dispatch(wide[:, :64], np.full((4, 1), 2))
            with self.assertRaises(ValueError):
                handle.dispatch(wide, idx)
            ep.set_expert_map([1, 0])
            ep.set_expert_map(None)
            # Columns that are missing are unused places.
            with mep.Ep(comm, hidden=64, top_k=1, num_experts=2, max_tokens_per_rank=4, input_type="float32",
                        experts_per_rank=2, max_replicas=3) as spare:
                spare.set_expert_map([[3], [0]])
                got = spare.handle().dispatch(wide[:, :64], np.full((4, 1), 0))
                self.assertEqual(got.count.tolist(), [[0, 0], [0, 8]][comm.rank])
                with self.assertRaises(ValueError):
                    spare.set_expert_map([[3], [0], [1]])

        on_threads(2, work)


if __name__ == "__main__":
    unittest.main()
