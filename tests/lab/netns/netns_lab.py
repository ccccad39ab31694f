#!/usr/bin/env python3
"""Hosts as network namespaces: starts, cuts, freezes, deaths and joiners, with real processes.

  netns_lab.py --bin DIRECTORY --rank PROGRAM [--slice] [-k WORD] [--list]

Each host is a namespace with one interface, and a router namespace lies between them; a cut in one
direction is a rule of the router that drops what goes from one subnet to another. Needs root and
iproute2; without them it says so and leaves with status 77. Delay and loss need the netem queue of the
kernel (tc qdisc add ... netem); where it is missing these cases are skipped, by name.
"""
import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

SKIPPED = 77
PORT = 7700
ENVIRONMENT = {"MEP_SUSPECT_MS": "1500", "MEP_HEARTBEAT_MS": "100", "MEP_TIMEOUT_MS": "30000",
               "MEP_INIT_TIMEOUT_MS": "60000", "MEP_LOG": "warn"}


class Failure(Exception):
    pass


class Skip(Exception):
    pass


def run(*words, check=True):
    result = subprocess.run(words, capture_output=True, text=True)
    if check and result.returncode != 0:
        raise Failure(f"{' '.join(words)}: {result.stderr.strip()}")
    return result


class Network:
    """Namespaces mep-PID-x, and mep-PID-router between them."""

    def __init__(self, hosts):
        self.prefix = f"mep-{os.getpid()}"
        self.hosts = hosts
        self.router = f"{self.prefix}-router"
        self.made = []
        try:
            self.make()
        except Failure:
            self.close()
            raise

    def name(self, host):
        return f"{self.prefix}-{host}"

    def subnet(self, host):
        return f"10.77.{self.hosts.index(host) + 1}.0/24"

    def address(self, host):
        return f"10.77.{self.hosts.index(host) + 1}.2"

    def make(self):
        for space in [self.router] + [self.name(host) for host in self.hosts]:
            run("ip", "netns", "add", space)
            self.made.append(space)
            run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "netns", "exec", self.router, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        for index, host in enumerate(self.hosts, 1):
            space = self.name(host)
            run("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name",
                f"to-{host}", "netns", self.router)
            for where, device, address in [(space, "eth0", 2), (self.router, f"to-{host}", 1)]:
                run("ip", "-n", where, "addr", "add", f"10.77.{index}.{address}/24", "dev", device)
                run("ip", "-n", where, "link", "set", device, "up")
            run("ip", "-n", space, "route", "add", "default", "via", f"10.77.{index}.1")

    def close(self):
        for space in self.made:
            run("ip", "netns", "del", space, check=False)
        self.made = []

    def cut(self, source, target):
        run("ip", "-n", self.router, "rule", "add", "from", self.subnet(source), "to",
            self.subnet(target), "blackhole")

    def cut_both(self, one, other):
        self.cut(one, other)
        self.cut(other, one)

    def mend(self):
        while run("ip", "-n", self.router, "rule", "del", "blackhole", check=False).returncode == 0:
            pass

    def reset(self, one, other):
        """Ends all connections of `one` with `other`, as a firewall does that forgets them."""
        result = run("ip", "netns", "exec", self.name(one), "ss", "-K", "dst", self.subnet(other), check=False)
        if result.returncode != 0 or "tcp" not in result.stdout:
            raise Skip(f"this kernel ends no connections (INET_DIAG_DESTROY): {result.stderr.strip()}")

    def netem(self, *words):
        for host in self.hosts:
            result = run("tc", "-n", self.router, "qdisc", "replace", "dev", f"to-{host}", "root",
                         "netem", *words, check=False)
            if result.returncode != 0:
                raise Skip(f"no netem in this kernel: {result.stderr.strip()}")


