#!/usr/bin/env python3
"""Every function of mep.h that can be called wrongly is, in errors_*_test.c: an EXPECT with
MEP_ERR_INVALID_ARGUMENT for each, and for each code that a function's own comment or this list names,
where arguments alone can provoke it."""
import re

from abi_files import ROOT, Findings, header

# NULL is accepted; a wrong pointer is no argument that can be recognised.
NO_WRONG_ARGUMENT = {"mep_comm_destroy", "mep_ep_destroy", "mep_ep_handle_destroy", "mep_memory_release",
                      "mep_set_log_callback"}
WANTED = {
    ("mep_comm_init", "MEP_ERR_BOOTSTRAP"), ("mep_barrier", "MEP_ERR_UNSUPPORTED"),
    ("mep_mem_alloc", "MEP_ERR_NO_MEMORY"), ("mep_comm_async_result", "MEP_ERR_UNSUPPORTED"),
    ("mep_comm_last_op", "MEP_ERR_NOT_FOUND"), ("mep_comm_last_op", "MEP_ERR_CAPACITY"),
    ("mep_allreduce", "MEP_ERR_UNSUPPORTED"), ("mep_iallreduce", "MEP_ERR_UNSUPPORTED"),
    ("mep_comm_view", "MEP_ERR_CAPACITY"), ("mep_comm_query", "MEP_ERR_CAPACITY"), ("mep_comm_wait_view", "MEP_ERR_TIMEOUT"),
    ("mep_comm_attach", "MEP_ERR_NOT_FOUND"), ("mep_comm_destroy", "MEP_ERR_BUSY"),
    ("mep_ep_destroy", "MEP_ERR_BUSY"), ("mep_ep_handle_destroy", "MEP_ERR_BUSY"),
    ("mep_ep_attach", "MEP_ERR_NOT_FOUND"), ("mep_ep_last_op", "MEP_ERR_NOT_FOUND"),
    ("mep_ep_last_op", "MEP_ERR_CAPACITY"), ("mep_dispatch", "MEP_ERR_BUSY"),
    ("mep_preferred_hca", "MEP_ERR_NOT_FOUND"), ("mep_comm_preferred_hca", "MEP_ERR_NOT_FOUND"),
    ("mep_preferred_hca", "MEP_ERR_CAPACITY"),
    ("mep_dispatch", "MEP_ERR_CAPACITY"), ("mep_combine", "MEP_ERR_BUSY"),
    ("mep_group_end", "MEP_ERR_INVALID_ARGUMENT"),
    ("mep_request_cancel", "MEP_ERR_UNSUPPORTED"),
    ("mep_send", "MEP_ERR_UNSUPPORTED"), ("mep_send", "MEP_ERR_TIMEOUT"),
    ("mep_recv", "MEP_ERR_UNSUPPORTED"), ("mep_recv", "MEP_ERR_TIMEOUT"),
    ("mep_recv", "MEP_ERR_CAPACITY"), ("mep_recv", "MEP_ERR_MISMATCH"),
    ("mep_sendrecv", "MEP_ERR_UNSUPPORTED"), ("mep_sendrecv", "MEP_ERR_CAPACITY"),
    ("mep_probe", "MEP_ERR_TIMEOUT"), ("mep_set_log_callback", "MEP_ERR_BUSY"),
}

tested = set()
for source in (ROOT / "tests/abi").glob("errors_*_test.c"):
    text = source.read_text()
    tested.update((f, c) for c, f in re.findall(r"EXPECT(?:_IF_BUILT)?\(\s*(MEP_ERR_\w+),\s*(mep_\w+)\(", text))
for function, (result, parameters) in header().functions.items():
    if result == "mep_result_t" and parameters and function not in NO_WRONG_ARGUMENT:
        WANTED.add((function, "MEP_ERR_INVALID_ARGUMENT"))

findings = Findings()
findings.same_names("errors_*_test.c", {f"{f} giving {c}" for f, c in WANTED},
                    {f"{f} giving {c}" for f, c in tested & WANTED})
findings.end()
