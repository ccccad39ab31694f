"""The pages of the Python package: each names what mkdocstrings takes from the docstrings."""

from __future__ import annotations


def page(title: str, lead: str, *names: str, **options: str) -> str:
    lines = [f"# {title}", "", lead, ""]
    for name in names:
        lines += [f"::: {name}", "    options:", *(f"      {key}: {value}" for key, value in options.items())] if options else [f"::: {name}"]
        lines.append("")
    return "\n".join(lines)


PAGES = {
    "index.md": """# The Python package

Everything of `mep.h` is in Python too. [The C API by task](../c/index.md) says what the calls do; these pages have Python's names and arguments.
[First program](../../guide/first-program.md#python) shows a program, and [install](../../guide/install.md#python-pip-install) the package `mep-comm`.

| page | what it has |
|---|---|
| [mep](mep.md) | start (`init`, `init_all`, `join`), requests, messages, groups of calls |
| [mep.Comm](comm.md) | communicators: collectives, messages, membership |
| [mep.Ep](ep.md) | expert parallelism: `Ep`, `Handle`, dispatch and combine; `mep.eplb`, which balances experts |
| [Exceptions](errors.md) | one class for each result code |
| [mep.torch](torch.md) | the backend `"mep"` of torch.distributed |
| [mep.deep_ep](deep_ep.md) | DeepEP's calls |
| [mep.mooncake](mooncake.md) | Mooncake's calls |
| [mep.nixl_ep](nixl_ep.md) | NIXL EP's calls |
""",
    "mep.md": page("mep", "Start, requests, messages and groups of calls.", "mep.init", "mep.init_all", "mep.join", "mep.group",
                   "mep.Request", "mep.waitall", "mep.waitany", "mep.OpInfo", "mep.Message", "mep.PeerState", "mep.View",
                   "mep.DeviceArray", "mep.library_version", "mep.result_string", "mep.dtype_size", "mep.preferred_hca"),
    "comm.md": page("mep.Comm", "A communicator: collectives, messages and membership.", "mep.Comm"),
    "ep.md": page("mep.Ep", "Expert parallelism: dispatch and combine. [A MoE layer step by step](../../guide/expert-parallelism.md) is the guide.",
                  "mep.Ep", "mep.Handle", "mep.Received", "mep.EpSize", "mep.OpStatus", "mep.eplb"),
    "errors.md": page("Exceptions", "Each result code is a class below `mep.Error`. [Results](../errors.md) says what to do after each.",
                      "mep.errors", show_if_no_docstring="true", members_order="source", inherited_members="false"),
    "torch.md": page("mep.torch", "The backend of torch.distributed. [PyTorch](../../guide/pytorch.md) is the guide.", "mep.torch"),
    "deep_ep.md": page("mep.deep_ep", "DeepEP's calls. [Programs written for DeepEP](../../guide/deep-ep.md) is the guide.",
                       "mep.deep_ep", "mep.deep_ep.Buffer", "mep.deep_ep.ElasticBuffer"),
    "mooncake.md": page("mep.mooncake", "Mooncake's calls. [Programs written for Mooncake](../../guide/mooncake.md) is the guide.",
                        "mep.mooncake", "mep.mooncake.pg", "mep.mooncake.ep"),
    "nixl_ep.md": page("mep.nixl_ep", "NIXL EP's calls. [Programs written for NIXL EP](../../guide/nixl-ep.md) is the guide.",
                       "mep.nixl_ep", "mep.nixl_ep.Buffer"),
}