class Job:
    """mep_run on each host; what each rank says, line by line."""

    def __init__(self, lab, placement, command, respawn=False, **variables):
        self.lab, self.placement, self.command = lab, placement, command
        self.folder = tempfile.mkdtemp(prefix="mep-lab-")
        self.stop_file = os.path.join(self.folder, "stop")
        self.said = {}
        self.other = []
        self.lock = threading.Condition()
        self.launchers = {}
        self.readers = []
        self.size = sum(count for _, count in placement)
        self.environment = dict(os.environ, **ENVIRONMENT, **variables)
        self.environment.update(
            MEP_RENDEZVOUS=f"{lab.network.address(placement[0][0])}:{PORT}",
            MEP_SECRET_FILE=lab.secret, MEP_JOB="lab", LAB_STOP=self.stop_file)
        offset = 0
        for host, count in placement:
            words = ["-n", str(count), "--size", str(self.size), "--rank-offset", str(offset),
                     "--tag-output"] + (["--respawn"] if respawn else []) + command
            self.launchers[host] = self.start(host, words)
            offset += count

    def start(self, host, words, **variables):
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.lab.network.name(host), self.lab.mep_run] + words,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=dict(self.environment, **variables), start_new_session=True)
        reader = threading.Thread(target=self.read, args=(process,), daemon=True)
        reader.start()
        self.readers.append(reader)
        return process

    def join(self, host, rank):
        """A joiner from `host` for the place of `rank`."""
        words = ["-n", "1", "--size", str(self.size), "--rank-offset", str(rank), "--tag-output"]
        self.launchers[f"joiner-{rank}"] = self.start(
            host, words + ["env", "MEP_JOIN=1"] + self.command)

    def read(self, process):
        for line in process.stdout:
            match = re.match(r"\[(\d+)\] (.*)", line)
            with self.lock:
                if match:
                    self.said.setdefault(int(match[1]), []).append(match[2])
                else:
                    self.other.append(line.rstrip())
                self.lock.notify_all()

    def ranks_of(self, host):
        offset = 0
        for each, count in self.placement:
            if each == host:
                return list(range(offset, offset + count))
            offset += count
        return []

    def await_lines(self, ranks, wanted, limit_s=60, count=1):
        """Until each of `ranks` has said a line that begins with `wanted`, `count` times."""
        end = time.monotonic() + limit_s
        with self.lock:
            while True:
                missing = [rank for rank in ranks
                           if sum(line.startswith(wanted)
                                  for line in self.said.get(rank, [])) < count]
                if not missing:
                    return
                left = end - time.monotonic()
                if left <= 0:
                    raise Failure(f"ranks {missing} did not say '{wanted}' within {limit_s} s\n"
                                  + self.report())
                self.lock.wait(left)

    def await_mask(self, ranks, mask, limit_s=60):
        """Until the latest sum of each of `ranks` is `mask`."""
        end = time.monotonic() + limit_s

        def latest(rank):
            sums = [line for line in self.said.get(rank, []) if line.startswith("sees ")]
            return sums[-1] if sums else ""
        with self.lock:
            while True:
                if all(latest(rank) == f"sees {mask:x}" for rank in ranks):
                    return
                left = end - time.monotonic()
                if left <= 0:
                    raise Failure(f"ranks {ranks} do not see {mask:x} within {limit_s} s\n"
                                  + self.report())
                self.lock.wait(left)

    def report(self):
        lines = [f"  [{rank}] {line}" for rank in sorted(self.said) for line in self.said[rank][-12:]]
        return "\n".join(lines + ["  " + line for line in self.other[-20:]])

    def processes(self, host):
        """The ranks' processes by rank, from their environments."""
        found = {}
        space = self.lab.network.name(host)
        for pid in run("ip", "netns", "pids", space).stdout.split():
            try:
                words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for word in words:
                if word.startswith(b"MEP_RANK="):
                    found[int(word[9:])] = int(pid)
        return found

    def signal_host(self, host, number):
        for pid in self.processes(host).values():
            os.kill(pid, number)

    def stop(self, ranks, limit_s=60):
        pathlib.Path(self.stop_file).touch()
        self.await_lines(ranks, "left", limit_s)

    def wait(self, limit_s=120):
        statuses = {}
        end = time.monotonic() + limit_s
        for host, process in self.launchers.items():
            try:
                statuses[host] = process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failure(f"the ranks on {host} did not end within {limit_s} s\n"
                              + self.report()) from None
        return statuses

    def close(self):
        for process in self.launchers.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # Stopped ranks are killed by their keeper, too.
        for reader in self.readers:
            reader.join(20)
        shutil.rmtree(self.folder, ignore_errors=True)


