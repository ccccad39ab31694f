"""python -m mep.mooncake MODULE ARGUMENTS...: runs a module as `python -m` does, with `mooncake.pg` and `mooncake.mooncake_ep_buffer` as MEP's in it and in the
children that multiprocessing starts."""
from mep._launch import main

main("mep.mooncake")
