"""python -m mep.torch: builds the binding, if that has not been done, and says where it lies.
python -m mep.torch [--as NAME] PROGRAM ARGUMENTS...: runs a file, or after -m a module, in which the backend NAME of
torch.distributed ("gloo") is MEP."""
import runpy
import sys
from pathlib import Path

import mep.torch

_USAGE = "usage: python -m mep.torch [--as NAME] [-m MODULE | FILE] [ARGUMENT]..."


def main(arguments: list[str]) -> None:
    name = "gloo"
    if arguments[:1] == ["--as"]:
        if len(arguments) < 3:
            sys.exit(_USAGE)
        name, arguments = arguments[1], arguments[2:]
    if arguments[:1] == ["--help"]:
        print(_USAGE)
    elif not arguments:
        print(f"mep.torch: the backend \"mep\" is ready, binding {mep.torch._binding.__file__}")
    elif arguments[0] == "-m" and len(arguments) > 1:
        mep.torch.register(name)
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0].startswith("-"):
        sys.exit(_USAGE)
    else:
        mep.torch.register(name)
        sys.argv = arguments
        # Its folder comes first, in place of the current one, like with `python FILE`.
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
