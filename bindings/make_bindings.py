#!/usr/bin/env python3
"""Writes what the bindings have of the tables of operations, types and row formats: make_bindings.py [--check].

From src/protocol/operations.def come
  src/core/api/collective_calls.cpp           the C functions, mep_NAME and mep_iNAME
  bindings/python/mep/_collectives.py         prototypes for ctypes
  bindings/fortran/mep_collectives_c.f90      interfaces of the C functions
  bindings/fortran/mep_collectives.f90        their Fortran forms
and from src/protocol/types.def
  bindings/python/mep/_type_numbers.py        constants, names, sizes and what NumPy and DLPack call them
  bindings/python/mep/torch/csrc/types.inc    PyTorch's types
  bindings/fortran/mep_types.f90              the constants, between two comments
and from src/protocol/row_formats.def
  bindings/python/mep/_type_numbers.py        scales of rows

--check writes nothing and fails when one of them is not what would be written. Tests compare them with mep.h.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "src/protocol/operations.def"
TYPES = ROOT / "src/protocol/types.def"
ROW_FORMATS = ROOT / "src/protocol/row_formats.def"
TYPE_COLUMNS = ("number", "constant", "class", "element", "arithmetic", "name", "short", "numpy", "dlpack", "torch")
COLUMNS = ("name", "class", "takes", "send", "receive", "forms", "backends")
# The parameters that `takes` stands for, in the order of C, before comm.
TAKES = {
    "Nothing": [],
    "Data": ["sendbuf", "recvbuf", "count", "dtype"],
    "DataRoot": ["sendbuf", "recvbuf", "count", "dtype", "root"],
    "DataOp": ["sendbuf", "recvbuf", "count", "dtype", "op"],
    "DataOpRoot": ["sendbuf", "recvbuf", "count", "dtype", "op", "root"],
    "Counts": ["sendbuf", "recvbuf", "counts", "displs", "dtype"],
    "CountsOp": ["sendbuf", "recvbuf", "counts", "displs", "dtype", "op"],
    "CountsRoot": ["sendbuf", "recvbuf", "count", "counts", "displs", "dtype", "root"],
    "CountsBoth": ["sendbuf", "recvbuf", "sendcounts", "senddispls", "recvcounts", "recvdispls", "dtype"],
}
COUNTS = ("counts", "sendcounts", "recvcounts")
DISPLS = ("displs", "senddispls", "recvdispls")
VALUES = {
    "class": {"Replicated", "Personal"},
    "takes": set(TAKES),
    "send": {"None", "One", "Root", "All", "AllOnRoot"},
    "receive": {"None", "One", "Root", "All", "AllOnRoot"},
    "forms": {"Blocking", "Both"},
}


def operations():
    """The lines of the table as dictionaries."""
    text = re.sub(r"//.*", "", TABLE.read_text())
    found = []
    for line in re.findall(r"MEP_OPERATION\(([^)]*)\)", text):
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(COLUMNS):
            sys.exit(f"{TABLE}: {line}: {len(words)} columns, not {len(COLUMNS)}")
        row = dict(zip(COLUMNS, words))
        for column, values in VALUES.items():
            if row[column] not in values:
                sys.exit(f"{TABLE}: {row['name']}: {column} is {row[column]}; there are {', '.join(sorted(values))}")
        found.append(row)
    return found


def types():
    """The lines of the table of types as dictionaries, with the bytes of each."""
    found = []
    for line in re.findall(r"^  X\(with, (.*)\)", TYPES.read_text(), re.M):
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(TYPE_COLUMNS):
            sys.exit(f"{TYPES}: {line}: {len(words)} columns, not {len(TYPE_COLUMNS)}")
        row = dict(zip(TYPE_COLUMNS, words))
        row["bytes"] = {"float": 4, "double": 8}.get(row["element"]) or int(re.sub(r"\D", "", row["element"])) // 8
        found.append(row)
    return found


def row_scales():
    """Each scale type: its name, the values that share a scale, and NumPy's type of one."""
    lines = re.findall(r"^  X\(\w+, \w+, \d+, (\w+), (\d+), \w+, (\w+), [\w<>]+\)", ROW_FORMATS.read_text(), re.M)
    types = {"float": "float32", "uint8_t": "uint8"}
    scales = dict.fromkeys((scale.lower(), group, types[element]) for scale, group, element in lines)
    if len({name for name, _, _ in scales}) != len(scales):
        sys.exit(f"{ROW_FORMATS}: one scale type has two groups or two types of a scale")
    return list(scales)


def functions(rows):
    """(row, name, parameters): first the blocking ones, then the nonblocking ones."""
    for row in rows:
        yield row, row["name"], TAKES[row["takes"]] + ["comm", "stream"]
    for row in rows:
        if row["forms"] == "Both":
            yield row, "i" + row["name"], TAKES[row["takes"]] + ["comm", "stream", "request"]


