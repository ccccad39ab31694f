"""Builds and loads the C++ binding for the PyTorch that is installed, once for each version of either."""
from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

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
    """The fingerprint of all that the binding is compiled from."""
    digest = hashlib.sha256(f"{torch.__version__} {sys.version} {_library()}".encode())
    for path in [*sorted(_SOURCES.iterdir()), include / "mep.h"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load() -> ModuleType:
    """The binding; built first if it is not in the cache. Processes that come meanwhile wait for that."""
    include = _include_folder()
    folder = _cache_folder() / _digest(include)
    built = folder / f"{_NAME}.so"
    if built.is_file():
        return _load_file(built)
    from torch.utils import cpp_extension
    print(f"mep.torch: building the binding for PyTorch {torch.__version__} in {folder}, half a minute, once",
          file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    library = _library()
    # One file: most of the time goes into PyTorch's headers.
    whole = folder / f"{_NAME}.cpp"
    text = "".join(f'#include "{path}"\n' for path in sorted(_SOURCES.glob("*.cpp")))
    if not whole.is_file():
        part = folder / f"{_NAME}.{os.getpid()}"
        part.write_text(text)
        part.replace(whole)
    try:
        return cast(ModuleType, cpp_extension.load(
            name=_NAME, sources=[str(whole)],
            extra_include_paths=[str(include)], extra_cflags=["-O2", "-std=c++20", "-g0"],
            extra_ldflags=[str(library), f"-Wl,-rpath,{library.parent}"], build_directory=str(folder),
            with_cuda=False, is_python_module=True))
    except (RuntimeError, OSError) as error:
        raise ImportError(f"mep.torch could not build its binding for PyTorch {torch.__version__}; it needs a C++20 "
                          f"compiler (g++ 11 or clang 14) and ninja: {error}") from error
