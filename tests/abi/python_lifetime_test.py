#!/usr/bin/env python3
"""The Python package: which memory it takes, and how long things live: refused calls, Ctrl-C, use after
close and in a forked child, copies, the order of collection. Needs NumPy and MEP_LIBRARY."""
import asyncio
import copy
import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import unittest
import unittest.mock
import weakref

import mep
import numpy as np
from mep import _buffers
from mep import request as request_module

HIDDEN, TOKENS = 8, 6


class Interface:
    """An object that shows its memory by a protocol of NumPy's kind."""

    def __init__(self, array, **changes):
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, **changes}


class CudaInterface:
    def __init__(self, shape, strides, typestr="<f4", address=0x7000):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "strides": strides,
                                         "typestr": typestr, "version": 3}


class Tensor(ctypes.Structure):
    _fields_ = _buffers._DLTensor._fields_ + [("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DLPack:
    """A matrix of float32 on a device of that type."""

    def __init__(self, array, device_type=1):
        self.array, self.device_type = array, device_type
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        self.tensor = Tensor(array.ctypes.data, device_type, 0, array.ndim, 2, 32, 1, self.shape,
                             self.strides, 0, None, None)

    def __dlpack_device__(self):
        return (self.device_type, 0)

    def __dlpack__(self, stream=None):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.tensor), b"dltensor", None)


def misaligned(shape, dtype):
    dtype = np.dtype(dtype)
    data = np.zeros(int(np.prod(shape)) * dtype.itemsize + 1, np.uint8)
    return data[1:].view(dtype).reshape(shape)


def read_only(array):
    array.flags.writeable = False
    return array


# Matrices of float32 that may not be taken for dense ones.
STRIDED = {
    "no step": lambda: np.broadcast_to(np.ones(HIDDEN, np.float32), (TOKENS, HIDDEN)),
    "backwards": lambda: np.ones((TOKENS, HIDDEN), np.float32)[::-1],
    "columns apart": lambda: np.ones((TOKENS, 2 * HIDDEN), np.float32)[:, ::2],
    "columns backwards": lambda: np.ones((TOKENS, HIDDEN), np.float32)[:, ::-1],
    "transposed": lambda: np.ones((HIDDEN, TOKENS), np.float32).T,
    "overlapping": lambda: np.lib.stride_tricks.as_strided(
        np.ones(100, np.float32), (TOKENS, HIDDEN), (4, 4)),
    "interface": lambda: Interface(np.ones((2 * TOKENS, HIDDEN), np.float32), shape=(TOKENS, HIDDEN),
                                   strides=(0, 4)),
    "DLPack": lambda: DLPack(np.broadcast_to(np.ones(HIDDEN, np.float32), (TOKENS, HIDDEN))),
}
# Those that are wrong for another reason.
WRONG = {
    "other byte order": lambda: np.ones((TOKENS, HIDDEN), ">f4"),
    "other byte order by interface": lambda: Interface(np.ones((TOKENS, HIDDEN), ">f4")),
    "objects": lambda: np.ones((TOKENS, HIDDEN), object),
    "structures": lambda: np.zeros((TOKENS, HIDDEN), [("a", "<f4")]),
    "complex": lambda: np.ones((TOKENS, HIDDEN), np.complex64),
    "misaligned": lambda: misaligned((TOKENS, HIDDEN), np.float32),
    "masked": lambda: np.ma.masked_array(np.ones((TOKENS, HIDDEN), np.float32), False),
    "mask of an interface": lambda: Interface(np.ones((TOKENS, HIDDEN), np.float32), mask=np.ones(3)),
    "device of another kind": lambda: DLPack(np.ones((TOKENS, HIDDEN), np.float32), 10),
    "GPU": lambda: CudaInterface((TOKENS, HIDDEN), None),
    "GPU by DLPack": lambda: DLPack(np.ones((TOKENS, HIDDEN), np.float32), 2),
    "too few strides": lambda: CudaInterface((TOKENS, HIDDEN), (4,)),
    "no buffer": lambda: [[1.0] * HIDDEN] * TOKENS,
}

COPIED = ("backwards", "columns apart", "columns backwards", "transposed", "complex")  # python_habits_test.py has values


