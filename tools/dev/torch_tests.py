"""Tests of mep.torch, with a PyTorch of their own in build/torch."""

from __future__ import annotations

import os

from console import ROOT, die, note, run, step
from packages import ensure_packages, python_with
from trees import build_or_stop

FOLDER = ROOT / "build" / "torch"
# expecttest and hypothesis: of PyTorch's own tests.
PACKAGES = ["torch", "numpy", "ninja", "expecttest", "hypothesis", "pytest", "setuptools"]


def torch_tests(arguments: list[str]) -> int:
    if arguments not in ([], ["--upstream"]):
        die("./dev torch takes nothing, or --upstream")
    ensure_packages()
    build_or_stop("release", "mep")
    program = python_with(FOLDER, PACKAGES, "import torch, numpy, ninja, expecttest", "PyTorch (some GB, about two minutes)")
    variables = {"MEP_LIBRARY": str(ROOT / "build/release/lib/libmep.so"),
                 "PYTHONPATH": str(ROOT / "bindings/python"), "PYTHONDONTWRITEBYTECODE": "1",
                 "PATH": f"{FOLDER / 'bin'}:{os.environ['PATH']}"}
    step("Tests of mep.torch")
    status = 0
    for name in ("backend_test.py", "clients_test.py", "reconfigure_test.py", "debug_level_test.py", "newer_calls_test.py", "binding_test.py", "restart_test.py", "programs_test.py", "mooncake_test.py",
                 "deep_ep_test.py", "deep_ep_normal_test.py", "deep_ep_elastic_test.py", "deep_ep_surroundings_test.py", "nixl_ep_test.py", "collectivex_test.py",
                 "gpu_test.py"):
        status = run(program, "-B", ROOT / "tests/torch" / name, "-v", env=variables) or status
    if arguments:
        step("PyTorch's distributed_test.py on 2 and 4 ranks")
        for ranks in ("2", "4"):
            status = run(program, "-B", ROOT / "tests/torch/upstream.py", ranks, env=variables) or status
    else:
        note("PyTorch's own cases: ./dev torch --upstream")
    return status
