#!/usr/bin/env python3
"""Messages through the Python package, to the rank itself and on worlds of threads: values, what comes, errors,
requests, groups, asyncio, how long buffers live, Ctrl-C. Needs NumPy and MEP_LIBRARY."""
import asyncio
import gc
import select
import subprocess
import sys
import threading
import unittest
import weakref

import mep
import numpy as np
from mep import _abi
from python_test import Interface, on_threads

LARGE = 4 * _abi.MEP_MESSAGE_EAGER_BYTES  # bytes: such a message waits for its receiver


def doubles(first, count=3):
    return np.arange(first, first + count, dtype=np.float64)


class Alone(unittest.TestCase):
    """A rank sends to itself."""

    def setUp(self):
        self.comm = mep.init(rank=0, size=1)

    def tearDown(self):
        self.comm.close()

    def test_send_and_receive(self):
        comm, x, y = self.comm, doubles(1), np.zeros(5)
        self.assertIsNone(comm.send(x, 0, 7))
        message = comm.recv(y)
        self.assertEqual(message, mep.Message(source=0, tag=7, bytes=24, dtype="float64"))
        np.testing.assert_array_equal(y, [1, 2, 3, 0, 0])
        comm.send(x, 0)
        self.assertEqual(comm.recv(y, 0, 0).tag, 0)
        # Nothing is copied, and any buffer will do.
        comm.send(Interface(np.int16([4, 5])), 0)
        data = bytearray(4)
        message = comm.recv(np.frombuffer(data, np.int16))
        self.assertEqual((message.dtype, bytes(data)), ("int16", np.int16([4, 5]).tobytes()))
        comm.send(np.full(3, 0x3FC0, np.uint16), 0, dtype="bfloat16")
        raw = np.zeros(3, np.uint16)
        self.assertEqual(comm.recv(raw, dtype="bfloat16").dtype, "bfloat16")
        np.testing.assert_array_equal(raw, 0x3FC0)
        comm.send(np.empty(0), 0, 1)
        self.assertEqual(comm.recv(np.empty(0)).bytes, 0)

    def test_tags_and_probes(self):
        comm, y = self.comm, np.zeros(1)
        self.assertIsNone(comm.iprobe())
        for tag in (3, 4, 3):
            comm.send(np.float64([tag]), 0, tag)
        self.assertEqual([comm.probe().tag, comm.probe(tag=4).tag, comm.iprobe(0, 4).bytes], [3, 4, 8])
        self.assertIsNone(comm.iprobe(tag=5))
        self.assertEqual([comm.recv(y, tag=4).tag, comm.recv(y).tag, comm.recv(y).tag], [4, 3, 3])
        self.assertIsNone(comm.iprobe(mep.ANY_SOURCE, mep.ANY_TAG))

    def test_errors(self):
        comm, x = self.comm, doubles(1)
        for wrong in (lambda: comm.send(x, 1), lambda: comm.send(x, mep.ANY_SOURCE),
                      lambda: comm.send(x, 0, mep.ANY_TAG), lambda: comm.isend(x, 9),
                      lambda: comm.recv(x, 1), lambda: comm.irecv(x, 0, -2), lambda: comm.probe(5),
                      lambda: comm.iprobe(0, -2), lambda: comm.sendrecv(x, 1, x.copy(), 0),
                      lambda: comm.sendrecv(x, 0, x.copy(), 1)):
            with self.assertRaises(mep.InvalidArgumentError):
                wrong()
        for wrong in (lambda: comm.send(x[::2], 0), lambda: comm.recv(b"123"),
                      lambda: comm.send(x, 0, 2 ** 32), lambda: comm.recv(x, 2 ** 32),
                      lambda: comm.probe(0, 2 ** 31), lambda: comm.send(x, 0, dtype="bfloat16"),
                      lambda: comm.sendrecv(x, 0, np.zeros(3, np.int32)),
                      lambda: comm.sendrecv(x, 0, x), lambda: comm.sendrecv(x[:2], 0, x[1:])):
            with self.assertRaises(ValueError):
                wrong()
        for wrong in (lambda: comm.send([1.0], 0, dtype="float64"), lambda: comm.irecv(None, 0), lambda: comm.recv(0)):
            with self.assertRaises(TypeError):
                wrong()
        # Whatever was refused has sent nothing, and no receive was left behind.
        self.assertIsNone(comm.iprobe())
        comm.send(x, 0)
        self.assertEqual(comm.recv(np.zeros(3)).bytes, 24)

    def test_what_does_not_fit_stays(self):
        comm, small = self.comm, np.zeros(2)
        comm.send(doubles(1), 0, 6)
        with self.assertRaises(mep.CapacityError) as caught:
            comm.recv(small)
        self.assertEqual(caught.exception.message, mep.Message(0, 6, 24, "float64"))
        request = comm.irecv(np.zeros(9, np.int32))
        with self.assertRaises(mep.MismatchError) as caught:
            request.wait()
        self.assertEqual(caught.exception.message.dtype, "float64")
        self.assertEqual(caught.exception.info.result, mep.MismatchError.code)
        np.testing.assert_array_equal(small, 0)
        large = np.empty(comm.probe().bytes // 8)
        comm.recv(large)
        np.testing.assert_array_equal(large, doubles(1))

    def test_sendrecv(self):
        x, y = np.arange(LARGE // 4, dtype=np.int32), np.zeros(LARGE, np.int32)
        message = self.comm.sendrecv(x, 0, y, 0, 2, 2)
        self.assertEqual(message, mep.Message(0, 2, LARGE // 4 * 4, "int32"))
        np.testing.assert_array_equal(y[:len(x)], x)

    def test_timeouts(self):
        self.comm.set_timeout(0.02)
        for late in (lambda: self.comm.recv(np.zeros(1)), self.comm.probe,
                     lambda: self.comm.send(np.zeros(LARGE, np.uint8), 0)):
            with self.assertRaises(mep.TimeoutError):
                late()

    def test_last_op_tells_of_collectives(self):
        comm = self.comm
        for _ in range(9):
            comm.barrier()  # messages have numbers of their own, from 1
        before = comm.last_op()
        comm.send(doubles(1), 0)
        comm.recv(np.zeros(3))
        comm.sendrecv(doubles(1), 0, np.zeros(3))
        with mep.group():
            comm.sendrecv(doubles(1), 0, np.zeros(3))
        self.assertEqual(comm.last_op(), before)
        with mep.group():
            comm.allreduce(np.ones(1))
            comm.send(doubles(1), 0)
        self.assertEqual(comm.last_op().seq, before.seq + 1)

    def test_dup(self):
        comm = self.comm
        own = comm.dup()
        self.assertEqual((own.rank, own.size), (0, 1))
        comm.send(doubles(1), 0)
        self.assertIsNone(own.iprobe())
        own.send(doubles(5), 0)
        first, second = np.zeros(3), np.zeros(3)
        own.recv(first)
        comm.recv(second)
        np.testing.assert_array_equal([first, second], [doubles(5), doubles(1)])
        own.barrier()  # closed with its world
        with comm.shrink() as alone:
            self.assertEqual((alone.rank, alone.size), (0, 1))


class Requests(unittest.TestCase):
    def setUp(self):
        self.comm = mep.init(rank=0, size=1)

    def tearDown(self):
        self.comm.close()

    def test_isend_and_irecv(self):
        comm, y = self.comm, np.zeros(3)
        received = comm.irecv(y, 0, 4)
        self.assertFalse(received.test())
        self.assertEqual(received.info().result, mep.InProgressError.code)
        self.assertIsNone(comm.isend(doubles(2), 0, 4).wait())
        while not received.test():
            select.select([received], [], [], 0.05)
        self.assertEqual(received.wait(), mep.Message(0, 4, 24, "float64"))
        self.assertEqual((received.wait().tag, received.info().result), (4, 0))
        np.testing.assert_array_equal(y, doubles(2))

    def test_cancel(self):
        comm, x, y = self.comm, doubles(1), np.zeros(3)
        request = comm.irecv(y)
        self.assertTrue(request.cancel())
        self.assertTrue(request.done)
        self.assertFalse(request.cancel())
        self.assertTrue(request.test())
        self.assertIsNone(request.wait())
        self.assertIsNone(mep.waitany([request]))
        self.assertEqual(mep.waitall([request]), [None])
        comm.send(x, 0)
        np.testing.assert_array_equal(y, 0)
        request = comm.irecv(y)
        self.assertFalse(request.cancel())  # its message has come
        self.assertEqual(request.wait().bytes, 24)
        np.testing.assert_array_equal(y, x)
        for other in (comm.isend(x, 0), comm.ibarrier()):
            with self.assertRaises(mep.UnsupportedError):
                other.cancel()
            other.wait()
            self.assertFalse(other.cancel())
        comm.recv(y)

    def test_waitall(self):
        comm, x = self.comm, np.zeros((3, 2))
        requests = [comm.irecv(x[tag], 0, tag) for tag in range(3)]
        with self.assertRaises(mep.InProgressError):
            mep.waitall(requests, 0.01)
        for tag in (2, 0, 1):
            comm.send(np.full(2, tag + 1.0), 0, tag)
        summed = comm.iallreduce(np.full(2, 5.0))
        results = mep.waitall([requests[0], None, summed, *requests, requests[0]])
        self.assertEqual([each.tag for each in (results[0], *results[3:])], [0, 0, 1, 2, 0])
        self.assertIsNone(results[1])
        np.testing.assert_array_equal(results[2], 5)
        np.testing.assert_array_equal(x, [[1, 1], [2, 2], [3, 3]])
        self.assertEqual(mep.waitall([]), [])
        # All end; the first error is raised, and each has its own.
        for tag in range(3):
            comm.send(np.ones(2), 0, tag)
        requests = [comm.irecv(np.zeros(2), 0, 0), comm.irecv(np.zeros(1), 0, 1),
                    comm.irecv(np.zeros(2, np.int64), 0, 2)]
        with self.assertRaises(mep.CapacityError) as caught:
            mep.waitall(requests)
        self.assertEqual((caught.exception.message.tag, caught.exception.info.result), (1, -19))
        self.assertTrue(all(each.done for each in requests))
        self.assertEqual([each.info().result for each in requests], [0, -19, -13])
        with self.assertRaises(mep.MismatchError):
            requests[2].wait()
        self.assertEqual(len({each.info().seq for each in requests}), 3)
        comm.recv(np.zeros(2), 0, 1)
        comm.recv(np.zeros(2), 0, 2)

    def test_waitany(self):
        comm, x = self.comm, np.zeros((3, 1))
        requests = [comm.irecv(x[0], 0, 0), None, comm.irecv(x[1], 0, 1), comm.irecv(x[2], 0, 2)]
        with self.assertRaises(mep.InProgressError):
            mep.waitany(requests, 0.01)
        found = []
        for tag in (1, 0, 2):
            comm.send(np.float64([tag]), 0, tag)
            place = mep.waitany(requests)
            found.append((place, requests[place].wait().tag))
            # The state of the others is kept apart.
            running = [each.info().result for each in requests if each is not None and not each.done]
            self.assertEqual(running, [mep.InProgressError.code] * (3 - len(found)))
            self.assertEqual([requests[i].info().result for i, _ in found], [0] * len(found))
        self.assertEqual(found, [(2, 1), (0, 0), (3, 2)])
        self.assertIsNone(mep.waitany(requests))
        self.assertIsNone(mep.waitany([]))
        # A failure does not hide which one it was.
        comm.send(np.zeros(9), 0)
        failed = comm.irecv(x[0])
        self.assertEqual(mep.waitany([None, failed]), 1)
        with self.assertRaises(mep.CapacityError):
            failed.wait()
        comm.recv(np.zeros(9))

    def test_with(self):
        comm, y = self.comm, np.zeros(3)
        with comm.irecv(y) as request:
            comm.send(doubles(1), 0)
        self.assertTrue(request.done)
        with self.assertRaises(mep.CapacityError):
            with comm.irecv(np.zeros(1)):
                comm.send(doubles(1), 0)
        with self.assertRaises(KeyError):  # does not wait
            with comm.irecv(y, 0, 99) as request:
                raise KeyError
        self.assertTrue(request.cancel())
        comm.recv(y)

    def test_await(self):
        async def both(number):
            y = np.zeros(1)
            received = self.comm.irecv(y, 0, number)
            await asyncio.sleep(0)  # the others' receives come before any send
            await self.comm.isend(np.float64([number]), 0, number)
            return (await received).tag, y[0]

        async def all_of_them():
            return await asyncio.gather(*(both(number) for number in range(5)))

        self.assertEqual(asyncio.run(all_of_them()), [(number, number) for number in range(5)])

    def test_buffers_live_as_long_as_the_operation(self):
        comm, y = self.comm, np.zeros(LARGE, np.uint8)
        x = np.full(LARGE, 7, np.uint8)
        alive = weakref.ref(x)
        comm.isend(x, 0)
        del x
        gc.collect()
        self.assertIsNotNone(alive())
        comm.recv(y)
        np.testing.assert_array_equal(y, 7)
        comm.close()
        gc.collect()
        self.assertIsNone(alive())

    def test_close_ends_what_is_left(self):
        y = np.zeros(2)
        request = self.comm.irecv(y)
        self.comm.isend(np.ones(2), 0)
        self.comm.close()
        self.assertEqual(request.wait().bytes, 16)


class Groups(unittest.TestCase):
    def test_any_order(self):
        def work(comm):
            x = np.full(LARGE, comm.rank, np.uint8)
            y = np.zeros((comm.size, LARGE), np.uint8)
            total = np.ones(2)
            with mep.group() as requests:
                for r in range(comm.size):
                    self.assertIsNone(comm.send(x, r, 1))
                self.assertIs(comm.allreduce(total), total)
                with mep.group() as inner:
                    for r in range(comm.size):
                        self.assertIsNone(comm.recv(y[r], r, 1))
                    self.assertIsNone(comm.sendrecv(np.ones(1), comm.rank, np.zeros(1), comm.rank, 2, 2))
                    comm.barrier()
                    self.assertEqual(len(inner), comm.size + 3)
            self.assertEqual(len(requests), 2 * comm.size + 4)
            self.assertTrue(all(each.done for each in requests))
            self.assertEqual([each.wait().source for each in inner[:comm.size]], list(range(comm.size)))
            np.testing.assert_array_equal(total, comm.size)
            self.assertTrue((y == np.arange(comm.size)[:, None]).all())
            comm.barrier()  # blocks again
            return comm.last_op().seq

        self.assertEqual(len(set(on_threads(3, work))), 1)

    def test_two_ranks_of_one_thread(self):
        comms = mep.init_all(2)
        x, y = np.full(LARGE, 3, np.uint8), np.zeros(LARGE, np.uint8)
        with mep.group():
            comms[0].send(x, 1)
            comms[1].recv(y, 0)
        np.testing.assert_array_equal(y, 3)
        for comm in comms:
            comm.close()

    def test_errors(self):
        with mep.init(rank=0, size=1) as comm:
            for tag in (1, 2):
                comm.send(doubles(1), 0, tag)
            with self.assertRaises(mep.MismatchError):
                with mep.group() as requests:
                    comm.recv(np.zeros(3, np.int32), 0, 1)
                    comm.recv(np.zeros(1), 0, 2)
            self.assertTrue(all(each.done for each in requests))
            # A bad call is refused at once; calls that have begun go on.
            y = np.zeros(3)
            with self.assertRaises(mep.InvalidArgumentError):
                with mep.group() as requests:
                    comm.recv(y, 0, 1)
                    comm.recv(y, 7, 1)
            self.assertEqual([each.wait().tag for each in requests], [1])
            self.assertEqual(comm.recv(y).tag, 2)  # in no group any more
            with mep.group():
                pass

    def test_buffers_live_until_the_end(self):
        with mep.init(rank=0, size=1) as comm:
            y = np.zeros(LARGE, np.uint8)
            with mep.group():
                x = np.full(LARGE, 5, np.uint8)
                alive = weakref.ref(x)
                comm.send(x, 0)
                del x
                gc.collect()
                self.assertIsNotNone(alive())
                comm.recv(y)
            gc.collect()
            self.assertIsNone(alive())
            np.testing.assert_array_equal(y, 5)

    def test_a_group_is_its_threads(self):
        with mep.init(rank=0, size=1) as comm:
            got = []
            with mep.group():
                other = threading.Thread(target=lambda: got.append(comm.sendrecv(doubles(1), 0, np.zeros(3))))
                other.start()
                other.join()
            self.assertEqual(got[0].bytes, 24)


class Ranks(unittest.TestCase):
    def test_values(self):
        def work(comm):
            right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            for items in (1, 1000, 100000):
                y = np.zeros(items)
                message = comm.sendrecv(np.full(items, comm.rank + 0.5), right, y, left)
                self.assertEqual((message.source, message.bytes), (left, 8 * items))
                np.testing.assert_array_equal(y, left + 0.5)
            if comm.rank != 0:
                for number in range(20):
                    comm.send(np.int64([comm.rank, number]), 0, number)
                return None
            seen = {r: [] for r in range(1, comm.size)}
            y = np.zeros(2, np.int64)
            for _ in range(20 * (comm.size - 1)):
                message = comm.recv(y)
                self.assertEqual((message.source, message.tag), tuple(y))
                seen[message.source].append(message.tag)
            return list(seen.values())

        self.assertEqual(on_threads(3, work), [[list(range(20))] * 2, None, None])

    def test_proc_null(self):
        def work(comm):
            right = comm.rank + 1 if comm.rank + 1 < comm.size else mep.PROC_NULL
            left = comm.rank - 1 if comm.rank else mep.PROC_NULL
            nothing = mep.Message(mep.PROC_NULL, mep.ANY_TAG, 0, "uint8")
            self.assertEqual(comm.sendrecv(comm.rank, right, source=left), comm.rank - 1 if comm.rank else None)
            y = np.full(1, -1.0)
            message = comm.sendrecv(np.full(1, comm.rank + 0.0), right, y, left)
            self.assertEqual(message.source, left)
            np.testing.assert_array_equal(y, comm.rank - 1)
            with mep.group() as requests:
                comm.recv(y, left)
                comm.send(np.ones(1), right)
            self.assertEqual([each.wait() for each in requests][1], None)
            self.assertEqual(requests[0].wait().source, left)
            null = mep.PROC_NULL
            self.assertEqual([comm.send(y, null), comm.send({}, null), comm.recv(source=null), comm.isend(y, null).wait()],
                             [None] * 4)
            received = comm.irecv(y, null)
            self.assertEqual((received.test(), received.cancel(), received.wait()), (True, False, nothing))
            self.assertEqual([comm.probe(null), comm.iprobe(null), comm.recv(y, null)], [nothing] * 3)
            self.assertEqual(mep.waitall([comm.isend(y, null), comm.irecv(y, null)]), [None, nothing])
            self.assertEqual(mep.waitany([comm.isend(y, null)]), None)

        for size in (1, 2, 3):
            on_threads(size, work)

    def test_a_barrier_beside_messages(self):
        def work(comm):
            y = np.zeros(LARGE, np.uint8)
            if comm.rank == 0:
                with comm.irecv(y, 1), comm.isend(y.copy(), 1):
                    comm.barrier()
            else:
                comm.barrier()
                comm.sendrecv(y.copy(), 0, y)

        on_threads(2, work)

    def test_dup(self):
        def work(comm):
            own = comm.dup()
            y = np.zeros(1)
            comm.send(np.float64([1]), 1 - comm.rank)
            own.send(np.float64([2]), 1 - comm.rank)
            own.recv(y)
            self.assertEqual(y[0], 2)
            comm.recv(y)
            self.assertEqual(y[0], 1)
            return own.allreduce(np.ones(1))[0]

        self.assertEqual(on_threads(2, work), [2, 2])

    def test_a_rank_that_is_gone(self):
        has_come = threading.Event()

        def work(comm):
            if comm.rank == 1:
                comm.send(np.ones(1), 0, 5)
                self.assertTrue(has_come.wait(60))
                comm.abort()
                return None
            if comm.rank == 2:
                return self.reported(comm)
            comm.probe(1, 5)
            has_come.set()
            with self.assertRaises(mep.PeerFailedError) as caught:
                comm.recv(np.zeros(1), 1, 6)
            self.assertEqual(caught.exception.info.failed, [1])
            self.assertEqual(comm.recv(np.zeros(1), 1, 5).tag, 5)
            with self.assertRaises(mep.PeerFailedError):
                comm.send(np.zeros(1), 1)
            with self.assertRaises(mep.PeerFailedError):
                mep.waitall([comm.irecv(np.zeros(1), 1)])
            comm.send(np.zeros(1), 0)
            self.assertEqual(comm.recv(np.zeros(1)).source, 0)
            return self.reported(comm)

        self.assertEqual(on_threads(3, work, timeout_ms=20000), [[1], None, [1]])

    def reported(self, comm):
        """The next collective reports the change all the same."""
        with self.assertRaises(mep.PeerFailedError) as caught:
            comm.barrier()
        comm.barrier()
        return caught.exception.info.failed

    def test_revoke(self):
        with mep.init(rank=0, size=1) as comm:
            request = comm.irecv(np.zeros(1))
            comm.revoke()
            with self.assertRaises(mep.RevokedError):
                request.wait()


class Listed(unittest.TestCase):
    """A communicator that only some ranks make."""

    def test_create_from_ranks(self):
        def work(comm):
            if comm.rank == 1:
                return None
            with comm.create_from_ranks([2, 0, 3], "some") as part:
                return part.name, part.allgather(np.int32([comm.rank])).ravel().tolist()

        some = ("some", [2, 0, 3])
        self.assertEqual(on_threads(4, work), [some, None, some, some])


class ControlC(unittest.TestCase):
    def run_program(self, text):
        """In a process of its own, which may crash."""
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", PROLOGUE + text], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=240)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "well"), done.stderr)

    def test_in_calls_that_wait(self):
        # If it comes before the call waits, that is right as well.
        self.run_program("""
def in_a_group():
    with mep.group():
        comm.recv(y, 0, 5)
        comm.send(y, 0, 4)

for call in (lambda: comm.recv(y, 0, 5), lambda: comm.send(y, 0), lambda: comm.irecv(y, 0, 5).wait(),
             lambda: comm.sendrecv(y, 0, y.copy(), 0, 1, 2), lambda: mep.waitall([comm.irecv(y, 0, 5)]),
             lambda: mep.waitany([comm.irecv(y, 0, 5), comm.irecv(z, 0, 6)]), in_a_group,
             lambda: comm.probe(0, 5)):  # a probe goes on until its timeout: it comes last
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        call()
        raise SystemExit("not interrupted")
    except KeyboardInterrupt:
        pass
    if not comm._calls._running:
        comm.send(np.ones(1), 0, 77)
        comm.recv(z, 0, 77)
        assert z[0] == 1
        z[0] = 0
print("well", flush=True)
os._exit(0)
""")

    def test_anywhere(self):
        # The request of an interrupted call tells its outcome all the same.
        self.run_program("""
def calls():
    # A function of its own: CPython 3.13 leaves the jump back of a while loop out of the try statement around it.
    signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + i % 23))
    if i % 2:
        mep.waitall(requests)
    else:
        while mep.waitany(requests) is not None:
            pass
    for _ in range(50):
        with mep.group():
            comm.barrier()
    signal.setitimer(signal.ITIMER_REAL, 0)

interrupted = 0
for i in range(600):
    x, y, tag = np.full(64, i, np.float64), np.zeros((2, 64)), 2 * i
    requests = []
    for half in (0, 1):
        requests.append(comm.irecv(y[half], 0, tag + half))
        requests.append(comm.isend(x, 0, tag + half))
    try:
        calls()
    except KeyboardInterrupt:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert [each.tag for each in mep.waitall(requests) if each is not None] == [tag, tag + 1]
    assert (y == i).all()
    assert mep._group.current_group.group() is None
assert interrupted > 100, interrupted
comm.close()
print("well")
""")


PROLOGUE = """
import mep, numpy as np, os, signal
signal.signal(signal.SIGALRM, signal.default_int_handler)
comm = mep.init(rank=0, size=1)
y, z = np.zeros(100000), np.zeros(1)
"""


if __name__ == "__main__":
    unittest.main()
