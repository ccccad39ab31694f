"""Deliberate mistakes in the sources, each of which must turn the gate red: a copy of the tree in build/mutants/tree
is built with one of them, and the gate's tests that reach the file run until one fails twice.

  python3 tools/dev/mutants.py [--list | NAME...]
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

from console import ROOT, die, has, jobs, output_of
from reach import own_and_others
from trees import launchers, share_the_cache

COPY = ROOT / "build/mutants/tree"
TREE = COPY / "build/release"


class Mutant(NamedTuple):
    name: str
    file: str
    right: str
    wrong: str


MUTANTS = [
    Mutant("engine: a call that comes after a view change does not meet what it decided",
           "src/core/operation/operation_engine.hpp",
           "if (!kIsPersonal && decision->decides(last_number() + 1)) {",
           "if (!kIsPersonal && decision->decides(last_number() + 1) && last_number() == 0) {"),
    Mutant("eager ring: a slot is written again a whole ring early", "src/core/coll/eager_ring.cpp",
           "return seq <= passed_by_all_ + depth_;", "return seq <= passed_by_all_ + 2 * depth_;"),
    Mutant("eager ring: the word comes before the payload", "src/core/coll/eager_ring.cpp",
           "MEP_TRY((*remotes_)[rank_].put(offset + sizeof word, payload, bytes));\n", ""),
    Mutant("tcp framing: a put's offset is cut to 16 bits", "src/transport/tcp/frame.cpp",
           "frame.offset = read_at<uint64_t>(bytes, 16);", "frame.offset = read_at<uint16_t>(bytes, 16);"),
    Mutant("tcp framing: a malformed length is taken", "src/transport/tcp/frame.cpp",
           "if (length == 0 || length > kMaxRecordBodyBytes) return Parse::kMalformed;", ""),
    Mutant("EP placement: replicas are chosen by the token alone", "src/core/ep/routing.cpp",
           "(token + shape_.rank) % replicas", "token % replicas"),
    Mutant("EP placement: rows of a place begin where another's do", "src/core/ep/routing.cpp",
           "total += counts_[column];", "total += counts_[column] > 1 ? counts_[column] - 1 : counts_[column];"),
    Mutant("membership codec: the last bit of a word of a set is left out", "src/core/membership/row_codec.cpp",
           "for (uint32_t i = 0; i < 64; ++i)\n        if (set.has", "for (uint32_t i = 0; i < 63; ++i)\n        if (set.has"),
    Mutant("membership codec: bytes behind a view are accepted", "src/core/membership/row_codec.cpp",
           "good && in.left() != 0", "good && false"),
    Mutant("windows: a joiner keeps the old pages of a renewed window", "src/core/world/world_windows.cpp",
           "  if (joiners.has(slot)) return directory_.shares(window.id(), slot);\n", ""),
    Mutant("GPU queue: an index is taken before there is room", "src/transport/gpu_queue/send_queue.hpp",
           """      if (*index + count - done <= q_->entries) {
        if (Memory::take(&q_->reserved, index, *index + count)) return Status::kOk;
        continue;
      }
      const Status status = keep_waiting(&waited);
      if (status != Status::kOk) return status;
      *index = Memory::load(&q_->reserved);
""", """      while (waited.polls == 0 && !Memory::take(&q_->reserved, index, *index + count)) {
      }
      if (*index + count - done <= q_->entries) return Status::kOk;
      const Status status = keep_waiting(&waited);
      if (status != Status::kOk) return status;
