#!/usr/bin/env python3
"""Compares MEP with Open MPI or NCCL over operations, sizes and numbers of ranks: mep_perf suite --vs mpi.

Each operation and number of ranks is one run of mep_perf --vs mpi under mpirun, or of mep_perf --device cuda --vs nccl
under mep_run; the runs take turns. A result is a row of mep_perf's JSON with the number of its run, or with "failed" in
place of times.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

FOLDER = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(FOLDER, "mep_perf")
COLLECTIVES = ("broadcast", "allgather", "allreduce", "reduce", "reduce_scatter", "gather", "scatter", "alltoall")
PAIRS = ("pingpong", "stream", "exchange")  # two ranks, however many are asked for
ALL_BLOCKS = ("allgather", "alltoall", "allgatherv", "alltoallv", "reduce_scatter", "reduce_scatterv")
HIDDEN, TOP_K, EXPERTS = 7168, 8, 256
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


class SuiteError(Exception):
    """The text says what is wrong and what to do."""


class Peer(NamedTuple):
    """A library that MEP is compared with."""

    key: str  # in the names of fields
    name: str
    ops: tuple[str, ...]
    more_ops: tuple[str, ...]  # that can be asked for
    words: tuple[str, ...]  # of each child
    largest: int  # bytes, the default of -e
    rate: float  # bytes a second, for the first estimate


PEERS = {
    "mpi": Peer("mpi", "MPI", ("barrier", *COLLECTIVES, "pingpong", "moe"),
                ("allgatherv", "gatherv", "scatterv", "reduce_scatterv", "alltoallv", "stream", "exchange"),
                ("--vs", "mpi", "--switches"), 16 << 20, 3e8),
    "nccl": Peer("nccl", "NCCL", COLLECTIVES, (), ("--device", "cuda", "--vs", "nccl"), 256 << 20, 3e10),
}  # fmt: skip


class Job:
    """One child: an operation on so many ranks, over sizes in bytes, or tokens of a rank for moe."""

    def __init__(self, peer, op, ranks, sizes, dtype=None):
        self.peer, self.op, self.ranks, self.sizes, self.dtype = peer, op, ranks, list(sizes), dtype
        self.is_rest = False  # of one that failed

    def text(self):
        return f"{self.op}{' ' + self.dtype if self.op == 'moe' else ''}, {self.ranks} ranks"

    def expected_seconds(self, seconds):
        """From what two cores or GPUs need; what ran already corrects it."""
        total = 1.0
        for size in self.sizes:
            moved = size * self.ranks * (self.ranks if self.op in ALL_BLOCKS else 1)
            if self.op == "moe":
                moved = 2 * size * self.ranks * TOP_K * HIDDEN * 2
            total += 1.5 * seconds + moved / self.peer.rate
        return total

    def words(self, factor):
        words = [self.op, *self.peer.words, "--no-machine"]
        if self.op == "moe":
            words += ["--no-expert", "--hidden", str(HIDDEN), "--topk", str(TOP_K), "--experts",
                      str(EXPERTS), "--wire", self.dtype, "--tokens",
                      ",".join(map(str, self.sizes))]  # fmt: skip
        elif self.op != "barrier":
            words += ["-b", str(self.sizes[0]), "-e", str(self.sizes[-1]), "-f", str(factor)]
            words += ["--dtype", self.dtype] if self.dtype is not None else []
        return words

    def row(self, size):
        """Without results."""
        place = {"bytes": 0, "tokens": size} if self.op == "moe" else {"bytes": size}
        return {"op": self.op, "ranks": self.ranks, "dtype": self.dtype, **place}

    def part(self, sizes):
        return Job(self.peer, self.op, self.ranks, sizes, self.dtype)


# The command line.


def bytes_of(text):
    match = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text, flags=re.I)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of bytes: 64, 64K, 1M")
    return int(match[1]) << UNITS[match[2].upper()]


def numbers(low, high):
    def read(text):
        values = text.split(",")
        if not all(value.isdigit() and low <= int(value) <= high for value in values):
            raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers from {low} to {high}")
        return sorted({int(value) for value in values})

    return read


def positive(kind):
    def read(text):
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < 1e6:
            raise argparse.ArgumentTypeError(f"'{text}' is no number above 0")
        return value

    return read


def parse(words):
    parser = argparse.ArgumentParser(
        prog="mep_perf suite", description="Compares MEP with Open MPI, or on GPUs with NCCL; starts the ranks itself.")  # fmt: skip
    add = parser.add_argument
    add("--vs", choices=list(PEERS), default="mpi", help="what MEP is compared with [mpi]")
    add("--ranks", type=numbers(2, 4096), help="numbers of ranks [2,4,8; for nccl as far as there are GPUs]")
    add("--ops", help="operations [" + "; ".join(f"{peer.key}: {','.join(peer.ops)}" for peer in PEERS.values()) + "]")
    add("-b", type=bytes_of, default=8, metavar="MIN", help="smallest size in bytes, K M G may follow [8]")
    add("-e", type=bytes_of, metavar="MAX", help="largest size [16M; for nccl 256M]")
    add("-f", type=positive(int), default=8, metavar="FACTOR", help="from one size to the next [8]")
    add("--dtype", metavar="TYPE", help="elements of collectives [float32]")
    add("--moe-tokens", type=numbers(1, 1 << 20), default=[1, 16, 128, 1024], metavar="T[,T..]",
        help="tokens a rank of moe [1,16,128,1024]")  # fmt: skip
    add("--runs", type=positive(int), default=5, help="runs of everything, one after another [5]")
    add("--seconds", type=positive(float), default=0.1, help="time of a size and side in a run [0.1]")
    add("--limit", type=positive(float), default=300, help="seconds after which a child has failed [300]")
    add("--launcher", "--mpirun", metavar="PROGRAM", help="what starts the ranks [mpirun; for nccl mep_run]")
    add("--json", metavar="FILE", help="write every run's times")
    add("--output", metavar="DIR", help="write suite.md, suite.json and the plot there")
    add("--from", dest="source", metavar="FILE", help="run nothing: the tables of a file of --json")
    options = parser.parse_args(words)
    options.peer = peer = PEERS[options.vs]
    options.ops = list(dict.fromkeys(peer.ops if options.ops is None else options.ops.split(",")))
    known = peer.ops + peer.more_ops
    for op in options.ops:
        if op not in known:
            parser.error(f"unknown operation '{op}'; there are {' '.join(known)}")
    options.e = peer.largest if options.e is None else options.e
    if options.b > options.e:
        parser.error("-b is larger than -e")
    if options.e > 1 << 30:
        parser.error("-e is larger than 1G")
    if options.b == 0 or options.b % 4:
        parser.error("-b is no multiple of 4, the bytes of an element")
    if options.f < 2:
        parser.error("-f is smaller than 2")
    return options


def count_gpus():
    """GPUs that a program may use here."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip()])
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.split("\n"))


