#!/usr/bin/env python3
"""Arrays over the library's memory, which may outlive what it belonged to, and the array of the last call. Needs NumPy and
MEP_LIBRARY. 1 s."""
import unittest
import unittest.mock
import weakref

import mep
import numpy as np
from mep import _buffers
from python_lifetime_test import run_program


class LibraryMemory(unittest.TestCase):
    def test_memory_of_the_library_lives_as_long_as_its_arrays(self):
        run_program(self, """
def maps():
    with open("/proc/self/maps") as lines:
        return sum("mep-" in line for line in lines)
before, comms = maps(), mep.init_all(2)
eps, handles, views = [None] * 2, [None] * 2, []
for layout in ("low_latency", "high_throughput", "expanded"):
    def make(comm):
        ep = mep.Ep(comm, hidden=64, top_k=1, num_experts=2, max_tokens_per_rank=8, input_type="float32", layout=layout)
        handle = ep.handle()
        got = handle.dispatch(np.full((2, 64), 3, np.float32), np.zeros((2, 1), np.int64))
        y = ep.combine_input()
        y.reshape(-1)[:8 * 64] = 5
        handle.combine()
        if comm.rank == 0:
            views.extend([y.reshape(-1)[5:10], got.count, got.layout_range, got.src_info, ep.view(1).x, ep.view(1).count])
            views.extend(each for each in (got.topk_idx, got.topk_weights) if each is not None)
        ep.close()
        assert repr(y.flat[0]) == repr(np.float32(5)), y
        got.x.reshape(-1)[0] = 7
    threads = [threading.Thread(target=make, args=(comm,)) for comm in comms]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
memory = comms[0].mem_alloc((1 << 20,), "uint8")
memory[:] = 3
part = memory[100:200]
again = comms[0].mem_alloc(5)
comms[0].mem_free(memory)
comms[0].mem_free(again)
del memory, again
for comm in comms:
    other(comm)
assert part.sum() == 300
assert all(view.sum() is not None for view in views) and views[0].sum() == 25
views[0][:] = part[0] = 1
assert maps() - before >= 4, (before, maps())
views.clear()
del part
assert maps() == before, (before, maps())
print("well")
""")


class LastArray(unittest.TestCase):
    """allreduce and broadcast remember the array of the last call in place."""

    def test_it_is_not_kept(self):
        with mep.init(rank=0, size=1) as comm:
            for call in (comm.allreduce, comm.broadcast):
                x = np.zeros(3)
                call(x)
                call(x)
                gone = weakref.ref(x)
                del x
                self.assertIsNone(gone())
                with self.assertRaises(TypeError):
                    call(None)

    def test_another_object_in_its_place(self):
        class Other(np.ndarray):
            pass

        with mep.init(rank=0, size=1) as comm:
            for call in (comm.allreduce, comm.broadcast):
                for other in (np.zeros(3).view(Other), np.ma.masked_array(np.zeros(3)), 3):
                    x = np.zeros(3)
                    call(x)
                    _, *rest = getattr(comm, f"_last_{call.__name__}")
                    self.assertFalse(_buffers.is_as_before(other, (id(other), *rest)))

    def test_it_may_change(self):
        changes = (lambda x: None, lambda x: x.resize(4, refcheck=False), lambda x: x.resize(100000, refcheck=False),
                   lambda x: setattr(x, "dtype", np.int64), lambda x: setattr(x, "shape", (2, 4)))
        with mep.init(rank=0, size=1) as comm:
            for call in (comm.allreduce, comm.broadcast):
                for change in changes:
                    x = np.zeros(8)
                    call(x)
                    change(x)
                    with self.subTest(call=call), unittest.mock.patch.object(comm, "_at_once", lambda function, arguments, *rest: arguments):
                        found, expected = call(x), _buffers.in_place(x, None, None)[2]
                    self.assertEqual([repr(each) for each in found[:4]], [repr(each) for each in expected[:4]])
                x = np.zeros(8)
                call(x)
                x.flags.writeable = False
                with self.assertRaisesRegex(ValueError, "read-only"):
                    call(x)


if __name__ == "__main__":
    unittest.main()
