#!/usr/bin/env python3
"""Runs the Promela models of this folder and checks each against what it must show.

  run_models.py --ci            the slice that fits a few minutes on one core (default)
  run_models.py --all           everything
  run_models.py --only NAME     runs whose name contains NAME
  run_models.py --exact NAME    the one with this name
  run_models.py --list

A run that must hold fails when spin finds an error, when an exhaustive search was cut short (depth,
memory, time), or when a swarm member was. A run that must fail passes only when spin finds a
counterexample. Exit status: 0 all as expected, 1 not, 77 spin or a C compiler is missing.
"""

import argparse
import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SKIPPED = 77

Run = collections.namedtuple(
    "Run", "name file ranks defines mode expected depth memory_mb seconds ci check seeds")


def run(name, file, ranks, defines="", mode="exhaustive", expected="holds", depth=2000,
        memory_mb=2500, seconds=60, ci=True, check="safety", seeds=1):
    """check: safety (assertions), stuck (and invalid end states), progress (no cycle off the
    progress label; assertions too). A time budget ends a bitstate or swarm run; it fails an
    exhaustive one."""
    return Run(name, file, ranks, defines.split(), mode, expected, depth, memory_mb, seconds, ci,
               check, seeds)


def view_change_runs():
    model = "view_change.pml"
    runs = [
        run("view change, crashes", model, 3, "CRASHES=2 CONTRIBUTIONS"),
        run("view change, crashes, any suspicion", model, 3,
            "CRASHES=2 FALSE_SUSPICIONS=6 CONTRIBUTIONS"),
        run("view change, liveness, crashes", model, 3, "CRASHES=2 CONTRIBUTIONS LIVENESS",
            check="progress"),
        run("view change, liveness, one false suspicion", model, 3,
            "CRASHES=2 FALSE_SUSPICIONS=1 CONTRIBUTIONS LIVENESS", check="progress"),
        run("view change, liveness, any suspicion", model, 3,
            "CRASHES=2 FALSE_SUSPICIONS=6 CONTRIBUTIONS LIVENESS", check="progress"),
        run("two changes in a row, crashes", model, 4, "CRASHES=3"),
        run("two changes in a row, liveness", model, 4, "CRASHES=3 LIVENESS", check="progress"),
        run("two changes in a row, one false suspicion", model, 4, "CRASHES=3 FALSE_SUSPICIONS=1"),
        run("4 ranks, two false suspicions", model, 4, "CRASHES=3 FALSE_SUSPICIONS=2",
            memory_mb=6000, seconds=900, ci=False),
        run("4 ranks, three false suspicions", model, 4, "CRASHES=3 FALSE_SUSPICIONS=3",
            mode="swarm", seeds=1, seconds=12),
        run("4 ranks, three false suspicions, long", model, 4, "CRASHES=3 FALSE_SUSPICIONS=3",
            mode="swarm", seeds=8, seconds=120, ci=False, memory_mb=5000),
        run("5 ranks, one crash", model, 5, "CRASHES=1", seconds=1200, memory_mb=6000, ci=False),
        run("5 ranks, crashes, false suspicions", model, 5,
            "CRASHES=3 FALSE_SUSPICIONS=3 EPOCHS=3", mode="swarm", seeds=1, seconds=12),
        run("5 ranks, partition 3 + 2", model, 5,
            "CRASHES=2 FALSE_SUSPICIONS=4 CUT=7 EPOCHS=3", mode="swarm", seeds=1, seconds=12),
        run("5 ranks, crashes", model, 5, "CRASHES=2", seconds=1200, memory_mb=6000,
            mode="bitstate", ci=False),
        run("5 ranks, crashes, false suspicions, long", model, 5,
            "CRASHES=4 FALSE_SUSPICIONS=3", mode="swarm", seeds=8, seconds=180, ci=False,
            memory_mb=5000),
    ]
    wrong = [
        ("NSTAR_MIN", "N* = min(done)"),
        ("ACK_BEFORE_CATCH_UP", "acknowledging before the catch-up"),
        ("NO_ADOPT", "not adopting an earlier proposal"),
        ("COMPLETE_AFTER_FREEZE", "completing after the freeze"),
        ("SUSPECT_IS_DEAD", "a suspect counts as dead"),
        ("SUSPECT_IS_DEAD REACH_CONSEQUENCE", "... and its consequence, two views"),
        ("NO_QUORUM_RULE", "no quorum rule"),
    ]
    for macro, words in wrong:
        runs.append(run("wrong: " + words, model, 3, "CRASHES=2 FALSE_SUSPICIONS=1 " + macro,
                        expected="fails"))
    runs.append(run("wrong: waiting for a suspect's acknowledgement", model, 3,
                    "CRASHES=2 LIVENESS WAIT_SUSPECTED", expected="fails", check="progress"))
    runs.append(run("wrong: the shrunken majority, 4 ranks", model, 4,
                    "CRASHES=2 FALSE_SUSPICIONS=2 CUT=3 EPOCHS=1 IDLE SHRUNKEN_MAJORITY",
                    expected="fails"))
    narrow = ("CRASHES=2 FALSE_SUSPICIONS=3 EPOCHS=1 CUT=7 ACCUSERS=9 CRASHABLE=6 "
              "CRASH_AFTER_VIEW IDLE ")
    runs.append(run("wrong: the shrunken majority, 5 ranks", model, 5,
                    narrow + "SHRUNKEN_MAJORITY", expected="fails"))
    reached = [("REACH_ADOPT", 3), ("REACH_CATCH_UP", 3), ("REACH_SECOND", 3), ("REACH_RULE_C", 3),
               ("REACH_SECOND_ADOPT", 4)]
    for macro, ranks in reached:
        runs.append(run("reached: " + macro[6:].lower(), model, ranks,
                        "CRASHES=%d FALSE_SUSPICIONS=1 %s" % (ranks - 1, macro), expected="fails"))
    return runs


