#!/usr/bin/env python3
"""Installed by a wheel as mep_run, mep_info and so on: becomes the program of its name in the package's bin/."""
import importlib.util
import os
import sys

name = os.path.basename(sys.argv[0])
package = importlib.util.find_spec("mep")  # finds it without importing it
for folder in (package.submodule_search_locations or [] if package else []):
    program = os.path.join(folder, "bin", name)
    if os.path.isfile(program):
        os.execv(program, sys.argv)
sys.exit(f"{name}: the package mep of {sys.executable} has no bin/{name}: "
         + (f"it lies in {package.origin}; is PYTHONPATH set?" if package else "pip install it again"))
