"""A wheel with the binding of mep.torch compiled: `./dev torch-wheel [VERSION...]`, versions of PyTorch."""

from __future__ import annotations

import os
import re
import shutil

from console import ROOT, note, run, step
from packages import ensure_packages, python_with
from trees import build_or_stop

FOLDER = ROOT / "build" / "torch-wheel"
# The last release of the newest three minor versions that an index had when this was written.
VERSIONS = ("2.15.0", "2.14.1", "2.13.0")
SETUP = """
from setuptools import Distribution, setup

class Binary(Distribution):
    def has_ext_modules(self):
        return True

setup(name="mep-torch", version="{version}", description="The binding of mep.torch, compiled", packages=["mep_torch"],
      package_data={{"mep_torch": ["*.so"]}}, install_requires=["mep-comm=={version}"], python_requires=">=3.9", distclass=Binary)
"""


def torch_wheel(arguments: list[str]) -> int:
    ensure_packages()
    build_or_stop("release", "mep")
    package = FOLDER / "package" / "mep_torch"
    shutil.rmtree(FOLDER / "cache", ignore_errors=True)
    shutil.rmtree(FOLDER / "package", ignore_errors=True)
    package.mkdir(parents=True)
    versions = arguments or list(VERSIONS)
    for version in versions:
        step(f"The binding for PyTorch {version}")
        python = python_with(FOLDER / version, [f"torch=={version}", "numpy", "ninja", "setuptools", "wheel"],
                             "import torch, numpy, ninja, wheel", f"PyTorch {version} (some GB)")
        status = run(python, "-B", "-m", "mep.torch", env={
            "MEP_LIBRARY": str(ROOT / "build/release/lib/libmep.so"), "PYTHONPATH": str(ROOT / "bindings/python"),
            "XDG_CACHE_HOME": str(FOLDER / "cache"), "PATH": f"{python.parent}:{os.environ['PATH']}"})
        if status != 0:
            return status
    step("The wheel")
    for built in (FOLDER / "cache" / "mep" / "torch").glob("*/mep_torch_binding.so"):
        shutil.copy(built, package / f"{built.parent.name}.so")
    names = ", ".join(versions)
    (package / "__init__.py").write_text(f'"""The binding of mep.torch, compiled for PyTorch {names}."""\n')
    header = (ROOT / "include/mep.h").read_text()
    parts = [re.search(rf"MEP_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    (package.parent / "setup.py").write_text(SETUP.format(version=".".join(parts)))
    status = run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", FOLDER / "dist", package.parent)
    if status == 0:
        note(f"{FOLDER / 'dist'}: " + ", ".join(sorted(path.name for path in (FOLDER / "dist").glob("*.whl"))))
    return status
