#!/usr/bin/env python3
"""The Python package: types of items, what results are made of, and what errors say. Needs NumPy and MEP_LIBRARY."""
import enum
import inspect
import sys
import time
import types
import unittest
import unittest.mock

import mep
import numpy as np
from mep._buffers import NUMBERS, RAW, maker
from python_test import DLPack, Interface, ml_dtypes, on_threads


class Types(unittest.TestCase):
    def test_each_type_by_its_values(self):
        """The library's results show which type it took: sign, width and fraction."""
        examples = {
            "int8": (np.int8, [-3, 100], [5, -100]), "uint8": (np.uint8, [253, 100], [5, 200]),
            "int16": (np.int16, [-3, 30000], [5, -30000]), "uint16": (np.uint16, [65533, 100], [5, 40000]),
            "int32": (np.int32, [-3, 2**30], [5, -2**30]), "uint32": (np.uint32, [2**32 - 3, 9], [5, 2**31]),
            "int64": (np.int64, [-3, 2**62], [5, -2**62]), "uint64": (np.uint64, [2**64 - 3, 9], [5, 2**63]),
            "float16": (np.float16, [-3, 1.5], [-5, 1.25]), "float32": (np.float32, [-3, 1.5], [-5, 1.25]),
            "float64": (np.float64, [-3, 1 + 2.0**-50], [-5, 1]), "bool": (np.bool_, [True, False], [False, False]),
        }
        raw = {  # the bits of 1.5 and 3
            "bfloat16": (np.uint16, 0x3FC0, 0x4040), "float8_e4m3": (np.uint8, 0x3C, 0x44),
            "float8_e4m3fn": (np.uint8, 0x3C, 0x44), "float8_e5m2": (np.uint8, 0x3E, 0x42),
        }
        self.assertLessEqual({*examples, *raw}, set(NUMBERS))

        def work(comm):
            for name, (kind, *both) in examples.items():
                wanted = np.maximum(np.array(both[0], kind), np.array(both[1], kind))
                operator = "or" if name == "bool" else "max"
                for make in (lambda x: x, memoryview, Interface, DLPack):
                    if name == "bool" and make is DLPack and np.lib.NumpyVersion(np.__version__) < "1.25.0":
                        continue  # its DLPack has no bool
                    x = np.array(both[comm.rank], kind)
                    comm.allreduce(make(x) if comm.rank == 0 else x, op=operator)
                    np.testing.assert_array_equal(x, wanted, f"{name} by {make}")
                x, y = np.array(both[comm.rank], kind), np.zeros(2, kind)
                comm.allreduce(x, y, operator, dtype=name)
                np.testing.assert_array_equal(y, wanted, name)
                self.assertEqual(mep.dtype_size(kind), np.dtype(kind).itemsize)
            for name, (kind, one_and_half, three) in raw.items():
                x = np.full(7, one_and_half, kind)
                comm.allreduce(x, dtype=name)
                np.testing.assert_array_equal(x, three, name)
                self.assertEqual(mep.dtype_size(name), np.dtype(kind).itemsize)
                if ml_dtypes and name != "float8_e4m3":
                    x = np.full(7, one_and_half, kind)
                    comm.allreduce(x.view(getattr(ml_dtypes, name)))
                    np.testing.assert_array_equal(x, three, name)
            for name in sorted(set(NUMBERS) - {*examples, *raw}):  # of any type, the larger of two ones is a one
                x = np.ones(7, RAW[NUMBERS[name]][1] if NUMBERS[name] in RAW else name)
                comm.allreduce(x, op="max", dtype=name)
                np.testing.assert_array_equal(x, 1, name)
                self.assertEqual(mep.dtype_size(name), x.itemsize)

        on_threads(2, work)


class ReduceOp(enum.IntEnum):
    """An enumeration of another library, whose numbers mean something else."""

    SUM = 0
    MAX = 1


class Tensor:
    """A matrix as PyTorch's tensors show it, on the host."""

    def __init__(self, array, requires_grad=False):
        self.array, self.requires_grad, self.dtype = array, requires_grad, str(array.dtype)
        self.device = types.SimpleNamespace(type="cpu")

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, stream=None):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self.array.__dlpack__()

    def __array__(self, *_, **__):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


class Refusing(Tensor):
    """One that cannot be shown for a reason of its own."""

    def __dlpack__(self, stream=None):
        raise BufferError("it is sparse")