def bits(ranks):
    return sum(1 << rank for rank in ranks)


class Lab:
    def __init__(self, options):
        self.mep_run = os.path.join(options.bin, "mep_run")
        self.mep_perf = os.path.join(options.bin, "mep_perf")
        self.rank = options.rank
        self.network = None
        handle, self.secret = tempfile.mkstemp(prefix="mep-secret-")
        os.write(handle, os.urandom(32))
        os.close(handle)

    def job(self, *placement, **options):
        return Job(self, placement, [self.rank], **options)

    # --- Cases ---

    def perf(self, op, *words):
        job = Job(self, [("a", 4), ("b", 4)],
                  [self.mep_perf, op, "--check", "--no-machine", *words])
        try:
            statuses = job.wait(180)
            if any(statuses.values()):
                raise Failure(f"statuses {statuses}\n{job.report()}")
        finally:
            job.close()

    def case_collectives_are_right(self):
        for op in ["barrier", "broadcast", "allgather", "allreduce", "reduce", "gather", "scatter", "reduce_scatter",
                   "alltoall", "allgatherv", "gatherv", "scatterv", "reduce_scatterv", "alltoallv"]:
            self.perf(op, "-e", "256K", "-f", "32", "-i", "20")

    def case_moe_is_right(self):
        self.perf("moe", "--tokens", "16", "--hidden", "1024", "--experts", "32", "-i", "5")

    def case_a_killed_rank_is_left_out(self):
        job = self.job(("a", 4), ("b", 4))
        try:
            job.await_mask(range(8), 0xff)
            os.kill(job.processes("b")[5], signal.SIGKILL)
            rest = [0, 1, 2, 3, 4, 6, 7]
            job.await_mask(rest, bits(rest))
            job.await_lines(rest, "error ")
            # The one that served the rendezvous, too.
            os.kill(job.processes("a")[0], signal.SIGKILL)
            rest.remove(0)
            job.await_mask(rest, bits(rest))
            job.stop(rest)
        finally:
            job.close()

    def case_a_replacement_joins(self):
        job = self.job(("a", 2), ("b", 2), respawn=True)
        try:
            job.await_mask(range(4), 0xf)
            for host, rank in [("b", 3), ("a", 0)]:
                os.kill(job.processes(host)[rank], signal.SIGKILL)
                job.await_lines([rank], "started", 60, count=2)
                job.await_mask(range(4), 0xf)
            job.stop(range(4))
        finally:
            job.close()

    def case_a_joiner_comes_from_another_host(self):
        job = self.job(("a", 2), ("b", 2))
        try:
            job.await_mask(range(4), 0xf)
            os.kill(job.processes("b")[3], signal.SIGKILL)
            job.await_mask([0, 1, 2], 0x7)
            job.join("c", 3)
            job.await_lines([3], "started", 60, count=2)
            job.await_mask(range(4), 0xf)
            job.stop(range(4))
        finally:
            job.close()

    def cut_host(self, majority, minority, cut):
        job = self.job(("a", majority), ("b", minority))
        try:
            everybody = range(majority + minority)
            job.await_mask(everybody, bits(everybody))
            cut()
            job.await_mask(range(majority), bits(range(majority)))
            job.await_lines(range(majority, majority + minority), "ended ", 90)
            job.stop(range(majority))
            return job
        finally:
            job.close()

    def case_a_host_is_cut_off(self):
        job = self.cut_host(3, 2, lambda: self.network.cut_both("a", "b"))
        for rank in [3, 4]:
            if "ended MEP_ERR_NO_QUORUM" not in job.said[rank]:
                raise Failure(f"rank {rank} is no minority\n{job.report()}")

    def case_half_is_cut_off(self):
        self.cut_host(2, 2, lambda: self.network.cut_both("a", "b"))

    def case_a_cut_in_one_direction(self):
        self.cut_host(3, 2, lambda: self.network.cut("a", "b"))
        self.network.mend()
        self.cut_host(3, 2, lambda: self.network.cut("b", "a"))

    def case_a_host_freezes(self):
        job = self.job(("a", 3), ("b", 2))
        try:
            job.await_mask(range(5), 0x1f)
            job.signal_host("b", signal.SIGSTOP)
            job.await_mask(range(3), 0x7)
            job.signal_host("b", signal.SIGCONT)
            job.await_lines([3, 4], "ended ", 90)
            job.stop(range(3))
        finally:
            job.close()

    def case_one_link_is_cut(self):
        job = self.job(("a", 1), ("b", 1), ("c", 2))
        try:
            job.await_mask(range(4), 0xf)
            self.network.cut_both("a", "b")
            # Both reach c: the higher slot of the two goes.
            job.await_mask([0, 2, 3], 0xd)
            job.await_lines([1], "ended ", 90)
            job.stop([0, 2, 3])
        finally:
            job.close()

    def case_a_short_cut_is_outlived(self):
        job = self.job(("a", 2), ("b", 2))
        try:
            job.await_mask(range(4), 0xf)
            self.network.cut_both("a", "b")
            time.sleep(0.5)  # well below MEP_SUSPECT_MS: this is the fault, nothing waits for it
            self.network.mend()
            job.stop(range(4))
            for rank in range(4):
                if any(line.startswith(("error", "ended")) for line in job.said[rank]):
                    raise Failure(f"rank {rank} noticed\n{job.report()}")
        finally:
            job.close()

    def case_a_reset_is_told(self):
        job = self.job(("a", 3), ("b", 2))
        try:
            job.await_mask(range(5), 0x1f)
            self.network.reset("a", "b")
            job.await_mask(range(3), 0x7)
            job.await_lines([3, 4], "ended ", 90)
            for rank in range(3):
                if not any("were closed or reset" in line for line in job.said[rank] if line.startswith("error")):
                    raise Failure(f"rank {rank} has another reason\n{job.report()}")
            job.stop(range(3))
        finally:
            job.close()

    def case_delay_and_loss(self):
        self.network.netem("delay", "1ms", "loss", "1%")
        self.perf("allreduce", "-e", "64K", "-f", "32", "-i", "10")


