"""Layers for tests of mep.deep_ep's normal mode with all ranks' tokens, and their results by PyTorch without MEP."""
from deep_ep_test import HIDDEN, TOP_K, quantised

LOCAL = 3  # experts of a rank


class Case:
    """A layer: for each rank its tokens, their experts and weights. to_rank: the one that all tokens go to."""

    def __init__(self, ranks, seed, counts, to_rank=None):
        import torch
        draw = torch.Generator().manual_seed(seed)
        self.ranks, self.experts, self.absent = ranks, LOCAL * ranks, set()
        self.x, self.topk_idx, self.weights = [], [], []
        for tokens in counts:
            self.x.append((torch.randn(tokens, HIDDEN, generator=draw) * 3).to(torch.bfloat16))
            among = torch.arange(self.experts) if to_rank is None else torch.arange(LOCAL) + to_rank * LOCAL
            picks = [among[torch.randperm(len(among), generator=draw)[:TOP_K]] for _ in range(tokens)]
            index = torch.stack(picks) if picks else torch.empty(0, TOP_K, dtype=torch.int64)
            index[torch.rand(index.shape, generator=draw) < 0.2] = -1
            self.topk_idx.append(index)
            self.weights.append(torch.rand(tokens, TOP_K, generator=draw))

    def ranks_of(self, source, token):
        chosen = {expert // LOCAL for expert in self.topk_idx[source][token].tolist() if expert >= 0}
        return sorted(chosen - self.absent)

    def rows(self, rank):
        """[(source, token)] that come to the rank."""
        return [(source, token) for source in range(self.ranks) if source not in self.absent
                for token in range(len(self.x[source])) if rank in self.ranks_of(source, token)]

    def counts(self, rank, alignment=1):
        found = [0] * LOCAL
        for source, token in self.rows(rank):
            for expert in self.topk_idx[source][token].tolist():
                if expert >= 0 and expert // LOCAL == rank:
                    found[expert % LOCAL] += 1
        return [-(-count // alignment) * alignment for count in found]

    def given(self, rank, kind, x=None):
        """x as a dispatch takes it."""
        rows = self.x[rank] if x is None else x
        values, scales = quantised(rows, kind)
        return values if scales is None else (values, scales)


def check_layout(case, rank, found):
    import torch
    per_rank, per_rdma_rank, per_expert, in_rank, _ = found
    index = case.topk_idx[rank].tolist()
    assert per_rdma_rank is None
    assert (per_rank.dtype, per_expert.dtype, in_rank.dtype) == (torch.int32, torch.int32, torch.bool)
    wanted = [[each in case.ranks_of(rank, token) for each in range(case.ranks)] for token in range(len(index))]
    assert in_rank.shape == (len(index), case.ranks) and in_rank.tolist() == wanted
    assert per_rank.tolist() == [sum(row[each] for row in wanted) for each in range(case.ranks)], per_rank
    assert per_expert.tolist() == [sum(row.count(each) for row in index) for each in range(case.experts)], per_expert


def same(found, wanted):
    import torch
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found, wanted)
    assert torch.equal(found.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8)), (found, wanted)


def check_rows(case, rank, kind, found, x=None, worst=0):
    """The rows and their order; x: those of all ranks, in place of the case's."""
    import torch
    given = [case.given(source, kind, None if x is None else x[source]) for source in range(case.ranks)]
    wanted, pairs = case.rows(rank), zip(*given) if kind == "fp8" else [given]
    for tensor, sources in zip(found if kind == "fp8" else [found], pairs):
        assert len(tensor) == (worst or len(wanted)), (tensor.shape, len(wanted))
        rows = [sources[source][token] for source, token in wanted]
        same(tensor[:len(wanted)], torch.stack(rows) if rows else tensor[:0])
        assert tensor.shape[1] == sources[0].shape[1]


def check_topk(case, rank, found_idx, found_weights, counts, alignment=1, worst=0):
    import torch
    wanted = case.rows(rank)
    assert found_idx.shape == (worst or len(wanted), TOP_K) and found_idx.dtype == torch.int64
    assert (found_idx[len(wanted):] == -1).all()
    for row, (source, token) in enumerate(wanted):
        index = case.topk_idx[source][token].tolist()
        here = [expert >= 0 and expert // LOCAL == rank for expert in index]
        assert found_idx[row].tolist() == [expert % LOCAL if own else -1 for expert, own in zip(index, here)]
        same(found_weights[row], torch.where(torch.tensor(here), case.weights[source][token], torch.tensor(0.0)))
    assert counts == ([] if worst else case.counts(rank, alignment)), (counts, case.counts(rank))


def output(rows, rank):
    """The experts' sum for a row at a rank."""
    import torch
    return (rows.float() * (1 + rank / 4) + rank).to(torch.bfloat16)


def plain(found):
    """bfloat16 of received or given rows."""
    import torch
    if not isinstance(found, tuple):
        return found
    values, scales = found
    groups = values.float().view(len(values), HIDDEN // 128, 128) * scales.unsqueeze(-1)
    return groups.view(values.shape).to(torch.bfloat16)


def summed(case, rank, kind="bf16", x=None, biases=()):
    """The sums that come back: of float32, the biases first, then in ascending rank, rounded once."""
    import torch
    rows = plain(case.given(rank, kind, None if x is None else x[rank]))
    sums = torch.zeros(rows.shape)
    for bias in biases:
        sums = sums + bias.float()
    for token in range(len(rows)):
        for owner in case.ranks_of(rank, token):
            sums[token] = sums[token] + output(rows[token], owner).float()
    return sums.to(torch.bfloat16)


def uneven(ranks):
    """Tokens of the ranks: all sorts."""
    return [[5] * ranks, list(range(ranks)), [7] + [0] * (ranks - 1), [0] * (ranks - 1) + [3], [0] * ranks, [1] * ranks]


def cases(ranks, seed):
    made = [Case(ranks, seed + number, counts) for number, counts in enumerate(uneven(ranks))]
    return made + [Case(ranks, seed + 50 + each, [4] * ranks, to_rank=each) for each in (0, ranks - 1)]
