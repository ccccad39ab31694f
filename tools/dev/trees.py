"""Configuring and building the trees build/PRESET."""

from __future__ import annotations

import os
import pathlib

from console import ROOT, die, has, jobs, note, output_of, read_lines, run, step

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


def configure(preset: str, quick: bool) -> int:
    """A new tree is configured as asked; one that is there only ever grows from quick to whole.

    Trees of sanitizers are always quick: no kernel runs under them.
    """
    quick = quick or preset != "release"
    if is_configured(preset):
        if quick or cache_value(preset, "MEP_CUDA_QUICK") != "ON":
            return 0
        step(f"Configuring build/{preset} for all GPU architectures and the programs of tests/gpu")
        return run("cmake", "--preset", preset, "-DMEP_CUDA_QUICK=OFF")
    step(f"Configuring build/{preset}")
    options = launchers() + ["-DMEP_WERROR=ON"]
    if has("ninja"):
        options += ["-G", "Ninja"]
    if quick:
        options.append("-DMEP_CUDA_QUICK=ON")
        architecture = gpu_architecture()
        if architecture:
            options.append(f"-DMEP_CUDA_QUICK_ARCHITECTURE={architecture}")
    return run("cmake", "--preset", preset, *options)


def build(preset: str = "release", target: str = "all", quick: bool = False) -> bool:
    """Configures when needed; afterwards CMake itself notices changes."""
    if not has("cmake"):
        die("cmake is missing")
    if run("cmake", "-P", "cmake/CheckVersion.cmake") != 0:
        version = (output_of("cmake", "--version") or "cmake").splitlines()[0]
        die(f"{version} is too old; 3.25 is needed (pip install cmake gives a newer one)")
    if configure(preset, quick) != 0:
        return False
    # A miss is not preprocessed a second time only to be named.
    os.environ.setdefault("CCACHE_DEPEND", "1")
    step(f"Building build/{preset}")
    return run("cmake", "--build", tree_of(preset), "-j", jobs(), "--target", target) == 0


def build_or_stop(preset: str = "release", target: str = "all", quick: bool = False) -> None:
    if not build(preset, target, quick):
        note("the build failed")
        raise SystemExit(1)
