"""python -m mep.nixl_ep MODULE ARGUMENTS...: runs a module as `python -m` does, with `nixl_ep` as mep.nixl_ep in it and in the
children that multiprocessing starts."""
from mep._launch import main

main("mep.nixl_ep")