def choose_ranks(peer):
    if peer.key != "nccl":
        return [2, 4, 8]
    gpus = count_gpus()
    if gpus < 2:
        raise SuiteError(f"NCCL's ranks have a GPU each, and here {'is' if gpus == 1 else 'are'} {gpus}")
    return [ranks for ranks in (2, 4, 8) if ranks <= gpus]


def make_jobs(options):
    peer = options.peer
    sizes = [options.b]
    while sizes[-1] * options.f <= options.e:
        sizes.append(sizes[-1] * options.f)
    jobs = []
    for ranks in sorted({2, *options.ranks}):
        for op in options.ops:
            if ranks not in ([2] if op in PAIRS else options.ranks):
                continue
            if op == "moe":
                jobs += [Job(peer, op, ranks, options.moe_tokens, dtype) for dtype in ("bf16", "fp8")]
            elif op == "barrier":
                jobs.append(Job(peer, op, ranks, [0]))
            else:
                jobs.append(Job(peer, op, ranks, sizes, None if op in PAIRS else options.dtype))
    return jobs


# Children.


def find_launcher(options):
    """The words up to -n, and the name of the peer."""
    by_mep_run = options.peer.key == "nccl"
    name = options.launcher or (os.path.join(FOLDER, "mep_run") if by_mep_run else "mpirun")
    program = shutil.which(name)
    if program is None:
        hint = "" if by_mep_run else "install Open MPI (openmpi-bin), or "
        raise SuiteError(f"{name} is not found: {hint}name the launcher by --launcher")
    if by_mep_run:
        return [program, "-n"], options.peer.name
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    version = done.stdout.strip().split("\n")[0]
    words = [program, "--bind-to", "none"]
    if "Open MPI" in version or "OpenRTE" in version:
        words.append("--oversubscribe")
        if os.geteuid() == 0:
            words.append("--allow-run-as-root")
    return [*words, "-n"], re.sub(r"^mpirun \((.*)\)", r"\1", version)


