"""python -m mep.info [OPTION...]: becomes mep_info, which prints what MEP finds on this machine."""
from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Optional


def find() -> Optional[str]:
    """That of the wheel or the prefix that holds this package, else the first on the PATH."""
    package = Path(__file__).resolve().parent
    beside = [package / "bin" / "mep_info"]
    if package.parent.parts[-3:] == ("share", "mep", "python"):
        beside.append(package.parents[3] / "bin" / "mep_info")
    for program in beside:
        if program.is_file():
            return str(program)
    return shutil.which("mep_info")


if __name__ == "__main__":
    path = find()
    if path is None:
        sys.exit(f"mep_info is not beside {Path(__file__).resolve().parent} and not on the PATH; `pip install .` of MEP's "
                 "source tree brings it")
    sys.stdout.flush()
    os.execv(path, [path, *sys.argv[1:]])
