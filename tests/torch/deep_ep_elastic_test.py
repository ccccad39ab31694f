#!/usr/bin/env python3
"""mep.deep_ep.ElasticBuffer: the checks of DeepEP's test of it and the calls of vLLM and SGLang, against a reference
in PyTorch. It alone finds wrong places of expanded rows."""
import sys
import unittest

import launch
from deep_ep_normal_cases import LOCAL, Case, cases, check_rows, check_topk, output, plain, same, summed
from deep_ep_test import HIDDEN, TOP_K, begin

MOST = 16  # tokens of a rank


def rounded(count, alignment):
    return -(-count // alignment) * alignment


def entries(case, rank):
    """For each local expert the (row, k) that name it, in the order of rows."""
    found = [[] for _ in range(LOCAL)]
    for row, (source, token) in enumerate(case.rows(rank)):
        for k, expert in enumerate(case.topk_idx[source][token].tolist()):
            if expert >= 0 and expert // LOCAL == rank:
                found[expert % LOCAL].append((row, k))
    return found


def check_handle(case, rank, handle, alignment, waits):
    import torch
    rows, counts = case.rows(rank), case.counts(rank)
    ends = [sum(source <= each for source, _ in rows) for each in range(case.ranks)]
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == ends
    assert handle.num_recv_tokens_per_expert_list == ([rounded(each, alignment) for each in counts] if waits else [])
    meta = handle.recv_src_metadata
    assert meta.dtype == torch.int32 and len(meta) == (len(rows) if waits else case.ranks * MOST)
    assert meta[:len(rows), 0].tolist() == [source * MOST + token for source, token in rows]
    before, sums = 0, []
    for count in counts:
        sums.append(before + (count if handle.do_expand else rounded(count, alignment)))
        before += rounded(count, alignment)
    assert handle.psum_num_recv_tokens_per_expert.tolist() == sums
    if handle.do_expand:
        assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts


def check_expanded(case, rank, kind, received, weights, handle, alignment, waits, x=None):
    """Each row is where the reference has it, and all else is zero."""
    import torch
    given = [case.given(source, kind, None if x is None else x[source]) for source in range(case.ranks)]
    rows, wanted = case.rows(rank), entries(case, rank)
    slots = torch.full((len(rows), TOP_K), -1, dtype=torch.int32)
    total = sum(rounded(len(each), alignment) for each in wanted)
    tensors = received if kind == "fp8" else [received]
    parts = [list(part) for part in zip(*given)] if kind == "fp8" else [given]
    for tensor in tensors:
        assert len(tensor) == total if waits else len(tensor) >= total, (tensor.shape, total)
    expected = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
    values = torch.zeros(len(tensors[0]))
    first = 0
    for each in wanted:
        for number, (row, k) in enumerate(each):
            source, token = rows[row]
            slots[row, k] = first + number
            values[first + number] = case.weights[source][token, k]
            for place, part in zip(expected, parts):
                place[first + number] = part[source][token]
        first += rounded(len(each), alignment)
    for tensor, place in zip(tensors, expected):
        same(tensor, place)
    assert handle.recv_src_metadata[:len(rows), 2:].tolist() == slots.tolist()
    assert (handle.recv_src_metadata[len(rows):, 2:] == -1).all()
    if weights is not None:
        same(weights, values)


def folded_sums(case, rank, kind, bias=None):
    """The sums that come back where each expert gives output(row, its number): summed in a rank, rounded, summed over ranks
    behind the bias."""
    import torch
    rows = plain(case.given(rank, kind))
    sums = torch.zeros(rows.shape) if bias is None else bias.float()
    for token in range(len(rows)):
        for owner in case.ranks_of(rank, token):
            here = torch.zeros(HIDDEN)
            for expert in case.topk_idx[rank][token].tolist():
                if expert >= 0 and expert // LOCAL == owner:
                    here = here + output(rows[token], expert).float()
            sums[token] = sums[token] + here.to(torch.bfloat16).float()
    return sums.to(torch.bfloat16)


def experts_of(handle, rank, x):
    """The local expert's output in each expanded row."""
    import torch
    ends = handle.psum_num_recv_tokens_per_expert.tolist()
    counts = handle.num_unaligned_recv_tokens_per_expert.tolist()
    y = torch.full(x.shape, float("nan"), dtype=torch.bfloat16)  # padding is not read
    for expert in range(LOCAL):
        begin_at = ends[expert] - counts[expert]
        y[begin_at:ends[expert]] = output(x[begin_at:ends[expert]], rank * LOCAL + expert)
    return y


# --- In the ranks ------------------------------------------------------------------------------------------------

def one_case(buffer, case, rank, kind, alignment, waits):
    import torch
    arguments = dict(topk_idx=case.topk_idx[rank], topk_weights=case.weights[rank], num_experts=case.experts,
                     num_max_tokens_per_rank=MOST, expert_alignment=alignment, do_cpu_sync=waits)
    stats = torch.full((LOCAL,), 100, dtype=torch.int32)
    received, local, weights, handle, event = buffer.dispatch(
        case.given(rank, kind), cumulative_local_expert_recv_stats=stats, async_with_compute_stream=True, **arguments)
    event.current_stream_wait()
    worst = 0 if waits else case.ranks * MOST
    check_rows(case, rank, kind, received, worst=worst)
    check_topk(case, rank, local, weights, handle.num_recv_tokens_per_expert_list, alignment, worst)
    check_handle(case, rank, handle, alignment, waits)
    assert stats.tolist() == [100 + count for count in case.counts(rank)]
    sums, back, _ = buffer.combine(output(plain(received), rank), handle, topk_weights=weights)
    same(sums, summed(case, rank, kind))
    same(back, case.weights[rank] * (case.topk_idx[rank] >= 0))
    # Other rows by the same routing.
    other = [each * 2 + 1 for each in case.x]
    again, local_again, nothing, same_handle, _ = buffer.dispatch(case.given(rank, kind, other[rank]), handle=handle)
    assert same_handle is handle and nothing is None and torch.equal(local_again, local)
    assert torch.equal(handle.dst_buffer_slot_idx.cpu(), case.topk_idx[rank].to(torch.int32))
    check_rows(case, rank, kind, again, other, worst=worst)

    expanded, nothing, weights, handle, _ = buffer.dispatch(
        case.given(rank, kind), do_expand=True, use_tma_aligned_col_major_sf=True, **arguments)
    assert nothing is None
    check_handle(case, rank, handle, alignment, waits)
    check_expanded(case, rank, kind, expanded, weights, handle, alignment, waits)
    if kind == "fp8" and len(expanded[1]) > 1:
        assert expanded[1].stride(0) == 1 and expanded[1].stride(1) % 4 == 0, expanded[1].stride()
    y = experts_of(handle, rank, plain(expanded))
    sums, back, _ = buffer.combine(y, handle, topk_weights=weights)
    same(sums, folded_sums(case, rank, kind))
    same(back, case.weights[rank] * (case.topk_idx[rank] >= 0))
    for given in (None, case.weights[rank]):
        again, _, weights, same_handle, _ = buffer.dispatch(case.given(rank, kind, other[rank]), topk_weights=given,
                                                            handle=handle, do_expand=True, do_zero_padding=True)
        assert same_handle is handle and (weights is None) == (given is None)
        check_expanded(case, rank, kind, again, weights, handle, alignment, waits, other)
    sums, nothing, _ = buffer.combine(y, handle, bias=case.x[rank])
    assert nothing is None
    same(sums, folded_sums(case, rank, kind, case.x[rank]))


def rank_layers():
    deep_ep, dist, rank, ranks = begin()
    buffer = deep_ep.ElasticBuffer(dist.group.WORLD, num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=TOP_K,
                                   explicitly_destroy=True)
    assert (buffer.rank_idx, buffer.num_ranks) == (rank, ranks)
    assert buffer.get_logical_domain_size() == (1, ranks) == buffer.get_physical_domain_size()
    for number, case in enumerate(cases(ranks, 7000)):
        one_case(buffer, case, rank, ("bf16", "fp8")[number % 2], (1, 128)[number // 2 % 2], number % 3 != 2)
        buffer.barrier(with_cpu_sync=True)
    refusals(deep_ep, buffer, Case(ranks, 7900, [3] * ranks), rank)
    buffer.destroy()
    dist.destroy_process_group()


def refusals(deep_ep, buffer, case, rank):
    """Calls that are wrong on all ranks alike; nothing is sent."""
    x, index = case.x[rank], case.topk_idx[rank]
    given = dict(topk_idx=index, num_experts=case.experts)
    *_, handle, _ = buffer.dispatch(x, expert_alignment=4, do_expand=True, **given)
    y = x.new_zeros(handle.num_expanded_tokens, HIDDEN)
    wrong = (
        (ValueError, "needs topk_idx and num_experts", lambda: buffer.dispatch(x, topk_idx=index)),
        (ValueError, "takes no topk_idx", lambda: buffer.dispatch(x, handle=handle, do_expand=True, **given)),
        (ValueError, "do_expand is False", lambda: buffer.dispatch(x, handle=handle)),
        (ValueError, "expert_alignment is 8", lambda: buffer.dispatch(x, handle=handle, do_expand=True,
                                                                      expert_alignment=8)),
        (ValueError, "leave do_cpu_sync out", lambda: buffer.dispatch(x, handle=handle, do_expand=True,
                                                                      do_cpu_sync=True)),
        (ValueError, "num_max_tokens_per_rank is 2", lambda: buffer.dispatch(x, num_max_tokens_per_rank=2, **given)),
        (ValueError, "a row for each of the dispatch", lambda: buffer.combine(y[:-1], handle)),
        (ValueError, "differ in their shape", lambda: buffer.dispatch(
            x, do_expand=True, expert_alignment=4 + rank % 2, **given)),
        (ValueError, "differ in their shape", lambda: buffer.dispatch(x, do_expand=rank % 2 == 0, **given)),
        (TypeError, "it must be the EPHandle", lambda: buffer.combine(y, (1, 2))),
        (TypeError, "it must be the EPHandle", lambda: buffer.dispatch(x, handle=(1, 2))),
        (NotImplementedError, "ElasticBuffer.pp_send is not served", lambda: buffer.pp_send),
        (AttributeError, "no attribute", lambda: buffer.nothing),
    )
    for kind, text, call in wrong:
        if "differ" in text and (case.ranks == 1 or buffer._buffer._calls.streams is not None):
            continue  # nobody differs, or ranks do not agree before a dispatch on GPUs
        launch.refused(kind, text, call)
    buffer.combine(y, handle)


class ElasticTest(unittest.TestCase):
    def test_layers(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                launch.run(__file__, "layers", ranks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