def stop(process):
    """mpirun ends its ranks when it is asked to end."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def last_line(text):
    """The last message of mep_perf, else of the launcher."""
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip(" \t-")]
    own = [line for line in lines if line.startswith("mep_perf:")]
    return (own or lines or ["it said nothing"])[-1]


def run_child(command, limit):
    """None, or why it failed."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                stop(process)
        if status == 0:
            return None
        output.seek(0)
        said = last_line(output.read())
    return f"no end within {limit:g} s: {said}" if status is None else f"exit status {status}: {said}"


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class Suite:
    """Runs the jobs in turns. A size that failed is not run again; those behind it get a child of their own."""

    def __init__(self, options, launcher, jobs):
        self.options, self.launcher, self.jobs = options, launcher, jobs
        self.rows = []
        self.cells = options.runs * sum(len(job.sizes) for job in jobs)
        self.done = 0
        # Seconds of the children that have ended; the first ones are weighed against a tenth of everything.
        self.expected = self.needed = 0.1 * sum(job.expected_seconds(options.seconds) for job in jobs)

    def estimate(self, jobs):
        return self.needed / self.expected * sum(job.expected_seconds(self.options.seconds) for job in jobs)

    def run(self):
        for run in range(1, self.options.runs + 1):
            waiting, self.jobs = self.jobs, []
            while waiting:
                job = waiting.pop(0)
                self.show(run, job, waiting)
                begin = time.monotonic()
                rows, reason = self.measure(job)
                self.needed += time.monotonic() - begin
                self.expected += job.expected_seconds(self.options.seconds)
                self.take(run, job, rows)
                if reason is None:
                    self.jobs.append(job)
                else:
                    waiting[:0] = self.split(run, job, min(len(rows), len(job.sizes) - 1), reason)
                write_rows(self.options.json, self.rows)

    def measure(self, job):
        """The rows that the child wrote, and why it failed, or None."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            command = [*self.launcher, str(job.ranks), PROGRAM, *job.words(self.options.f), "--seconds",
                       str(self.options.seconds), "--json", path]  # fmt: skip
            reason = run_child(command, self.options.limit)
            rows = load(path) or []
        if reason is None and len(rows) != len(job.sizes):
            reason = f"{len(rows)} rows for {len(job.sizes)} sizes"
        return rows, reason

    def take(self, run, job, rows):
        self.rows += [{"run": run, **row} for row in rows]
        self.done += len(job.sizes)

    def split(self, run, job, index, reason):
        """Notes that the size at that index failed; returns what is to run next."""
        before, after = job.sizes[:index], job.sizes[index + 1 :]
        failed = job.sizes[index:] if job.is_rest and index == 0 else [job.sizes[index]]
        self.rows += [{"run": run, **job.row(size), "failed": reason} for size in failed]
        self.cells -= len(failed) * (self.options.runs - run)
        if before:
            self.jobs.append(job.part(before))
        if not after or len(failed) > 1:
            return []
        self.done -= len(after)
        rest = job.part(after)
        rest.is_rest = True
        return [rest]

    def show(self, run, job, waiting):
        seconds = self.estimate([job, *waiting])
        seconds += (self.options.runs - run) * self.estimate([*self.jobs, job, *waiting])
        last = self.done + len(job.sizes)
        cells = f"cell {last}" if len(job.sizes) == 1 else f"cells {self.done + 1} to {last}"
        print(f"run {run} of {self.options.runs}: {job.text()}; {cells} of {self.cells}; about "
              f"{duration(seconds)} left", file=sys.stderr, flush=True)  # fmt: skip


def try_launcher(peer, launcher, limit):
    first = ["barrier"] if "barrier" in peer.ops else ["allreduce", "-b", "8", "-e", "8"]
    command = [*launcher, "2", PROGRAM, *first, *peer.words, "-i", "1", "--no-machine"]
    reason = run_child(command, limit)
    if reason is not None:
        raise SuiteError(f"two ranks cannot be started: {reason}; try {' '.join(command)}")


# Results.


def load(path):
    """The rows of a file of mep_perf; None if it has none."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
    except (OSError, ValueError):
        return None
    whole = isinstance(rows, list) and all(
        isinstance(row, dict) and {"op", "ranks", "bytes"} <= set(row) for row in rows
    )
    return rows if whole else None


