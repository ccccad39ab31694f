#!/usr/bin/env python3
"""check_install.py CMAKE BUILD_FOLDER CC CXX PKG_CONFIG [PYTHON_WITH_NUMPY]: installs the build into a temporary
folder and uses it as a stranger would: find_package(mep), pkg-config, the header by itself, import mep, the tools. The tree
is moved once before, since packages are relocated."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CONSUMER = Path(__file__).resolve().parent / "consumer"
cmake, build, cc, cxx, pkg_config = sys.argv[1:6]
python = sys.argv[6] if len(sys.argv) > 6 else None
if shutil.which("make") is None:
    os.environ.setdefault("CMAKE_GENERATOR", "Ninja")


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


def ask_for_components(prefix, work, has_fortran):
    """find_package takes the components that are there, and says why one is not."""
    (work / "components").mkdir()
    (work / "components/CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(components LANGUAGES C)\n"
        "find_package(mep REQUIRED COMPONENTS ${WANTED})\n")
    for component, is_there in (("fortran", has_fortran), ("nothing", False)):
        done = subprocess.run([cmake, "-S", work / "components", "-B", work / f"components/{component}",
                               f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={cc}", f"-DWANTED={component}"],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        said = " ".join(done.stdout.split())
        if (done.returncode == 0) != is_there or (not is_there and f"MEP has no component {component} here: " not in said):
            sys.exit(f"find_package(mep COMPONENTS {component}): exit status {done.returncode}\n{done.stdout}")


def use_pkg_config(prefix, work):
    environment = dict(os.environ)
    found = [str(p.parent) for p in prefix.rglob("mep.pc")]
    if len(found) != 1:
        sys.exit(f"mep.pc: found in {found}")
    environment["PKG_CONFIG_PATH"] = found[0]
    parts = re.findall(r"#define MEP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (prefix / "include/mep.h").read_text())
    version = run(pkg_config, "--modversion", "mep", env=environment).strip()
    if version != ".".join(parts):
        sys.exit(f"mep.pc is of version {version}, mep.h of {'.'.join(parts)}")
    flags = run(pkg_config, "--cflags", "--libs", "mep", env=environment).split()
    libdir = run(pkg_config, "--variable=libdir", "mep", env=environment).strip()
    program = work / "by_pkg_config"
    run(cc, "-std=c99", CONSUMER / "header_c99.c", *flags, f"-Wl,-rpath,{libdir}", "-o", program)
    run(program)


def use_python(prefix):
    """From where it lies, with nothing set but PYTHONPATH: it finds the library of its own prefix."""
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("MEP_LIBRARY", "LD_LIBRARY_PATH", "PYTHONPATH")}
    environment.update(PYTHONPATH=str(prefix / "share/mep/python"), PYTHONDONTWRITEBYTECODE="1")
    program = """import mep, numpy
with mep.init() as comm:
    print(comm.allreduce(numpy.full(1, 21.0))[0], [line for line in open("/proc/self/maps") if "libmep.so" in line][0])"""
    said = run(python, "-c", program, env=environment)
    if "21.0" not in said or str(prefix) not in said:
        sys.exit(f"import mep from {prefix} said: {said}")
    run(python, "-m", "mep.info", env=environment)


def use_tools(prefix):
    """The installed tools find the library by themselves, and each has its page."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    for tool in ("mep_run", "mep_info", "mep_perf", "mep_chaos"):
        run(prefix / "bin" / tool, "--help", env=environment)
        if not (prefix / f"share/man/man1/{tool}.1").exists():
            sys.exit(f"{tool} has no man page in {prefix}")
    library = next(prefix.rglob("libmep.so")).stat().st_size
    for tool in ("mep_run", "mep_info"):
        size = (prefix / "bin" / tool).stat().st_size
        if size > library / 2:
            sys.exit(f"{tool} has {size} bytes, libmep.so {library}: it carries the library")
    for page in ("README.md", "docs/guide/install.md", "docs/reference/api.md", "examples/moe.c"):
        if not (prefix / "share/doc/mep" / page).exists():
            sys.exit(f"{page} is not installed")


