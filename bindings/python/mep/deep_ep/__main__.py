"""python -m mep.deep_ep MODULE ARGUMENTS...: runs a module as `python -m` does, with `deep_ep` as mep.deep_ep in it and in
the children that multiprocessing starts."""
import os
import runpy
import sys

if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
    sys.exit("usage: python -m mep.deep_ep MODULE ARGUMENTS...")
del sys.argv[0]
os.environ["MEP_DEEP_EP"] = sys.argv[0]  # for children
runpy.run_module("mep.deep_ep._program", run_name="__main__", alter_sys=True)
