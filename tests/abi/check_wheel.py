#!/usr/bin/env python3
"""check_wheel.py [BUILD_FOLDER]: makes the wheel, installs it into an environment that has NumPy and nothing else, and uses it
there with no variable of MEP's set: README's example under mep_run, python -m mep.info, what the distribution declares. The
library comes from BUILD_FOLDER; without one the whole tree is built, as `pip install .` does, and the wheel is to
bring the libraries that it needs. Exits with 77 where this Python cannot build a wheel without a network."""
import ast
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings/python/mep"
BUILDER = ROOT / "build/wheel-builder"  # where ./dev installs scikit-build-core
PROGRAMS = ("mep_run", "mep_info", "mep_perf")
built = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None

# The variables that a new user has.
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(("MEP_", "PYTHON", "LD_")) and name != "VIRTUAL_ENV"}
# Run in the environment: what it says is one Python literal.
ASK = """
import importlib.metadata, mep, numpy
distribution = importlib.metadata.distribution("mep-comm")
maps = [line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps")]
print(repr({
    "package": mep.__file__,
    "versions": {distribution.version, mep.__version__, mep.library_version()},
    "loaded": sorted({path for path in maps if any(name in path for name in ("libmep.", "libhwloc.", "libsodium."))}),
    "entries": [(e.group, e.name, e.value) for e in distribution.entry_points],
    "extras": sorted(distribution.metadata.get_all("Provides-Extra")),
    "files": [str(file.locate()) for file in distribution.files],
}))
"""


def run(*command, cwd=None, **variables):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, cwd=cwd, env=dict(ENVIRONMENT, **variables))
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexit status {done.returncode}\n{done.stdout}")
    return done.stdout


def skip_without_builders():
    sys.path.append(str(BUILDER))
    for module in ("pip", "venv", "numpy", "scikit_build_core"):
        if importlib.util.find_spec(module) is None:
            print(f"skipped: {sys.executable} has no {module}; `pip install scikit-build-core` brings what builds wheels")
            sys.exit(77)


def make_wheel(folder):
    settings = [f"--config-settings=build-dir={folder.parent / 'build'}"]
    if built:
        settings += [f"--config-settings=cmake.source-dir={ROOT / 'tests/abi/wheel_of_build'}",
                     f"--config-settings=cmake.define.MEP_BUILT={built}"]
    run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index",
        "--disable-pip-version-check", "--wheel-dir", folder, *settings, ROOT, PYTHONPATH=str(BUILDER))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1 or not re.fullmatch(r"mep_comm-[0-9.]+-py3-none-linux_\w+\.whl", wheels[0].name):
        sys.exit(f"the wheel is {[wheel.name for wheel in wheels]}")
    return wheels[0]


def make_environment(folder, wheel):
    """With NumPy of this Python, whether that is the system's or a virtual environment."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    numpy = Path(importlib.util.find_spec("numpy").origin).parents[1]
    (site / "numpy_of_the_test.pth").write_text(f"{numpy}\n")
    run(sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-deps", "--no-index",
        "--disable-pip-version-check", wheel)
    return python, site


def check_contents(python, site, away):
    said = ast.literal_eval(run(python, "-c", ASK, cwd=away))
    if said["package"] != str(site / "mep/__init__.py") or len(said["versions"]) != 1:
        sys.exit(f"the package and its versions: {said}")
    strays = [path for path in said["loaded"] if not path.startswith(str(site))]
    if not any("libmep." in path for path in said["loaded"]) or any("libmep." in path or not built for path in strays):
        sys.exit(f"libraries that are not the wheel's: {strays}, of {said['loaded']}")
    declared = [("sglang.srt.plugins", "mep_sglang", "mep.plugins:sglang"),
                ("torch.distributed.backends", "mep", "mep.torch:register"),
                ("vllm.general_plugins", "mep_deep_ep", "mep.plugins:deep_ep"),
                ("vllm.general_plugins", "mep_nixl_ep", "mep.plugins:nixl_ep")]
    if sorted(said["entries"]) != declared or said["extras"] != ["torch", "types"]:
        sys.exit(f"entry points and extras: {said['entries']}, {said['extras']}")
    register = [item for item in ast.parse((site / "mep/torch/__init__.py").read_text()).body
                if isinstance(item, ast.FunctionDef) and item.name == "register"]
    if len(register) != 1 or len(register[0].args.args) != len(register[0].args.defaults):
        sys.exit("mep.torch:register is to be a function that needs no argument")

    wanted = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    absent = [str(path) for path in wanted if not (site / "mep" / path).is_file()]
    if absent or (site / "mep/include/mep.h").read_text() != (ROOT / "include/mep.h").read_text():
        sys.exit(f"absent or another: {absent or 'mep/include/mep.h'}")
    if len(list((site / "mep").rglob("libmep.so*"))) != 1:
        sys.exit("the wheel is to have one libmep.so")


def use_as_the_readme_says(python, away):
    programs = python.parent
    example = re.search(r"```python\n(import numpy.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    (away / "program.py").write_text(example)
    said = run(programs / "mep_run", "-n", 2, python, "program.py", cwd=away)
    if sorted(said.splitlines()) != [f"rank {rank}: [1. 1. 1. 1.]" for rank in (0, 1)]:
        sys.exit(f"README's example on two ranks said: {said}")
    # A build with MPI has an mep_perf that wants libmep_mpi.so, which no wheel brings.
    for program in PROGRAMS[:2] if built else PROGRAMS:
        run(programs / program, "--help", cwd=away)
    info, module = run(programs / "mep_info", cwd=away), run(python, "-m", "mep.info", cwd=away)
    headings = [[line for line in text.splitlines() if line and not line.startswith(" ")] for text in (info, module)]
    if headings[0] != headings[1] or not headings[0]:
        sys.exit(f"mep_info said\n{info}\nand python -m mep.info\n{module}")


skip_without_builders()
with tempfile.TemporaryDirectory(prefix="mep-wheel-") as name:
    work = Path(name).resolve()
    away_from_the_tree = work / "away"
    away_from_the_tree.mkdir()
    the_python, the_site = make_environment(work / "environment", make_wheel(work / "wheels"))
    check_contents(the_python, the_site, away_from_the_tree)
    use_as_the_readme_says(the_python, away_from_the_tree)
