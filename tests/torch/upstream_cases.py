"""Cases of PyTorch's distributed_test.py, one after the other; upstream.py calls run_all().

Ranks are forks of a server that has imported this module, as the import of PyTorch takes seconds.
"""
import json
import os
import unittest

import torch
from torch.testing._internal import common_distributed, common_utils

MARK = "@upstream "
SERVER = torch.multiprocessing.get_context("forkserver")
if os.environ.get("MEP_TEST_REAL_GLOO") != "1":
    import mep.torch
    mep.torch.register("gloo")

    # Not of MPI alone: MEP has them too.
    ask_of_all = {"Only MPI supports all_to_all", "Only MPI supports CPU all_to_all_single"}
    skip_if = common_utils.skip_but_pass_in_sandcastle_if
    common_utils.skip_but_pass_in_sandcastle_if = lambda condition, reason: skip_if(
        condition and reason not in ask_of_all, reason)

# Groups of ranks 1 and 2 are there from 3 ranks on. PyTorch asks for 8.
if int(os.environ["WORLD_SIZE"]) > 2:
    common_distributed.skip_if_small_worldsize = lambda case: case

from torch.testing._internal.distributed import distributed_test


def process(target, name, args, kwargs):
    return SERVER.Process(target=in_environment, name=name, args=(dict(os.environ), target, args), kwargs=kwargs)


def in_environment(environment, target, args, **kwargs):
    """The server has that of the first case, and each case has other folders."""
    os.environ.update(environment)
    distributed_test.INIT_METHOD = environment["INIT_METHOD"]
    target(*args, **kwargs)


class UpstreamTest(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(process)


def run(name):
    result = unittest.TestResult()
    unittest.TestSuite([UpstreamTest(name)]).run(result)
    if not result.wasSuccessful():
        return "failed", "\n".join(text for _, text in result.failures + result.errors) or "passes unexpectedly"
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def run_all(names):
    """Prints a line of MARK and JSON for each: its name, the outcome, and why."""
    SERVER.set_forkserver_preload([__name__])
    for name in names:
        print(f"\n{MARK}{json.dumps([name, *run(name)])}", flush=True)
