"""Plans where GPUs are faster or slower than predicted: against all placements, one by one."""

from dataclasses import replace

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab import course

SEEDS = range(20)


def _problem(seed):
    """Three or four GPUs of two types, four layers, links that bind at times."""
    rng = np.random.default_rng(seed)
    n, kinds = int(rng.integers(3, 5)), ("A", "B")
    pool = tuple(pl.GPU(kinds[i % 2], float(rng.choice([2.5, 4.5]))) for i in range(n))
    matrix = rng.choice([0.05, 1.0], (n, n))
    model = pl.Model("m", 4, 1024, 1024, 1.0)
    costs = pl.LayerTimes({"A": float(rng.uniform(5, 20)), "B": float(rng.uniform(5, 20))})
    most = int(rng.integers(1, 3))
    return pl.Problem(pl.Cluster(pool, matrix), model, pl.Workload(64, 1), costs, most)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_loses_what_it_loses_against_all_placements(seed):
    problem = _problem(seed)
    best = pl.solve(problem)
    if best.placement is None:
        with pytest.raises(pl.errors.InvalidValue, match="problem"):
            pl.sensitivity(problem)
        return
    found = pl.sensitivity(problem, within=0.2)
    named = [(s.gpu_type, round(s.speed, 3)) for s in found.scenarios]
    assert named == [("all", 1.0)] + [(t, x) for t in ("A", "B", "all") for x in (0.8, 1.2)]
    for s in found.scenarios:
        times = {
            t: ms / (s.speed if s.gpu_type in (t, "all") else 1)
            for t, ms in problem.costs.ms_per_layer.items()
        }
        other = replace(problem, costs=pl.LayerTimes(times))
        top = oracle.best(other)
        own = pl.evaluate(other, best.placement).throughput
        assert s.throughput == pytest.approx(own, rel=1e-12)
        assert s.loss == pytest.approx(max(0.0, 1 - own / top), abs=1e-9)
    low, high = found.band
    assert low <= best.throughput <= high
    assert found.worst.loss == max(s.loss for s in found.scenarios)
    assert len(found.to_frame()) == len(found.scenarios)


def test_a_roofline_with_another_speed_takes_so_much_less_time():
    roof = pl.Roofline(engine="kernels")
    own = {"layer_overhead_us": 0.0}
    roof = replace(roof, engines={"kernels": replace(roof.constants, **own)})
    model, gpu = pl.load_model("Llama-3-8B"), pl.GPU("RTX4090", 24)
    for load in (pl.Workload(2048, 1), pl.Workload(2048, 8, "decode")):
        before, after = (
            costs.pass_seconds(model, load, gpu, range(1, 5))
            for costs in (roof, roof.with_speed("RTX4090", 1.25))
        )
        assert before == pytest.approx(1.25 * after)


def test_what_knows_no_other_speed_is_named_and_so_is_a_share_that_is_none():
    with pytest.raises(pl.errors.InvalidValue, match="with_speed"):
        pl.sensitivity(pl.load_case("tiny"))
    with pytest.raises(pl.errors.InvalidValue, match="within"):
        pl.sensitivity(course.three_sites(), within=1)