def wrapped(head, items, tail, indent, width):
    """head + items, joined by commas + tail, on lines of `width`."""
    lines, line = [], head
    for number, item in enumerate(items):
        piece = item + ("," if number + 1 < len(items) else tail)
        if len(line) + len(piece) + 1 > width and line.strip():
            lines.append(line.rstrip())
            line = " " * indent
        line += piece + " "
    lines.append(line.rstrip())
    return lines


# --- C ----------------------------------------------------------------------------------------------

C_TYPES = {"sendbuf": "const void* ", "recvbuf": "void* ", "count": "size_t ", "dtype": "mep_dtype_t ",
           "op": "mep_op_t ", "root": "int32_t ", "comm": "mep_comm_t ", "stream": "mep_stream_t ",
           "request": "mep_request_t* ", **dict.fromkeys(COUNTS + DISPLS, "const uint64_t* ")}
# Fields of CollectiveArgs, and of BlockCounts where blocks have lengths of their own.
FIELDS = {"sendbuf": "send", "recvbuf": "receive", "count": "count", "dtype": "dtype", "op": "op", "root": "root"}
BLOCK_FIELDS = {"counts": "counts", "displs": "displs", "sendcounts": "counts", "senddispls": "displs",
                "recvcounts": "recv_counts", "recvdispls": "recv_displs"}


def given_fields(fields):
    return ", ".join(f".{name} = {value}" for name, value in fields)


def c_text(rows):
    lines = ["// The collectives of mep.h. Made by bindings/make_bindings.py from the table of operations; do not edit.",
             "// clang-format off", '#include "core/api/collective_call.hpp"', "",
             "using mep::BlockCounts;", "using mep::Collective;", "using mep::CollectiveArgs;"]
    for row, name, parameters in functions(rows):
        head = f"mep_result_t mep_{name}("
        lines.append("")
        if len(parameters) > 9:
            lines.append("// The blocking form's parameters and a request. NOLINTNEXTLINE(readability-function-size)")
        lines += wrapped(head, [C_TYPES[each] + each for each in parameters], ") {", len(head), 100)
        blocks = [(BLOCK_FIELDS[each], each) for each in parameters if each in BLOCK_FIELDS]
        fields = [(FIELDS[each], each) for each in parameters if each in FIELDS]
        if blocks:
            # The length of the one block that a rank gives or takes: of the v forms with a root.
            if "count" in parameters:
                blocks.insert(0, ("own", "&count"))
                fields.remove(("count", "count"))
            lines.append(f"  const BlockCounts blocks{{{given_fields(blocks)}}};")
            fields.append(("counts", "&blocks"))
        if fields:
            lines += wrapped("  const CollectiveArgs args{", [f".{a} = {b}" for a, b in fields], "};", 28, 100)
        args = "args" if fields else "CollectiveArgs()"
        kind = f"Collective::k_{row['name']}"
        lines.append(f"  return mep::start_request(comm, {kind}, {args}, stream, request);" if "request" in parameters
                     else f"  return mep::run<{kind}>({args}, comm, stream);")
        lines.append("}")
    return "\n".join(lines + [""])


# --- Python -----------------------------------------------------------------------------------------

CTYPES = {"sendbuf": "c_void_p", "recvbuf": "c_void_p", "count": "c_size_t", "dtype": "c_uint32",
          "op": "c_uint32", "root": "c_int32", "comm": "c_void_p", "stream": "c_void_p",
          "request": "POINTER(c_void_p)", **dict.fromkeys(COUNTS + DISPLS, "POINTER(c_uint64)")}


def python_text(rows):
    lines = ['"""The collectives of mep.h for ctypes. Made by bindings/make_bindings.py from the table of operations;',
             'do not edit."""',
             "from ctypes import POINTER, c_int32, c_size_t, c_uint32, c_uint64, c_void_p", "",
             "# name -> (result, argument types)",
             "COLLECTIVES = {"]
    for _, name, parameters in functions(rows):
        head = f'    "mep_{name}": (c_int32, ['
        lines += wrapped(head, [CTYPES[each] for each in parameters], "]),", len(head), 100)
    return "\n".join(lines + ["}", ""])


