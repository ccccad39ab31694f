"""Ranks for tests of mep.torch: each is a process of its own that runs one function of the test's file."""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

LIMIT_S = 240


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_one(path, name, rank, size, folder, port=0, **variables):
    """One process that runs function `name` of the file `path`; what it writes goes to a file of the folder."""
    environment = {**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                   "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "OMP_NUM_THREADS": "1", "TEST_FOLDER": str(folder)}
    with open(folder / f"output.{rank}", "wb") as output:
        return subprocess.Popen([sys.executable, "-B", path, "rank", name], env=environment, stdout=output,
                                stderr=subprocess.STDOUT)


def start(path, name, size, **variables):
    """`size` of them, and their folder."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mep_torch_"))
    port = free_port()
    return [start_one(path, name, rank, size, folder, port, **variables) for rank in range(size)], folder


def finish(processes, folder, expected=None):
    """Waits for all; AssertionError with what they wrote, if one ends otherwise than expected (0)."""
    limit = time.monotonic() + LIMIT_S
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(max(0.1, limit - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append("still running")
    wanted = expected or [0] * len(processes)
    if codes != wanted:
        texts = [f"--- rank {rank}, {code}\n" + (folder / f"output.{rank}").read_text(errors="replace")[-4000:]
                 for rank, code in enumerate(codes)]
        raise AssertionError(f"ranks ended with {codes}, not {wanted}\n" + "\n".join(texts))
    for rank in range(len(processes)):
        # A failure in Python's exit handlers leaves no exit status.
        text = (folder / f"output.{rank}").read_text(errors="replace")
        if wanted[rank] == 0 and "Traceback" in text:
            raise AssertionError(f"rank {rank} ended with 0 after\n{text[-4000:]}")


def run(path, name, size, expected=None, **variables):
    finish(*start(path, name, size, **variables), expected=expected)


def run_with_replacement(path, name, size, victim, **variables):
    """The victim kills itself and is started again, with the variables."""
    processes, folder = start(path, name, size)
    code = processes[victim].wait(LIMIT_S)
    if code != -signal.SIGKILL:
        raise AssertionError(f"rank {victim} ended with {code}")
    processes[victim] = start_one(path, name, victim, size, folder, **variables)
    finish(processes, folder)


def refused(kind, text, call, *arguments, **options):
    """AssertionError if the call does not raise that, with the text in it."""
    try:
        call(*arguments, **options)
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"{error!r} is without {text!r}") from error
    else:
        raise AssertionError(f"{call} did not raise {kind}: {text}")


def wait_for(path, limit_s=60):
    """Until the file exists."""
    wait_until(path.exists, f"{path} did not come", limit_s)


def wait_until(condition, otherwise, limit_s=60):
    limit = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(otherwise)
        time.sleep(0.01)
