"""Installs for ./dev: Debian packages and, from PyPI where they are absent, the CUDA compiler and what builds wheels."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import sys

from console import ROOT, as_root, die, has, note, output_of, run, step

RUN_PACKAGES = ["g++", "cmake", "ninja-build", "ccache", "pkg-config", "libhwloc-dev", "libsodium-dev", "libssl-dev",
                "libibverbs-dev", "libopenmpi-dev", "openmpi-bin"]
TEST_PACKAGES = ["git", "libcmocka-dev", "gfortran", "python3", "python3-venv", "python3-pip",
                 "python3-numpy", "clang", "clang-format",
                 "clang-tidy", "spin", "iproute2"]
# Where there is no apt, programs are the best that can be looked for.
RUN_PROGRAMS = ["g++", "cmake", "pkg-config", "mpirun"]
TEST_PROGRAMS = ["gfortran", "python3", "clang-format", "clang-tidy", "spin", "ip"]
# Programs that may come from elsewhere than their package, or from a package of another name.
PROGRAM_OF = {"pkg-config": "pkg-config", "ccache": "ccache", "git": "git"}
CUDA_PACKAGES = ["nvidia-cuda-nvcc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-nvvm",
                 "nvidia-cuda-cccl"]
CUDA_VERSION = "13.0.*"


def may_install() -> bool:
    return os.environ.get("MEP_DEV_NO_INSTALL", "0") != "1"


def missing_packages(packages: list[str]) -> list[str]:
    listing = output_of("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n") or ""
    installed = {line.split()[0] for line in listing.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in installed
            and not (package in PROGRAM_OF and has(PROGRAM_OF[package]))]


def forget_configurations() -> None:
    """Packages that were absent may be found now."""
    for cache in (ROOT / "build").glob("*/CMakeCache.txt"):
        cache.unlink()


def ensure_packages(test: bool = False) -> None:
    """Says what is missing and installs it where that is possible; never a reason to stop by itself."""
    if not has("apt-get") or not has("dpkg-query"):
        programs = RUN_PROGRAMS + (TEST_PROGRAMS if test else [])
        absent = [program for program in programs if not has(program)]
        if absent:
            step(f"This system has no apt; going on without: {' '.join(absent)}")
            note("Needed besides: the development files of hwloc, libsodium and, for tests, CMocka.")
        return
    missing = missing_packages(RUN_PACKAGES + (TEST_PACKAGES if test else []))
    if not missing:
        return
    step(f"Installing packages: {' '.join(missing)}")
    if not may_install():
        note("not done: MEP_DEV_NO_INSTALL=1")
        return
    if as_root("apt-get", "update", "-q") != 0:
        note("the package lists could not be refreshed; trying with those that are there")
    if as_root("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-q",
               "--no-install-recommends", *missing) == 0:
        forget_configurations()
    else:
        note("That did not work. Install them by hand if what follows fails:")
        note(f"apt-get install {' '.join(missing)}")


def python_with(folder: pathlib.Path, packages: list[str], check: str, what: str) -> pathlib.Path:
    """The Python of the environment in `folder`; made, with the packages in it, where the imports of `check` fail."""
    program = folder / "bin" / "python"
    if program.exists() and run(program, "-c", check) == 0:
        return program
    step(f"Installing {what} from PyPI in {folder.relative_to(ROOT)}")
    if run(sys.executable, "-m", "venv", folder) != 0 or run(program, "-m", "pip", "install", "-q", *packages) != 0:
        die(f"{what} could not be installed; what pip says stands above")
    return program


def has_cuda_compiler(root: pathlib.Path) -> bool:
    return bool(os.environ.get("CUDACXX")) or has("nvcc") or any(
        os.access(path, os.X_OK) for path in
        (pathlib.Path("/usr/local/cuda/bin/nvcc"), root / "nvidia/cu13/bin/nvcc"))


def ensure_cuda_compiler() -> None:
    """The CUDA compiler from PyPI, for machines without one: tests compile the kernels with it."""
    root = ROOT / "build/cuda-toolchain"
    if has_cuda_compiler(root):
        return
    if not may_install():
        note("no CUDA compiler: the kernels are not built")
        return
    step(f"Installing the CUDA compiler into {root.relative_to(ROOT)} (nothing else is changed)")
    wanted = [f"{package}=={CUDA_VERSION}" for package in CUDA_PACKAGES]
    if run("python3", "-m", "pip", "install", "-q", "--no-deps", "--target", root, *wanted) == 0:
        (ROOT / "build/release/CMakeCache.txt").unlink(missing_ok=True)
    else:
        shutil.rmtree(root, ignore_errors=True)
        note("that did not work: the kernels are not built")


def ensure_wheel_builder() -> None:
    """scikit-build-core from PyPI, which Debian 12 lacks; without it the test abi_wheel is skipped."""
    folder = ROOT / "build/wheel-builder"
    if folder.exists() or importlib.util.find_spec("scikit_build_core") or not may_install():
        return
    step(f"Installing scikit-build-core into {folder.relative_to(ROOT)} (nothing else is changed)")
    if run("python3", "-m", "pip", "install", "-q", "--target", folder, "scikit-build-core") != 0:
        shutil.rmtree(folder, ignore_errors=True)
        note("that did not work: abi_wheel is skipped")