def python_types_text(rows):
    lines = ['"""The types of mep.h. Made by bindings/make_bindings.py from the tables of types and row formats; do not edit."""']
    lines += [f"MEP_{row['constant']} = {row['number']}" for row in rows]

    def table(head, entries):
        return ["", head] + wrapped("    ", entries, "", 4, 100) + ["}"]

    lines += table("NUMBERS = {", [f'"{name}": MEP_{row["constant"]}' for row in rows
                                   for name in dict.fromkeys((row["name"], row["numpy"])) if name != "none"])
    lines += table("SIZES = {", [f"{row['number']}: {row['bytes']}" for row in rows])
    raw = [row for row in rows if row["numpy"] != "none"]
    lines += table("RAW = {  # types that NumPy lacks, and the unsigned integers that may hold them",
                   [f'MEP_{row["constant"]}: ("{row["numpy"]}", "uint{8 * row["bytes"]}")' for row in raw])
    lines += table("DLPACK = {  # (type code, bits) of DLPack",
                   [f"({row['dlpack']}, {8 * row['bytes']}): {row['number']}" for row in rows if row["dlpack"] != "none"])
    lines += table("SCALES = {  # of rows: the values that share one, and its type",
                   [f'"{name}": ({group}, "{element}")' for name, group, element in row_scales()])
    return "\n".join(lines + [""])


def torch_types_text(rows):
    lines = ["// at::ScalarType of each type. Made by bindings/make_bindings.py from the table of types; do not edit."]
    lines += [f"MEP_TORCH_TYPE({row['torch']}, MEP_{row['constant']})" for row in rows if row["torch"] != "none"]
    return "\n".join(lines + [""])


# --- Fortran ----------------------------------------------------------------------------------------

WIDTH = 100
# Declarations as (kind of the attribute, name): those alike stand in one line.
C_DECLARATIONS = {
    "sendbuf": "type(c_ptr), value", "recvbuf": "type(c_ptr), value", "stream": "type(c_ptr), value",
    "count": "integer(c_size_t), value", "dtype": "integer(c_int32_t), value",
    "op": "integer(c_int32_t), value", "root": "integer(c_int32_t), value",
    "comm": "type(mep_comm_t), value", "request": "type(mep_request_t), intent(out)",
    **dict.fromkeys(COUNTS + DISPLS, "type(c_ptr), value")}
BUFFER = "type(*), dimension(..), asynchronous, contiguous, target"
DECLARATIONS = {
    "sendbuf": BUFFER + ", intent(in)", "recvbuf": BUFFER, "buffer": BUFFER,
    "count": "integer(c_size_t), intent(in)", "dtype": "integer(c_int32_t), intent(in)",
    "op": "integer(c_int32_t), intent(in)", "root": "integer(c_int32_t), intent(in)",
    "comm": "type(mep_comm_t), intent(in)", "stream": "type(c_ptr), intent(in), optional",
    "request": "type(mep_request_t), intent(out)",
    **dict.fromkeys(COUNTS, "integer(c_int64_t), intent(in), target, contiguous"),
    **dict.fromkeys(DISPLS, "integer(c_int64_t), intent(in), target, contiguous, optional")}


def broken(text, indent):
    """One statement, continued where it is too long, but not at ~; the rest is indented by `indent`."""
    lines = []
    while len(text) > WIDTH:
        at = text.rfind(" ", 0, WIDTH - 1)
        lines.append(text[:at] + " &")
        text = " " * indent + text[at + 1:]
    return [line.replace("~", " ") for line in lines + [text]]


def declarations(parameters, kinds, indent):
    """Those alike in one line, in the order of the first."""
    alike = {}
    for each in parameters:
        alike.setdefault(kinds[each], []).append(each)
    for kind, names in alike.items():
        names = [name + "(:)" if "contiguous" in kind and "dimension" not in kind else name for name in names]
        yield f"{' ' * indent}{kind} :: {', '.join(names)}"


def fortran_c_text(rows):
    lines = ["! The collectives of mep.h as they are. Made by bindings/make_bindings.py from the table of operations;",
             "! do not edit.",
             "module mep_collectives_c", "  use, intrinsic :: iso_c_binding", "  use mep_types", "  implicit none", "",
             "  interface"]
    for _, name, parameters in functions(rows):
        kinds = ["c_int32_t"]
        kinds += ["c_ptr"] if "stream" in parameters or "sendbuf" in parameters else []
        kinds += ["c_size_t"] if "count" in parameters else []
        kinds += ["mep_comm_t"] + (["mep_request_t"] if "request" in parameters else [])
        lines += broken(f'    integer(c_int32_t) function c_{name}({", ".join(parameters)}) bind(C,~name="mep_{name}")', 8)
        lines.append(f"      import :: {', '.join(kinds)}")
        lines += declarations(parameters, C_DECLARATIONS, 6)
        lines.append(f"    end function c_{name}")
    return "\n".join(lines + ["  end interface", "end module mep_collectives_c", ""])


