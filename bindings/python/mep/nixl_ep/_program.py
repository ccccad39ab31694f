"""The main module of a program that `python -m mep.nixl_ep` runs. A child that multiprocessing spawns imports the main
module by the name in its __spec__ before anything else of the program, as __mp_main__: so it comes here first, too."""
from mep._launch import run

run(globals(), "mep.nixl_ep")
