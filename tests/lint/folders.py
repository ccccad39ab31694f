"""The folders of src/: who may include whom, and that what a folder's header declares is defined there.

ALLOWED is the table. Two folders that include each other are one folder in two places, so the table has no
cycles; EXCEPTIONS are the includes that would make one, each with its reason.
"""

import re

ALLOWED = {
    "base": [],
    "protocol": [],
    "transport": ["base"],
    "transport/inproc": ["base", "transport"],
    "transport/shm": ["base", "transport"],
    "transport/tcp": ["base", "transport"],
    "transport/verbs": ["base", "transport", "transport/gpu_queue"],
    "transport/cuda": ["base", "transport"],
    "transport/gpu_queue": ["base", "protocol", "transport"],
    "kernels/host": ["base", "protocol"],
    "kernels/cuda/device": ["protocol", "transport/gpu_queue"],
    "kernels/cuda/coll": ["base", "protocol", "kernels/cuda/device"],
    "kernels/cuda/ep": ["base", "protocol", "transport/gpu_queue", "kernels/cuda/device"],
    "core/membership": ["base"],
    "core/bootstrap": ["base", "transport", "core/membership"],
    "core/bootstrap/mep_run": ["base", "transport", "core/bootstrap"],
    "core/topo": ["base", "core/bootstrap"],
    "core/world": ["base", "transport", "core/membership", "core/bootstrap", "core/topo"],
    "core/operation": ["base", "protocol", "core/membership", "core/world"],
    "core/coll": ["base", "protocol", "kernels/host", "core/world", "core/operation"],
    "core/message": ["base", "protocol", "core/world", "core/operation"],
    "core/comm": ["base", "protocol", "core/membership", "core/world", "core/operation", "core/coll", "core/message"],
    "core/queued": ["base", "protocol", "transport/gpu_queue", "transport/verbs", "core/topo", "core/world", "core/operation", "core/comm"],
    "core/staged": ["base", "protocol", "kernels/cuda/coll", "kernels/cuda/device", "core/comm"],
    "core/ep": ["base", "protocol", "kernels/host", "kernels/cuda/ep", "core/bootstrap", "core/topo", "core/world", "core/operation",
                "core/comm"],
    "core/ep/host": ["base", "protocol", "kernels/host", "core/topo", "core/world", "core/operation", "core/comm", "core/ep"],
    "core/cuda": ["base", "protocol", "kernels/cuda/coll", "kernels/cuda/device", "transport/cuda", "transport/gpu_queue", "core/operation", "core/coll",
                  "core/comm", "core/queued", "core/staged"],
    "core/ep/cuda": ["base", "protocol", "kernels/cuda/device", "kernels/cuda/ep", "transport/cuda", "transport/gpu_queue", "core/topo", "core/operation", "core/comm",
                     "core/ep", "core/queued", "core/cuda"],
    "core/api": ["base", "protocol", "core/bootstrap", "core/topo", "core/world", "core/operation", "core/message", "core/comm",
                 "core/ep"],
}
# Folder: the tests that are its own, as a regular expression over CTest's names. `./dev test FOLDER` runs these, and the
# quick ones of all folders that include it. After src/: the other folders.
TESTS = {
    "base": r"^(base_|fork_hold|failpoint|sandbox)",
    "protocol": r"^(operations_test|abi_bindings)",
    "transport": r"^(transport_|out_queue)",
    "transport/inproc": r"^transport_(conformance_threads|memory)",
    "transport/shm": r"^transport_(conformance|memory|window)",
    "transport/tcp": r"^(transport_tcp|transport_conformance|out_queue|tcp_frame)|_tcp_",
    "transport/verbs": r"^(verbs_|rdma_lab)",
    "transport/cuda": r"^(gpu_device|on_host_comm_process)",
    "transport/gpu_queue": r"^(gpu|on_host)_queue",
    "kernels/host": r"^kernel_",
    "kernels/cuda/coll": r"^(gpu|on_host)_(coll|comm)",
    "kernels/cuda/ep": r"^(gpu|on_host)_ep",
    "kernels/cuda/device": r"^(gpu|on_host)_(coll|ep)",
    "core/membership": r"^(membership_|sim_|model|witness)",
    "core/bootstrap": r"^(bootstrap_|listeners|joiners|netns|.*(hello|greeting|start_frames|offer|control_link)_fuzz)",
    "core/bootstrap/mep_run": r"^(bootstrap_mep_run|docs_tools$)",
    "core/topo": r"^(topo|mep_info)",
    "core/world": r"^(world_|large_world|progress_|membership_processes|joiners|window_ticket|program_shapes)",
    "core/operation": r"^(operation|coll_requests|coll_faults_threads|progress_gate)",
    "core/coll": r"^(coll_|eager_)",
    "core/message": r"^message_",
    "core/comm": r"^(comm_|coll_lifecycle|membership_(processes|python|fortran))",
    "core/queued": r"^queued_",
    "core/staged": r"^staged_",
    "core/ep": r"^ep_",
    "core/ep/host": r"^ep_",
    "core/ep/cuda": r"^(gpu|on_host)_(ep|in_step|replace)",
    "core/cuda": r"^(gpu|on_host)_",
    "core/api": r"^(abi_|example_|oom|docs_api)",
    "include": r"^(abi_|docs_api)",
    "bindings/python": r"^(abi_python|abi_wheel$|abi_bindings|abi_layout|membership_python|example_.*_py)",
    "bindings/fortran": r"^(abi_fortran|abi_bindings|abi_layout|membership_fortran|example_.*_f90)",
    "perf": r"^(mep_perf|mep_info|docs_tools$)",
    "perf/chaos": r"^(program_|docs_tools$)",
    "examples": r"^example_",
    "docs": r"^(docs_|lint_tree$)",
    "tests/abi": r"^abi_",
    "tests/cuda_on_host": r"^on_host_",
    "tests/fault": r"^(program_|failpoint)",
    "tests/fuzz": r"_fuzz$",
    "tests/lab": r"^(netns|rdma|verbs)",
    "tests/lint": r"^lint_",
    "tests/model": r"^model",
    "tests/mp": r"^bootstrap_",
    "tests/oom": r"^oom",
    "tests/perf": r"^(mep_perf|mep_info)",
    "tests/sim": r"^(sim_|membership_(codec|rules))",
    "tests/support": r"^(coll_|ep_|message_|transport_)",
    "tests/unit": r"_test$",
}
# (from, to): why.
EXCEPTIONS = {}
# (file, name): why it is defined outside the folder whose header declares it.
IN_A_ROOM = "a room of core/ep includes the header's folder, which does not know how the room makes buffers"
WITH_CUDA = "with CUDA; without it a file of the header's own folder defines it"
DEFINED_ELSEWHERE = {
    ("src/core/cuda/gpu_comm.cpp", "check_device"): WITH_CUDA,
    ("src/core/cuda/gpu_comm.cpp", "choose_device"): WITH_CUDA,
    ("src/core/cuda/make_gpu_backend.cpp", "join_gpu_backend"): WITH_CUDA,
    ("src/core/cuda/make_gpu_backend.cpp", "make_gpu_backend"): WITH_CUDA,
    ("src/core/ep/cuda/backend_buffers.cpp", "CudaBackend::count_layout"): IN_A_ROOM,
    ("src/core/ep/cuda/backend_buffers.cpp", "CudaBackend::estimate_ep_buffers"): IN_A_ROOM,
    ("src/core/ep/cuda/backend_buffers.cpp", "CudaBackend::make_ep_buffers"): IN_A_ROOM,
    ("src/core/ep/host/host_buffers.cpp", "estimate_host_buffers"): IN_A_ROOM,
    ("src/core/ep/host/host_buffers.cpp", "make_host_buffers"): IN_A_ROOM,
    ("src/core/api/ep_api.cpp", "ep_object_of"): "only the C API knows what a handle of the user's holds",
}

KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "alignas", "alignof", "decltype", "noexcept",
            "static_assert", "operator", "defined", "catch", "requires", "__attribute__"}
NAME = re.compile(r"((?:[A-Za-z_]\w*::)*~?[A-Za-z_]\w*)\s*$")
CLASS = re.compile(r"\b(?:class|struct)\s+(?:alignas\([^)]*\)\s*|\[\[\w+\]\]\s*)?([A-Za-z_]\w*)\s*(?:final\s*)?(?::[^:]|$)")
NAMESPACE = re.compile(r"^(?:inline\s+)?namespace(?:\s+([\w:]+))?$")
EXTERN_C = re.compile(r'^extern\s*"[^"]*"$')


def folder_of(name):
    """The folder under src/ of a file's name, or of what an #include names."""
    return name.removeprefix("src/").rpartition("/")[0]


def edges_of(includes):
    """{(from, to): [(file, line)]} from (file, line, included), self and public headers left out."""
    edges = {}
    for name, number, included in includes:
        pair = folder_of(name), folder_of(included)
        if pair[1] and pair[0] != pair[1]:
            edges.setdefault(pair, []).append((name, number))
    return edges


def cycle_of(table):
    """A cycle of a table as a list of folders, or None."""
    done, path = set(), []

    def visit(folder):
        if folder in path:
            return path[path.index(folder):] + [folder]
        if folder in done:
            return None
        path.append(folder)
        for target in table.get(folder, ()):
            found = visit(target)
            if found:
                return found
        path.pop()
        done.add(folder)
        return None

    for folder in table:
        found = visit(folder)
        if found:
            return found
    return None