def fortran_in_place(row, name, parameters):
    """The form with one buffer, or nothing if there is none."""
    if row["takes"].startswith("Counts"):
        return []
    per_rank = ("All", "AllOnRoot")
    whole, rest = "c_loc(buffer)", parameters[2:]
    notes = []
    if row["send"] in per_rank and row["receive"] in per_rank:
        return []
    if row["receive"] in per_rank:
        notes.append("The rank's own block of recvbuf is its input.")
    if row["send"] in per_rank:
        notes.append("The rank's own block of buffer is its output.")
    if "AllOnRoot" in (row["send"], row["receive"]) or row["receive"] == "Root":
        notes.append(f"For root; the others call mep_{name}.")
    if row["receive"] in per_rank:
        return fortran_function(name + "_in_place", name, parameters[1:], ["block", "c_loc(recvbuf)"], notes, "recvbuf")
    if row["send"] in per_rank:
        return fortran_function(name + "_in_place", name, ["buffer"] + rest, [whole, "block"], notes, "buffer")
    return fortran_function(name + "_in_place", name, ["buffer"] + rest, [whole, whole], notes)


def passed(name):
    """The argument of the C function for a parameter of the Fortran form."""
    if name == "stream":
        return "given(stream)"
    if name in DISPLS:
        return f"given_displs({name})"
    return f"c_loc({name})" if name in COUNTS else name


def fortran_function(name, c_name, parameters, arguments, notes=(), block_of=None):
    """`arguments`: what the C function is given for its buffers. `block_of`: in which the rank's block lies."""
    rest = [each for each in parameters if each not in ("sendbuf", "recvbuf", "buffer")]
    given = arguments + [passed(each) for each in rest]
    lines = [f"  ! {note}" for note in notes]
    # Parameters that may be left out stand at the end.
    parameters = sorted(parameters, key=lambda each: (each in DISPLS, each == "stream"))
    lines += broken(f"  integer(c_int32_t) function mep_{name}({', '.join(parameters)}) result(code)", 6)
    lines += declarations(parameters, DECLARATIONS, 4)
    call = f"code = c_{c_name}({', '.join(given)})"
    if block_of:
        lines += ["    type(c_ptr) :: block",
                  f"    code = own_block(c_loc({block_of}), count, dtype, comm, block)",
                  "    if (code /= MEP_SUCCESS) return"]
    return lines + broken("    " + call, 8) + [f"  end function mep_{name}", ""]


def fortran_text(rows):
    names, bodies = [], []
    for row, name, parameters in functions(rows):
        buffers = ["c_loc(sendbuf)", "c_loc(recvbuf)"] if "sendbuf" in parameters else []
        names.append(name)
        bodies += fortran_function(name, name, parameters, buffers)
        if not buffers:
            continue
        in_place = fortran_in_place(row, name, parameters)
        bodies += in_place
        names += [name + "_in_place"] if in_place else []
    lines = ["! The collectives of mep.h in Fortran's form; programs `use mep`. Made by bindings/make_bindings.py from",
             "! the table of operations; do not edit.",
             "module mep_collectives", "  use, intrinsic :: iso_c_binding", "  use mep_types", "  use mep_helpers",
             "  use mep_collectives_c", "  implicit none", "  private"]
    lines += [f"  public :: mep_{each}" for each in names]
    return "\n".join(lines + ["", "contains", ""] + bodies[:-1] + ["end module mep_collectives", ""])


def fortran_types_text(rows):
    """The file as it is, with the constants between the two comments replaced."""
    begin, end = "  ! Made by bindings/make_bindings.py from the table of types; do not edit.\n", "  ! End of what is made.\n"
    before, rest = (ROOT / "bindings/fortran/mep_types.f90").read_text().split(begin)
    lines = [f"  integer(c_int32_t), parameter, public :: MEP_{row['constant']} = {row['number']}\n" for row in rows]
    return before + begin + "".join(lines) + end + rest.split(end)[1]


def main():
    rows, kinds = operations(), types()
    check = "--check" in sys.argv[1:]
    stale = []
    for path, text in (("src/core/api/collective_calls.cpp", c_text(rows)),
                       ("bindings/python/mep/_collectives.py", python_text(rows)),
                       ("bindings/fortran/mep_collectives_c.f90", fortran_c_text(rows)),
                       ("bindings/fortran/mep_collectives.f90", fortran_text(rows)),
                       ("bindings/python/mep/_type_numbers.py", python_types_text(kinds)),
                       ("bindings/python/mep/torch/csrc/types.inc", torch_types_text(kinds)),
                       ("bindings/fortran/mep_types.f90", fortran_types_text(kinds))):
        file = ROOT / path
        if file.exists() and file.read_text() == text:
            continue
        stale.append(path)
        if not check:
            file.write_text(text)
            print(f"wrote {path}")
    if check and stale:
        sys.exit(f"run bindings/make_bindings.py: {', '.join(stale)} differ from the tables")


if __name__ == "__main__":
    main()
