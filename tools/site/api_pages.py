"""The C ABI in pages by task, with an index, from what docs/make_api.py reads of mep.h."""

from __future__ import annotations

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs"))
from make_api import blocks, code_of, helpers_of, prose, title  # noqa: E402

# File, title, the first line of the page, and the names that stand there: the first task that has one of a
# declaration's names has the declaration. A page has its calls first, then what they take, each in the order of mep.h.
TASKS = [
    ("errors", "Results and errors", "A call's result, its name, and the text of a failure. "
     "[Results](../errors.md) says what to do after each.",
     r"mep_result_t|MEP_SUCCESS|mep_result_string|mep_last_error|mep_struct_init|MEP_TIMEOUT_DEFAULT"),
    ("types", "Types and reduction operators", "Element types and operators, as numbers. "
     "[Types and operators](../types.md) says which go together.", r"mep_dtype_\w+|MEP_INT8|mep_op_t|MEP_SUM"),
    ("start", "Start and leave", "Join the job's world, leave it, or end it at once. "
     "[Start ranks](../../guide/start-ranks.md) has the launchers.",
     r"mep_comm_init\w*|mep_comm_destroy|mep_comm_abort\w*|mep_comm_config_\w+|mep_store_\w+|MEP_COMM_SET_RANK|mep_device_type_t|MEP_DEVICE_\w+|mep_quorum_t|MEP_QUORUM_\w+|MEP_MAX_RANKS"),
    ("gpu", "GPU and streams", "Streams, the GPU of a communicator, and how operations on a stream ended. "
     "[GPUs](../../guide/gpus.md) shows their use.",
     r"mep_stream_t|mep_comm_device|mep_comm_async_result|mep_op_status_\w+|MEP_OP_STATUS_VERSION|MEP_MAX_STREAM_REQUESTS"),
    ("communicators", "Communicators", "Ask a communicator for its rank and size, set its timeout, and make new ones from it.",
     r"MEP_REACH_NONE|mep_reach_t|mep_comm_(rank|size|live|live_count|epoch|set_timeout|transport|query|info_\w+|split|dup|shrink|create_from_ranks|name|set_name|t)"),
    ("memory", "Memory", "Memory that the library gives, and that stays behind a communicator.", r"mep_mem_\w+|mep_memory_release|mep_comm_(de)?register|mep_registration_t"),
    ("recovery", "Replacements and growth", "Replace a rank that is gone, and add ranks. "
     "[Replace a rank](../../guide/replace-a-rank.md) is a whole program.",
     r"mep_recover_ranks|mep_comm_grow|mep_comm_join|mep_comm_attach"),
    ("failures", "Failures and membership", "Find out what failed and who is in; agree, leave a rank out, end what is pending. "
     "[What a failure looks like](../../guide/failures.md) is the guide.",
     r"MEP_OP_INPUT_INTACT|mep_op_info_\w+|mep_comm_last_op|mep_peer_state_t|mep_comm_stats\w*|MEP_PEER_ALIVE|mep_comm_peer_state|mep_view_\w+|mep_comm_\w*view\w*|mep_comm_lost_ranks|mep_comm_forget_lost|mep_comm_agree|mep_comm_evict|mep_comm_revoke"),
    ("collectives-with-counts", "Collectives with counts", "Forms in which each rank's block has a length of its own.",
     r"mep_(allgatherv|gatherv|scatterv|reduce_scatterv|alltoallv)"),
    ("collectives", "Collectives", "Operations that all ranks of a communicator call.",
     r"MEP_IN_PLACE|mep_(barrier|broadcast|allgather|allreduce|reduce|gather|scatter|reduce_scatter|alltoall)"),
    ("nonblocking", "Nonblocking collectives and requests", "Forms that return at once with a request, and calls that wait for requests.",
     r"mep_ibarrier|mep_request_\w+"),
    ("messages", "Messages and groups", "Messages from one rank to another, and groups of calls. [Messages](../../guide/messages.md) is the guide.",
     r"MEP_ANY_SOURCE|MEP_MESSAGE_\w+|mep_message_\w+|mep_i?send|mep_i?recv|mep_sendrecv|mep_i?probe|mep_group_\w+"),
    ("dispatch-and-combine", "Dispatch and combine", "Send tokens to their experts, and sum what comes back. "
     "[A MoE layer step by step](../../guide/expert-parallelism.md) is the guide.",
     r"MEP_DISPATCH_\w+|MEP_COMBINE_\w+|mep_(dispatch|combine)\w*|mep_ep_last_op"),
    ("expert-parallelism", "Expert parallelism: objects and buffers", "Objects, buffers, handles and the expert map that dispatch and combine use. "
     "`num_sms` of `mep_ep_config_t` limits the SMs that the kernels take.", r"MEP_EP_\w+|mep_ep_\w+|mep_moe_defaults|mep_scale_\w+|MEP_SCALE_\w+|MEP_MAX_TOP_K|mep_range_t"),
    ("machine", "Version, log and machine", "The library's version, its log, and the adapter near a GPU or a core.",
     r"mep_version|MEP_LOG_ERROR|mep_log_\w+|mep_set_log_callback|mep_preferred_hca|mep_comm_preferred_hca"),
]
# The order of the index: by what a program does first.
ORDER = ("start", "communicators", "collectives", "collectives-with-counts", "nonblocking", "messages", "expert-parallelism",
         "dispatch-and-combine", "failures", "recovery", "memory", "gpu", "errors", "types", "machine")