def write_rows(path, rows):
    if path is None:
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n")


class Cell:
    """All runs of an operation, number of ranks and size."""

    def __init__(self, peer):
        self.peer, self.runs, self.reasons = peer, [], []

    def add(self, row):
        if "failed" in row:
            self.reasons.append(f"run {row['run']}: {row['failed']}")
        elif "mep_us_p50" in row and f"{self.peer.key}_us_p50" in row:
            self.runs.append(row)

    def ratio(self, run):
        return run["mep_us_p50"] / run[f"{self.peer.key}_us_p50"]

    def ratios(self):
        return [self.ratio(run) for run in self.runs]

    def middle(self):
        """The run whose ratio is the median; of an even number the worse of the two."""
        return sorted(self.runs, key=self.ratio)[len(self.runs) // 2]

    def switches_text(self, side):
        kinds = [self.middle().get(f"{side}_switches_{kind}") for kind in ("voluntary", "involuntary")]
        return "-" if None in kinds else "+".join(map(number_text, kinds))

    def is_above(self):
        return bool(self.runs) and not self.reasons and statistics.median(self.ratios()) > 1

    def __str__(self):
        if self.reasons:
            return "failed"
        if not self.runs:
            return "-"
        ratio, worst = statistics.median(self.ratios()), max(self.ratios())
        text = f"{ratio_text(ratio)} ({ratio_text(worst)})"
        return f"**{text}**" if self.is_above() else text


def ratio_text(ratio):
    """A ratio above 1 never reads 1.00."""
    return f"{ratio:.3f}" if 1 < ratio < 1.005 else f"{ratio:.2f}"


def number_text(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size_text(row):
    """The head of the row's column."""
    if row["op"] == "moe":
        return str(row["tokens"]) + (" token" if row["tokens"] == 1 else " tokens")
    size = row["bytes"]
    if row["op"] == "barrier":
        return "no data"
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            break
        size /= 1024
    return f"{size:.4g} {unit}"


def label(row):
    return f"moe {row['dtype']}" if row["op"] == "moe" else row["op"]


def table(head, lines):
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def report(peer, rows, jobs=()):
    """The Markdown of these rows: a table for each number of ranks, then what is above 1.0 and what failed.

    Cells of the jobs that have not run are in the tables too.
    """
    cells, columns = {}, {}  # {(ranks, label, size): Cell}, {(ranks, is moe): {size: its place}}
    for row in [*(job.row(size) for job in jobs for size in job.sizes), *rows]:
        is_moe, size = row["op"] == "moe", size_text(row)
        cells.setdefault((row["ranks"], label(row), size), Cell(peer)).add(row)
        columns.setdefault((row["ranks"], is_moe), {})[size] = row["tokens" if is_moe else "bytes"]
    parts = []
    for ranks, is_moe in sorted(columns):
        if not is_moe or (ranks, False) not in columns:
            parts.append(f"### {ranks} ranks\n")
        places = columns[ranks, is_moe]
        sizes = sorted(places, key=places.get)
        names = dict.fromkeys(key[1] for key in cells if key[0] == ranks and key[2] in places)
        lines = [[name, *(str(cells.get((ranks, name, size), "")) for size in sizes)] for name in names]
        parts.append(table([f"MEP / {peer.name}", *sizes], lines))
    above = [(key, cell) for key, cell in cells.items() if cell.is_above()]
    runs = max((row.get("run", 1) for row in rows), default=0)
    parts.append(f"A cell is the ratio of the p50 times, the median of {runs} runs (the worst); bold: {peer.name} is "
                 "faster.\n")  # fmt: skip
    parts.append(f"### Above 1.0 in the median: {len(above)} of {len(cells)} cells\n")
    if above:
        parts.append(above_table(peer, sorted(above, key=lambda pair: pair[0][0])))
    failed = [(key, cell) for key, cell in cells.items() if cell.reasons]
    if failed:
        parts.append(f"### Failed: {len(failed)} of {len(cells)} cells\n")
        parts.append("".join(f"- {name}, {size}, {ranks} ranks: {reason}\n"
                             for (ranks, name, size), cell in failed for reason in cell.reasons))  # fmt: skip
    return "\n".join(parts)


def above_table(peer, above):
    sides, has_switches = ("mep", peer.key), "--switches" in peer.words
    lines = []
    for (ranks, name, size), cell in above:
        times = [number_text(cell.middle()[f"{side}_us_p50"]) for side in sides]
        switches = [cell.switches_text(side) for side in sides] if has_switches else []
        lines.append([str(ranks), name, size, *times, str(cell).strip("*"), *switches])
    head = ["ranks", "operation", "size", "MEP µs", f"{peer.name} µs", "ratio (worst)"]
    if not has_switches:
        return table(head, lines) + "\nTimes are those of the run whose ratio is the median.\n"
    head += ["MEP switches", f"{peer.name} switches"]
    text = "Times and switches are those of the run whose ratio is the median; switches are voluntary + involuntary\n"
    return table(head, lines) + "\n" + text + "context switches of a rank in one operation.\n"


def draw(folder):
    """The plot of suite.json, by the script that draws all files of mep_perf."""
    scripts = [os.path.join(os.path.dirname(os.path.realpath(__file__)), name) for name in ("plot.py", "mep_perf_plot")]
    script = next((path for path in scripts if os.path.exists(path)), None)
    if script is None:
        print(f"mep_perf suite: no plot: {scripts[1]} is missing", file=sys.stderr)
        return
    subprocess.run([sys.executable, script, "suite.json"], cwd=folder, check=False, stdout=subprocess.DEVNULL)


def finish(options, rows, text):
    print(text, flush=True)
    try:
        write_rows(options.json, rows)
        if options.output is not None:
            write_rows(os.path.join(options.output, "suite.json"), rows)
            with open(os.path.join(options.output, "suite.md"), "w", encoding="utf-8") as file:
                file.write(text)
            if any("mep_us_p50" in row for row in rows):
                draw(options.output)
    except OSError as error:
        raise SuiteError(str(error)) from error
    return 1 if any("failed" in row for row in rows) else 0


def interrupt(_number, _frame):
    raise KeyboardInterrupt


def prepare_output(options):
    """A place that cannot be written is noticed before the first run."""
    try:
        if options.output is not None:
            os.makedirs(options.output, exist_ok=True)
            write_rows(os.path.join(options.output, "suite.json"), [])
        write_rows(options.json, [])
    except OSError as error:
        raise SuiteError(str(error)) from error


def compare(options):
    launcher, version = find_launcher(options)
    options.ranks = options.ranks or choose_ranks(options.peer)
    prepare_output(options)
    try_launcher(options.peer, launcher, options.limit)
    jobs = make_jobs(options)
    suite = Suite(options, launcher, list(jobs))
    expected = options.runs * suite.estimate(jobs)
    machine = "GPUs" if options.peer.key == "nccl" else "two cores"
    print(f"mep_perf suite: {suite.cells} cells in {options.runs * len(jobs)} children, about "
          f"{duration(expected)} on {machine} that are free", file=sys.stderr, flush=True)  # fmt: skip
    status = 0
    try:
        suite.run()
    except KeyboardInterrupt:
        print("mep_perf suite: interrupted; this is what there is", file=sys.stderr)
        status = 130
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    title = f"## MEP compared with {version}, {len(os.sched_getaffinity(0))} cores\n\n"
    found = finish(options, suite.rows, title + report(options.peer, suite.rows, jobs))
    return status or found


def main():
    options = parse(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        if options.source is None:
            return compare(options)
        rows = load(options.source)
        if rows is None:
            raise SuiteError(f"{options.source} is no JSON file of mep_perf")
        options.json = None
        prepare_output(options)
        peer = next((peer for peer in PEERS.values() for row in rows if f"{peer.key}_us_p50" in row), options.peer)
        return finish(options, rows, report(peer, rows))
    except SuiteError as error:
        print(f"mep_perf suite: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