class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.comm = mep.init(rank=0, size=1)
        cls.ep = mep.Ep(cls.comm, hidden=HIDDEN, top_k=1, num_experts=1, max_tokens_per_rank=TOKENS,
                        input_type="float32")
        cls.handle = cls.ep.handle()

    @classmethod
    def tearDownClass(cls):
        cls.comm.close()

    def refused(self, call, what):
        with self.subTest(what), self.assertRaises((ValueError, TypeError)):
            call()

    def test_collectives(self):
        good = np.zeros((TOKENS, HIDDEN), np.float32)
        comm = self.comm
        for name, make in {**STRIDED, **WRONG, "read only": lambda: read_only(good.copy())}.items():
            bad = make()
            self.refused(lambda: comm.iallreduce(good, bad), f"iallreduce into {name}")
            self.refused(lambda: comm.ibroadcast(good, recv=bad), f"ibroadcast into {name}")
            self.refused(lambda: comm.iallgather(None, bad), f"iallgather in place, {name}")
            if name not in (*COPIED, "no buffer"):
                self.refused(lambda: comm.allreduce(bad), f"allreduce of {name}")
            if name not in COPIED:
                self.refused(lambda: comm.broadcast(bad), f"broadcast of {name}")
                self.refused(lambda: comm.allgather(good, bad), f"allgather into {name}")
            if name != "read only":
                self.refused(lambda: comm.iallreduce(bad, good), f"iallreduce from {name}")
                self.refused(lambda: comm.iallgather(bad), f"iallgather of {name}")
            if name not in (*COPIED, "no step", "no buffer", "read only"):
                self.refused(lambda: comm.allreduce(bad, good), f"allreduce from {name}")
                self.refused(lambda: comm.allgather(bad), f"allgather of {name}")
        np.testing.assert_array_equal(good, 0)
        self.refused(lambda: comm.allreduce(good, dtype=">f4"), "dtype of the other byte order")

    def test_arrays_that_change_in_place(self):
        """The memory is looked up at each call."""
        x = np.full(3, 2.0)
        self.comm.allreduce(x)
        x.resize(100000, refcheck=False)
        x[:] = np.arange(100000)
        y = np.zeros_like(x)
        self.comm.allreduce(x, y)
        np.testing.assert_array_equal(y, x)
        request = self.comm.irecv(y)
        y[:] = 0
        self.comm.allreduce(x)
        self.comm.send(x, 0)
        self.assertEqual(request.wait().bytes, 800000)
        x.dtype = np.int8
        self.assertEqual(self.comm.allgather(x).dtype, np.int8)
        x.shape = (400000, 2)
        self.comm.allreduce(x)
        x.flags.writeable = False
        self.refused(lambda: self.comm.allreduce(x), "an array that has become read-only")
        self.assertEqual(len(self.comm.allgather(x)), 1)

    def test_numpy_of_another_layout(self):
        """Where the fields of an array cannot be read, its attributes are."""
        known = _buffers._ARRAY
        self.assertIs(known, np.ndarray)
        x = np.float32([1, 2])
        with unittest.mock.patch.object(_buffers, "_ARRAY", ()):
            self.assertIsNone(_buffers.in_place(x, None, None))
            self.assertIs(self.comm.allreduce(x), x)
            self.test_collectives()
        with unittest.mock.patch.object(_buffers, "_fields_at", lambda address: _buffers._ArrayFields()):
            self.assertFalse(_buffers._knows_fields())

    def test_small_shapes(self):
        for shape in ((), (0,), (0, 3), (1,), (1, 1)):
            x = np.full(shape, 3, np.int32)
            self.assertEqual(self.comm.allreduce(x).shape, shape)
            self.assertEqual(self.comm.allgather(x).shape, (1,) + shape)
            np.testing.assert_array_equal(x, 3)
        # The stride of an axis of length 1 says nothing.
        one = np.broadcast_to(np.float32([1, 2]), (1, 2)).copy()[:, :]
        one = np.lib.stride_tricks.as_strided(one, (1, 2), (999 * 4, 4))
        np.testing.assert_array_equal(self.comm.allreduce(one), [[1, 2]])

    def test_rows(self):
        idx = np.zeros((TOKENS, 1), np.int64)
        good = np.arange(TOKENS * HIDDEN, dtype=np.float32).reshape(TOKENS, HIDDEN)
        for name, make in {**STRIDED, **WRONG}.items():
            self.refused(lambda: self.handle.dispatch(make(), idx), f"dispatch of {name}")
        # Where a protocol gives strides that can be honoured, they are.
        wide = np.zeros((TOKENS, 2 * HIDDEN), np.float32)
        wide[:, :HIDDEN] = good
        for x in (wide[:, :HIDDEN], Interface(wide[:, :HIDDEN]), DLPack(wide[:, :HIDDEN])):
            self.handle.dispatch(x, idx)
            for name, make in {**STRIDED, **WRONG, "read only": lambda: read_only(good.copy())}.items():
                self.refused(lambda: self.handle.combine(make(), y=good[None]), f"combine into {name}")
                if name != "read only":
                    self.refused(lambda: self.handle.combine(y=make()), f"combine of {name}")
            out = np.full((TOKENS, 2 * HIDDEN), 7, np.float32)
            self.handle.combine(out[:, :HIDDEN], y=good[None])
            np.testing.assert_array_equal(out[:, :HIDDEN], good)
            np.testing.assert_array_equal(out[:, HIDDEN:], 7)

    def test_other_arrays_of_a_dispatch(self):
        x = np.ones((TOKENS, HIDDEN), np.float32)
        idx = np.zeros((TOKENS, 1), np.int64)
        kinds = {"topk_weights": ("f4", TOKENS), "recv_x": ("f4", TOKENS * HIDDEN), "recv_count": ("i4", 1),
                 "recv_count_host": ("i4", 1), "src_info": ("i4", TOKENS), "layout_range": ("i8", 1),
                 "statistics": ("i8", 1)}
        for name, (kind, count) in kinds.items():
            bad = {"steps": np.zeros(2 * count, kind)[::2] if count > 1 else np.zeros(count + 1, kind),
                   "byte order": np.zeros(count, ">" + kind), "misaligned": misaligned(count, kind),
                   "GPU": CudaInterface((count,), None, "<" + kind)}
            if name != "topk_weights":
                bad["read only"] = read_only(np.zeros(count, kind))
            for why, array in bad.items():
                self.refused(lambda: self.handle.dispatch(x, idx, **{name: array}), f"{name}: {why}")
        self.refused(lambda: self.handle.dispatch(x, idx[::-1]), "topk_idx backwards")
        self.refused(lambda: self.handle.dispatch(x, np.zeros((TOKENS, 1), ">i8")), "topk_idx, byte order")
        # C takes a capacity of 0 for its own.
        self.refused(lambda: self.handle.dispatch(x, idx, recv_x=np.zeros(0, np.float32)), "empty recv_x")
        self.refused(lambda: self.handle.dispatch(x, idx, op_status=np.zeros(1)), "op_status")
        for bad_map in ([[0.5]], [[2 ** 40]], [["0"]]):
            self.refused(lambda: self.ep.set_expert_map(bad_map), "map")

    def test_device_arrays_with_strides(self):
        for strides in ((0, 4), (64, 4), (-32, 4), (32, 8)):
            self.refused(lambda: _buffers.buffer(CudaInterface((4, 8), strides)), f"GPU, {strides}")
        found, stride = _buffers.rows_buffer(CudaInterface((4, 8), (64, 4)), "x")
        self.assertEqual((found.on_gpu, stride), (True, 64))

    def test_size_of_memory(self):
        for shape in ((-1,), (1 << 62, 4), (1 << 40, 1 << 40)):
            self.refused(lambda: self.comm.mem_alloc(shape), f"mem_alloc of {shape}")