# The index: what each call does, in the words that a reader has.
DOES = """
mep_comm_init: join the job's world and get a communicator of all its ranks
mep_comm_init_all: make all ranks of a world as threads of one process
mep_comm_destroy: leave in order, or free a communicator
mep_comm_abort: leave at once; the others see this rank fail
mep_comm_abort_with: the same, with a reason for the others to read
mep_comm_rank: this process's rank
mep_comm_size: the number of all ranks, absent ones too
mep_comm_live_count: the number of ranks that live
mep_comm_epoch: the number of the present membership
mep_comm_set_timeout: change the timeout of later operations
mep_comm_query: the effective settings and limits of a communicator, and by which transport each rank is reached
mep_comm_split: split a communicator by color and key
mep_comm_dup: duplicate a communicator
mep_comm_shrink: make a communicator of the ranks that live, although ranks die
mep_comm_create_from_ranks: make a communicator of listed ranks; only they call it
mep_comm_name mep_comm_set_name: read or give a communicator's name
mep_barrier: wait until all ranks are there
mep_broadcast: give one rank's data to all
mep_allgather: give every rank's block to all
mep_allreduce: reduce over all ranks; all get the result
mep_reduce: reduce over all ranks; the root gets the result
mep_gather: collect every rank's block on the root
mep_scatter: give each rank a block of the root
mep_reduce_scatter: reduce and scatter: each rank gets a block of the result
mep_alltoall: exchange a block between any two ranks
mep_allgatherv: allgather of blocks that differ in length
mep_gatherv: gather of blocks that differ in length
mep_scatterv: scatter of blocks that differ in length
mep_reduce_scatterv: reduce and scatter blocks that differ in length
mep_alltoallv: alltoall of blocks that differ in length
mep_request_wait: wait for a request
mep_request_test: ask whether a request is done
mep_request_info: read how a request stands
mep_request_event_fd: get a descriptor for poll, epoll or asyncio
mep_request_cancel: withdraw a receive
mep_request_waitall: wait for all of several requests
mep_request_waitany: wait for one of several requests
mep_send: send a message
mep_recv: receive a message
mep_sendrecv: send and receive at one time
mep_isend mep_irecv: send or receive, nonblocking
mep_probe: wait for a message and leave it there
mep_iprobe: look for a message without waiting
mep_group_begin mep_group_end: group calls, so that they run at one time
mep_moe_defaults: prepare the configuration of a MoE layer
mep_ep_buffer_size: ask how much memory an EP object takes
mep_ep_create: make an EP object: everything that dispatch and combine use
mep_ep_destroy: free an EP object
mep_ep_attach: attach a replacement to an EP object
mep_ep_handle_create mep_ep_handle_destroy: make or free a handle, which holds the routing of one dispatch
mep_ep_set_expert_map: move and replicate experts
mep_ep_buffer_view: get the memory where rows arrive
mep_dispatch_layout: count where tokens go, without sending them
mep_dispatch mep_dispatch_send mep_dispatch_counts mep_dispatch_receive: send tokens to the ranks of their experts, whole or by halves
mep_combine mep_combine_send mep_combine_receive: bring the experts' outputs back and sum them, whole or by halves
mep_ep_last_op: ask how the last dispatch or combine ended
mep_comm_last_op: ask how the last operation ended and which ranks were missing
mep_comm_stats: count calls, bytes, errors and changes of the members
mep_comm_peer_state: ask what is known of a rank: alive, slow, suspected, dead
mep_comm_view: list the members
mep_comm_lost_ranks: see which ranks have gone, in the order of a stream
mep_comm_forget_lost: forget the losses that were shown
mep_comm_wait_view: wait for a change of the members
mep_comm_set_view_callback: be called after a change of the members
mep_comm_agree: agree on a flag although ranks die
mep_comm_evict: remove a rank that may live
mep_comm_revoke: end all pending operations on all ranks
mep_recover_ranks: admit replacements of lost ranks
mep_comm_grow: add ranks to a running job
mep_comm_join: join a running job, as a replacement or as a new rank
mep_comm_attach: attach a joiner to a split communicator
mep_mem_alloc mep_mem_free: allocate and free memory of the library
mep_comm_register mep_comm_deregister: let GPUs read send buffers where they lie
mep_mem_free_keep mep_ep_destroy_keep mep_memory_release: free, but keep the memory for pointers that are left
mep_comm_device: the GPU of a communicator
mep_comm_async_result: the first failure of operations on streams
mep_op_status_size: the bytes of an operation's status record
mep_op_status_failed: the failed ranks in an operation's status record
mep_result_string: the name of a result
mep_last_error: the text of the last failure
mep_dtype_size: the bytes of one element
mep_version: the version of the library
mep_set_log_callback: take the log lines in place of stderr
mep_log_to_descriptor: a log callback that writes to a file descriptor
mep_preferred_hca: the RDMA adapter near a GPU, a core or a memory node
mep_comm_preferred_hca: the RDMA adapter near the GPU of a communicator
mep_struct_init: set a struct of the library to its defaults
"""
ROWS = {name: does for line in DOES.strip().splitlines() for names, _, does in [line.partition(": ")] for name in names.split()}
NEEDS_NO_ROW = re.compile(r"mep_\w+(?<!moe)_defaults$")


