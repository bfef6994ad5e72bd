"""The roofline once more, one GPU and one layer at a time, from the formulas alone; and random problems for it.

Nothing here calls pipelab's cost models.
"""

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

import pipelab as pl
from pipelab.hardware.known_gpus import GPUFacts
from pipelab.hardware.serving_engines import Engine
from pipelab.hardware.transformer import LatentAttention

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5}
# A weight of a quantised matrix; in 4 bits with 1/128 of a 16-bit scale and of a 4-bit zero.
MATRIX = BYTES | {"int4": (4 + (16 + 4) / 128) / 8}
# Whatever is no matrix of a layer, embedding and head are not quantised.
OTHER = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2, "int8": 2, "int4": 2}

DATA = Path(__file__).parents[1] / "data"
with open(DATA / "engine_memory.csv", newline="") as file:
    ENGINES = {row["engine"]: row for row in csv.DictReader(file)}
with open(DATA / "pcie_allreduce.csv", newline="") as file:
    PCIE = [(float(row["gpus"]), float(row["gb_per_s"])) for row in csv.DictReader(file)]

# A hundred steps, brentq's own limit, are too few where a GPU's share is next to nothing.
_EXACT = {"xtol": 1e-300, "rtol": 1e-14, "maxiter": 2000}


def attention_parameters(m):
    """(those of matrices, norms and biases)"""
    d, h = m.d_model, m.head_dim
    if m.latent is None:
        matrices = d * m.heads * h + 2 * d * m.kv_heads * h + m.heads * h * d
        return matrices, m.qkv_bias * (m.heads + 2 * m.kv_heads) * h
    x = m.latent
    if x.query_rank is None:
        queries, norms = d * m.heads * (h + x.rope_dim), x.kv_rank
    else:
        queries = d * x.query_rank + x.query_rank * m.heads * (h + x.rope_dim)
        norms = x.query_rank + x.kv_rank
    keys = d * (x.kv_rank + x.rope_dim) + x.kv_rank * m.heads * (h + x.value_dim)
    return queries + keys + m.heads * x.value_dim * d, norms


def layer(m, index):
    """(bytes, parameters a token meets, bytes of one expert) of one layer."""
    d = m.d_model
    matrices, other = attention_parameters(m)
    other += 2 * d + m.extra_parameters
    if m.experts == 1 or index < m.dense_layers:
        width = m.d_ff if m.experts > 1 or m.expert_ff is None else m.expert_ff
        matrices += 3 * d * width
        return matrices * MATRIX[m.precision] + other * OTHER[m.precision], matrices + other, 0
    expert = 3 * d * (m.expert_ff or m.d_ff)
    other += d * m.experts + m.router_bias * m.experts
    matrices += m.shared_experts * expert
    everything = (matrices + m.experts * expert) * MATRIX[m.precision] + other * OTHER[m.precision]
    met = matrices + other + m.experts_per_token * expert
    return everything, met, expert * MATRIX[m.precision]


def new_tokens(w):
    """Of one sequence in a pass."""
    s, o = w.sequence_length, w.output_tokens or 1
    return {"prefill": s, "decode": 1, "mixed": 1 + s / o}[w.phase]


def kept(m):
    """(bytes of keys and values of one token in a layer, among how many GPUs they can be cut)"""
    if m.latent is not None:
        return (m.latent.kv_rank + m.latent.rope_dim) * BYTES[m.kv_precision], 1
    return 2 * m.kv_heads * m.head_dim * BYTES[m.kv_precision], m.kv_heads


def window_of(m, index):
    """How far back a token looks in this layer."""
    return math.inf if m.window is None or index in m.full_layers else m.window


def looked_at(window, start, end):
    """Tokens that those from start to end look back at, in all."""
    if window >= end:
        return (start + end) / 2 * (end - start)
    growing = max(0, window - start)  # tokens that see everything before them
    return (start + window) / 2 * growing + window * (end - start - growing)