def commit_rule_runs():
    model = "commit_rule.pml"
    runs = [run("commit rule", model, n, depth=10000) for n in range(2, 8)]
    runs += [run("commit rule, shrunken majority is safe yet", model, 3, "SHRUNKEN_MAJORITY")]
    for ranks in (4, 5, 7):
        runs.append(run("wrong: commit rule, shrunken majority", model, ranks,
                        "SHRUNKEN_MAJORITY", expected="fails"))
    for macro in ("HALF_WITHOUT_LOWEST", "NO_ADOPT", "CRASHED_BY_SUSPICION", "NO_RULE_C"):
        runs.append(run("wrong: commit rule, " + macro.lower().replace("_", " "), model, 6, macro,
                        expected="fails"))
    return runs


def zombie_runs():
    model = "zombie.pml"
    runs = [run("zombie writes", model, 3, check="stuck", depth=10000)]
    for macro in ("REUSE_WINDOW", "STOPPED_IS_DEAD", "SINGLE_BUFFER", "REPLACE_AFTER_ACK",
                  "ZERO_AFTER_ACK", "NO_ZERO_NO_EPOCH", "HAND_TO_ANYONE"):
        runs.append(run("wrong: zombie, " + macro.lower().replace("_", " "), model, 3, macro,
                        expected="fails", check="stuck", depth=10000))
    runs.append(run("reached: zombie, catch-up", model, 3, "REACH_CATCH_UP", expected="fails",
                    check="stuck", depth=10000))
    return runs


