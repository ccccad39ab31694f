"""One case of PyTorch's distributed_test.py: upstream_case.py UpstreamTest.NAME. upstream.py runs it.

Its ranks import this file again, so MEP is registered in each of them.
"""
import os

if os.environ.get("MEP_TEST_REAL_GLOO") != "1":
    import mep.torch
    mep.torch.register("gloo")

from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class UpstreamTest(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    run_tests()
