#!/usr/bin/env python3
"""check_symbols.py [LIBMEP.SO]: the library exports what mep.map lists, which is what mep.h declares."""
import re
import subprocess
import sys

from abi_files import ROOT, Findings, header

findings = Findings()
declared = set(header().functions)
listed = set(re.findall(r"\b(mep_\w+);", (ROOT / "src/core/api/mep.map").read_text()))
findings.same_names("mep.map against mep.h", declared, listed)

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
        findings.same(f"{name} in libmep.so", ("T", "MEP_0.1"), (kind, version))
    # MPI belongs to libmep_mpi.so alone.
    needed = subprocess.run(["readelf", "-d", sys.argv[1]], check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    if re.search(r"NEEDED.*\[libmpi", needed):
        findings.lines.append("libmep.so links MPI")
findings.end()