def join_runs():
    model = "join.pml"
    runs = [
        run("join, crashes", model, 3, "CRASHES=2 LIVENESS", check="progress"),
        run("join, crashes, one false suspicion", model, 3, "CRASHES=2 FALSE_SUSPICIONS=1"),
        run("join, liveness, one false suspicion", model, 3,
            "CRASHES=2 FALSE_SUSPICIONS=1 LIVENESS", check="progress", seconds=120),
        run("join, 3 members and the joiner", model, 4, "CRASHES=3 FALSE_SUSPICIONS=1",
            mode="swarm", seeds=1, seconds=12),
        run("join, 3 members and the joiner, long", model, 4, "CRASHES=3 FALSE_SUSPICIONS=2",
            mode="swarm", seeds=8, seconds=120, ci=False, memory_mb=5000),
    ]
    for macro in ("DEAD_BY_SLOT", "NO_TAG", "START_AT_ZERO", "COUNT_JOINER", "NO_ADOPT",
                  "RULE_C_WITHOUT_JOINER"):
        runs.append(run("wrong: join, " + macro.lower().replace("_", " "), model, 3,
                        "CRASHES=2 FALSE_SUSPICIONS=1 " + macro, expected="fails"))
    runs.append(run("wrong: join, wait joiner", model, 3,
                    "CRASHES=2 FALSE_SUSPICIONS=1 LIVENESS WAIT_JOINER", expected="fails",
                    check="progress"))
    for macro in ("REACH_JOINED", "REACH_FAILED", "REACH_ADOPT"):
        runs.append(run("reached: join, " + macro[6:].lower(), model, 3,
                        "CRASHES=2 FALSE_SUSPICIONS=1 " + macro, expected="fails"))
    return runs


def told_runs():
    model = "told.pml"
    runs = [
        run("told, a death and a deadline", model, 3),
        run("told, two channels, two deadlines", model, 2,
            "CALLS=2 CHANNELS=2 CRASHES=0 SETTLES=2"),
        run("told, two channels", model, 3, "CALLS=2 CHANNELS=2", mode="swarm", seconds=12),
        run("told, two channels, whole", model, 3, "CALLS=2 CHANNELS=2", memory_mb=6000,
            seconds=1200, ci=False),
        run("told, more calls", model, 3, "CALLS=5", memory_mb=6000, seconds=600, ci=False),
        run("told, two deaths", model, 4, "CRASHES=2 SETTLES=0", memory_mb=6000, seconds=1200,
            ci=False),
    ]
    for macro in ("NO_CALL_REPORTS", "ONE_DECISION", "LATE_NOT_TOLD", "CLOSES_AT_ONCE",
                  "NOTHING_FIXED", "NOT_CUT"):
        runs.append(run("wrong: told, " + macro.lower().replace("_", " "), model, 3, macro,
                        expected="fails"))
    runs.append(run("wrong: told, shared news", model, 2,
                    "CALLS=2 CHANNELS=2 CRASHES=0 SETTLES=1 SHARED_NEWS", expected="fails"))
    for macro in ("REACH_SHARED", "REACH_LATE", "REACH_AFTER"):
        runs.append(run("reached: told, " + macro[6:].lower(), model, 3, macro, expected="fails"))
    return runs


def all_runs():
    return (view_change_runs() + commit_rule_runs() + zombie_runs() + join_runs() +
            told_runs())