def check_folders(includes, allowed=None, exceptions=None):
    """Findings (file, line, text) about includes between folders."""
    allowed = ALLOWED if allowed is None else allowed
    exceptions = EXCEPTIONS if exceptions is None else exceptions
    here = "tests/lint/folders.py"
    cycle = cycle_of(allowed)
    if cycle:
        yield here, 1, f"the table has a cycle: {' -> '.join(cycle)}"
    for folder in allowed.keys() - TESTS.keys() if allowed is ALLOWED else ():
        yield here, 1, f"TESTS has no row for {folder}"
    edges = edges_of(includes)
    for (source, target), places in sorted(edges.items()):
        if source not in allowed:
            yield *places[0], f"src/{source} is not in the table of folders ({here})"
        elif target not in allowed[source] and (source, target) not in exceptions:
            for name, number in places:
                yield name, number, f"{source} must not include {target} ({here})"
    for pair in sorted(exceptions.keys() - edges.keys()):
        yield here, 1, f"the exception {' -> '.join(pair)} is not needed any more"


def graph_text(includes):
    """One line a folder: what it includes, and how often."""
    counts = {}
    for (source, target), places in edges_of(includes).items():
        mark = "!" if (source, target) in EXCEPTIONS else ""
        counts.setdefault(source, []).append(f"{target}{mark} {len(places)}")
    width = max(map(len, counts), default=0)
    return "\n".join(f"{source:<{width}}  {', '.join(sorted(targets))}"
                     for source, targets in sorted(counts.items()))


def statements(text):
    """(line, head, is_definition) of what stands at namespace scope; bodies are skipped. Anonymous
    namespaces are skipped too: what is in them is nobody else's."""
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.M)
    text = re.sub(r'(extern\s*)?"(?:\\.|[^"\\\n])*"', lambda m: m.group(0) if m.group(1) else '""', text)
    head, line, start, depth_in_body, round_depth, hidden = "", 1, 1, 0, 0, 0
    scopes = []
    for character in text:
        if character == "\n":
            line += 1
        if depth_in_body:
            depth_in_body += {"{": 1, "}": -1}.get(character, 0)
            if depth_in_body == 0:
                head = ""
            continue
        if character in "()":
            round_depth += 1 if character == "(" else -1
        if character == "{" and round_depth == 0:
            words = " ".join(head.split())
            match = NAMESPACE.match(words)
            if match or EXTERN_C.match(words):
                scopes.append(bool(match) and match.group(1) is None)
                hidden += scopes[-1]
            else:
                if not hidden:
                    yield start, words, True
                depth_in_body = 1
            head = ""
        elif character == "}" and round_depth == 0:
            if scopes:
                hidden -= scopes.pop()
            head = ""
        elif character == ";" and round_depth == 0:
            if not hidden:
                yield start, " ".join(head.split()), False
            head = ""
        else:
            if not head.strip():
                start = line
            head += character


def function_name(head):
    """The (qualified) name of the function that a statement declares or defines, or None."""
    head = re.sub(r"^template\s*<[^{;]*?>\s*(?=[A-Za-z])", "", head)
    before = re.sub(r"__attribute__\(\([^)]*\)\)|alignas\([^)]*\)", "", head).partition("(")
    if not before[1] or "=" in before[0] or before[0].startswith(("using", "typedef", "friend", "static ")):
        return None
    match = NAME.search(before[0])
    if not match or match.group(1) in KEYWORDS or match.start() == 0 and "::" not in match.group(1):
        return None
    return match.group(1)


def check_definitions(code, exceptions=None):
    """Findings about functions and methods that are defined outside the folder of their header. `code` has
    {file: text without comments}. By names only: an overload in the file's own folder answers for all."""
    exceptions = DEFINED_ELSEWHERE if exceptions is None else exceptions
    functions, classes = {}, {}
    sources = {name: text for name, text in code.items() if name.startswith("src/")}
    for name, text in sources.items():
        if not name.endswith((".hpp", ".h", ".cuh")):
            continue
        for _, head, is_definition in statements(text):
            match = CLASS.search(head) if is_definition and "(" not in head.partition(":")[0] else None
            if match:
                classes.setdefault(match.group(1), set()).add(folder_of(name))
            elif function_name(head):
                functions.setdefault(function_name(head), set()).add(folder_of(name))
    used = set()
    for name, text in sorted(sources.items()):
        if not name.endswith((".cpp", ".cu")):
            continue
        for number, head, is_definition in statements(text):
            full = function_name(head) if is_definition else None
            if not full:
                continue
            scope, _, last = full.rpartition("::")
            # The first part of A::B::f that a header has: B may be a name of many.
            folders = next((classes[part] for part in scope.split("::") if part in classes),
                           None) if scope else functions.get(last)
            if not folders or folder_of(name) in folders:
                continue
            if (name, full) in exceptions:
                used.add((name, full))
                continue
            yield name, number, f"{full} is declared in {', '.join(sorted(folders))} and must be defined there"
    for name, full in sorted(exceptions.keys() - used):
        yield name, 1, f"tests/lint/folders.py excuses {full}, which is not needed any more"
