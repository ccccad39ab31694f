#!/usr/bin/env python3
"""Writes docs/reference/what-runs-where.md: make_where.py [--check].

Collectives come from src/protocol/operations.def, layouts of EP objects from include/mep.h, limits from the constants that the library
has. The other rows name texts of the sources: the refusal behind a "no", or the test behind a "yes". If such a text is gone, the
row may have become false, and this program fails.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/reference/what-runs-where.md"

HEAD = """# What runs where

Written by `docs/make_where.py` from the tables and the refusals of the sources; change the program, not this page.
A call, field or flag for which the table says "no" is refused with `MEP_ERR_UNSUPPORTED`. Results are the same bytes everywhere.

| column | ranks |
|---|---|
| hosts | processes or threads of one host or several, over shared memory, TCP, RDMA verbs, or a mixture |
| GPUs of one host | CUDA GPUs that map each other's memory, or share pinned host memory |
| GPUs over queues | CUDA GPUs of several hosts, or of more ranks than windows serve; within a host they still write each other's memory. Run on one host that played several: [measurements](../measurements/README.md) |

| | hosts | GPUs of one host | GPUs over queues |
|---|---|---|---|
"""

TAIL = """
*Stream* means that the call enqueues on a CUDA stream, and that a graph can hold it where a row does not say otherwise. *Face* means the Python calls
of another library. [GPUs](../guide/gpus.md#gpus-that-do-not-reach-each-other) says how MEP chooses between windows and queues, and
[limits](limits.md) has the numbers of what runs.
"""

BACKENDS = ("kHost", "kGpu", "kStaged")
OPERATIONS = "src/protocol/operations.def"
HEADER = "include/mep.h"
REACHES = ("tests/gpu/CMakeLists.txt", "mep_add_reach_test(gpu_comm ${reach}")
EP_REACHES = ("tests/gpu/ep.cmake", "foreach(reach IN ITEMS host queues mixed)")
REPLACES = ("tests/gpu/CMakeLists.txt", "mep_add_reach_test(gpu_replace ${reach}")

# (row, its three cells, (file, text) that each row rests on). {NAME} is a number of NUMBERS.
BEFORE = [
    ("ranks of a communicator, at most", ("{world}", "{windows}", "{queues}"), []),
]
MESSAGES = [
    ("nonblocking collectives (`mep_iallreduce` …)", ("yes", "stream, not in a graph", "stream, not in a graph"),
     [("src/core/cuda/cuda_backend.cpp", "the stream is captured in a graph, and a request ends once"), ("tests/gpu/gpu_comm_requests.cu", "mep_request")]),
    ("`mep_send`, `mep_recv`, `mep_sendrecv`, groups", ("yes", "stream; a group has {group} messages at most", "stream; a group has {queued_group}"),
     [("tests/gpu/gpu_comm_messages.cu", "mep_group_begin"), REACHES]),
    ("`mep_isend`, `mep_irecv`, `mep_probe`, `MEP_ANY_SOURCE`", ("yes", "no", "no"),
     [("src/core/api/message_api.cpp", "MEP_ANY_SOURCE: a receive on a GPU names its source"), ("src/core/api/message_api.cpp", 'check_host("a message")')]),
]
AFTER = [
    ("rows in e4m3 (fp8), quantised by MEP or by the caller", ("yes", "yes", "yes"), [("src/core/ep/ep_config.cpp", "it is the input type, or input without scales"), EP_REACHES]),
    ("column-major scales", ("no", "yes", "yes"), [("src/core/ep/ep_config.cpp", "scale_layout: column-major scales are not built for host")]),
    ("`timeout_ms` and `wait_ns` of one dispatch or combine", ("yes", "no", "no"),
     [("src/core/ep/cuda/ep_call.cpp", "timeout_ms of a call is for host communicators"), ("src/core/ep/cuda/ep_call.cpp", "wait_ns is for host communicators")]),
    ("EP objects with `MEP_EP_LOSS_UNIFORM`", ("yes", "no", "no"), [("src/core/ep/ep_config.cpp", "MEP_EP_LOSS_UNIFORM dispatch and combine would agree")]),
    ("limit of blocks, `num_sms`", ("no", "yes", "yes"), [("src/core/ep/ep_config.cpp", "num_sms is for CUDA communicators")]),
    ("registered send buffers (`mep_comm_register`)", ("changes nothing", "read in place where GPUs map each other", "changes nothing"),
     [("src/core/comm/backend.hpp", "where memory is not read in place they change nothing"), ("tests/gpu/gpu_comm_registered.cu", "mep_comm_register")]),
    ("survivors continue after a death", ("yes", "yes; captured graphs too", "yes; captured graphs too"), [("tests/gpu/CMakeLists.txt", "device_process_test.cu")]),
    ("replacement, `mep_recover_ranks`, `mep_ep_attach`", ("yes, on any host", "yes", "yes; on the host of the lost rank where GPUs of a host map each other"),
     [REPLACES, ("tests/cuda_on_host/CMakeLists.txt", "on_host_replace SOURCES replace_process_test.cu LABELS quick addresses asan REACHES host mixed")]),
    ("growth, `mep_comm_grow`", ("yes", "yes", "yes"), [("tests/gpu/replace_process_test.cu", "mep_comm_grow")]),
    ("barriers that admit joiners, `MEP_COMM_AUTO_RECOVER`", ("yes", "no", "no"), [("src/core/bootstrap/resolve_config.cpp", "MEP_COMM_AUTO_RECOVER on a device is not built yet")]),
    ("GPU-initiated RDMA (IBGDA)", ("–", "–", "no: a thread of the host posts"), []),
    ("C, C++, Fortran, Python (`mep`)", ("yes", "yes", "yes"), [("tests/gpu/python_gpu_test.py", "import mep")]),
    ("PyTorch, backend `\"mep\"`", ("yes", "yes", "yes; messages of a group in the order of their calls"), [("tests/torch/gpu_test.py", "test_replacements"), ("docs/guide/pytorch.md", "Where GPUs are on several hosts")]),
    ("face of DeepEP, `mep.deep_ep`", ("yes", "yes", "yes"), [("tests/torch/deep_ep_gpu_test.py", "rank_streams")]),
    ("face of Mooncake, `mep.mooncake`", ("yes", "yes; a death raises in an operation on a GPU tensor", "the same as on one host"), [("docs/guide/mooncake.md", "what stands below holds for tensors of the CPU")]),
    ("face of NIXL EP, `mep.nixl_ep`", ("yes", "on one GPU; on several built, never run", "built, never run"), [("docs/guide/nixl-ep.md", "it never ran on several GPUs")]),
]
# (file, the constant): how it is written there.
NUMBERS = {
    "world": (HEADER, r"MEP_MAX_RANKS\s+(\d+)|MEP_MAX_RANKS = (\d+)"),
    "windows": ("src/kernels/cuda/coll/state.hpp", r"kMaxCollRanks = (\d+)"),
    "mask_words": ("src/kernels/cuda/device/control.hpp", r"kMaskWords = (\d+)"),
    "group": ("src/kernels/cuda/coll/messages.hpp", r"kManyMessages = (\d+)"),
    "queued_group": ("src/kernels/cuda/coll/stage_mailbox.hpp", r"kStageMessages = (\d+)"),
}


def text_of(file):
    return (ROOT / file).read_text(encoding="utf-8")


def numbers():
    found = {}
    for name, (file, pattern) in NUMBERS.items():
        values = {value for match in re.findall(pattern, text_of(file)) for value in ([match] if isinstance(match, str) else match) if value}
        if len(values) != 1:
            raise SystemExit(f"{file} does not say {name} by {pattern}: {values}")
        found[name] = int(values.pop())
    found["queues"] = 64 * found.pop("mask_words")
    return found


def collectives():
    """The rows of operations.def: operations that run in the same places share one, those with counts apart."""
    rows = {}
    for name, takes, backends in re.findall(r"^MEP_OPERATION\((\w+), \w+, (\w+), .*, ([^,]+)\)$", text_of(OPERATIONS), re.M):
        places = tuple(each in backends.split(" | ") for each in BACKENDS)
        rows.setdefault((takes.startswith("Counts"), places), []).append(f"`mep_{name}`")
    for (_, places), names in rows.items():
        yield ", ".join(names), tuple(("yes" if place == 0 else "stream") if has else "no" for place, has in enumerate(places))


def layouts():
    names = re.search(r"typedef uint32_t mep_ep_layout_t;\nenum \{(.*?)\};", text_of(HEADER), re.S)[1]
    return "dispatch and combine: " + ", ".join(f"`{name}`" for name in re.findall(r"MEP_EP_\w+", names)), ("yes", "stream", "stream")


def checked(rows):
    for row, cells, witnesses in rows:
        for file, text in witnesses:
            if text not in text_of(file):
                raise SystemExit(f"{PAGE}: the row \"{row}\" rests on \"{text}\" in {file}, which is not there any more. Is the row still true? "
                                 "Change it, or the text, in docs/make_where.py")
        yield row, cells


def render():
    rows = [*checked(BEFORE), *collectives(), *checked(MESSAGES), layouts(), *checked(AFTER)]
    known = numbers()
    return HEAD + "".join(f"| {row} | {' | '.join(cell.format(**known) for cell in cells)} |\n" for row, cells in rows) + TAIL


def main():
    page, rendered = ROOT / PAGE, render()
    if "--check" in sys.argv[1:]:
        if not page.exists() or page.read_text(encoding="utf-8") != rendered:
            raise SystemExit(f"{PAGE} is not what docs/make_where.py writes; run it")
    else:
        page.write_text(rendered, encoding="utf-8")


if __name__ == "__main__":
    main()
