"""What engines keep in memory: as those that were started logged it, and as the documented rule has it."""

import csv
import dataclasses
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import pipelab as pl
import roofline_oracle
from pipelab.engine.runs_on import counting_memory_of
from pipelab.hardware import Transformer
from pipelab.hardware.engine_memory import known_memory
from pipelab.hardware.engine_rules import known_rules
from pipelab.hardware.known_gpus import GPUFacts, load_gpus
from pipelab.hardware.serving_engines import load_engines
from pipelab.io.serving.engine_plan import EnginePlan

with open(Path(__file__).parents[1] / "data" / "engine_logs.csv", newline="") as file:
    LOGS = list(csv.DictReader(file))
# Layers, widths, heads, heads of keys and values, width of a head, vocabulary: of the published config.json.
MODELS = {
    "Llama-3.1-8B": ((32, 4096, 14336, 32, 8, 128, 128256), {}),
    "Llama-3.3-70B-FP8": ((80, 8192, 28672, 64, 8, 128, 128256), {"precision": "fp8"}),
    "DeepSeek-R1-Distill-Qwen-14B": ((48, 5120, 13824, 40, 8, 128, 152064), {"qkv_bias": True}),
    "Qwen2.5-1.5B": ((28, 1536, 8960, 12, 2, 128, 151936), {"tied_embeddings": True, "qkv_bias": True}),
    "Qwen2.5-7B": ((28, 3584, 18944, 28, 4, 128, 152064), {"qkv_bias": True}),
    "Qwen2.5-32B": ((64, 5120, 27648, 40, 8, 128, 152064), {"qkv_bias": True}),
    "Qwen3-0.6B": ((28, 1024, 3072, 16, 8, 128, 151936), {"tied_embeddings": True}),
    "Qwen3-8B": ((36, 4096, 12288, 32, 8, 128, 151936), {}),
    "Qwen3-8B-FP8": ((36, 4096, 12288, 32, 8, 128, 151936), {"precision": "fp8"}),
    "Qwen3-14B": ((40, 5120, 17408, 40, 8, 128, 151936), {}),
    "Qwen3-32B": ((64, 5120, 25600, 64, 8, 128, 151936), {}),
    "Qwen3-30B-A3B": ((48, 2048, 6144, 32, 4, 128, 151936), {"experts": 128, "experts_per_token": 8, "expert_ff": 768}),
    "Qwen3-235B-A22B-FP8": (
        (94, 4096, 12288, 64, 4, 128, 151936),
        {"experts": 128, "experts_per_token": 8, "expert_ff": 1536, "precision": "fp8"},
    ),
    "Qwen3-30B-A3B-FP8": (
        (48, 2048, 6144, 32, 4, 128, 151936),
        {"experts": 128, "experts_per_token": 8, "expert_ff": 768, "precision": "fp8"},
    ),
}  # fmt: skip


def _started(log):
    """The problem of a log and its plan."""
    dimensions, more = MODELS[log["model"]]
    model = Transformer(log["model"], *dimensions, **more)
    each = [gpu.split() for gpu in log["gpus"].split("; ")]
    gpus = tuple(
        pl.GPU(kind, float(mib) * 2**20 / 1e9, None, *(("n", float(link)) if link != "0" else ()))
        for kind, mib, link in each
    )
    cut = [int(n) for n in log["layers"].split()]
    size = len(gpus) // len(cut)
    facts = {gpu.type: GPUFacts(gpu.memory_gb, 1000, 100, 0.5, 30) for gpu in gpus}
    engine = dataclasses.replace(load_engines()["vLLM"], chunk_tokens=int(log["chunk"]))
    costs = pl.Roofline(
        facts, "vLLM", {"vLLM": engine}, memory_share=float(log["share"]), copies=False,
        runs_on=log["engine"],
    )  # fmt: skip
    load = pl.Workload(1, int(log["sequences"]), "decode", in_flight=1)
    cluster = pl.Cluster(gpus, np.full((len(gpus),) * 2, 25.0))
    problem = pl.Problem(cluster, model, load, costs, max_gpus_per_stage=size)
    ids = iter(range(len(gpus)))
    return problem, pl.Placement.of([(n, tuple(next(ids) for _ in range(size))) for n in cut])


@pytest.mark.parametrize("log", LOGS, ids=[log["log"] for log in LOGS])
def test_a_cache_is_as_large_as_the_engine_logged(log, request):
    if log["miss"]:
        request.applymarker(pytest.mark.xfail(reason=log["miss"], strict=True))
    problem, plan = _started(log)
    stage = pl.hardware.capacity(problem, plan).stages[0]
    model, degree = problem.model, len(stage.stage.gpus)
    each = len(stage.stage.layers) * model.kv_bytes / min(degree, model.kv_parts)
    # One token more would take another block of 16 of every sequence.
    held = (stage.context + 1) * problem.workload.batch_size * each / 2**30
    block, logged = 16 * problem.workload.batch_size * each / 2**30, float(log["cache_gib"])
    assert held * 0.9 <= logged <= (held + block) * 1.1


