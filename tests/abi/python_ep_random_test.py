#!/usr/bin/env python3
"""Random dispatches and combines of both modes on worlds of threads, bit by bit against NumPy. Needs NumPy and
MEP_LIBRARY. `--count N --seed S`: problems S to S + N - 1.

It alone finds wrong bytes of options that meet: modes, layouts, types, opaque rows, scales, maps, replicas, strides, halves, replays,
put-only ranks. 100 problems take 10 s on two cores."""
import argparse
import os
import sys
import time

import mep
import numpy as np

from python_test import on_threads

GROUPS = {"float32": 128, "ue8m0": 128, "ue8m0_32": 32}  # values of a scale
FLOAT = np.float32


# --- Number formats: bits to float32 and back --------------------------------------------------------------------

def e4m3_values():
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    size = np.where(exponent == 0, fraction * 2.0 ** -9, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.where(codes >> 7 == 1, -size, size)


E4M3 = e4m3_values()
SIZES = E4M3[:127]  # 0 to 448; 127 is NaN


def to_e4m3(values):
    """Nearest, ties to the even code, 448 at most."""
    size = np.minimum(np.abs(values.astype(np.float64)), 448.0)
    low = np.clip(np.searchsorted(SIZES, size, side="right") - 1, 0, 125)
    below, above = size - SIZES[low], SIZES[low + 1] - size
    code = low + ((above < below) | ((above == below) & (low % 2 == 1)))
    return (code | np.signbit(values) * 128).astype(np.uint8)


def to_bfloat16(values):
    bits = np.ascontiguousarray(values, FLOAT).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widen(bits, kind):
    """float32 of what an array of the type has."""
    if kind == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(FLOAT)
    if kind == "float8_e4m3":
        return E4M3[bits].astype(FLOAT)
    return bits.astype(FLOAT)


def narrow(values, kind):
    """An array of the type, each value rounded once."""
    if kind == "bfloat16":
        return to_bfloat16(values)
    with np.errstate(over="ignore"):
        return values.astype(np.float16 if kind == "float16" else FLOAT)


def quantised(values, scale_type):
    """(codes, scales) of rows of float32; mep.h and docs/design/expert-parallelism.md have the arithmetic."""
    rows, hidden = values.shape
    group = GROUPS[scale_type]
    groups = -(-hidden // group)
    padded = np.zeros((rows, groups * group), FLOAT)
    padded[:, :hidden] = values
    padded = padded.reshape(rows, groups, group)
    largest = np.maximum(np.abs(padded).max(axis=2), FLOAT(1e-4))
    scale = largest * FLOAT(1 / 448)
    if scale_type == "float32":
        codes = to_e4m3(padded * (FLOAT(448) / largest)[..., None])
        return codes.reshape(rows, groups * group)[:, :hidden], scale
    mantissa, exponent = np.frexp(scale)  # scale is mantissa * 2 ** exponent, mantissa from 1/2 on
    exponent = np.where(mantissa == FLOAT(0.5), exponent - 1, exponent)
    codes = to_e4m3(padded * np.ldexp(FLOAT(1), -exponent)[..., None])
    return codes.reshape(rows, groups * group)[:, :hidden], (exponent + 127).astype(np.uint8)


def dequantised(codes, scales, scale_type):
    if scales.dtype == np.uint8:
        scales = np.ldexp(FLOAT(1), scales.astype(np.int32) - 127)
    return widen(codes, "float8_e4m3") * np.repeat(scales, GROUPS[scale_type], axis=1)[:, :codes.shape[1]]


# --- A problem ---------------------------------------------------------------------------------------------------

class Problem:
    """Everything that the ranks give, drawn from a seed."""

    def __init__(self, seed):
        draw = self.draw = np.random.default_rng(seed)
        self.ranks = int(draw.choice([1, 2, 2, 3, 3, 4, 5, 8]))
        self.high = bool(draw.integers(2))
        self.slotted = not self.high and bool(draw.integers(2))
        self.expanded = self.high and bool(draw.integers(2))
        self.experts = int(draw.integers(1, 33))
        self.replicas = int(draw.choice([1, 1, 2, 3]))
        self.mapped = self.replicas > 1 or draw.random() < 0.2
        places = self.experts * (self.replicas if self.mapped else 1)
        self.local = -(-places // self.ranks) + int(draw.integers(2))
        self.top_k = int(draw.integers(1, min(self.experts, 12) + 1))
        self.most = int(draw.choice([1, 3, 16, 33]))
        self.input = str(draw.choice(["bfloat16", "float16", "float32", "float8_e4m3", "opaque"]))
        self.wire = "float8_e4m3" if draw.random() < 0.5 or self.input == "float8_e4m3" else self.input
        if self.input == "opaque":
            self.wire = self.input
        self.row_bytes, self.side_bytes = 16 * int(draw.choice([1, 3, 28, 64])), 4 * int(draw.choice([0, 1, 7, 56]))
        self.combine = str(draw.choice(["bfloat16", "float16", "float32"]))
        self.scale_type = str(draw.choice(["float32", "ue8m0"]))
        self.hidden = 16 * int(draw.choice([1, 2, 7, 8, 9, 20]))
        if self.hidden % 32 == 0 and draw.random() < 0.3:
            self.scale_type = "ue8m0_32"
        self.alignment = int(draw.choice([1, 1, 4, 128])) if self.high else 1
        self.keeps_y = not self.high or self.expanded or draw.random() < 0.5
        self.buffers = int(draw.integers(1, 4))
        self.put_only = bool(draw.integers(2))
        self.map = self.draw_map() if self.mapped else None
        self.rounds = [self.draw_round() for _ in range(int(draw.integers(1, 5)))]

    def draw_map(self):
        places = self.draw.permutation(self.ranks * self.local)[:self.experts * self.replicas]
        table = places.reshape(self.experts, self.replicas).astype(np.int32)
        for row in table:
            row[self.draw.integers(1, self.replicas + 1):] = -1
        return table

    def draw_round(self):
        """All that the ranks give in one dispatch and combine."""
        draw = self.draw
        kind = str(draw.choice(["uniform", "zipf", "one", "none", "dropped", "one token"]))
        given = {"weights": str(draw.choice(["dispatch", "combine", "none"])), "bias": bool(draw.integers(2)),
                 "index": draw.choice([np.int32, np.int64]), "halves": bool(draw.integers(2)),
                 "own_y": bool(draw.integers(2)), "own_x": bool(draw.integers(2)), "returns": bool(draw.integers(2)),
                 "buffer": int(draw.integers(self.buffers)),
                 "pause": float(draw.choice([0, 0, 0.002])), "ranks": []}
        for rank in range(self.ranks):
            tokens = int(draw.integers(self.most + 1))
            if kind in ("none", "one token"):
                tokens = int(kind == "one token" and rank == self.ranks - 1)
            given["ranks"].append(self.draw_rank(tokens, kind))
        if self.high and draw.integers(2):
            parts = [dict(part, **self.draw_values(len(part["index"]))) for part in given["ranks"]]
            given["replay"] = dict(given, ranks=parts)
        return given

    def draw_rank(self, tokens, kind):
        draw = self.draw
        chance = np.ones(self.experts)
        if kind == "zipf":
            chance = np.arange(1, self.experts + 1) ** -1.2
        picks = [draw.choice(self.experts, self.top_k, replace=False, p=chance / chance.sum()) for _ in range(tokens)]
        index = np.array(picks, np.int64).reshape(tokens, self.top_k)
        if kind == "one":
            index[:] = -1
            index[:, 0] = 0
        index[draw.random(index.shape) < (1 if kind == "dropped" else 0.15)] = -1
        return {"index": index, "weights": draw.standard_normal((tokens, self.top_k)).astype(FLOAT),
                **self.draw_values(tokens)}

    def draw_values(self, tokens):
        draw = self.draw
        if self.input == "opaque":
            scales = draw.integers(256, size=(tokens, self.side_bytes), dtype=np.uint8)
            return {"x": draw.integers(256, size=(tokens, self.row_bytes), dtype=np.uint8),
                    "scales": scales if self.side_bytes else None}
        values = draw.standard_normal((tokens, self.hidden)) * 2.0 ** draw.integers(-9, 7, (tokens, 1))
        values[draw.random(values.shape) < 0.05] = 0
        largest = draw.random(tokens) < 0.1  # of its group, and its scale a power of two
        values[largest, 0] = 448 * 2.0 ** draw.integers(0, 4, tokens)[largest]
        values = values.astype(FLOAT)
        scales = None
        if self.input == "float8_e4m3":
            x, scales = quantised(values, self.scale_type)
        else:
            x = narrow(values, self.input)
        return {"x": x, "scales": scales}

    # ---- the reference ----------------------------------------------------------------------------------

    def place(self, rank, token, expert):
        """The place of an expert for a token of a rank; -1: none."""
        if expert < 0 or self.map is None:
            return int(expert)
        places = self.map[expert][self.map[expert] >= 0]
        return int(places[(token + rank) % len(places)])

    def sent(self, part):
        """(rows, scales or None) as they arrive."""
        if self.input == "float8_e4m3" or self.wire == self.input:
            return part["x"], part["scales"]
        return quantised(widen(part["x"], self.input), self.scale_type)

    def output(self, row, scales, place):
        """An expert's output for a row, of the combine type."""
        if self.wire == "opaque":
            values = np.resize(row if scales is None else np.concatenate([row, scales]), self.hidden).astype(FLOAT) - 128
        else:
            values = widen(row, self.wire) if scales is None else dequantised(row[None], scales[None], self.scale_type)[0]
        return narrow(values * FLOAT(1 + place % 7 / 4) + FLOAT(place % 3), self.combine)

    def rank_output(self, row, scales, rank):
        return self.output(row, scales, rank)

    def returned(self, row, scales, places):
        """A rank's return for a row of these of its places, in the order of k."""
        if not self.expanded:
            return self.rank_output(row, scales, places[0] // self.local)
        total = np.zeros(self.hidden, FLOAT)
        for place in places:
            total += widen(self.output(row, scales, place), self.combine)
        return narrow(total, self.combine)

    def arrivals(self, given, rank):
        """Low latency: for each local expert [(source, token)]; high throughput: [(source, token)]."""
        found = [[] for _ in range(self.local)]
        rows = []
        for source, part in enumerate(given["ranks"]):
            for token, experts in enumerate(part["index"]):
                here = [place for place in (self.place(source, token, each) for each in experts)
                        if place >= 0 and place // self.local == rank]
                for place in here:
                    found[place % self.local].append((source, token))
                if here:
                    rows.append((source, token))
        return rows if self.high else found

    def summed(self, given, rank, bias):
        part = given["ranks"][rank]
        rows, scales = self.sent(part)
        sums = np.zeros((len(rows), self.hidden), FLOAT)
        for token, experts in enumerate(part["index"]):
            places = [self.place(rank, token, each) for each in experts]
            scale = None if scales is None else scales[token]
            if self.high:
                for owner in sorted({place // self.local for place in places if place >= 0}):
                    there = [place for place in places if place >= 0 and place // self.local == owner]
                    sums[token] += widen(self.returned(rows[token], scale, there), self.combine)
                continue
            for k, place in enumerate(places):
                if place < 0:
                    continue
                weight = FLOAT(1) if given["weights"] == "none" else part["weights"][token, k]
                sums[token] += weight * widen(self.output(rows[token], scale, place), self.combine)
        if bias is not None:
            sums += widen(bias, self.combine)
        return narrow(sums, self.combine)


# --- A rank ------------------------------------------------------------------------------------------------------

def same(what, found, wanted):
    found = np.ascontiguousarray(found)
    wanted = np.ascontiguousarray(wanted)
    if found.shape != wanted.shape or found.itemsize != wanted.itemsize or found.tobytes() != wanted.tobytes():
        raise AssertionError(f"{what}:\n{found}\nit must be\n{wanted}")


def strided(rows, draw):
    """The same rows with a gap behind each."""
    memory = np.zeros((len(rows), rows.shape[1] + 16 // rows.itemsize * int(draw.integers(3))), rows.dtype)
    memory[:, :rows.shape[1]] = rows
    return memory[:, :rows.shape[1]]


def check_low_latency(problem, given, rank, got):
    for expert, rows in enumerate(problem.arrivals(given, rank)):
        begin = 0
        for source in range(problem.ranks):
            tokens = [token for each, token in rows if each == source]
            begin = source * problem.most if problem.slotted else begin
            end = begin + len(tokens)
            part = given["ranks"][source]
            sent, scales = problem.sent(part)
            assert int(got.layout_range[expert, source]) == begin << 32 | len(tokens), (expert, source)
            same("src_info", got.src_info[expert, begin:end], np.array(tokens, np.int32))
            same("rows", got.x[expert, begin:end], sent[tokens])
            if scales is not None:
                same("scales", got.scales[expert, begin:end], scales[tokens])
            begin = end
        assert got.count[expert] == len(rows), (expert, got.count, len(rows))
    assert got.total == sum(map(len, problem.arrivals(given, rank)))


def check_high_throughput(problem, given, rank, got, weighs):
    rows = problem.arrivals(given, rank)
    assert got.total == len(rows), (got.total, len(rows))
    counts, begin = np.zeros(problem.local, np.int64), 0
    for row, (source, token) in enumerate(rows):
        part = given["ranks"][source]
        sent, scales = problem.sent(part)
        same("row", got.x[row], sent[token])
        if scales is not None:
            same("scales", got.scales[row], scales[token])
        places = [problem.place(source, token, each) for each in part["index"][token]]
        local = [place % problem.local if place >= 0 and place // problem.local == rank else -1 for place in places]
        same("topk_idx", got.topk_idx[row], np.array(local, np.int32))
        weight = part["weights"][token] if weighs else np.ones(problem.top_k, FLOAT)
        same("topk_weights", got.topk_weights[row], np.where(np.array(local) >= 0, weight, FLOAT(0)))
        for each in local:
            counts[each] += each >= 0
    for source in range(problem.ranks):
        count = sum(each == source for each, _ in rows)
        assert int(got.layout_range[source]) == begin << 32 | count
        begin += count
    same("src_info", got.src_info[:len(rows)], np.array([token for _, token in rows], np.int32))
    same("count", got.count, (-(-counts // problem.alignment) * problem.alignment).astype(np.int32))


def check_expanded(problem, given, rank, got, weighs):
    x, scales, weights, info = [], [], [], []
    ranges = np.zeros((problem.local, problem.ranks), np.int64)
    counts = np.zeros(problem.local, np.int32)
    for expert in range(problem.local):
        begin = len(x)
        for source, part in enumerate(given["ranks"]):
            sent, sent_scales = problem.sent(part)
            ranges[expert, source] = len(x) << 32
            for token, index in enumerate(part["index"]):
                for k, each in enumerate(index):
                    if problem.place(source, token, each) != rank * problem.local + expert:
                        continue
                    x.append(sent[token])
                    scales.append(None if sent_scales is None else sent_scales[token])
                    weights.append(part["weights"][token, k] if weighs else 1)
                    info.append(token)
                    ranges[expert, source] += 1
        while (len(x) - begin) % problem.alignment:
            x.append(np.zeros(got.x.shape[1], got.x.dtype))
            scales.append(None if got.scales is None else np.zeros(got.scales.shape[1], got.scales.dtype))
            weights.append(0)
            info.append(-1)
        counts[expert] = len(x) - begin
    assert got.total == len(x), (got.total, len(x))
    assert got.topk_idx is None
    same("count", got.count, counts)
    same("layout_range", got.layout_range, ranges)
    same("src_info", got.src_info[:got.total], np.array(info, np.int32))
    same("topk_weights", got.topk_weights[:got.total], np.array(weights, FLOAT))
    if x:
        same("rows", got.x[:got.total], np.stack(x))
        if got.scales is not None:
            same("scales", got.scales[:got.total], np.stack(scales))


def fill_outputs(problem, given, rank, got, y):
    """The experts' outputs where their rows lie."""
    if problem.expanded:
        end = 0
        for expert in range(problem.local):
            begin, end = end, end + int(got.count[expert])
            for row in range(begin, end):
                scales = None if got.scales is None else got.scales[row]
                y[row] = problem.output(got.x[row], scales, rank * problem.local + expert)
                if got.src_info[row] < 0:
                    y[row:row + 1].view(np.uint8)[...] = 0xff  # not a number
        return
    if problem.high:
        for row in range(got.total):
            scales = None if got.scales is None else got.scales[row]
            y[row] = problem.rank_output(got.x[row], scales, rank)
        return
    for expert in range(problem.local):
        for source in range(problem.ranks):
            begin, count = int(got.layout_range[expert, source]) >> 32, int(got.layout_range[expert, source]) & 0xffffffff
            for row in range(begin, begin + count):
                scales = None if got.scales is None else got.scales[expert, row]
                y[expert, row] = problem.output(got.x[expert, row], scales, rank * problem.local + expert)


def one_round(problem, given, rank, ep, handle, draw, replays=False):
    part = given["ranks"][rank]
    weighs = given["weights"] == "dispatch"
    sent = {"x": strided(part["x"], draw)}
    if not replays:
        sent["topk_idx"] = part["index"].astype(given["index"])
    if weighs and not replays:
        sent["topk_weights"] = part["weights"].copy()
    if part["scales"] is not None:
        sent["x_scales"] = part["scales"].copy()
        if problem.input == "opaque" and draw.integers(2):
            sent["x_scales"] = sent["x_scales"].view(np.int32)
    time.sleep(given["pause"] * draw.random())
    taken = {}
    if given["own_x"]:
        own = ep.view(given["buffer"])
        taken["recv_x"] = np.full_like(own.x, 3)
        if own.scales is not None:
            taken["recv_scales"] = np.full_like(own.scales, 3)
    replay = {"replay": True} if replays else {}
    if given["halves"]:
        handle.dispatch(phase="send", **sent, **replay)
        for each in sent.values():
            each[...] = 0  # is the caller's again
        got = handle.dispatch(phase="receive", **taken)
    else:
        got = handle.dispatch(**sent, **taken, **replay)
    if problem.expanded:
        check_expanded(problem, given, rank, got, weighs)
    elif problem.high:
        check_high_throughput(problem, given, rank, got, weighs)
    else:
        check_low_latency(problem, given, rank, got)
    own_y = given["own_y"] or not problem.keeps_y
    y = np.empty((problem.ranks * problem.most, problem.hidden), narrow(np.zeros(0, FLOAT), problem.combine).dtype)
    if problem.keeps_y:
        y = ep.combine_input(given["buffer"])
        y = np.empty_like(y) if own_y else y
    fill_outputs(problem, given, rank, got, y)
    bias = narrow(np.linspace(-2, 2, problem.hidden, dtype=FLOAT), problem.combine) if given["bias"] else None
    summing = {} if bias is None else {"bias": bias}
    if given["weights"] == "combine" and not problem.high:
        summing["weights"] = part["weights"]
    out = strided(np.empty((len(part["index"]), problem.hidden), y.dtype), draw)
    giving = {"y": y} if own_y else {}
    back = None
    if problem.high and given["returns"]:
        values = got.topk_weights[:got.total] * FLOAT(2)
        if problem.expanded:
            values[got.src_info[:got.total] < 0] = np.nan
        giving["topk_weights"] = values
        back = summing["out_topk_weights"] = np.full(part["index"].shape, 5, FLOAT)
    time.sleep(given["pause"] * draw.random())
    if given["halves"] and problem.keeps_y:
        handle.combine(phase="send", **giving)
        handle.combine(out, phase="receive", **summing)
    else:
        handle.combine(out, **giving, **summing)
    same("sums", out, problem.summed(given, rank, bias))
    if back is not None:
        weights = part["weights"] if weighs else np.ones_like(part["weights"])
        # Values that come back are added to +0.
        same("weights back", back, np.where(part["index"] >= 0, weights * FLOAT(2), FLOAT(0)) + FLOAT(0))


def run_rank(problem, comm, seed):
    options = dict(hidden=problem.hidden, top_k=problem.top_k, num_experts=problem.experts,
                   max_tokens_per_rank=problem.most, experts_per_rank=problem.local, num_buffers=problem.buffers,
                   combine_type=problem.combine, expert_alignment=problem.alignment,
                   layout="expanded" if problem.expanded else "high_throughput" if problem.high
                   else "slotted" if problem.slotted else "low_latency")
    if not problem.keeps_y:
        options["combine_memory"] = False
    if problem.input == "opaque":
        options.update(row_bytes=problem.row_bytes, side_bytes=problem.side_bytes)
    else:
        options.update(input_type=problem.input, wire_type=problem.wire, scale_type=problem.scale_type)
    if problem.mapped:
        options["max_replicas"] = problem.replicas
    draw = np.random.default_rng([seed, comm.rank])
    with mep.Ep(comm, **options) as ep:
        handles = [ep.handle(buffer) for buffer in range(problem.buffers)]
        if problem.mapped:
            ep.set_expert_map(problem.map)
        for given in problem.rounds:
            one_round(problem, given, comm.rank, ep, handles[given["buffer"]], draw)
            if "replay" in given:
                one_round(problem, given["replay"], comm.rank, ep, handles[given["buffer"]], draw, replays=True)


def run(seed):
    """Raises what the first rank that finds something wrong has found."""
    problem = Problem(seed)
    failures = []

    def work(comm):
        try:
            run_rank(problem, comm, seed)
        except BaseException as found:
            failures.append(found)
            comm.abort()  # the others do not wait

    os.environ["MEP_MAP"] = "0" if problem.put_only else "1"
    on_threads(problem.ranks, work, timeout_ms=60_000)
    if failures:
        raise failures[0]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    began = said = time.monotonic()
    for seed in range(given.seed, given.seed + given.count):
        try:
            run(seed)
        except BaseException:
            problem = Problem(seed)
            shape = {name: value for name, value in vars(problem).items() if name not in ("draw", "rounds", "map")}
            print(f"seed {seed} failed ({sys.argv[0]} --seed {seed} --count 1): {shape}", file=sys.stderr)
            raise
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(f"{seed - given.seed + 1} of {given.count} problems, {said - began:.0f} s", flush=True)
    print(f"{given.count} problems from seed {given.seed} on agree, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
