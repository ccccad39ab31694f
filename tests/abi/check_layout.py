#!/usr/bin/env python3
"""check_layout.py [FORTRAN_PROGRAM]: layout_table.h names everything in mep.h, and Python's and
Fortran's structures and constants agree with it. FORTRAN_PROGRAM prints its layout in the table's form
(make_fortran_layout.py). That C agrees is layout_test.c's part."""
import ctypes
import importlib
import re
import subprocess
import sys
import types

from abi_files import ROOT, Findings, Table, header, number

findings = Findings()
table, mep_h = Table(), header()
findings.same_names("layout_table.h, constants", mep_h.constants, table.constants)
for name, value in mep_h.constants.items():
    findings.same(f"mep.h, {name}", table.constants.get(name), value)
findings.same_names("layout_table.h, structs", mep_h.structs, table.structs)
findings.same_names("layout_table.h, fields",
                    {(s, f) for s, fields in mep_h.structs.items() for _, f, _ in fields},
                    table.fields)

# The package without its __init__.py: it needs neither NumPy nor the library.
package = types.ModuleType("mep")
package.__path__ = [str(ROOT / "bindings/python/mep")]
sys.modules["mep"] = package
abi = importlib.import_module("mep._abi")
constants = {name: value for name, value in vars(abi).items()
             if name.startswith("MEP_") and name not in mep_h.defines}
findings.same_names("Python, constants", table.constants, constants)
for name, value in constants.items():
    findings.same(f"Python, {name}", table.constants.get(name), value)
for name, value in mep_h.defines.items():
    findings.same(f"Python, {name}", number(value), getattr(abi, name))
structs = {name: value for name, value in vars(abi).items()
           if isinstance(value, type) and issubclass(value, ctypes.Structure)
           and value is not ctypes.Structure}
findings.same_names("Python, structs", table.structs, structs)
for name, struct in structs.items():
    findings.same(f"Python, {name}", table.structs.get(name),
                  (ctypes.sizeof(struct), ctypes.alignment(struct)))
    fields = {f: (getattr(struct, f).offset, getattr(struct, f).size) for f, _ in struct._fields_}
    findings.same_names(f"Python, {name}", {f for s, f in table.fields if s == name}, fields)
    for field, place in fields.items():
        findings.same(f"Python, {name}.{field}", table.fields.get((name, field)), place)

# Functions: the same ones, with arguments of the same kinds.
KINDS = {"int32_t": "int32", "mep_result_t": "int32", "uint32_t": "uint32", "mep_dtype_t": "uint32",
         "mep_op_t": "uint32", "mep_registration_t": "uint64", "uint64_t": "uint64", "size_t": "uint64", "void": "void"}
PYTHON_KINDS = {ctypes.c_int32: "int32", ctypes.c_uint32: "uint32", ctypes.c_uint64: "uint64",
                ctypes.c_size_t: "uint64", None: "void"}
findings.same_names("Python, functions", mep_h.functions, abi.FUNCTIONS)
for name, (result, parameters) in mep_h.functions.items():
    if name in abi.FUNCTIONS:
        c_kinds = [KINDS.get(t, "pointer") for t in [result] + [t for t, _ in parameters]]
        python = abi.FUNCTIONS[name]
        python_kinds = [PYTHON_KINDS.get(t, "pointer") for t in [python[0]] + list(python[1])]
        findings.same(f"Python, {name}", c_kinds, python_kinds)
        for (c_type, _), python_type in zip(parameters, python[1]):
            struct = re.fullmatch(r"(?:const )?(mep_\w+_t)\*", c_type)
            if struct and struct[1] in structs:
                findings.same(f"Python, {name}", structs[struct[1]], getattr(python_type, "_type_", None))

# Fortran: every function has a binding (by its own name or a bind name) and a public procedure.
folder = ROOT / "bindings/fortran"
# mep_messages.f90 has both.
fortran_c = "".join((folder / f"{each}.f90").read_text()
                    for each in ("mep_c", "mep_collectives_c", "mep_messages"))
fortran = (folder / "mep.f90").read_text() + (folder / "mep_collectives.f90").read_text()
for name, (_, parameters) in mep_h.functions.items():
    bound = re.search(r"\b(?:function|subroutine) %s\(" % name, fortran_c) or f'name="{name}"' in fortran_c
    public = re.search(r"\b(?:function|subroutine) %s\(" % name, fortran_c + fortran)
    if not bound or not public:
        findings.lines.append(f"Fortran, functions: {name} is missing")

# And the arguments of each have the same kinds: by value or by reference, and of how many bits. Fortran
# has no unsigned integers.
FORTRAN_KINDS = {"c_int32_t": "32", "c_int64_t": "64", "c_size_t": "64"}
C_KINDS = {"int32": "32", "uint32": "32", "uint64": "64"}


def fortran_procedures(text):
    """{bound name: (result, kinds of the arguments)}"""
    text = re.sub(r"&[ \t]*\n[ \t]*&?", " ", re.sub(r"!.*", "", text))
    found = {}
    for kind, name, names, bind, body in re.findall(
            r"(\S+ function|subroutine) (\w+)\(([^)]*)\)\s+bind\(C([^)]*)\)[^\n]*\n(.*?)\n\s*end (?:function|subroutine)",
            text, flags=re.S):
        declared = {}
        for type_name, attributes, arguments in re.findall(
                r"^\s*((?:integer|type|character|real)\([^)]*\))([^:\n]*)::\s*(.*)$", body, flags=re.M):
            for argument in re.findall(r"(\w+)(?:\([^)]*\))?", arguments):
                inner = re.search(r"\(([^)]*)\)", type_name)[1]
                by_value = re.search(r"\bvalue\b", attributes)
                declared[argument] = FORTRAN_KINDS.get(inner, "pointer") if by_value else "pointer"
        result = "void" if kind == "subroutine" else \
            FORTRAN_KINDS.get(re.search(r"\((.*)\)", kind)[1], "pointer")
        bound = re.search(r'name="(\w+)"', bind)
        found[bound[1] if bound else name] = (
            result, [declared.get(each.strip(), "not declared") for each in names.split(",") if each.strip()])
    return found


bound_procedures = fortran_procedures(fortran_c)
for name, (result, parameters) in mep_h.functions.items():
    kinds = [KINDS.get(each, "pointer") for each in [result] + [each for each, _ in parameters]]
    kinds = [C_KINDS.get(each, each) for each in kinds]
    findings.same(f"Fortran, {name}", (kinds[0], kinds[1:]), bound_procedures.get(name))

if len(sys.argv) > 1:
    output = subprocess.run([sys.argv[1]], check=True, text=True, stdout=subprocess.PIPE).stdout
    seen = set()
    for line in output.splitlines():
        name, *numbers = line.split()
        seen.add(name)
        struct, _, field = name.partition(".")
        if field:
            expected = table.fields.get((struct, field))
        elif struct in table.structs:
            # An array of two gives the distance; alignment shows in it. struct_size is preset.
            expected = (table.structs[struct][0], table.structs[struct][0])
        else:
            expected = (table.constants.get(struct),)
        findings.same(f"Fortran, {name}", expected, tuple(map(int, numbers)))
    findings.same_names("Fortran", list(table.constants) + list(table.structs) +
                        [f"{s}.{f}" for s, f in table.fields], seen)
findings.end()