def seconds(problem, gpu, span, b, t):
    """One pass of b sequences through these layers on t GPUs that cut each layer."""
    m, w, costs = problem.model, problem.workload, problem.costs
    facts = costs.gpus[gpu.type]
    engine = costs.engines[costs.engine]
    head_peak = facts.fp16_tflop_per_s
    if engine.accumulate == "fp16":
        head_peak = facts.fp16_accumulate_tflop_per_s or head_peak
    peak = head_peak
    if m.precision == "fp8" and facts.fp8_tflop_per_s:
        peak = max(head_peak, facts.fp8_tflop_per_s * facts.fp8_share)
    own = w.phase == "decode" or facts.memory_kind == "unified"
    share = facts.compute_efficiency * (1 if own else engine.prefill_efficiency)
    flop_rate, head_rate = peak * 1e12 * share * t, head_peak * 1e12 * share * t
    reached = engine.hbm_efficiency if facts.memory_kind == "HBM" else engine.memory_efficiency
    byte_rate = facts.memory_bandwidth_gb_per_s * 1e9 * reached * facts.memory_factor
    overlap = engine.decode_overlap
    quantised = engine.integer_efficiency if m.precision in ("int8", "int4") else 1
    s, o, q, (kv, parts) = w.sequence_length, w.output_tokens or 1, new_tokens(w), kept(m)
    prompt_pair = decode_pair = 4 * m.heads * m.head_dim
    if m.latent is not None:
        x = m.latent
        prompt_pair = 2 * m.heads * (m.head_dim + x.rope_dim + x.value_dim)
        decode_pair = 2 * m.heads * (2 * x.kv_rank + x.rope_dim)

    def attended(window):
        """(FLOPs, tokens whose keys and values are moved, pairs of prompt tokens) of one sequence in a layer."""
        seen, prompt = min(s, window), looked_at(window, 0, s)
        written = looked_at(window, s, s + o) / o
        flops = {
            "prefill": prompt_pair * prompt,
            "decode": decode_pair * seen,
            "mixed": decode_pair * written + prompt_pair * prompt / o,
        }[w.phase]
        cached = {"prefill": s, "decode": seen, "mixed": written + s / o}[w.phase]
        return flops, cached, {"prefill": prompt, "decode": 0, "mixed": prompt / o}[w.phase]

    def slower(x, y):
        return max(x, y) + (1 - overlap) * min(x, y)

    total = 0.0
    for i in span:
        everything, met, expert = layer(m, i)
        attention, cached, pairs = attended(window_of(m, i))
        touched, chosen, besides = everything, 0, 0
        if expert:
            passes = [(1, b * q)]  # how many of them, and with how many tokens
            if w.phase == "mixed":
                prompts = max(b / o, 1)  # whole ones, in a pass that has any
                passes = [(b / o / prompts, b + prompts * s), (1 - b / o / prompts, b)]
            left_out = sum(n * (1 - m.experts_per_token / m.experts) ** x for n, x in passes)
            touched -= m.experts * left_out * expert
            width = m.expert_ff or m.d_ff
            chosen = m.experts_per_token * 3 * m.d_model * width
            rows = b * q * m.experts_per_token * (4 * m.d_model + 6 * width / t)
            besides = rows * 2 / byte_rate + engine.experts_overhead_us / 1e6
        met += chosen * (1 / engine.experts_efficiency - 1)
        compute = b * 2 * q * met / flop_rate + b * attention / head_rate
        move = touched / quantised / t + 8 * b * q * m.d_model * 2 / t
        move += b * cached * kv / min(t, parts) / engine.kv_efficiency
        total += slower(compute, move / byte_rate) + engine.layer_overhead_us / 1e6 + besides
        total += b * engine.score_bytes * m.heads * pairs / (t * byte_rate)
        if t > 1:
            inside = gpu.node_gb_per_s * 1e9 * engine.link_efficiency
            if t > 2 and gpu.node_gb_per_s < 64:
                counts, rates = zip(*PCIE, strict=True)
                inside = min(inside, 1e9 * float(np.interp(t, counts, rates)))
            tokens = min(b * q, engine.chunk_tokens or math.inf)
            if engine.large_allreduce and t > 3 and tokens * m.d_model >= 32 * 1024 * 1024:
                inside *= engine.large_allreduce  # two bytes each: 64 MiB
            wait = engine.pcie_allreduce_us if gpu.node_gb_per_s < 64 else engine.allreduce_us
            wait += (t - 2) * engine.allreduce_hop_us
            total += 2 * (2 * (t - 1) / t * b * q * m.d_model * 2 / inside + wait / 1e6)
    if m.layers - 1 in span:
        logits = 1 + 1 / o if w.phase == "mixed" else 1
        weights = m.vocab * m.d_model
        step = engine.step_overhead_us + b * engine.sequence_overhead_us
        step += engine.tensor_parallel_us if t > 1 else 0
        total += step / 1e6 + slower(
            2 * b * logits * weights / head_rate, weights * OTHER[m.precision] / t / byte_rate
        )
    return total


