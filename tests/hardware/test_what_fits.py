"""What a plan holds is what the evaluator lets pass; the mixes of a node are placements of its GPUs."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

import pipelab as pl
import roofline_oracle


def _fits(problem, plan, **changes):
    """By the evaluator."""
    workload = dataclasses.replace(problem.workload, **changes)
    try:
        pl.evaluate(dataclasses.replace(problem, workload=workload), plan)
    except pl.errors.InvalidPlacement:
        return False
    return True


def _random_plan(problem, rng):
    """Layers and GPUs cut at random."""
    layers, gpus = problem.model.layers, len(problem.cluster)
    stages = int(rng.integers(1, min(layers, gpus) + 1))
    cuts = [0, *sorted(int(c) for c in rng.choice(range(1, layers), stages - 1, False)), layers]
    order = [int(g) for g in rng.permutation(gpus)]
    parts = np.array_split(order[: int(rng.integers(stages, gpus + 1))], stages)
    spans = [b - a for a, b in pairwise(cuts)]
    return pl.Placement.of([(n, tuple(map(int, p))) for n, p in zip(spans, parts, strict=True)])


def _compare_with_the_evaluator(problem, plan, held, most=10**6):
    """Both numbers, and which stage limits them; at the limit, below it, and one beyond."""
    problem = problem.with_in_flight(held.workload.in_flight)
    batch = held.sequences and held.sequences // problem.workload.in_flight
    for field, last in (("sequence_length", held.context), ("batch_size", batch)):
        if last is None:
            assert _fits(problem, plan, **{field: most})
            continue
        below = {n for n in (last, last - 1, last // 2, last // 3, 1) if 1 <= n <= last}
        assert all(_fits(problem, plan, **{field: n}) for n in below)
        assert not _fits(problem, plan, **{field: last + 1})
    frame = held.to_frame()
    for name, column in (("context", "longest_context_tokens"), ("sequences", "most_sequences")):
        least = frame[column].min()
        assert least == (float("inf") if getattr(held, name) is None else getattr(held, name))
        limits = frame["limits"].str.contains(name)
        assert (limits == ((frame[column] == least) & np.isfinite(frame[column]))).all()


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(40))
def test_what_is_held_is_what_the_evaluator_lets_pass(seed):
    problem = roofline_oracle.random_problem(seed, max_gpus_per_stage=4, same_type_stages=False)
    plan = _random_plan(problem, np.random.default_rng(seed))
    held = pl.hardware.capacity(problem, plan)
    assert _fits(problem, plan) == all(
        value is None or value >= mine
        for value, mine in (
            (held.context, problem.workload.sequence_length),
            (held.sequences, problem.workload.batch_size * held.workload.in_flight),
        )
    )
    _compare_with_the_evaluator(problem, plan, held)


def test_nothing_is_held_where_weights_alone_are_too_large():
    cluster, model = pl.Cluster.from_counts({"L4": 1}, 24, 10), pl.load_model("Llama-3-70B")
    problem = pl.Problem(cluster, model, pl.Workload(8, 1, "decode"), pl.Roofline())
    held = pl.hardware.capacity(problem, pl.Placement.of([(80, (0,))]))
    assert (held.context, held.sequences) == (0, 0)
    with pytest.raises(pl.errors.InvalidPlacement, match="left out"):
        pl.hardware.capacity(problem, pl.Placement.of([(79, (0,))]))
    with pytest.raises(pl.errors.InvalidValue, match="placement = 3: expected a Placement"):
        pl.hardware.capacity(problem, 3)


@pytest.mark.parametrize("phase", ["decode", "prefill", "mixed"])
@pytest.mark.parametrize(("name", "precision"), [("Llama-3-8B", "bf16"), ("DeepSeek-V3", "fp8")])
def test_the_mixes_of_a_node_are_placements(phase, name, precision):
    """Each mix that the evaluator would run the same way has its rate, time and memory."""
    gpu = pl.GPU("H200-SXM", 141, node="node", node_gb_per_s=450)
    model = dataclasses.replace(pl.load_model(name, precision=precision), layers=8)
    load, costs = pl.Workload(2048, 24, phase, 256), pl.Roofline()
    table = pl.hardware.node_mixes(costs, model, load, gpu, 8)
    mixes = table[["tensor_parallel", "stages", "replicas"]]
    assert (mixes.prod(axis=1) == 8).all()
    assert len(mixes.drop_duplicates()) == len(table) == 10
    compared = 0
    for row in table.itertuples():
        t, batch = row.tensor_parallel, -(-24 // (row.replicas * row.stages))
        assert row.sequences == batch * row.stages * row.replicas >= 24
        own = pl.Workload(2048, batch, phase, 256, in_flight=row.stages)
        cluster = pl.Cluster((gpu,) * t * row.stages, np.full((t * row.stages,) * 2, 450.0))
        problem = pl.Problem(cluster, model, own, costs, max_gpus_per_stage=8)
        times = [costs.pass_seconds(model, own, gpu, range(i, i + 1), t) for i in range(8)]
        parts = enumerate(pl.splits.split_minmax(times, row.stages))
        plan = pl.Placement.of([(len(s), tuple(range(t * i, t * i + t))) for i, s in parts])
        try:
            report = pl.evaluate(problem, plan)
        except pl.errors.InvalidPlacement:
            assert not row.fits
            continue
        if any(stage.degree != t for stage in report.stages):
            continue
        compared += 1
        needed = max(gb for stage in report.stages for gb in stage.memory_gb)
        turn = max(report.seconds_per_pass, row.stages * own.tokens / report.throughput)
        rate = row.replicas * row.stages * own.tokens / turn
        assert row.fits
        found = (row.memory_needed_gb, row.seconds_per_turn, row.tokens_per_s)
        assert found == pytest.approx((needed, turn, rate), rel=1e-9)
    assert compared >= 4


def test_a_node_that_cannot_be_shared_is_refused():
    gpu = pl.GPU("H200-SXM", 141, node="node", node_gb_per_s=450)
    llama, load = pl.load_model("Llama-3-8B"), pl.Workload(2048, 8, "decode")
    other = dataclasses.replace(gpu, type="H3000")
    for one, message in ((pl.GPU("L4", 24), "a GPU with a node"), (other, r"gpu\.type")):
        with pytest.raises(pl.errors.InvalidValue, match=message):
            pl.hardware.node_mixes(pl.Roofline(), llama, load, one, 8)
    # Seven GPUs cut no layer of 32 heads, but may be seven stages or replicas.
    found = pl.hardware.node_mixes(pl.Roofline(), llama, load, gpu, 7)
    assert sorted(found["stages"]) == [1, 7]
    assert set(found["tensor_parallel"]) == {1}


def test_other_cost_models_are_asked_too(tiny):
    plan = pl.solve(tiny, "aggregated").placement
    _compare_with_the_evaluator(tiny, plan, pl.hardware.capacity(tiny, plan))