class RefusedDispatch(unittest.TestCase):
    def test_combine_has_the_tokens_of_the_dispatch_that_was_made(self):
        for first, second in ((TOKENS, 2), (2, TOKENS)):
            with self.subTest(first=first), mep.init(rank=0, size=1) as comm:
                ep = mep.Ep(comm, hidden=HIDDEN, top_k=1, num_experts=1, max_tokens_per_rank=TOKENS,
                            input_type="float32")
                handle = ep.handle()
                x = np.arange(TOKENS * HIDDEN, dtype=np.float32).reshape(TOKENS, HIDDEN)
                received = handle.dispatch(x[:first], np.zeros((first, 1), np.int64))
                ep.combine_input()[0, :first] = received.rows(0)
                with self.assertRaises(mep.InvalidArgumentError):
                    handle.dispatch(x[:second], np.full((second, 1), 99))
                with self.assertRaises(ValueError):
                    handle.combine(np.zeros((second, HIDDEN), np.float32))
                np.testing.assert_array_equal(handle.combine(), x[:first])
                # The library looks for itself, too.
                handle.dispatch(x, np.zeros((TOKENS, 1), np.int64))
                for wrong in (0, 2):
                    handle._tokens = wrong
                    with self.assertRaises(mep.InvalidArgumentError):
                        handle.combine()
                handle._tokens = TOKENS
                self.assertEqual(handle.combine().shape, (TOKENS, HIDDEN))

    def test_handle_without_a_dispatch(self):
        with mep.init(rank=0, size=1) as comm:
            handle = mep.Ep(comm, hidden=HIDDEN, top_k=1, num_experts=1, max_tokens_per_rank=TOKENS,
                            input_type="float32").handle()
            with self.assertRaises(mep.InvalidArgumentError):
                handle.combine()
            with self.assertRaises(mep.InvalidArgumentError):
                handle.combine(np.zeros((0, HIDDEN), np.float32), phase="receive")