def memory_gb(problem, gpu, span, b, t):
    """Needed on one GPU, in 10^9 bytes, with what must stay free."""
    m, w, costs = problem.model, problem.workload, problem.costs
    weights = sum(layer(m, i)[0] for i in span)
    first, last = 0 in span, m.layers - 1 in span
    matrices = 1 if first and last and m.tied_embeddings else first + last
    weights += (matrices * m.vocab + last) * m.d_model * OTHER[m.precision]
    per_token, parts = kept(m)
    share, row = costs.memory_share, ENGINES.get(costs.runs_on, {"share_of": ""})
    written, block = (w.output_tokens or 1) * (w.phase == "mixed"), 1
    if costs.runs_on:  # whole blocks, with room for a token that is written
        written, block = max(written, 1), int(row["cache_tokens"] or 1)
    each = [min(w.sequence_length + written, window_of(m, i)) for i in span]
    tokens = whole(b * w.in_flight) * sum(-(-n // block) * block for n in each)
    cache = tokens * per_token / min(t, parts)
    wide = m.d_ff
    if m.experts > 1:
        wide = (m.expert_ff or m.d_ff) * (m.experts_per_token + m.shared_experts)
    at_once = min(whole(b) * new_tokens(w), costs.engines[costs.engine].chunk_tokens or math.inf)
    activations = at_once * (2 * m.d_model * 2 + 2 * wide * 2 / t)
    if not row["share_of"]:
        return (weights / t + cache + activations) / 1e9 + (1 - share) * gpu.memory_gb
    own = engine_bytes(problem, gpu, span, whole(b * w.in_flight), t, row)
    total = gpu.memory_gb * 1e9
    if not gpu.type.startswith(("MI", "M3")):
        total -= float(row["unseen_gib"] or 0) * 2**30
    left = {  # for the cache
        "all": share * total - weights / t - own,
        "cache": share * max(total - weights / t - own, 0) + min(total - weights / t - own, 0),
        "static": min(share * total, total - own) - weights / t,
    }[row["share_of"]]
    return gpu.memory_gb + (cache - left) / 1e9


def engine_bytes(problem, gpu, span, sequences, t, row):
    """What an engine keeps on a GPU beside weights and cache, by its row of data/engine_memory.csv."""
    m, w, costs = problem.model, problem.workload, problem.costs
    defaults = {"stream_tensors": 2, "block_tensors": 2}
    value = {
        n: float(row[n] or defaults.get(n, 0))
        for n in row
        if n.endswith(("gib", "mib", "tensors", "bytes", "sequences"))
    }
    chunk = costs.engines[costs.engine].chunk_tokens or w.batch_size * new_tokens(w)
    for step in row["chunks"].split():
        below, _, tokens = step.rpartition(":")
        smaller = below.isdigit() and gpu.memory_gb * 1e9 < float(below) * 2**30
        if smaller or (not below.isdigit() and gpu.type.startswith(below)):
            chunk = float(tokens)
            break
    chunk = max(chunk, sequences)
    d, last = m.d_model, m.layers - 1 in span
    routed = row["expert_buffers"] == "true" and m.experts > 1
    block, buffers = m.d_ff, 0
    if routed:
        block = m.d_ff if any(i < m.dense_layers for i in span) else 0
        f = (m.expert_ff or m.d_ff) / t
        if any(i >= m.dense_layers for i in span):
            buffers = 2 * chunk * m.experts_per_token * (max(2 * f, d) + max(f, d))
    elif m.experts > 1:
        block = (m.expert_ff or m.d_ff) * (m.experts_per_token + m.shared_experts)
    layer = 2 * chunk * (value["stream_tensors"] * d + value["block_tensors"] * block / t)
    layer += chunk * value["token_mib"] * 2**20
    logits = last * m.vocab * sequences * value["logit_bytes"]
    fixed = value["blackwell_gib"] if gpu.type.startswith("RTX50") else value["context_gib"]
    fixed += value["graph_gib"] + t * value["part_gib"]
    if t > 1 and gpu.node_gb_per_s >= 64:
        fixed += value["nvlink_gib"]
    graphs = value["sequence_mib"] * 2**20 * min(sequences, value["graph_sequences"])
    return buffers + max(layer, logits) + fixed * 2**30 + graphs


def balanced(problem, gpus, span):
    """Sequences for each GPU so that all that work finish together."""
    whole = float(problem.workload.batch_size)

    def finished(gpu, time):
        if seconds(problem, gpu, span, 0.0, 1) >= time:
            return 0.0
        if seconds(problem, gpu, span, whole, 1) <= time:
            return whole
        return brentq(lambda b: seconds(problem, gpu, span, b, 1) - time, 0.0, whole, **_EXACT)

    alone = [seconds(problem, g, span, whole, 1) for g in gpus]
    start = min(seconds(problem, g, span, 0.0, 1) for g in gpus)
    time = brentq(lambda t: sum(finished(g, t) for g in gpus) - whole, start, min(alone), **_EXACT)
    return [finished(g, time) for g in gpus]


def whole(b):
    """Sequences in a turn of a GPU whose share is b."""
    return max(0, math.ceil(b - 1e-9))


def ways(problem, gpus, span):
    """(rate, GB lacking on the worst GPU, degree, seconds of one pass) of every way to run a stage."""
    w, k = problem.workload, len(gpus)
    tokens = w.batch_size * (w.sequence_length if w.phase == "prefill" else 1)
    apart = problem.costs.copies or k == 1
    even = problem.batch_split == "even" or k == 1 or not apart
    batch = [w.batch_size / k] * k if even else balanced(problem, gpus, span)
    shares = list(zip(gpus, batch, strict=True))
    if apart:
        slowest = max(seconds(problem, g, span, b, 1) for g, b in shares if b > 0)
        worst = max(memory_gb(problem, g, span, b, 1) - g.memory_gb for g, b in shares)
        turn = max(seconds(problem, g, span, whole(b), 1) for g, b in shares if whole(b))
        yield tokens / slowest, worst, 1, turn
    if problem.costs.tensor_parallel and len(set(gpus)) == 1 and gpus[0].node:
        m, (_, parts) = problem.model, kept(problem.model)
        for t in range(2, k + 1) if apart else [k]:
            if k % t == 0 and m.heads % t == 0 and (parts % t == 0 or t % parts == 0):
                b = w.batch_size * t / k
                lack = memory_gb(problem, gpus[0], span, b, t) - gpus[0].memory_gb
                one, turn = (seconds(problem, gpus[0], span, x, t) for x in (b, whole(b)))
                yield tokens / one, lack, t, turn


def way(problem, gpus, span):
    """(rate, seconds of one pass) of the best way that fits, by rate or by time as the costs prefer, or None."""
    fits = [w for w in ways(problem, gpus, span) if w[1] <= 1e-9 * max(g.memory_gb for g in gpus)]
    if not fits:
        return None
    best = max(fits) if problem.costs.prefer == "rate" else min(fits, key=lambda w: w[3])
    return best[0], best[3]


def stage(problem, gpus, span):
    """Rate of the best way that fits, or None."""
    best = way(problem, gpus, span)
    return None if best is None else best[0]


def link(problem, bandwidth_gb_per_s):
    """Tokens/s of a link."""
    w = problem.workload
    tokens = w.batch_size * (w.sequence_length if w.phase == "prefill" else 1)
    engine = problem.costs.engines[problem.costs.engine]
    sent = w.batch_size * new_tokens(w) * problem.model.d_model * 2 * engine.stage_tensors
    return tokens / (problem.costs.hop_latency_s + sent / (bandwidth_gb_per_s * 1e9))


def random_model(rng, layers):
    """A small transformer of any family: grouped heads, experts, latent attention, tied embeddings, windows."""
    own = rng.spawn(1)[0]  # so that what was drawn before there were windows is drawn still
    heads = int(rng.choice([4, 8]))
    experts = int(rng.choice([1, 1, 8]))
    drawn = pl.hardware.Transformer(
        "random", layers, 1024, int(rng.choice([2048, 4096])), heads, int(rng.choice([1, 2, heads])), 128,
        int(rng.choice([1000, 60_000])), experts, min(2, experts), int(rng.integers(0, 2)) if experts > 1 else 0,
        expert_ff=int(rng.choice([512, 2048])) if experts > 1 else None,
        dense_layers=int(rng.integers(0, 2)) if experts > 1 and layers > 2 else 0,
        qkv_bias=bool(rng.random() < 0.3), router_bias=bool(rng.random() < 0.3),
        tied_embeddings=bool(rng.random() < 0.3),
        latent=LatentAttention(own.choice([256, 256, None]), 128, 32, 128) if rng.random() < 0.3 else None,
        extra_parameters=int(own.choice([0, 5000])), window=own.choice([None] * 6 + [100, 300, 5000]),
        precision=str(rng.choice(["bf16", "fp8", "int4"])), kv_precision=str(rng.choice(["bf16", "fp8"])),
    )  # fmt: skip
    later, share = own.spawn(1)[0], own.choice([0, 0.5])
    full = tuple(i for i in range(layers) if drawn.window and later.random() < share)
    return dataclasses.replace(drawn, full_layers=full)


def random_problem(seed, layers=6, gpus=4, **fixed):
    """A small problem in which memory, links, and the choice between sharing and cutting all bind somewhere."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, gpus + 1)), int(rng.integers(1, layers + 1))
    model = random_model(rng, m)
    phase = str(rng.choice(["prefill", "decode", "mixed"]))
    workload = pl.Workload(
        int(rng.choice([256, 2048])), int(rng.choice([1, 4, 16])), phase, int(rng.choice([64, 512])),
        int(rng.integers(1, 5)),
    )  # fmt: skip
    room, own = float(model.weight_gb(range(m))), rng.spawn(1)[0]
    facts = {
        name: GPUFacts(
            room,
            *map(float, (rng.uniform(300, 3000), rng.uniform(30, 900), rng.uniform(0.3, 0.7))),
            memory_kind=str(rng.choice(["HBM", "GDDR"])) if own.random() < 0.8 else "unified",
            fp16_accumulate_tflop_per_s=float(rng.uniform(30, 900)),
            fp8_tflop_per_s=float(rng.uniform(30, 900)) if rng.random() < 0.5 else None,
            memory_factor=float(rng.uniform(0.8, 1.2)),
        )
        for name in ("A", "B", "C")
    }
    node = rng.integers(0, 3, n)  # node 0 stands for GPUs on their own
    kinds = [str(rng.choice(["A", "B", "C"])) for _ in range(3)]
    memory = room * rng.choice([0.3, 0.6, 1.5, 4.0], 3)
    inside = rng.choice([30.0, 300.0], 3)
    own_node = [(f"node {i}", float(inside[i])) if i else ("", None) for i in node]
    pool = [
        pl.GPU(kinds[i], float(memory[i]), None, *of) for i, of in zip(node, own_node, strict=True)
    ]
    options = {
        "max_gpus_per_stage": int(rng.integers(1, 5)),
        "same_type_stages": bool(rng.random() < 0.2),
        "batch_split": str(rng.choice(["even", "balanced"], p=[0.7, 0.3])),
    }
    engine = Engine(
        *map(float, rng.uniform(0.4, 1, 4)), 2.0, float(rng.choice([0, 10])), 1.0, 4.0,
        float(rng.uniform(0.3, 1)), float(rng.choice([0, 30])), str(rng.choice(["fp32", "fp16"])),
        *map(float, own.uniform(0.3, 1, 2)), *map(float, own.uniform(0, 20, 3)),
        float(own.choice([1, 2])), own.choice([None, 300, 5000]), own.spawn(1)[0].choice([None, 0.5]),
    )  # fmt: skip
    cut = bool(rng.random() < 0.7)
    costs = pl.Roofline(facts, "mine", {"mine": engine}, tensor_parallel=cut, hop_latency_s=1e-6)
    options = options | {"name": f"roofline {seed}"} | fixed
    cluster = pl.Cluster(tuple(pool), np.ones((n, n)))
    problem = pl.Problem(cluster, model, workload, costs, **options)
    # Links about as fast as a stage of half the layers, every direction its own; or fast ones.
    half = seconds(problem, pool[0], range((m + 1) // 2), workload.batch_size, 1)
    sent = workload.tokens / link(problem, 1.0) - costs.hop_latency_s  # seconds at 1 GB/s
    speed = 10.0 ** rng.uniform(-0.5, 1, (n, n)) if rng.random() < 0.6 else np.full((n, n), 100.0)
    costs = dataclasses.replace(costs, prefer=str(rng.choice(["rate", "time"])))
    cluster = pl.Cluster(tuple(pool), speed * sent / half)
    return dataclasses.replace(problem, cluster=cluster, costs=costs)
