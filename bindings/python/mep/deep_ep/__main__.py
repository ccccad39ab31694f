"""python -m mep.deep_ep MODULE ARGUMENTS...: runs a module as `python -m` does, with `deep_ep` as mep.deep_ep in it and in the
children that multiprocessing starts."""
from mep._launch import main

main("mep.deep_ep")