"""),
    Mutant("GPU queue: the doorbell tells of requests that are not there", "src/transport/gpu_queue/send_queue.hpp",
           "while (is_ready(end)) ++end;", "end = Memory::load(&q_->reserved);"),
    Mutant("GPU queue: a repeated completion is taken for a later one", "src/transport/gpu_queue/send_queue.hpp",
           "if (more != 0 && more <= q_->entries)", "if (more != 0)"),
    Mutant("GPU queue: a request is published without release", "src/transport/gpu_queue/send_queue.hpp",
           "Memory::store_release(ready_word(index), index + 1);", "*ready_word(index) = index + 1;"),
    Mutant("GPU queue: the ringer does not look again", "src/transport/gpu_queue/send_queue.hpp",
           "while (is_ready(end));", "while (false);"),
    Mutant("software NIC: a word passes the puts before it", "src/transport/gpu_queue/served_queue.cpp",
           "    result = after_puts();", "    result = Executed::kDone;"),
    Mutant("software NIC: a completion comes before the puts", "src/transport/gpu_queue/served_queue.cpp",
           "if (!is_through || !is_due())", "if (!is_due())"),
    Mutant("software NIC: requests behind an error are not flushed", "src/transport/gpu_queue/served_queue.cpp",
           "return flush_rest() || worked;", "return worked;"),
    Mutant("software NIC: a request reaches beyond a region", "src/transport/gpu_queue/request_check.cpp",
           "address - region.address <= region.bytes - bytes", "address - region.address <= region.bytes"),
    Mutant("software NIC: a poster wakes nobody", "src/transport/gpu_queue/soft_nic.hpp",
           "void wake() { doorbell_ring_sleepers(&sleeper_); }", "void wake() {}"),
    Mutant("host kernel: an average divides by one too many", "src/kernels/host/generic_reduce.hpp",
           "return sum / static_cast<T>(divisor);", "return sum / static_cast<T>(divisor + 1);"),
    Mutant("host kernel: the maximum of zeros has the sign of the minimum", "src/kernels/host/generic_reduce.hpp",
           "as<V>(as<Bits>(one) & as<Bits>(other))", "as<V>(as<Bits>(one) | as<Bits>(other))"),
    Mutant("Python: a wrong type of MEP for a type of NumPy", "bindings/python/mep/_type_numbers.py",
           '"float64": MEP_FLOAT64', '"float64": MEP_INT64'),
    Mutant("Python: an error is taken for a success", "bindings/python/mep/_call.py",
           "    if result < 0:\n        raise error(result, last_error())\n", ""),
]


def copy_tree() -> None:
    """Copies the files that git does not ignore. A file that has not changed keeps its time, so that it is not built again."""
    names = (output_of("git", "ls-files", "-co", "--exclude-standard") or "").splitlines()
    if not names:
        die("mutants need git")
    for name in names:
        source, target = ROOT / name, COPY / name
        if not source.is_file() or (target.is_file() and target.read_bytes() == source.read_bytes()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        os.utime(target)


def quietly(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          cwd=COPY, env={**os.environ, "MEP_LOG": "error", "CCACHE_BASEDIR": str(COPY)}, check=False)


def built() -> bool:
    generator = ["-G", "Ninja"] if has("ninja") and not (TREE / "CMakeCache.txt").exists() else []
    configured = quietly("cmake", "--preset", "release", *generator, *launchers(), "-DMEP_CUDA=OFF", "-DMEP_WERROR=OFF",
                         "-DMEP_UNITY=OFF")  # each mutant costs one file
    made = quietly("cmake", "--build", TREE, "-j", jobs()) if configured.returncode == 0 else configured
    if made.returncode != 0:
        print(made.stdout[-3000:])
    return made.returncode == 0


def failing(names: list[str]) -> str | None:
    """The first of these tests that fails, and fails again alone."""
    while names:
        ran = quietly("ctest", "--preset", "release", "-j", jobs(), "--stop-on-failure", "-R",
                      f"^({'|'.join(names)})$").stdout
        failed = re.findall(r"Test +#\d+: (\S+) \.+.*\*\*\*(?!Skipped|Not Run)", ran)
        passed = re.findall(r"Test +#\d+: (\S+) \.+ +Passed", ran)
        for name in failed:
            if quietly("ctest", "--preset", "release", "-R", f"^{name}$").returncode != 0:
                return name
        names = [name for name in names if name not in failed + passed]
        if not failed:
            return None
    return None


def try_mutant(mutant: Mutant) -> bool:
    path = COPY / mutant.file
    text = path.read_text()
    if text.count(mutant.right) != 1:
        print(f"STALE    {mutant.name}: {mutant.file} has its place {text.count(mutant.right)} times")
        return False
    try:
        path.write_text(text.replace(mutant.right, mutant.wrong))
        if not built():
            print(f"BROKEN   {mutant.name}: does not compile")
            return False
        own, others = own_and_others(mutant.file, TREE)
        found = failing(own) or failing(others)
    finally:
        path.write_text(text)
    print(f"{'found by ' + found if found else 'NOT FOUND'}  {mutant.name}", flush=True)
    return found is not None


def main() -> int:
    words = sys.argv[1:]
    if words == ["--list"]:
        print(*(mutant.name for mutant in MUTANTS), sep="\n")
        return 0
    os.chdir(ROOT)
    share_the_cache()
    chosen = [mutant for mutant in MUTANTS if not words or mutant.name in words]
    copy_tree()
    if not chosen or not built():
        die("nothing to try, or the tree does not build without a mistake")
    missed = [mutant for mutant in chosen if not try_mutant(mutant)]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