def read_function_pages(prefix):
    """Each function of mep.h has a page with its signature, of the sections that a page has, without a finding of groff or
    mandoc where there is one. A function is found here by its name and bracket alone."""
    header = re.sub(r"/\*.*?\*/", " ", (prefix / "include/mep.h").read_text(), flags=re.S)
    header = re.sub(r"^#.*", "", header, flags=re.M)
    found = re.findall(r"^(?:MEP_API|static inline) [^;{()]*?\b(mep_\w+)\(([^;{]*)\)(?=\s*[;{])", header, flags=re.M)
    if len(found) != header.count("MEP_API ") + header.count("static inline "):
        sys.exit(f"{len(found)} functions of mep.h are understood")
    pages = prefix / "share/man/man3"
    if {page.name for page in pages.iterdir()} != {"mep.3", *(f"{name}.3" for name, _ in found)}:
        sys.exit(f"{pages} has not one page for each function")
    for name, parameters in found:
        text = (pages / f"{name}.3").read_text()
        for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "RETURN VALUE", "SEE ALSO"):
            if not re.search(rf"^\.SH {heading}\n\S", text, flags=re.M):
                sys.exit(f"{name}.3 has no {heading}")
        synopsis = text[text.index(".SH SYNOPSIS"):text.index(".SH DESCRIPTION")]
        signature = " ".join(f"{name}({parameters});".split())
        if signature not in " ".join(re.sub(r"\\f[A-Z]", "", synopsis).split()):
            sys.exit(f"{name}.3 has not the signature {signature}:\n{synopsis}")
    every = sorted(pages.iterdir())
    if shutil.which("groff"):
        said = run("groff", "-man", "-ww", "-z", *every)
        if said:
            sys.exit(f"groff finds fault with the pages of functions:\n{said}")
    if shutil.which("mandoc"):
        said = subprocess.run(["mandoc", "-Tlint", "-Wwarning", *every], text=True, check=False, stdout=subprocess.PIPE).stdout
        said = "".join(line for line in said.splitlines(True) if "cannot parse date" not in line)
        if said:
            sys.exit(f"mandoc finds fault with the pages of functions:\n{said}")


def follow_links(prefix):
    """Each relative link of an installed document leads to a file that is installed."""
    followed = 0
    for page in (prefix / "share/doc/mep").rglob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text()):
            if re.match("[a-z]+:", target):
                continue
            if not (page.parent / target).exists():
                sys.exit(f"{page.relative_to(prefix)} links to {target}, which is not installed")
            followed += 1
    if followed < 50:
        sys.exit(f"only {followed} links were found in the installed documents")


def check_target():
    """mep_programs, the target of ./dev install, makes every file that is installed and has a rule."""
    if not (Path(build) / "build.ninja").exists():
        return
    ninja = shutil.which("ninja")
    if ninja is None or not (Path(build) / "build.ninja").exists():
        return

    made = {line.rpartition(":")[0] for line in run(ninja, "-C", build, "-t", "targets", "all").splitlines()}
    words = set(run(ninja, "-C", build, "-t", "commands", "mep_programs").split())
    for script in Path(build).rglob("cmake_install.cmake"):
        for path in re.findall(r'"(/[^"\n]+)"', script.read_text()):
            name = os.path.relpath(os.path.realpath(path), os.path.realpath(build))
            if name in made and name not in words:
                sys.exit(f"{name} is installed, but the target mep_programs does not make it")


check_target()
with tempfile.TemporaryDirectory(prefix="mep-install-") as folder:
    work = Path(folder)
    run(cmake, "--install", build, "--prefix", work / "first")
    prefix = work / "moved"
    shutil.move(work / "first", prefix)
    header = prefix / "include/mep.h"
    if header.read_text() != (CONSUMER.parent.parent.parent / "include/mep.h").read_text():
        sys.exit("the installed mep.h is not the tree's")
    compile_alone(prefix, work)
    consumers = use_find_package(prefix, work)
    print("find_package:", " ".join(consumers))
    ask_for_components(prefix, work, "consumer_f90" in consumers)
    use_pkg_config(prefix, work)
    use_tools(prefix)
    read_function_pages(prefix)
    follow_links(prefix)
    if python:
        use_python(prefix)
