"""Configuring and building the trees build/PRESET."""

from __future__ import annotations

import os
import pathlib
import re

from console import ROOT, die, has, jobs, note, output_of, read_lines, run, step

SHORT_TESTS = "mep_quick_tests"  # the target of ./dev test without arguments
LAUNCHER = "CMAKE_{}_COMPILER_LAUNCHER"


def tree_of(preset: str) -> pathlib.Path:
    return ROOT / "build" / preset


def cache_value(preset: str, name: str) -> str | None:
    """A value of the tree's CMake cache, or None."""
    for line in read_lines(tree_of(preset) / "CMakeCache.txt"):
        if line.startswith(f"{name}:"):
            return line.partition("=")[2]
    return None


def is_configured(preset: str) -> bool:
    tree = tree_of(preset)
    return (tree / "CMakeCache.txt").exists() and (
        (tree / "build.ninja").exists() or (tree / "Makefile").exists())


def gpu_architecture() -> str | None:
    """The first GPU's, like 90, where there is one."""
    answer = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    digits = answer.splitlines()[0].replace(".", "").strip() if answer else ""
    return digits if digits.isdigit() else None


def launchers() -> list[str]:
    """ccache in front of the compilers, unless the environment names something."""
    if not has("ccache"):
        return []
    return [f"-D{LAUNCHER.format(language)}=ccache" for language in ("C", "CXX", "CUDA")
            if LAUNCHER.format(language) not in os.environ]


# The CUDA part of a tree. A tree that is there only ever grows, since less would compile everything again.
NO_CUDA, ONE_GPU, ALL_GPUS = range(3)


def cuda_of(preset: str) -> int:
    if cache_value(preset, "MEP_CUDA") == "OFF":
        return NO_CUDA
    return ONE_GPU if cache_value(preset, "MEP_CUDA_QUICK") == "ON" else ALL_GPUS


def cuda_options(cuda: int) -> list[str]:
    if cuda == NO_CUDA:
        return ["-DMEP_CUDA=OFF"]
    options = ["-DMEP_CUDA=AUTO", f"-DMEP_CUDA_QUICK={'ON' if cuda == ONE_GPU else 'OFF'}"]
    architecture = gpu_architecture()
    if cuda == ONE_GPU and architecture:
        options.append(f"-DMEP_CUDA_QUICK_ARCHITECTURE={architecture}")
    return options


def merge_base() -> str | None:
    """Where this branch left the main one; None outside a repository."""
    for branch in ("origin/HEAD", "origin/main", "main"):
        base = output_of("git", "merge-base", "HEAD", branch)
        if base:
            return base.strip()
    return None


def cuda_of_a_short_run() -> int:
    """Kernels take half of a first build, so that they are left out where no GPU could run them and this branch
    does not touch them."""
    if gpu_architecture():
        return ONE_GPU
    base = merge_base()
    changed = output_of("git", "diff", "--name-only", base, "--", "src/kernels/cuda") if base else ""
    return ONE_GPU if changed else NO_CUDA


def strictness() -> list[str]:
    """Warnings are errors in the gate, which sets the variable, and for those who develop with it. One that a newer
    compiler gives in false alarm stops nobody's first build."""
    return ["-DMEP_WERROR=ON"] if os.environ.get("MEP_DEV_WERROR", "0") == "1" else []


def configure(preset: str, cuda: int) -> int:
    """A new tree is configured as asked, one that is there only where it lacks something. Trees of sanitizers have
    no kernels: none runs under them."""
    if preset != "release":
        cuda = NO_CUDA
    strict = strictness()
    if is_configured(preset):
        changes = []
        if strict and cache_value(preset, "MEP_WERROR") != "ON":
            step(f"Configuring build/{preset} so that warnings are errors")
            changes += strict
        if cuda > cuda_of(preset):
            step(f"Configuring build/{preset} for {'one GPU architecture' if cuda == ONE_GPU else 'all GPUs'}")
            changes += cuda_options(cuda)
        return run("cmake", "--preset", preset, *changes) if changes else 0
    step(f"Configuring build/{preset}")
    generator = ["-G", "Ninja"] if has("ninja") else []
    return run("cmake", "--preset", preset, *launchers(), *generator, *strict, *cuda_options(cuda))


def share_the_cache() -> None:
    """Settings of ccache with which one clone's objects answer for another."""
    os.environ.setdefault("CCACHE_BASEDIR", str(ROOT))
    os.environ.setdefault("CCACHE_NOHASHDIR", "1")
    # Settings that ccache asks for before it answers for sources with a precompiled header.
    os.environ.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")
    os.environ.setdefault("CCACHE_PCH_EXTSUM", "1")  # see mep_name_precompiled() in CMake
    # A miss is not preprocessed a second time only to be named.
    os.environ.setdefault("CCACHE_DEPEND", "1")


def show_progress() -> None:
    """Ninja counts steps; the time tells more. Only 1.12 and later estimate what is left, and earlier ones refuse %W."""
    version = re.findall(r"\d+", output_of("ninja", "--version") or "")
    left = [int(number) for number in version[:2]] >= [1, 12]
    os.environ.setdefault("NINJA_STATUS", "[%f/%t, %w, %W left] " if left else "[%f/%t, %e s] ")


def build(preset: str = "release", target: str = "all", cuda: int = ALL_GPUS) -> bool:
    """Configures when needed; afterwards CMake itself notices changes. `target`: one or more, with spaces between."""
    if not has("cmake"):
        die("cmake is missing")
    if run("cmake", "-P", "cmake/CheckVersion.cmake") != 0:
        version = (output_of("cmake", "--version") or "cmake").splitlines()[0]
        die(f"{version} is too old; 3.25 is needed (pip install cmake gives a newer one)")
    if configure(preset, cuda) != 0:
        return False
    share_the_cache()
    show_progress()
    step(f"Building build/{preset}")
    return run("cmake", "--build", tree_of(preset), "-j", jobs(), "--target", *target.split()) == 0


def build_or_stop(preset: str = "release", target: str = "all", cuda: int = ALL_GPUS) -> None:
    if not build(preset, target, cuda):
        note("the build failed")
        raise SystemExit(1)
