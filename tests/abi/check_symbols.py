#!/usr/bin/env python3
"""check_symbols.py [LIBMEP.SO]: the library exports what mep.map lists, which is what mep.h declares; and the
collectives of mep.h are those of the table of operations."""
import re
import subprocess
import sys

from abi_files import ROOT, Findings, header

sys.path.insert(0, str(ROOT / "bindings"))
from make_bindings import COUNTS, DISPLS, functions, operations  # noqa: E402

findings = Findings()
declared = set(header().functions)
listed = set(re.findall(r"\b(mep_\w+);", (ROOT / "src/core/api/mep.map").read_text()))
findings.same_names("mep.map against mep.h", declared, listed)

# A collective is what takes a stream or a request after a communicator and is sent to no single rank; but for what is local.
LOCAL = {"mep_comm_forget_lost"}
C_TYPES = {"sendbuf": "const void*", "recvbuf": "void*", "count": "size_t", "dtype": "mep_dtype_t", "op": "mep_op_t",
           "root": "int32_t", "comm": "mep_comm_t", "stream": "mep_stream_t", "request": "mep_request_t*",
           **dict.fromkeys(COUNTS + DISPLS, "const uint64_t*")}
of_table = {f"mep_{name}": [(C_TYPES[each], each) for each in parameters]
            for _, name, parameters in functions(operations())}
of_header = {name: parameters for name, (_, parameters) in header().functions.items()
             if [each for _, each in parameters][-2:] in (["comm", "stream"], ["stream", "request"])
             and not {"dest", "source"} & {each for _, each in parameters} and name not in LOCAL}
findings.same_names("collectives of mep.h against the table", of_table, of_header)
for name in of_table.keys() & of_header.keys():
    findings.same(f"{name} of mep.h against the table", of_table[name], of_header[name])

if len(sys.argv) > 1:
    lines = subprocess.run(["nm", "-D", "--defined-only", sys.argv[1]], check=True, text=True,
                           stdout=subprocess.PIPE).stdout.splitlines()
    exported = {}
    for line in lines:
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition("@")
        if kind != "A":  # the version node itself
            exported[name] = (kind, version.lstrip("@"))
    findings.same_names("libmep.so against mep.h", declared, exported)
    for name, (kind, version) in exported.items():
        findings.same(f"{name} in libmep.so", ("T", "MEP_0.4"), (kind, version))
    # MPI belongs to libmep_mpi.so alone.
    needed = subprocess.run(["readelf", "-d", sys.argv[1]], check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    if re.search(r"NEEDED.*\[libmpi", needed):
        findings.lines.append("libmep.so links MPI")
findings.end()
