"""The evaluator accepts what is right to the last digit and refuses everything else."""

import dataclasses
from itertools import pairwise

import pytest

import oracle
import pipelab as pl
from pipelab.placement import Stage
from pipelab.writeup.linear_rates import with_link_units


def test_a_two_stage_placement_of_tiny(tiny):
    found = pl.evaluate(tiny, pl.Placement.of([(2, (0, 1)), (2, (2,))]))
    pair = 0.85 * 2 * (-20.48 + 5 * 8 + 2 * 2 + 150)
    single = -16.384 + 3 * 16 + 1.5 * 2 + 100
    assert [s.throughput for s in found.stages] == pytest.approx([pair, single], rel=1e-12)
    assert found.links[0].throughput == 200 / 0.25
    assert found.throughput == pytest.approx(single, rel=1e-12)
    assert found.bottlenecks == ("stage 2",)


def test_the_slowest_pair_of_gpus_makes_the_link():
    cluster = pl.Cluster.from_counts({"A100": 2, "V100": 1}, 80, 400)
    matrix = cluster.bandwidth_matrix().copy()
    matrix[1, 2] = 3.0
    problem = dataclasses.replace(
        pl.load_case("tiny", max_gpus_per_stage=2), cluster=pl.Cluster(cluster.gpus, matrix)
    )
    found = pl.evaluate(problem, pl.Placement.of([(2, (0, 1)), (2, (2,))]))
    assert (found.links[0].sender, found.links[0].receiver, found.links[0].throughput) == (
        1,
        2,
        12.0,
    )
    assert found.bottlenecks == ("link 1→2",)
    back = pl.evaluate(problem, pl.Placement.of([(2, (2,)), (2, (0, 1))]))
    assert back.links[0].throughput == 1600  # the other direction is fast


def test_tokens_count_what_a_transfer_carries(tiny):
    tokens = with_link_units(tiny, "tokens")
    placement = pl.Placement.of([(2, (0,)), (2, (2,))])
    ratio = (
        pl.evaluate(tokens, placement).links[0].throughput
        / pl.evaluate(tiny, placement).links[0].throughput
    )
    assert ratio == 16 * 2048


def test_equal_bottlenecks_are_all_named(two_stages):
    found = pl.evaluate(two_stages, pl.Placement.of([(2, (0,)), (2, (1,))]))
    assert found.bottlenecks == ("stage 1", "stage 2")


