#!/usr/bin/env python3
"""PyTorch's own distributed_test.py over MEP: upstream.py RANKS [CASE...].

The cases ask for backends by name, so MEP is registered as "gloo" there, and runs what applies to a backend of tensors
of the CPU. MEP_TEST_REAL_GLOO=1 runs the cases with Gloo, for comparison.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 300  # of a case; PyTorch ends its ranks then
RUN = "import sys, upstream_cases; upstream_cases.run_all(sys.argv[1:])"
MARK = "@upstream "  # as in upstream_cases.py
# Cases that a backend like Gloo is asked, and that MEP does not pass: from how many ranks on, and why.
LEFT_OUT = {
    "test_ddp_logging_data_cpu": (2, "DDP's log calls every backend that a program registers \"custom\""),
    "test_monitored_barrier_failure_order": (3, "asks for Gloo's text; MEP names the missing rank on all ranks"),
    "test_monitored_barrier_gloo": (3, "asks for Gloo's text; MEP names the missing rank on all ranks"),
}


def case_names():
    return [line for line in (HERE / "upstream_cases.txt").read_text().split("\n") if line and line[0] != "#"]


def outcomes(ranks, names):
    """Runs the cases, and yields the name, the outcome and the reason of each."""
    names = list(names)
    while names:
        # Each case has folders of its own; this only says which kind of store it takes.
        environment = {**os.environ, "BACKEND": "gloo", "WORLD_SIZE": ranks, "INIT_METHOD": "file://",
                       "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}",
                       "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(LIMIT_S)}
        # It has a process group of its own, so that the limit ends its ranks too.
        process = subprocess.Popen([sys.executable, "-B", "-c", RUN, *names], env=environment, text=True,
                                   errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        # The last line of defence: PyTorch stops a case after LIMIT_S.
        watch = lambda: threading.Timer(2 * LIMIT_S, lambda: os.killpg(process.pid, signal.SIGKILL))
        output, timer = "", watch()
        timer.start()
        for line in process.stdout:
            if not line.startswith(MARK):
                output += line
                continue
            timer.cancel()
            name, outcome, why = json.loads(line[len(MARK):])
            names.remove(name)
            yield name, outcome, f"{why}\n{output[-6000:]}" if outcome == "failed" else why
            output, timer = "", watch()
            timer.start()
        timer.cancel()
        process.wait()
        if names:
            yield names.pop(0), "failed", f"its process ended with {process.returncode}\n{output[-6000:]}"


def main():
    if len(sys.argv) < 2 or not sys.argv[1].isdigit():
        sys.exit("usage: upstream.py RANKS [CASE...]")
    ranks, wanted = sys.argv[1], sys.argv[2:]
    counts = {"passed": 0, "skipped": 0, "left out": 0, "failed": 0}

    def tell(name, outcome, why):
        counts[outcome] += 1
        print(f"{name}: {outcome} {why}".rstrip(), flush=True)

    left_out = [] if wanted else [name for name, (least, _) in LEFT_OUT.items() if int(ranks) >= least]
    for name in left_out:
        tell(name, "left out", LEFT_OUT[name][1])
    for told in outcomes(ranks, wanted or [name for name in case_names() if name not in left_out]):
        tell(*told)
    print(f"{ranks} ranks: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return counts["failed"] != 0


if __name__ == "__main__":
    sys.exit(main())