SLICE = ["a_killed_rank_is_left_out", "a_host_is_cut_off", "a_reset_is_told", "a_joiner_comes_from_another_host"]


def obstacle():
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip program (iproute2)"
    name = f"mep-{os.getpid()}-try"
    result = run("ip", "netns", "add", name, check=False)
    run("ip", "netns", "del", name, check=False)
    return None if result.returncode == 0 else result.stderr.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="where mep_run and mep_perf are")
    parser.add_argument("--rank", required=True, help="the program lab_rank")
    parser.add_argument("--slice", action="store_true", help="a few quick cases, for CI")
    parser.add_argument("-k", default="", help="cases whose names contain this")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    options.bin = os.path.abspath(options.bin)
    options.rank = os.path.abspath(options.rank)
    names = [name[5:] for name in vars(Lab) if name.startswith("case_")]
    names = [name for name in names
             if options.k in name and (not options.slice or name in SLICE)]
    if options.list:
        print("\n".join(names))
        return 0
    reason = obstacle()
    if reason:
        print(f"SKIPPED: {reason}")
        return SKIPPED
    lab = Lab(options)
    failed = 0
    try:
        for name in names:
            begin = time.monotonic()
            verdict = "passed"
            try:
                lab.network = Network(["a", "b", "c"])
                getattr(lab, "case_" + name)()
            except Skip as skip:
                verdict = f"SKIPPED: {skip}"
            except Failure as failure:
                verdict = f"FAILED: {failure}"
                failed += 1
            finally:
                if lab.network is not None:
                    lab.network.close()
            print(f"{name}: {verdict} ({time.monotonic() - begin:.1f} s)", flush=True)
    finally:
        os.unlink(lab.secret)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