def one_of_each(comm):
    ep = mep.Ep(comm, hidden=HIDDEN, top_k=1, num_experts=1, max_tokens_per_rank=TOKENS,
                input_type="float32")
    return ep, ep.handle(), comm.iallreduce(np.ones(3))


def every_call(comm, ep, handle, request):
    """(name, call) of each method and property of the public objects, but close."""
    x, idx = np.ones((2, HIDDEN), np.float32), np.zeros((2, 1), np.int64)
    options = dict(hidden=HIDDEN, top_k=1, num_experts=1, max_tokens_per_rank=TOKENS)
    return [
        ("live", lambda: comm.live), ("epoch", lambda: comm.epoch), ("name", lambda: comm.name),
        ("name =", lambda: setattr(comm, "name", "x")), ("set_timeout", lambda: comm.set_timeout(1)),
        ("transport", lambda: comm.transport(0)), ("async_result", comm.async_result),
        ("mem_alloc", lambda: comm.mem_alloc(3)), ("mem_free", lambda: comm.mem_free(x)),
        ("register", lambda: comm.register(x)), ("deregister", lambda: comm.deregister(0)),
        ("barrier", comm.barrier), ("ibarrier", comm.ibarrier), ("broadcast", lambda: comm.broadcast(x)),
        ("ibroadcast", lambda: comm.ibroadcast(x)), ("allgather", lambda: comm.allgather(x)),
        ("iallgather", lambda: comm.iallgather(x)), ("allreduce", lambda: comm.allreduce(x)),
        ("iallreduce", lambda: comm.iallreduce(x)), ("reduce", lambda: comm.reduce(x)),
        ("ireduce", lambda: comm.ireduce(x)), ("gather", lambda: comm.gather(x)),
        ("igather", lambda: comm.igather(x)), ("scatter", lambda: comm.scatter(x)),
        ("iscatter", lambda: comm.iscatter(x)), ("reduce_scatter", lambda: comm.reduce_scatter(x)),
        ("ireduce_scatter", lambda: comm.ireduce_scatter(x)), ("alltoall", lambda: comm.alltoall(x)),
        ("ialltoall", lambda: comm.ialltoall(x)), ("allgatherv", lambda: comm.allgatherv(x, [x.size])),
        ("iallgatherv", lambda: comm.iallgatherv(x, [x.size])), ("gatherv", lambda: comm.gatherv(x, 0, [x.size])),
        ("igatherv", lambda: comm.igatherv(x, 0, [x.size])), ("scatterv", lambda: comm.scatterv(x, 0, [x.size])),
        ("iscatterv", lambda: comm.iscatterv(x, 0, [x.size])),
        ("reduce_scatterv", lambda: comm.reduce_scatterv(x, [x.size])),
        ("ireduce_scatterv", lambda: comm.ireduce_scatterv(x, [x.size])),
        ("alltoallv", lambda: comm.alltoallv(x, [x.size], [x.size])),
        ("ialltoallv", lambda: comm.ialltoallv(x, [x.size], [x.size])), ("send", lambda: comm.send(x, 0)),
        ("isend", lambda: comm.isend(x, 0)), ("recv", lambda: comm.recv(x)), ("irecv", lambda: comm.irecv(x)),
        ("sendrecv", lambda: comm.sendrecv(x, 0, x.copy())), ("probe", comm.probe), ("iprobe", comm.iprobe),
        ("dup", comm.dup), ("shrink", comm.shrink), ("view", comm.view), ("query", comm.query),
        ("peer_state", lambda: comm.peer_state(0)), ("wait_view", lambda: comm.wait_view(0, 0.01)),
        ("callback", lambda: comm.set_view_callback(print)), ("split", lambda: comm.split(0)),
        ("agree", lambda: comm.agree(1)), ("recover_ranks", comm.recover_ranks),
        ("grow", lambda: comm.grow(1)), ("attach", lambda: comm.attach("x")),
        ("evict", lambda: comm.evict(0)), ("revoke", comm.revoke), ("abort", comm.abort),
        ("Ep", lambda: mep.Ep(comm, **options)), ("Ep.attach", lambda: mep.Ep.attach(comm, **options)),
        ("buffer_size", lambda: mep.Ep.buffer_size(comm, **options)), ("handle", ep.handle),
        ("map", lambda: ep.set_expert_map([0])), ("ep.view", ep.view), ("input", ep.combine_input),
        ("ep.last_op", ep.last_op), ("dispatch", lambda: handle.dispatch(x, idx)),
        ("receive", lambda: handle.dispatch(phase="receive")), ("combine", handle.combine),
        ("request.wait", request.wait), ("request.test", request.test), ("request.info", request.info),
        ("request.fileno", request.fileno), ("request.cancel", request.cancel),
        ("waitall", lambda: mep.waitall([request])), ("waitany", lambda: mep.waitany([request])),
    ]


