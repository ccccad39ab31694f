#!/usr/bin/env python3
"""The Python package: types of items, what results are made of, and what errors say. Needs NumPy and MEP_LIBRARY."""
import unittest

import mep
import numpy as np
from mep._buffers import NUMBERS
from python_test import DLPack, Interface, ml_dtypes, on_threads


class Types(unittest.TestCase):
    def test_each_type_by_its_values(self):
        """What the library computes shows which type it took: sign, width and fraction."""
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
        self.assertEqual({*examples, *raw}, set(NUMBERS))

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

        on_threads(2, work)


if __name__ == "__main__":
    unittest.main()
