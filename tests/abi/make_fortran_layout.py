#!/usr/bin/env python3
"""make_fortran_layout.py OUTPUT.f90: a program that prints sizes, offsets and values as Fortran has
them, for each name of layout_table.h: "struct distance struct_size", "struct.field offset size",
"CONSTANT value"."""
import sys

from abi_files import Table

table = Table()
out = ["program fortran_layout", "  use mep", "  implicit none", "  character(len=*), parameter :: form = '(a,2(1x,i0))'"]
out += [f"  type({struct}), target :: v_{struct}(2)" for struct in table.structs]
for name in table.constants:
    out.append(f"  print form, '{name}', {name}")
for struct, (size, _) in table.structs.items():
    base = f"address(c_loc(v_{struct}(1)))"
    preset = f"v_{struct}(1)%struct_size"
    if (struct, "struct_size") not in table.fields:
        preset = f"c_sizeof(v_{struct}(1))"
    out.append(f"  print form, '{struct}', address(c_loc(v_{struct}(2))) - &\n    {base}, int({preset}, c_intptr_t)")
for struct, field in table.fields:
    member = f"v_{struct}(1)%{field}"
    out.append(f"  print form, '{struct}.{field}', &\n    address(c_loc({member})) - address(c_loc(v_{struct}(1))), &\n"
               f"    int(c_sizeof({member}), c_intptr_t)")
out += ["contains", "  pure integer(c_intptr_t) function address(pointer)", "    type(c_ptr), intent(in) :: pointer",
        "    address = transfer(pointer, address)", "  end function address", "end program fortran_layout", ""]
with open(sys.argv[1], "w") as program:
    program.write("\n".join(out))