def fake_torch():
    """The part of PyTorch that makes a new tensor."""
    torch = types.ModuleType("torch")
    torch.Tensor, torch.float32, torch.float64, torch.bfloat16 = Tensor, np.float32, np.float64, np.uint16
    torch.empty = lambda shape, dtype, device: Tensor(np.full(shape, 7, dtype))
    torch.zeros = lambda shape, dtype, device: Tensor(np.zeros(shape, dtype))
    return unittest.mock.patch.dict(sys.modules, torch=torch)


class Texts(unittest.TestCase):
    """Errors say what was given and what to do."""

    @classmethod
    def setUpClass(cls):
        cls.comm = mep.init(rank=0, size=1)
        cls.options = dict(hidden=8, top_k=1, num_experts=1, max_tokens_per_rank=4)
        cls.ep = mep.Ep(cls.comm, **cls.options)
        cls.handle = cls.ep.handle()

    @classmethod
    def tearDownClass(cls):
        cls.comm.close()

    def says(self, kind, call, *words):
        with self.assertRaises(kind) as caught:
            call()
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_collectives(self):
        comm, x = self.comm, np.ones(2, np.float32)
        for op in (ReduceOp.SUM, ReduceOp.MAX, np.add, True, None, []):
            self.says(TypeError, lambda: comm.allreduce(x, op=op), "op is", type(op).__name__, "sum, prod, min")
        for op in ("SUM", 0, 9):
            self.says(ValueError, lambda: comm.allreduce(x, op=op), f"op is {op!r}", "sum, prod, min")
        comm.allreduce(x, op=1)
        for root in (1.5, "0", None):
            for call in (comm.broadcast, comm.reduce, comm.gather, comm.scatter):
                self.says(TypeError, lambda: call(x, root=root), f"root is {root!r}", type(root).__name__,
                          "whole number")
        self.says(ValueError, lambda: comm.broadcast(x, root=2**31), "root is 2147483648")
        comm.broadcast(x, root=np.int64(0))
        self.says(ValueError, lambda: comm.allreduce(x, np.ones(2)), "float32", "float64", "same type")
        self.says(ValueError, lambda: comm.sendrecv(x, 0, np.ones(2)), "float32", "float64", "same type")
        self.says(TypeError, lambda: comm.send(x, 0.5), "dest is 0.5", "whole number")

    def test_scalars(self):
        """Their memory is a temporary's: what arrived there would be lost."""
        comm, x, idx = self.comm, np.zeros((2, 8), np.uint16), np.zeros((2, 1), np.int64)
        for value in (np.ones(4).mean(), np.float32(1), np.int64(1), np.bool_(True), 1.0, 1, True, 1j):
            calls = [
                lambda: comm.iallreduce(value), lambda: comm.broadcast(value, 0), lambda: comm.ibroadcast(value, 0),
                lambda: comm.allreduce(value, np.zeros(1)), lambda: comm.allreduce(np.zeros(1), value),
                lambda: comm.ireduce(value), lambda: comm.iallgather(value), lambda: comm.igather(value),
                lambda: comm.scatter(value), lambda: comm.reduce_scatter(value), lambda: comm.alltoall(value),
                lambda: comm.allgatherv(value, [1]), lambda: comm.gatherv(value, 0, [1]),
                lambda: comm.scatterv(value, 0, [1]), lambda: comm.reduce_scatterv(value, [1]),
                lambda: comm.alltoallv(value, [1], [1]),
                lambda: comm.send(value, 0, dtype="float64"), lambda: comm.recv(value, 0),
                lambda: comm.irecv(value, 0), lambda: comm.sendrecv(value, 0, np.zeros(1), 0),
                lambda: comm.sendrecv(np.zeros(1), 0, value, 0),
                lambda: self.handle.dispatch(value, idx), lambda: self.handle.dispatch(x, value),
                lambda: self.handle.dispatch(x, idx, value), lambda: self.handle.dispatch(x, idx, recv_count=value),
                lambda: self.handle.combine(value), lambda: self.handle.combine(bias=value),
            ]
            for call in calls:
                self.says(TypeError, call, type(value).__name__, "give an array", "numpy.array(value)")
        self.assertIsNone(comm.iprobe())
        np.testing.assert_array_equal(comm.allreduce(np.array(3.0)), 3)

    def test_tensors(self):
        comm, x = self.comm, np.ones(2, np.float32)
        self.says(ValueError, lambda: comm.allreduce(Tensor(x, True)), "Tensor", "requires grad", "detach()")
        self.says(ValueError, lambda: comm.allreduce(Refusing(x)), "Refusing", "it is sparse")
        comm.allreduce(Tensor(x))

    def test_expert_parallelism(self):
        x, idx = np.zeros((2, 8), np.uint16), np.zeros((2, 1), np.int64)
        for kind in (np.int16, np.uint32, np.float32):
            self.says(ValueError, lambda: self.handle.dispatch(x, idx.astype(kind)), np.dtype(kind).name,
                      "int32 or int64", "astype")
        self.says(ValueError, lambda: self.handle.dispatch(np.zeros((2, 8), np.float32), idx), "x holds float32",
                  "must hold bfloat16", "uint16", "ml_dtypes.bfloat16")
        self.says(ValueError, lambda: self.handle.dispatch(x, idx, np.zeros((2, 1))), "float64", "must hold float32")
        self.says(ValueError, lambda: self.handle.dispatch(x, idx, phase="foo"), "'foo'", "both, send, receive")
        for options, *words in ((dict(layout="foo"), "layout is 'foo'", "low_latency, slotted, high_throughput, expanded"),
                                (dict(scale_type="int"), "scale_type is 'int'", "float32, ue8m0, ue8m0_32")):
            self.says(ValueError, lambda: mep.Ep(self.comm, **self.options, **options), *words)
        for value in (1.5, "2"):
            self.says(TypeError, lambda: mep.Ep(self.comm, **self.options, num_buffers=value),
                      f"num_buffers is {value!r}", "whole number")
        self.says(ValueError, lambda: mep.init(rank=0, size=1, quorum="all"), "quorum is 'all'", "majority, witness")

    def test_timeout(self):
        for timeout in (0, -1, 0.0, float("nan"), None):
            self.says(mep.InvalidArgumentError, lambda: self.comm.set_timeout(timeout), f"timeout is {timeout!r}",
                      "seconds")
        for timeout in (1e-6, float("inf"), 30):
            self.comm.set_timeout(timeout)

    def test_launchers(self):
        for launcher in ("mep_run", "mpirun", "Slurm", "torchrun"):
            self.assertIn(launcher, mep.init.__doc__)

    def test_closed(self):
        comm = mep.init(rank=0, size=1)
        ep = mep.Ep(comm, **self.options)
        handle, request, x = ep.handle(), comm.ibarrier(), np.zeros((2, 8), np.uint16)
        comm.close()
        for call in (comm.barrier, comm.ibarrier, lambda: comm.allreduce(x), lambda: comm.send(x, 0), comm.view):
            self.says(mep.InvalidArgumentError, call, "the communicator is closed")
        self.says(mep.InvalidArgumentError, ep.view, "the EP object is closed")
        self.says(mep.InvalidArgumentError, lambda: handle.dispatch(x, np.zeros((2, 1), int)), "the handle is closed")
        self.says(mep.InvalidArgumentError, request.fileno, "the request is done")