def run_program(test, text):
    """In a process of its own, which may crash."""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", PROLOGUE + text], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240)
    test.assertEqual((done.returncode, done.stdout.strip()), (0, "well"), done.stderr)


class Lifetimes(unittest.TestCase):
    def test_use_after_close(self):
        comm = mep.init(rank=0, size=1)
        ep, handle, request = one_of_each(comm)
        comm.close()
        for each in (comm, ep, handle):
            each.close()
        self.assertTrue(request.done)
        for name, call in every_call(comm, ep, handle, request):
            with self.subTest(name):
                if name in ("request.wait", "request.test", "request.info", "request.cancel", "waitall", "waitany"):
                    call()  # it was finished by close()
                    continue
                with self.assertRaises(mep.InvalidArgumentError):
                    call()

    def test_world_is_closed_after_what_was_made_from_it(self):
        comm = mep.init(rank=0, size=1)
        child = comm.split(0)
        grandchild = child.split(0)
        comm.close()
        self.assertEqual([repr(each) for each in (child, grandchild)], ["<mep.Comm closed>"] * 2)

    def test_forked_child(self):
        comm = mep.init(rank=0, size=1)
        ep, handle, request = one_of_each(comm)
        calls = every_call(comm, ep, handle, request)
        calls += [("close", comm.close), ("ep.close", ep.close), ("handle.close", handle.close)]
        child = os.fork()
        if child == 0:
            wrong = 0
            for name, call in calls:
                try:
                    call()
                    error = "nothing"
                except mep.ForkedError:
                    continue
                except BaseException as problem:
                    error = repr(problem)
                print(f"in the child {name} raised {error}", file=sys.stderr)
                wrong = 1
            os._exit(wrong)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        np.testing.assert_array_equal(request.wait(), 1)
        comm.close()

    def test_order_of_collection(self):
        for order in range(3):
            objects = [mep.init(rank=0, size=1)]
            objects += one_of_each(objects[0])
            while objects:
                objects.pop(0 if order == 0 else -1 if order == 1 else len(objects) // 2)
                gc.collect()

    def test_dropped_request_keeps_its_buffers(self):
        comms = mep.init_all(2)
        x = np.ones(5)
        alive = weakref.ref(x)
        comms[0].iallreduce(x)
        first = comms.pop(0)
        del x
        gc.collect()
        self.assertIsNotNone(alive())
        other = comms[0].iallreduce(np.ones(5))
        first.barrier_later = threading.Thread(target=first.close)
        first.barrier_later.start()
        np.testing.assert_array_equal(other.wait(), 2)
        first.barrier_later.join()
        del first.barrier_later
        gc.collect()
        self.assertIsNone(alive())
        comms[0].close()

    def test_blocking_calls_use_one_request_again(self):
        with mep.init(rank=0, size=1) as comm:
            x = np.ones(3)
            for _ in range(5):
                comm.allreduce(x)
                comm.barrier()
            first, = comm._spare
            before = comm.last_op()
            # A request that is still used tells of nothing yet, and one that failed is not used again.
            with self.assertRaises(mep.InvalidArgumentError):
                comm.broadcast(x, root=5)
            self.assertEqual(comm.last_op(), before)
            self.assertEqual((comm._spare, request_module.running), ([], {}))
            alive = weakref.ref(x)
            comm.allreduce(x)
            second, = comm._spare
            self.assertIsNot(first, second)
            self.assertEqual(comm.last_op().seq, before.seq + 1)
            x = None
            gc.collect()
            self.assertIsNone(alive())

    def test_asyncio_cancelled_as_it_is_woken(self):
        """Whenever the cancel comes after what wakes the await, it is not lost."""
        comms, readers = mep.init_all(2), []

        async def cancelled(turns):
            loop, request = asyncio.get_running_loop(), comms[0].ibarrier()
            add_reader = loop.add_reader

            def noted(fd, callback):
                readers.append(callback)
                add_reader(fd, callback)

            async def awaiting():
                await request

            with unittest.mock.patch.object(loop, "add_reader", noted):
                task = loop.create_task(awaiting())
                while not readers:
                    await asyncio.sleep(0)
            readers.pop()()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            ended, _ = await asyncio.wait({task}, timeout=5)
            comms[1].ibarrier()
            request.wait()
            return task in ended and task.cancelled()

        for turns in range(6):
            with self.subTest(turns=turns):
                self.assertTrue(asyncio.run(cancelled(turns)))
        for comm in comms:
            comm.close()

    def test_no_copies(self):
        comm = mep.init(rank=0, size=1)
        for each in (comm,) + one_of_each(comm):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.subTest(type(each).__name__, make=make), self.assertRaises(TypeError):
                    make(each)
        comm.close()


class ControlC(unittest.TestCase):
    def run_program(self, text):
        run_program(self, text)

    def test_in_a_dispatch(self):
        self.run_program("""
for delay in range(12):
    comms, eps = world()
    try:
        with comms[0] as comm, eps[0] as ep, ep.handle() as handle:
            interrupt(delay * 0.003)
            x = np.ones((4000, 1024), np.float32)
            handle.dispatch(x, np.zeros((4000, 1), np.int64))  # rank 1 never comes
            raise SystemExit("not interrupted")
    except KeyboardInterrupt:
        pass
    assert repr(comms[0]) == "<mep.Comm closed>"
    other(comms[1])
print("well")
""")

    def test_close_waits_for_what_still_runs(self):
        self.run_program("""
comms, eps = world(timeout_ms=2000)
handle = eps[0].handle()
try:
    interrupt_inside(mep.ep, "mep_dispatch")
    handle.dispatch(np.ones((4000, 1024), np.float32), np.zeros((4000, 1), np.int64))
except KeyboardInterrupt:
    pass
assert comms[0]._calls._running
handle.close()
assert not comms[0]._calls._running
other(comms[1])
comms[0].close()
print("well")
""")

    def test_in_a_split(self):
        # The comm that the call made in the background is nobody's, and does not keep the world.
        self.run_program("""
comms, eps = world()
try:
    interrupt_inside(mep.comm, "mep_comm_split")
    comms[0].split(0)
except KeyboardInterrupt:
    pass
children = []
thread = threading.Thread(target=lambda: children.append(comms[1].split(0)))
thread.start()
thread.join()
other(comms[1])
comms[0].close()
print("well")
""")

    def test_anywhere_in_a_collective(self):
        self.run_program("""
comm = mep.init(rank=0, size=1)
interrupted = 0
for i in range(600):
    x = np.full(64, i, np.float64)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + i % 29))
        for _ in range(50):
            comm.iallreduce(x).wait()
            comm.allreduce(x)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert (x == i).all()
    comm.allreduce(x)
    assert not any(each in mep.request.running for each in comm._spare)
assert interrupted > 100, interrupted
comm.close()
print("well")
""")


PROLOGUE = """
import mep, numpy as np, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGALRM, signal.default_int_handler)

def interrupt(after):
    def send():
        time.sleep(after)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    threading.Thread(target=send).start()

class Watched:
    # The library, with one function that tells when it is called.
    def __init__(self, library, name):
        self.library, self.name, self.called = library, name, threading.Event()
    def __getattr__(self, name):
        function = getattr(self.library, name)
        if name != self.name:
            return function
        return lambda *arguments: (self.called.set(), function(*arguments))[1]

def interrupt_inside(module, name):
    watched = module.lib = Watched(module.lib, name)
    def send():
        watched.called.wait()
        module.lib = watched.library
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    threading.Thread(target=send).start()

def world(**options):
    comms, eps = mep.init_all(2, **options), [None, None]
    def make(rank):
        eps[rank] = mep.Ep(comms[rank], hidden=1024, top_k=1, num_experts=2, max_tokens_per_rank=4000,
                           input_type="float32")
    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return comms, eps

def other(comm):
    # On a thread: nothing is sent there.
    thread = threading.Thread(target=comm.close)
    thread.start()
    thread.join()
"""


if __name__ == "__main__":
    unittest.main()
