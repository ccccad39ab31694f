"""Jobs of ranks: ./dev run, bench and chaos."""

from __future__ import annotations

import os
import pathlib
import platform
import random
import re

from console import ROOT, has, jobs, output_of, read_lines, run, step

BIN = "build/release/bin"
RUN = "mep_perf mep_run"  # the targets of run and bench
MOE = ["moe", "--tokens", "128", "--hidden", "7168", "--topk", "8", "--experts", "256", "--check"]


def collectives() -> list[str]:
    """The names in the table of operations."""
    table = re.sub(r"//.*", "", (ROOT / "src/protocol/operations.def").read_text())
    return re.findall(r"MEP_OPERATION\((\w+)", table)


def has_mpi() -> bool:
    return (ROOT / "build/release/lib/libmep_mpi.so").exists()


def run_job(arguments: list[str]) -> int:
    """mep_perf on 4 ranks; without arguments the communication of a DeepSeek-V3 MoE layer."""
    arguments = arguments or MOE + (["--vs", "mpi"] if has_mpi() else [])
    if not (has("mpirun") and has_mpi()):
        step(f"No MPI: {BIN}/mep_run -n 4 {BIN}/mep_perf {' '.join(arguments)}")
        return run(f"{BIN}/mep_run", "-n", 4, f"{BIN}/mep_perf", *arguments)
    flags = ["-n", "4"]
    if "Open MPI" in (output_of("mpirun", "--version") or ""):
        # More ranks than cores are fine, and pinning four ranks to two cores helps nobody.
        flags += ["--oversubscribe", "--bind-to", "none"]
        if os.getuid() == 0:
            flags.append("--allow-run-as-root")
    step(f"mpirun {' '.join(flags)} {BIN}/mep_perf {' '.join(arguments)}")
    return run("mpirun", *flags, f"{BIN}/mep_perf", *arguments)


def bench() -> int:
    (ROOT / "build/bench").mkdir(parents=True, exist_ok=True)
    sizes = ["-b", "8", "-e", "16777216", "-f", "8", "--check"]
    cases = [(operation, [operation, *sizes])
             for operation in collectives()] + [("moe", MOE)]
    for name, arguments in cases:
        status = run_job([*arguments, "--vs", "mpi", "--json", f"build/bench/{name}.json"])
        if status != 0:
            return status
    return 0


def machine() -> str:
    models = [line.partition(": ")[2] for line in read_lines(pathlib.Path("/proc/cpuinfo"))
              if line.startswith("model name")]
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return f"{jobs()} cores, {models[0] if models else platform.machine()}, load {load}"


def chaos(arguments: list[str]) -> int:
    """mep_chaos; without arguments random programs, then some of each shape."""
    program = f"{BIN}/mep_chaos"
    if arguments:
        return run(program, *arguments)
    for more in ([], ["--shape", "points", "--jobs", "4"], ["--shape", "joins", "--jobs", "4"]):
        status = run(program, "--programs", "100000", "--seconds", "12", "--seed", random.randrange(1 << 15),
                     "--findings", "build/chaos_findings", *more)
        if status != 0:
            return status
    return 0