REFUSED = {
    "layer left out at the end": (
        [(3, (0,))],
        "layer 4 is not assigned to any stage, left out at the end",
    ),
    "layers beyond the model": ([(5, (0,))], "stage 1 has layers 1–5; the model has layers 1–4"),
    "gpu twice": ([(2, (0,)), (2, (0,))], r"GPU 0 is used more than once"),
    "gpu twice in a stage": ([(4, (0, 0))], r"GPU 0 is used more than once"),
    "id out of range": ([(4, (4,))], r"stage 1 uses GPU 4; the cluster has ids 0–3"),
    "negative id": ([(4, (-1,))], r"uses GPU -1"),
    "too many gpus": ([(4, (0, 1, 2))], "stage 1 has 3 GPUs, more than max_gpus_per_stage = 2"),
    "no gpu": ([(4, ())], "stage 1 has no GPU"),
    "no stage": ([], "layers 1–4 are not assigned to any stage, left out at the end"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_placement_is_refused(name, tiny):
    parts, message = REFUSED[name]
    with pytest.raises(pl.errors.InvalidPlacement, match=message):
        pl.evaluate(tiny, pl.Placement.of(parts))


def test_layers_left_out_or_covered_twice_inside_are_refused(tiny):
    gap = pl.Placement((Stage(range(0, 1), (0,)), Stage(range(2, 4), (1,))))
    with pytest.raises(
        pl.errors.InvalidPlacement,
        match="layer 2 is not assigned to any stage, left out before stage 2",
    ):
        pl.evaluate(tiny, gap)
    twice = pl.Placement((Stage(range(0, 3), (0,)), Stage(range(2, 4), (1,))))
    with pytest.raises(pl.errors.InvalidPlacement, match="stage 2 covers layer 3 once more"):
        pl.evaluate(tiny, twice)
    backwards = pl.Placement((Stage(range(2, 4), (0,)), Stage(range(0, 2), (1,))))
    with pytest.raises(pl.errors.InvalidPlacement):
        pl.evaluate(tiny, backwards)


def test_layers_are_counted_from_1_wherever_a_placement_is_written():
    placement = pl.Placement.of([(2, (0,)), (2, (1,))])
    assert placement.to_dict()["stages"] == [
        {"first_layer": 1, "last_layer": 2, "gpus": [0]},
        {"first_layer": 3, "last_layer": 4, "gpus": [1]},
    ]
    assert "layers 3–4 on [1]" in str(placement)


def test_memory_exceeded_is_refused_with_its_numbers(two_stages):
    with pytest.raises(
        pl.errors.InvalidPlacement, match=r"needs 101.6 GB on GPU 0 \(A100\), which has 80 GB"
    ):
        pl.evaluate(two_stages, pl.Placement.of([(4, (0,))]))


def test_memory_that_fits_exactly_is_accepted(tiny):
    need = 4 * 0.5 + tiny.costs.activation_gb(tiny.model, tiny.workload)
    exact = dataclasses.replace(tiny, cluster=pl.Cluster.from_counts({"A100": 1}, need, {}))
    assert pl.evaluate(exact, pl.Placement.of([(4, (0,))])).throughput == pytest.approx(217.52)


def test_mixed_stages_are_refused_where_the_rules_say_so(tiny):
    typed = dataclasses.replace(tiny, same_type_stages=True)
    with pytest.raises(pl.errors.InvalidPlacement, match="stage 1 mixes A100, V100"):
        pl.evaluate(typed, pl.Placement.of([(4, (0, 2))]))


def test_all_defects_are_listed(tiny):
    with pytest.raises(pl.errors.InvalidPlacement) as caught:
        pl.evaluate(tiny, pl.Placement.of([(1, (0,)), (1, (0, 9))]))
    assert len(caught.value.defects) == 3


def test_the_evaluator_shares_no_code_with_any_formulation():
    import ast
    import pathlib

    tree = ast.parse(pathlib.Path(pl.evaluate.__code__.co_filename).read_text())
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    library = {"collections", "collections.abc", "dataclasses", "itertools", "pandas", "typing"}
    ours = {f"pipelab.{name}" for name in ("costs", "display", "errors", "placement", "problem")}
    assert modules <= library | ours


@pytest.mark.parametrize("seed", range(60))
def test_the_evaluator_agrees_with_the_oracle(seed):
    import numpy as np

    rng = np.random.default_rng(seed)
    problem = oracle.random_problem(seed)
    order = rng.permutation(len(problem.cluster))
    cuts = sorted(
        rng.choice(
            np.arange(1, problem.model.layers), min(len(order), problem.model.layers) - 1, False
        )
    )
    bounds = [0, *map(int, cuts), problem.model.layers]
    parts = [(b - a, (int(g),)) for a, b, g in zip(bounds, bounds[1:], order, strict=False)]
    spans = [range(a, b) for a, b in pairwise(bounds)]
    rates = [
        oracle.stage(problem, gpus, span) for span, (_, gpus) in zip(spans, parts, strict=False)
    ]
    if None in rates:
        with pytest.raises(pl.errors.InvalidPlacement, match="GB"):
            pl.evaluate(problem, pl.Placement.of(parts))
        return
    rates += [oracle.link(problem, a[1], b[1]) for a, b in pairwise(parts)]
    assert pl.evaluate(problem, pl.Placement.of(parts)).throughput == pytest.approx(
        min(rates), rel=1e-9
    )
