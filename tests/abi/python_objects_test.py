#!/usr/bin/env python3
"""Messages of objects, and the names of mpi4py that MEP has otherwise, on worlds of threads. Needs NumPy and MEP_LIBRARY. 1 s."""
import inspect
import pickle
import time
import unittest

import mep
import numpy as np
from python_habits_test import Case, on_threads


class OtherNames(Case):
    def test_names_of_mpi4py(self):
        with mep.init(rank=0, size=1) as comm:
            for name, text in {"Allreduce": "type comm.allreduce(send, recv, op)", "Bcast": "type comm.broadcast(buf, root, recv)",
                               "Get_rank": "type comm.rank", "Free": "type comm.close()",
                               "Reduce_scatter": "comm.reduce_scatterv(send, counts", "Send": "comm.send(buf, dest, tag)"}.items():
                self.says(AttributeError, lambda: getattr(comm, name), f"'Comm' object has no attribute {name!r}", text)
                self.assertFalse(hasattr(comm, name))
            self.assertNotIn("type", str(self.says(AttributeError, lambda: comm.nothing)))

    def test_out_is_another_name_of_recv(self):
        def work(comm):
            size = comm.size
            x, rows = np.arange(3.0) + comm.rank, np.arange(3.0 * size).reshape(size, 3) + comm.rank
            counts = [3] * size
            calls = {"allreduce": (x,), "broadcast": (x,), "reduce": (x,), "gather": (x,), "scatter": (rows,),
                     "allgather": (x,), "alltoall": (rows,), "reduce_scatter": (rows,), "allgatherv": (x, counts),
                     "gatherv": (x, 0, counts), "scatterv": (rows, 0, counts), "reduce_scatterv": (rows, counts),
                     "alltoallv": (rows, counts, counts)}
            has_out = {name for name, call in inspect.getmembers(mep.Comm, inspect.isfunction)
                       if "out" in inspect.signature(call).parameters and name not in ("scan", "exscan")}
            self.assertEqual(has_out, {*calls, *("i" + name for name in calls)})
            for name, arguments in calls.items():
                wide = name in ("gather", "allgather", "alltoall", "allgatherv", "gatherv", "alltoallv")
                made = [np.zeros(3 * size if wide else 3) for _ in range(3)]
                at_root = comm.rank == 0 or name not in ("reduce", "gather", "gatherv")
                for out, key, call in zip(made, ("recv", "out", "out"), (name, name, "i" + name)):
                    result = getattr(comm, call)(*arguments, **{key: out})
                    if call != name:
                        result = result.wait()
                    self.assertIs(result, out if at_root else None)
                self.same(made[1], made[0])
                self.same(made[2], made[0])
                self.assertTrue(made[0].any() or not at_root)

        self.on_each_size(work)


    def test_names_of_the_module_and_of_requests(self):
        for name, text in {"Wtime": "time.perf_counter()", "Waitall": "mep.waitall(requests)", "COMM_WORLD": "mep.init()",
                           "MAX": "'max'"}.items():
            self.says(AttributeError, lambda: getattr(mep, name), f"module 'mep' has no attribute {name!r}; type {text}")
        self.assertNotIn("type", str(self.says(AttributeError, lambda: mep.nothing)))
        self.says(AttributeError, lambda: mep.Request.Waitall, "type mep.waitall(requests)")
        with mep.init(rank=0, size=1) as comm:
            for request in (comm.ibarrier(), comm.isend(np.ones(1), 0)):
                self.says(AttributeError, lambda: request.Wait, "no attribute 'Wait'; type request.wait(timeout)")
                request.wait()
            comm.recv(np.ones(1))

    def test_names_of_arguments(self):
        with mep.init(rank=0, size=1) as comm:
            x, y = np.arange(3.0), np.zeros(3)
            rows = {"reduce_scatterv": {"counts": [3]}, "allgatherv": {"counts": [3]}, "gatherv": {"counts": [3]},
                    "scatterv": {"counts": [3]}, "alltoallv": {"sendcounts": [3], "recvcounts": [3]}}
            for name in ("allreduce", "reduce", "gather", "allgather", "scatter", "alltoall", "reduce_scatter", *rows):
                for call in (name, "i" + name):
                    y[:] = 0
                    result = getattr(comm, call)(sendbuf=x, recvbuf=y, **rows.get(name, {}))
                    self.assertIs(result if call == name else result.wait(), y)
                    self.same(y, x)
            for name, value, expected in (("allreduce", 3, 3), ("reduce", 3, 3), ("scan", 3, 3), ("gather", {}, [{}]),
                                          ("allgather", "a", ["a"]), ("scatter", ["a"], "a"), ("alltoall", ["a"], ["a"])):
                self.same(getattr(comm, name)(sendobj=value), expected)
            comm.send(obj="a", dest=0)
            self.assertEqual(comm.recv(source=0), "a")
            self.assertEqual(comm.sendrecv(sendobj="b", dest=0, source=0), "b")
            self.assertEqual(comm.sendrecv(sendbuf=x, dest=0, recvbuf=y, source=0).bytes, 24)
            for name in ("allreduce", "gather"):
                call = getattr(comm, name)
                self.says(TypeError, lambda: call(x, sendbuf=x), "send and sendbuf are names of one argument")
                self.says(TypeError, lambda: call(sendobj=x, sendbuf=x), "are names of one argument")
                self.says(TypeError, lambda: call(x, recv=y, recvbuf=y), "recv and recvbuf are names of one argument")
                self.says(TypeError, lambda: call(x, sendbuffer=x), "unexpected keyword argument 'sendbuffer'")