def compile_model(entry, folder):
    shutil.copy(os.path.join(HERE, entry.file), folder)
    defines = ["-D" + d for d in entry.defines]
    if entry.file != "zombie.pml":
        defines.append("-DN=%d" % entry.ranks)
    made = subprocess.run(["spin", "-a"] + defines + [entry.file], cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode or not os.path.exists(os.path.join(folder, "pan.c")):
        return "spin: " + made.stdout.strip()
    # A wrong variant fails within seconds: compiling it fast matters more than running it fast.
    flags = ["-O2" if entry.expected == "holds" else "-O0", "-w", "-DNOFAIR", "-DVECTORSZ=4096", "-DMEMLIM=%d" % entry.memory_mb]
    flags.append("-DNP" if entry.check == "progress" else "-DSAFETY")
    flags += {"exhaustive": ["-DCOLLAPSE"], "bitstate": ["-DBITSTATE"],
              "swarm": ["-DBITSTATE", "-DP_RAND", "-DT_RAND"]}[entry.mode]
    made = subprocess.run(["gcc"] + flags + ["-o", "pan", "pan.c"], cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return "gcc: " + made.stdout.strip()[:400] if made.returncode else ""


def search(entry, folder, seed):
    """One run of pan; returns (output, whether the budget ended it)."""
    command = ["./pan", "-m%d" % entry.depth]
    if entry.check == "safety":
        command.append("-E")
    if entry.check == "progress":
        command += ["-E", "-l"]
    if entry.mode != "exhaustive":
        bits = max(27, (entry.memory_mb // 2 * 8 << 20).bit_length() - 1)
        command += ["-w%d" % min(bits, 34 if not entry.ci else 32)]
    if entry.mode == "swarm":
        command.append("-RS%d" % seed)
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    try:
        return process.communicate(timeout=entry.seconds)[0], False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pan then prints what it has
        try:
            return process.communicate(timeout=30)[0], True
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0], True


def number(pattern, text):
    found = re.search(pattern, text)
    return float(found.group(1)) if found else 0.0


def judge(entry, outputs):
    """Returns (as expected, result, remark)."""
    failed = any(re.search(r"^pan:\d+: (?!.*out of memory)(assertion violated|invalid end state|"
                           r"non-progress cycle|acceptance cycle)", out, re.M)
                 for out, _ in outputs)
    cut = []
    for out, timed_out in outputs:
        if timed_out:
            cut.append("time")
        if re.search(r"max search depth too small", out):
            cut.append("depth")
        if re.search(r"memory limit|out of memory|reached -DMEMLIM", out):
            cut.append("memory")
        if not timed_out and not re.search(r"errors: \d", out):
            return False, "broken", out.strip()[-200:]
    remark = "cut by " + ", ".join(sorted(set(cut))) if cut else "complete"
    if entry.mode != "exhaustive" and not cut:
        remark = "finished"
    if entry.expected == "fails":
        if failed:
            return True, "counterexample", ""
        return False, "NO counterexample", remark
    if failed:
        return False, "COUNTEREXAMPLE", "replay: run_models.py --only ... --keep; spin -t -p"
    if entry.mode == "exhaustive":
        return not cut, "holds" if not cut else "TRUNCATED", remark
    return "depth" not in cut, "no error found", remark


def coverage(entry, outputs):
    if entry.mode == "exhaustive":
        return ""
    factors = [number(r"hash factor: ([\d.e+]+)", out) for out, _ in outputs]
    return " hash factor %.3g" % min(factors) if factors else ""


def execute(entry, keep):
    folder = tempfile.mkdtemp(prefix="mep-model-")
    started = time.monotonic()
    try:
        broken = compile_model(entry, folder)
        built = time.monotonic()
        if broken:
            ok, result, remark, outputs = False, "broken", broken, []
        else:
            outputs = []
            for seed in range(1, entry.seeds + 1):
                outputs.append(search(entry, folder, seed))
                if "errors: 1" in outputs[-1][0]:
                    break
            ok, result, remark = judge(entry, outputs)
        states = sum(number(r"([\d.e+]+) states, stored", out) for out, _ in outputs)
        depth = max([number(r"depth reached (\d+)", out) for out, _ in outputs] or [0])
        memory = max([number(r"([\d.]+)\s+total actual memory", out) for out, _ in outputs] or [0])
        print("%-4s %-52s %d ranks %-10s %-15s %11d states depth %4d %6.0f MB %6.1f s (+%.1f) %s%s"
              % ("ok" if ok else "FAIL", entry.name, entry.ranks, entry.mode, result, states, depth,
                 memory, time.monotonic() - built, built - started, remark,
                 coverage(entry, outputs)), flush=True)
        if keep:
            print("     kept in " + folder)
        return ok
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--exact", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep pan and its trail")
    options = parser.parse_args()
    chosen = [r for r in all_runs() if (options.all or options.only or options.exact or r.ci)
              and options.only in r.name and options.exact in ("", r.name)]
    if options.list:
        for entry in chosen:
            print(entry.name, entry.file, entry.ranks, entry.mode, entry.expected,
                  " ".join(entry.defines), sep=" | ")
        return 0
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            print("skipped: %s is not installed (Debian: apt-get install spin gcc)" % tool)
            return SKIPPED
    started = time.monotonic()
    bad = [entry.name for entry in chosen if not execute(entry, options.keep)]
    print("%d runs, %d not as expected, %.0f s" % (len(chosen), len(bad),
                                                   time.monotonic() - started))
    for name in bad:
        print("not as expected: " + name)
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