class Failures(unittest.TestCase):
    def test_new_arrays_are_zero_where_a_rank_is_absent(self):
        def work(comm):
            if comm.rank == 1:
                comm.abort()
                return
            with self.assertRaises(mep.PeerFailedError):
                comm.barrier()
            one, three, counts = np.full(1, 5.0), np.full(3, 5.0), [1, 1, 1]
            for result in (comm.allgather(one), comm.alltoall(three), comm.allgatherv(one, counts),
                           comm.alltoallv(three, counts, counts), comm.iallgather(one).wait(),
                           comm.gather(one, 2), comm.gatherv(one, 2, counts if comm.rank == 2 else None)):
                if result is not None:
                    np.testing.assert_array_equal(np.ravel(result), [5, 0, 5])
            np.testing.assert_array_equal(comm.allgatherv(one, counts, displs=[0, 1, 4]), [5, 0, 0, 0, 5])
            np.testing.assert_array_equal(comm.alltoallv(three, counts, counts, recvdispls=[1, 2, 3]), [0, 5, 0, 5])
            for result in (comm.allgather(Tensor(one)), comm.alltoall(Tensor(three))):
                np.testing.assert_array_equal(result.array.ravel(), [5, 0, 5])

        garbage = unittest.mock.patch.object(np, "empty", lambda shape, dtype=float: np.full(shape, 7, dtype))
        with garbage, fake_torch():
            on_threads(3, work, timeout_ms=5000)

    def test_new_tensors_on_a_gpu_are_not_filled(self):
        """PyTorch would do that on another stream than the collective's."""
        tensor = Tensor(np.ones(2, np.float32))
        tensor.device.type = "cuda"
        with fake_torch():
            made = maker(tensor, zeroed=True)((2,), mep.dtype_number("float32"))
        np.testing.assert_array_equal(made.array, 7)

    def test_errors_of_expert_parallelism_have_info(self):
        def work(comm):
            experts = 2 * comm.size
            ep = mep.Ep(comm, hidden=64, top_k=1, num_experts=experts, max_tokens_per_rank=experts,
                        input_type="float32")
            handle, x = ep.handle(), np.ones((experts, 64), np.float32)
            everywhere = np.arange(experts).reshape(-1, 1)

            def missing(call):
                with self.assertRaises(mep.PeerFailedError) as caught:
                    call()
                self.assertEqual(caught.exception.info.result, caught.exception.code)
                self.assertEqual(caught.exception.info.failed, [1])
                return caught.exception.info

            handle.dispatch(x, everywhere)
            handle.combine()
            comm.barrier()
            if comm.rank == 1:
                comm.abort()
                return
            while comm.live == 3:
                time.sleep(0.001)
            told = missing(lambda: handle.dispatch(x, everywhere))
            self.assertEqual(told.seq, 0)  # a report: nothing else was done
            self.assertEqual(told, ep.last_op())
            for _ in range(2):  # as long as tokens go to experts of the absent rank
                handle.dispatch(x, everywhere)
                self.assertEqual(missing(handle.combine), ep.last_op())
            with self.assertRaises(mep.InvalidArgumentError) as caught:
                handle.dispatch(x, everywhere + experts)
            self.assertIsNone(caught.exception.info)

        on_threads(3, work, timeout_ms=5000)


