"""Builds and loads the C++ binding for the PyTorch that is installed, once for each version of either."""
from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import os
import shutil
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


def _seal(path: Path) -> Path:
    """The file beside the binding that has its size and digest."""
    return path.with_suffix(".sum")


def _sum_of(path: Path) -> str:
    content = path.read_bytes()
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}"


def _is_whole(path: Path) -> bool:
    """False too where a file is missing. Loading a file that was cut short would end the process."""
    try:
        return _seal(path).read_text(encoding="ascii") == _sum_of(path)
    except (OSError, ValueError):
        return False


def _put(source: Path, target: Path) -> None:
    """The whole file under its name, or nothing, also after a loss of power."""
    with open(source, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(source, target)


def load() -> ModuleType:
    """The binding; built first if neither mep-torch nor the cache has it. Processes that come meanwhile wait for that."""
    include = _include_folder()
    digest = _digest(include)
    if packed := _from_wheel(digest):
        return _load_file(packed)
    folder = _cache_folder() / digest
    built = folder / f"{_NAME}.so"
    if not _is_whole(built):
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder):
            if not _is_whole(built):
                _build(folder, include, built)
    return _load_file(built)


def _is_full(folder: Path, error: Exception) -> bool:
    """Compilers tell of it in words alone."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in str(error) or os.statvfs(folder).f_bavail == 0


def _build(folder: Path, include: Path, built: Path) -> None:
    from torch.utils import cpp_extension
    print(f"mep.torch: compiling the binding for PyTorch {torch.__version__}, one to two minutes, once; it is kept in {folder}. "
          "`python -m mep.torch` does it beforehand, and the package mep-torch has it compiled.", file=sys.stderr, flush=True)
    library = _library()
    # The linker writes elsewhere: a process that has loaded an earlier file goes on with that.
    work = folder / "work"
    # One file: most of the time goes into PyTorch's headers.
    whole = work / f"{_NAME}.cpp"
    try:
        # PyTorch's own lock and what the linker left outlive a process that was killed.
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        whole.write_text("".join(f'#include "{path}"\n' for path in sorted(_SOURCES.glob("*.cpp"))))
        with _telling("still compiling"):
            cpp_extension.load(name=_NAME, sources=[str(whole)], extra_include_paths=[str(include)],
                               extra_cflags=["-O2", "-std=c++20", "-g0"], extra_ldflags=[str(library)],
                               build_directory=str(work), with_cuda=False, is_python_module=False)
        made = work / f"{_NAME}.so"
        _seal(made).write_text(_sum_of(made), encoding="ascii")
        _put(_seal(made), _seal(built))
        _put(made, built)
        shutil.rmtree(work, ignore_errors=True)
    except (RuntimeError, OSError) as error:
        if _is_full(folder, error):
            raise ImportError(f"mep.torch could not build its binding: the disk of {folder} is full, or a quota is; free some "
                              "100 MB there, or set XDG_CACHE_HOME to another disk") from error
        raise ImportError(f"mep.torch could not build its binding for PyTorch {torch.__version__}; it needs a C++20 "
                          f"compiler (g++ 11 or clang 14) and ninja: {error}") from error