def names_of(declarations):
    return re.findall(r"\w+", title(declarations))


def task_of(declarations):
    for name, _, _, pattern in TASKS:
        if any(re.fullmatch(pattern, word) for word in names_of(declarations)):
            return name
    raise SystemExit(f"tools/site/api_pages.py: no task has {title(declarations)}; add it to TASKS")


def rows_of(declarations):
    """The lines of the index for declarations that share a comment."""
    functions = [name for name in names_of(declarations) if name in ROWS
                 or name.startswith("mep_") and not name.endswith("_t") and not NEEDS_NO_ROW.match(name)]
    if functions and all(name.startswith("mep_i") for name in functions) and len(functions) > 3:
        return [(functions, "the collectives, nonblocking: each returns a request")]
    missing = [name for name in functions if name not in ROWS]
    if missing:
        raise SystemExit(f"tools/site/api_pages.py: say what {', '.join(missing)} does, in DOES")
    grouped = {}
    for name in functions:
        grouped.setdefault(ROWS[name], []).append(name)
    return [(names, does) for does, names in grouped.items()]


def entry(declarations, comment):
    """The part of a page for declarations that share a comment."""
    out = []
    functions = [(kind, text) for kind, text in declarations if not sets_up_only(kind, text)]
    shown = [re.search(r"\w+", title([d]))[0] for d in functions]
    text = [prose(comment), ""] if comment else []
    if len(functions) > 3 and all(kind == "declaration" for kind, _ in functions):
        if text:
            out += ["## Common to the calls below", "", *text]
        for declaration, name in zip(functions, shown):
            out += [f"### `{name}()` {{#{name}}}", "", "```c", code_of([declaration]), "```", ""]
    else:
        others = [name for name in shown[1:]]
        marks = "".join(f'<a id="{name}"></a>' for name in others)
        does = "; ".join(dict.fromkeys(ROWS[name] for name in shown if name in ROWS))
        out += [f"## {title(functions)} {{#{shown[0]}}}", "", *([marks, ""] if marks else []),
                *([f"*{does[0].upper()}{does[1:]}.*", ""] if does else []),
                "```c", code_of(functions), "```", ""]
        out += text
    if helpers_of(declarations):
        inline = ", ".join(f"`{name}`" for name in helpers_of(declarations))
        marks = "".join(f'<a id="{name}"></a>' for name in helpers_of(declarations))
        out += [f"{marks}{inline} (inline): the same with `sizeof`.", ""]
    return out


def sets_up_only(kind, text):
    return bool(helpers_of([(kind, text)]))


def pages(text):
    """{path in reference/c: Markdown}"""
    rows = {name: [] for name, _, _, _ in TASKS}
    introductions, calls, types = ({name: [] for name in rows} for _ in range(3))
    waiting, conventions = [], None  # prose goes to the page of the next declaration
    for section, declarations, comment in blocks(text):
        if not declarations:
            if comment and conventions is None:
                conventions = comment
            elif comment:
                waiting += [prose(comment), ""]
            continue
        task = task_of(declarations)
        introductions[task] += waiting
        waiting = []
        listed = rows_of(declarations)
        rows[task] += listed
        (calls if listed else types)[task] += entry(declarations, comment)
    made = {}
    facts = {name: (heading, lead) for name, heading, lead, _ in TASKS}
    index = ["# The C API by task", "",
             "One page for each task, from `include/mep.h`. [The whole header on one page](../api.md) is in its order.", ""]
    for name in ORDER:
        heading, lead = facts[name]
        made[f"{name}.md"] = "\n".join([f"# {heading}", "", lead, "", *introductions[name], *calls[name], *types[name]]).rstrip() + "\n"
        index += [f"## {heading}", "", f"[{heading}]({name}.md). {lead}", "", "| to do or know | call |", "|---|---|"]
        for functions, does in rows[name]:
            links = ", ".join(f"[`{f}`]({name}.md#{f})" for f in functions)
            index.append(f"| {does} | {links} |")
        index.append("")
    made["index.md"] = "\n".join(index + ["## Conventions", "", prose(conventions.partition("\n\n")[2].strip())]) + "\n"
    return made
