"""Builds and loads the C++ binding for the PyTorch that is installed, once for each version of either."""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Iterator

import torch

import mep

_NAME = "mep_torch_binding"
_SOURCES = Path(__file__).parent / "csrc"


def _include_folder() -> Path:
    """Where mep.h lies: in the package, or in the source tree."""
    package = Path(mep.__file__).parent
    for folder in (package / "include", package.parents[2] / "include"):
        if (folder / "mep.h").is_file():
            return folder
    raise ImportError(f"mep.torch needs mep.h, which is not beside {package}: reinstall MEP")


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "mep" / "torch"


def _library() -> Path:
    """The libmep.so that is loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = Path(line.split(maxsplit=5)[-1].strip())
            if path.name.startswith("libmep.so"):
                return path
    raise ImportError("mep.torch did not find the libmep.so that is loaded")


def _digest(include: Path) -> str:
    """The fingerprint of all that the binding is compiled from. PyTorch's builds for CPUs and GPUs have the same headers."""
    version = torch.__version__.split("+")[0]
    digest = hashlib.sha256(f"{version} {sys.implementation.cache_tag} {torch.compiled_with_cxx11_abi()}".encode())
    for path in [*sorted(_SOURCES.iterdir()), include / "mep.h"]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _from_wheel(digest: str) -> Path | None:
    """The binding of the package mep-torch, if it has one for this PyTorch (tools/dev/torch_wheel.py makes the package)."""
    found = importlib.util.find_spec("mep_torch")
    for folder in found.submodule_search_locations or () if found else ():
        if (path := Path(folder) / f"{digest}.so").is_file():
            return path
    return None


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """The lock goes with its process."""
    with open(folder / "building", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _telling(text: str) -> Iterator[None]:
    """Says every 15 s that it goes on."""
    done = threading.Event()

    def tell() -> None:
        begun = time.monotonic()
        while not done.wait(15):
            print(f"mep.torch: {text}, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def load() -> ModuleType:
    """The binding; built first if neither mep-torch nor the cache has it. Processes that come meanwhile wait for that."""
    include = _include_folder()
    digest = _digest(include)
    if packed := _from_wheel(digest):
        return _load_file(packed)
    folder = _cache_folder() / digest
    built = folder / f"{_NAME}.so"
    if not built.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder):
            if not built.is_file():
                _build(folder, include)
    return _load_file(built)


def _build(folder: Path, include: Path) -> None:
    from torch.utils import cpp_extension
    print(f"mep.torch: compiling the binding for PyTorch {torch.__version__}, one to two minutes, once; it is kept in {folder}. "
          "`python -m mep.torch` does it beforehand, and the package mep-torch has it compiled.", file=sys.stderr, flush=True)
    library = _library()
    # One file: most of the time goes into PyTorch's headers.
    whole = folder / f"{_NAME}.cpp"
    whole.write_text("".join(f'#include "{path}"\n' for path in sorted(_SOURCES.glob("*.cpp"))))
    # PyTorch's own lock outlives a process that was killed.
    (folder / "lock").unlink(missing_ok=True)
    try:
        with _telling("still compiling"):
            cpp_extension.load(name=_NAME, sources=[str(whole)], extra_include_paths=[str(include)],
                               extra_cflags=["-O2", "-std=c++20", "-g0"], extra_ldflags=[str(library)],
                               build_directory=str(folder), with_cuda=False, is_python_module=False)
    except (RuntimeError, OSError) as error:
        raise ImportError(f"mep.torch could not build its binding for PyTorch {torch.__version__}; it needs a C++20 "
                          f"compiler (g++ 11 or clang 14) and ninja: {error}") from error
