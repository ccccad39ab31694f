#!/usr/bin/env python3
"""check_install.py CMAKE BUILD_FOLDER CC CXX PKG_CONFIG: installs the build into a temporary folder and
uses it as a stranger would: find_package(mep), pkg-config, the header by itself. The tree is moved once
before, since packages are relocated."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CONSUMER = Path(__file__).resolve().parent / "consumer"
cmake, build, cc, cxx, pkg_config = sys.argv[1:]


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexit status {done.returncode}\n{done.stdout}")
    return done.stdout


def compile_alone(prefix, work):
    """mep.h and nothing else, strictest warnings, by the compilers of this build."""
    source = work / "alone.c"
    source.write_text("#include <mep.h>\nint main(void) { return 0; }\n")
    include = f"-I{prefix}/include"
    for standard in ("c99", "c11", "c17"):
        run(cc, f"-std={standard}", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", include,
            "-fsyntax-only", source)
    for standard in ("c++11", "c++17", "c++20"):
        run(cxx, "-x", "c++", f"-std={standard}", "-pedantic-errors", "-Wall", "-Wextra", "-Werror",
            include, "-fsyntax-only", source)


def use_find_package(prefix, work):
    tree = work / "cmake"
    run(cmake, "-S", CONSUMER, "-B", tree, f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_C_COMPILER={cc}", f"-DCMAKE_CXX_COMPILER={cxx}")
    run(cmake, "--build", tree)
    programs = [p for p in ("consumer_c", "consumer_cpp", "consumer_f90") if (tree / p).exists()]
    for program in programs:
        run(tree / program)
    return programs


def use_pkg_config(prefix, work):
    environment = dict(os.environ)
    found = [str(p.parent) for p in prefix.rglob("mep.pc")]
    if len(found) != 1:
        sys.exit(f"mep.pc: found in {found}")
    environment["PKG_CONFIG_PATH"] = found[0]
    flags = run(pkg_config, "--cflags", "--libs", "mep", env=environment).split()
    libdir = run(pkg_config, "--variable=libdir", "mep", env=environment).strip()
    program = work / "by_pkg_config"
    run(cc, "-std=c99", CONSUMER / "header_c99.c", *flags, f"-Wl,-rpath,{libdir}", "-o", program)
    run(program)


with tempfile.TemporaryDirectory(prefix="mep-install-") as folder:
    work = Path(folder)
    run(cmake, "--install", build, "--prefix", work / "first")
    prefix = work / "moved"
    shutil.move(work / "first", prefix)
    header = prefix / "include/mep.h"
    if header.read_text() != (CONSUMER.parent.parent.parent / "include/mep.h").read_text():
        sys.exit("the installed mep.h is not the tree's")
    compile_alone(prefix, work)
    print("find_package:", " ".join(use_find_package(prefix, work)))
    use_pkg_config(prefix, work)
