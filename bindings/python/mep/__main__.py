"""python -m mep: the versions, the library that is loaded, its build, and what the environment says of this rank."""
import os
import platform
import subprocess
from pathlib import Path

import numpy

import mep
from mep.info import find

# Variables of a launcher that say which rank this is.
_OF_RANK = ("MEP_RANK", "MEP_SIZE", "MEP_JOB", "MEP_JOIN", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK",
            "WORLD_SIZE")


def _library() -> str:
    """The path of the libmep.so that is loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if Path(path).name.startswith("libmep.so"):
                return path
    return "unknown"


def _build() -> str:
    """The section "Build" of mep_info."""
    program = find()
    if program is None:
        return "built with: unknown, mep_info is not here"
    said = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=False).stdout
    lines = said.partition("Build\n")[2].partition("\n\n")[0]
    return f"built with, says {program}:\n{lines}"


def main() -> None:
    print(f"mep {mep.__version__}, package {Path(mep.__file__).parent}")
    print(f"library {mep.library_version()}, {_library()}")
    print(f"Python {platform.python_version()}, NumPy {numpy.__version__}")
    found = [f"{name}={os.environ[name]}" for name in _OF_RANK if name in os.environ]
    print("rank: " + (" ".join(found) or "no launcher; mep.init() is a world of one"))
    print(_build())
    print("the machine: python -m mep.info")


if __name__ == "__main__":
    main()