class NewArrays(unittest.TestCase):
    """An array that is made without a receive buffer is of the kind of the input."""

    def test_collectives(self):
        with mep.init(rank=0, size=1) as comm:
            calls = (comm.allgather, comm.alltoall, comm.reduce_scatter, lambda x, **o: comm.allgatherv(x, [2], **o))
            for call in calls:
                self.assertEqual(call(np.full(2, 0x3FC0, np.uint16), dtype="bfloat16").dtype, np.uint16)
                if ml_dtypes:
                    self.assertEqual(call(np.ones(2, ml_dtypes.bfloat16)).dtype, ml_dtypes.bfloat16)
                self.assertEqual(type(call(Tensor(np.ones(2, np.float32)))), np.ndarray)
                with fake_torch():
                    made = call(Tensor(np.ones(2, np.float32)))
                    self.assertIsInstance(made, Tensor)
                    np.testing.assert_array_equal(made.array.ravel(), 1)
        self.assertNotIn("torch", sys.modules)

    def test_combine(self):
        with mep.init(rank=0, size=1) as comm:
            handle = mep.Ep(comm, hidden=8, top_k=1, num_experts=1, max_tokens_per_rank=4).handle()
            bits, idx = np.full((2, 8), 0x3FC0, np.uint16), np.zeros((2, 1), np.int64)

            def layer(x):
                received = handle.dispatch(x, idx)
                return handle.combine(y=np.array(received.x))

            self.assertEqual(layer(bits).dtype, np.uint16)
            np.testing.assert_array_equal(layer(bits), bits)
            if ml_dtypes:
                self.assertEqual(layer(bits.view(ml_dtypes.bfloat16)).dtype, ml_dtypes.bfloat16)
            with fake_torch():
                made = layer(Tensor(bits))
            self.assertIsInstance(made, Tensor)
            np.testing.assert_array_equal(made.array, bits)


class Documented(unittest.TestCase):
    def test_each_public_method_has_a_docstring(self):
        for kind in (mep.Comm, mep.Ep, mep.Request, mep.Message, mep.OpInfo):
            for name, member in inspect.getmembers(kind):
                if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    self.assertTrue(inspect.getdoc(member), f"{kind.__name__}.{name}")


if __name__ == "__main__":
    unittest.main()