@pytest.mark.parametrize("kind", load_gpus())
def test_vllm_s_script_has_the_chunk_that_its_api_server_would_choose(kind):
    """`EngineArgs.get_batch_defaults` (vllm/engine/arg_utils.py, 0.33.0) goes by memory and by the driver's name."""
    facts = load_gpus()[kind]
    gib, name = facts.memory_gb * 1e9 / 2**30, (facts.driver_names or kind).lower()
    large = gib >= 70 and not re.search("a100|gb10", name)
    chosen = 16384 if gib >= 160 else 8192 if large else 2048
    assert known_memory()["vLLM"].chunk_tokens(pl.GPU(kind, facts.memory_gb)) == chosen


def _random_problem(seed):
    """A problem whose GPUs have room for an engine, or just not; some types are those that rules name."""
    problem = roofline_oracle.random_problem(seed, max_gpus_per_stage=4, same_type_stages=False)
    rng = np.random.default_rng([7, seed])
    names = {
        "A": "A100-SXM-80",
        "B": "RTX5090",
        "C": str(rng.choice(["MI300X", "L4", "RTX-PRO-6000"])),
    }
    more = float(rng.choice([0.7, 1.5, 4.0, 30.0]))
    gpus = tuple(
        dataclasses.replace(gpu, type=names[gpu.type], memory_gb=gpu.memory_gb + more)
        for gpu in problem.cluster.gpus
    )
    facts = {names[name]: own for name, own in problem.costs.gpus.items()}
    costs = dataclasses.replace(problem.costs, gpus=facts, memory_share=float(rng.uniform(0.5, 1)))
    cluster = dataclasses.replace(problem.cluster, gpus=gpus)
    return dataclasses.replace(problem, cluster=cluster, costs=costs), rng


def _random_plan(problem, rng):
    """Layers cut at random, each stage on one GPU."""
    layers = problem.model.layers
    stages = int(rng.integers(1, min(layers, len(problem.cluster)) + 1))
    inner = rng.choice(np.arange(1, layers), stages - 1, replace=False).tolist()
    order = rng.permutation(len(problem.cluster)).tolist()
    sizes = np.diff([0, *sorted(inner), layers]).tolist()
    return pl.Placement.of([(n, (g,)) for n, g in zip(sizes, order, strict=False)])


def _fits(problem, stage, **changes):
    """By the oracle, with another workload."""
    load = dataclasses.replace(problem.workload, **changes)
    gpu, problem = problem.cluster.gpus[stage.gpus[0]], dataclasses.replace(problem, workload=load)
    needed = roofline_oracle.memory_gb(problem, gpu, stage.layers, load.batch_size, 1)
    return needed <= gpu.memory_gb * (1 + 1e-9)


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(100))
def test_memory_with_an_engine_is_the_documented_rule_s(seed):
    """On one GPU and on several that cut layers, one span after the other; and so is what is held."""
    problem, rng = _random_problem(seed)
    load, spans = problem.workload, [range(1)]
    for first in range(problem.model.layers):
        spans.append(range(first, int(rng.integers(first, problem.model.layers)) + 1))
    for engine in known_memory():
        costs = dataclasses.replace(problem.costs, copies=False, runs_on=engine)
        problem = dataclasses.replace(problem, costs=costs, batch_split="even")
        for gpu, span, t in product(problem.cluster.kinds, spans, (1, 2, 4)):
            gpu = dataclasses.replace(gpu, node="n", node_gb_per_s=float(rng.choice([30, 300])))
            cost = costs.stage(problem.model, load, [gpu] * t, span, "even")
            if cost.degree == t and cost.throughput:
                needed = roofline_oracle.memory_gb(problem, gpu, span, load.batch_size, t)
                assert cost.memory_gb == pytest.approx([needed] * t, rel=1e-9)
    engine = str(rng.choice(list(known_memory())))
    problem = dataclasses.replace(problem, costs=dataclasses.replace(costs, runs_on=engine))
    for stage in pl.hardware.capacity(problem, _random_plan(problem, rng)).stages:
        batch = stage.sequences and stage.sequences // load.in_flight
        for field, most in (("sequence_length", stage.context), ("batch_size", batch)):
            if most is not None:
                assert not most or _fits(problem, stage.stage, **{field: most})
                assert not _fits(problem, stage.stage, **{field: most + 1})


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(100))
def test_settings_ask_for_no_more_than_is_held_with_their_engine(seed):
    problem, rng = _random_problem(seed)
    model = dataclasses.replace(problem.model, kv_precision="bf16")
    problem = dataclasses.replace(problem, model=model)
    if rng.random() < 0.5:
        problem = problem.with_in_flight(None)
    plan, load = _random_plan(problem, rng), problem.workload
    for engine in (name for name, rules in known_rules().items() if not rules.trains):
        counted = counting_memory_of(problem, engine)
        try:
            found = EnginePlan.of(problem, plan, engine, None)
        except pl.errors.InvalidPlacement:
            with pytest.raises(pl.errors.InvalidPlacement):
                pl.evaluate(counted, plan)
            continue
        number = found.evaluation.in_flight
        assert found.sequences == load.batch_size * number
        held = pl.hardware.capacity(counted.with_in_flight(number), plan)
        assert held.runs_on == (engine if engine != "transformers" else "")
        assert held.sequences is None or held.sequences >= found.sequences
        assert held.context is None or held.context >= load.sequence_length
        assert found.memory_counts == bool(held.runs_on)
