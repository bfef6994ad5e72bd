"""Layers that differ in weight and work: every exact method agrees with brute force, others refuse."""

import dataclasses
import math

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab import spans
from pipelab.engine.formulations.candidates import enumerate_candidates
from pipelab.spans import spans_from_factors


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(25))
def test_every_exact_method_knows_them(seed):
    problem = oracle.random_problem(seed, layers=4, gpus=3, unlike=True)
    best = oracle.best(problem)
    ways = {
        "joint": {"form": "written" if seed % 5 == 0 else "tight"},
        "exhaustive": {},
        "aggregated": {},
    }
    for method, options in ways.items():
        result = pl.solve(problem, method, **options)
        if best is None:
            assert (method, result.status) == (method, "infeasible")
        else:
            assert (method, result.status) == (method, "optimal")
            assert result.throughput == pytest.approx(best, rel=1e-9)


def test_a_heavy_last_layer_moves_the_cut():
    tiny = pl.load_case("tiny")
    model = dataclasses.replace(tiny.model, layer_weight_gb=20.0)
    even = pl.solve(dataclasses.replace(tiny, model=model), "aggregated")
    heavy_end = dataclasses.replace(model, weight_factors=(1, 1, 1, 3))
    moved = pl.solve(dataclasses.replace(tiny, model=heavy_end), "aggregated")
    assert moved.throughput <= even.throughput
    assert len(moved.placement.stages[-1].layers) < max(
        len(s.layers) for s in moved.placement.stages
    )


@pytest.mark.parametrize(
    ("method", "options"), [("single_gpu", {"segments": "as_run"}), ("type_count", {})]
)
def test_methods_for_identical_layers_refuse(method, options):
    tiny = pl.load_case("tiny")
    different = dataclasses.replace(
        tiny, model=dataclasses.replace(tiny.model, work_factors=(1, 1, 1, 2))
    )
    with pytest.raises(pl.errors.NotApplicable, match="expected identical layers"):
        pl.solve(different, method, **options)
    both = pl.compare(different, [method, "aggregated"], **{method: options})
    assert "identical layers" in both.refused[method]
    assert both.results["aggregated"].status == "optimal"


@pytest.mark.parametrize("seed", range(40))
def test_single_gpu_knows_them(seed):
    problem = oracle.random_problem(seed, layers=4, gpus=3, unlike=True, max_gpus_per_stage=1)
    best, result = oracle.best(problem), pl.solve(problem, "single_gpu")
    assert result.status == ("infeasible" if best is None else "optimal")
    assert best is None or result.throughput == pytest.approx(best, rel=1e-9)
    assert result.size["segments"] == len(enumerate_candidates(problem).start)


def test_spans_with_the_same_layers_in_another_order_are_one_kind():
    spans = spans_from_factors(4, (0.1, 0.2, 0.3, 0.1), None)
    assert spans.kind[0, 2] == spans.kind[1, 2]  # 0.1 + 0.2 + 0.3 and 0.2 + 0.3 + 0.1
    assert spans_from_factors(4, (2.0,) * 4, None).uniform
    assert spans_from_factors(4, (2.0,) * 4, None).weight.tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("spread", [1.0, 1e9])
def test_many_different_layers_add_up_as_each_set_of_them_does(spread):
    layers, rng = 150, np.random.default_rng(3)
    factors = list(rng.uniform(0.5, 1.5, layers))
    factors[10] /= spread
    factors[20:22], factors[60:62] = (0.7, 0.9), (0.9, 0.7)
    spans = spans_from_factors(layers, tuple(factors), None)
    for first, size in ((0, 1), (10, 1), (0, 150), (7, 100), (149, 1)):
        found = spans.weight[spans.kind[first, size - 1]]
        assert found == pytest.approx(math.fsum(factors[first : first + size]), rel=1e-14, abs=0)
    assert spans.kind[20, 1] == spans.kind[60, 1]  # the same set of layers, in another order
    assert len(np.unique(spans.kind[spans.kind >= 0])) == len(spans.weight)
    assert list(spans.layers) == sorted(spans.layers)


def test_a_model_does_not_take_the_spans_of_another_that_had_its_identity(monkeypatch):
    one, other = (pl.Model("m", n, 256, 1024, 0.001) for n in (3, 5))
    monkeypatch.setitem(spans._KNOWN, id(one), (lambda: other, spans.spans_of(other)))
    assert len(spans.spans_of(one).layers) == 3