class ObjectMessages(Case):
    VALUES = (None, 3, np.float32(2), "text", [], {"a": [1, (2,)]}, "x" * 8000, "x" * 8200, list(range(100000)))

    def test_values(self):
        def work(comm):
            right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            for tag, value in enumerate(self.VALUES):
                request = comm.isend((comm.rank, value), right, tag)
                if tag % 2:
                    comm.barrier()
                got = comm.recv(source=left, tag=tag) if tag % 3 else comm.recv()
                self.assertEqual(got, (left, value))
                request.wait()
                self.assertEqual(comm.sendrecv(value, right, source=left), value)
                comm.barrier()
            self.same(comm.sendrecv(np.full(2, comm.rank), right, source=left), np.full(2, left))
            if comm.rank == 0:
                got = [comm.recv(source=mep.ANY_SOURCE, tag=7) for _ in range(1, comm.size)]
                self.assertEqual(sorted(got), [[rank] for rank in range(1, comm.size)])
            else:
                comm.send([comm.rank], dest=0, tag=7)

        self.on_each_size(work)

    def test_the_other_kind_of_message(self):
        with mep.init(rank=0, size=1) as comm:
            x = np.arange(3.0)
            comm.send(x, 0, 5)
            problem = self.says(mep.MismatchError, lambda: comm.recv(source=0), "it is a buffer and no object",
                                "comm.recv(buf, 0, 5)", "the message stays")
            self.assertEqual(problem.message, mep.Message(0, 5, 24, "float64"))
            self.same(comm.sendrecv([1], 0, source=0, sendtag=6, recvtag=6), [1])
            self.assertEqual(comm.recv(x, 0, 5).tag, 5)  # it has stayed
            comm.isend(np.zeros(9000, np.uint8), 0, 2)
            self.says(mep.MismatchError, lambda: comm.recv(), "it is a buffer and no object", "uint8")
            comm.recv(np.zeros(9000, np.uint8))
            for buf in (np.zeros(99), np.zeros(2, np.uint8)):
                comm.send(["object"], 0, 4)
                self.says(mep.MismatchError, lambda: comm.recv(buf), "call obj = comm.recv(None, 0, 4)", "stays")
                self.assertEqual(comm.recv(None, 0, 4), ["object"])
            eighths = np.zeros(99, np.uint8)
            comm.send(["object"], 0, 4)
            self.says(mep.MismatchError, lambda: comm.recv(eighths, dtype="float8_e5m2"), "the message is an object",
                      "call obj = comm.recv(None, 0, 4)")
            eighths[:] = 0
            for size in (0, 4, 99):
                comm.send(eighths[:size], 0, 4, dtype="float8_e5m2")
                self.assertEqual(comm.recv(eighths, dtype="float8_e5m2").bytes, size)
                comm.send(eighths[:size], 0, 4, dtype="float8_e5m2")
                self.says(mep.MismatchError, lambda: comm.recv(), f"{size} numbers of float8_e5m2 and no object")
            self.assertIsNone(comm.iprobe())

    def test_what_cannot_be_pickled_or_awaited(self):
        with mep.init(rank=0, size=1) as comm:
            for send in (comm.send, comm.isend):
                with self.assertRaises((AttributeError, TypeError, pickle.PicklingError)):
                    send(lambda: None, 0)
            with self.assertRaises((AttributeError, TypeError, pickle.PicklingError)):
                comm.sendrecv(lambda: None, 0, source=0)
            self.assertIsNone(comm.iprobe())
            with mep.group():
                self.says(mep.UnsupportedError, comm.recv, "recv of objects", "outside mep.group()")
            comm.set_timeout(0.02)
            with self.assertRaises(mep.TimeoutError):
                comm.recv(source=0)


if __name__ == "__main__":
    unittest.main()
