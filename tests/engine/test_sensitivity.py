"""Plans where speeds are not as predicted: against all placements, one by one, on grids of speeds."""

import runpy
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from small_problems import divided, every_placement, hourly, mask_of, of_mask, priced, three_types

import oracle
import pipelab as pl
from pipelab import course
from pipelab.costs import filled
from pipelab.engine.speed_costs import with_speeds

SHARES = (0.0, 0.05, 0.1, 0.2, 0.4)


class EvenTimes(pl.LayerTimes):
    """With the promise that makes T + 1 scenarios of T types enough."""

    def mixes_as_slowest(self, problem):
        return problem.batch_split == "even"


def drawn(seed, split="even"):
    """Three or four GPUs of two or three types, four layers, memory and links that bind at times."""
    rng = np.random.default_rng(seed)
    n, kinds = int(rng.integers(3, 5)), "ABC"[: int(rng.integers(2, 4))]
    pool = tuple(pl.GPU(kinds[i % len(kinds)], float(rng.choice([2.5, 4.5]))) for i in range(n))
    matrix = rng.choice([0.01, 0.03, 1.0], (n, n))
    model = pl.Model("m", 4, 1024, 1024, 1.0)
    costs = EvenTimes({kind: float(rng.uniform(5, 20)) for kind in kinds})
    rules = {"max_gpus_per_stage": int(rng.integers(1, 3)), "same_type_stages": seed % 4 == 0}
    load, rules["batch_split"] = pl.Workload(64, 1), split
    problem = pl.Problem(pl.Cluster(pool, matrix), model, load, costs, **rules)
    return problem, {kind: float(rng.choice(SHARES)) for kind in kinds}


def rates(problem, placements, speeds):
    """Tokens/s of full pipelines, a row per placement and a column per speeds, by the docstring of LayerTimes."""
    speeds = {kind: np.array([one[kind] for one in speeds]) for kind in problem.costs.ms_per_layer}
    rows = []
    for placement in placements:
        stages, parts = placement.stages, []
        for stage in stages:
            types = [problem.cluster.gpus[g].type for g in stage.gpus]
            alone = [
                64_000 * speeds[t] / problem.costs.ms_per_layer[t] / len(stage.layers)
                for t in types
            ]
            slowest = len(types) * np.min(alone, axis=0)
            parts.append(slowest if problem.batch_split == "even" else np.sum(alone, axis=0))
        parts += [0 * parts[0] + oracle.link(problem, a.gpus, b.gpus) for a, b in pairwise(stages)]
        rows.append(np.min(parts, axis=0))
    return np.array(rows)


def fitting(problem):
    gpus, mixed = problem.cluster.gpus, not problem.same_type_stages

    def fits(stage):
        types, memory = zip(*((gpus[g].type, gpus[g].memory_gb) for g in stage.gpus), strict=True)
        return len(stage.layers) <= min(memory) and (mixed or len(set(types)) == 1)

    return [one for one in every_placement(problem) if all(map(fits, one.stages))]


@pytest.mark.quick(1)
@pytest.mark.parametrize("split", ["even", "balanced"])
@pytest.mark.parametrize("seed", range(250))
def test_no_placement_keeps_a_larger_share_on_a_grid_of_speeds(seed, split):
    """Of rates: on nine speeds per type with the corners; where batches are split in proportion, on the corners."""
    problem, bands = drawn(seed, split)
    result, placements = pl.solve(problem, objective="rate", within=bands), fitting(problem)
    if not placements:
        assert result.status == "infeasible"
        return
    pure = split == "even" or problem.max_gpus_per_stage == 1 or problem.same_type_stages
    steps = [np.linspace(1 - x, 1 + x, 9 if pure else 2) for x in bands.values()]
    grid = [dict(zip(bands, speeds, strict=True)) for speeds in product(*steps)]
    table = rates(problem, placements, [*grid, dict.fromkeys(bands, 1.0)])
    shares = (table / table.max(axis=0)).min(axis=1)
    assert result.status == "optimal"
    assert 1 - result.objective.value / 100 == pytest.approx(shares.max(), rel=1e-9)
    kept = dict(zip(placements, shares, strict=True))
    assert kept[result.placement] == pytest.approx(shares.max(), rel=1e-9)
    nominal = kept[result.details["nominal"].placement]
    assert 1 - result.details["nominal_lost"] == pytest.approx(nominal, rel=1e-9)


@pytest.mark.quick(1)
@pytest.mark.daily(2)
@pytest.mark.parametrize("filling", ["synchronous", "by_stages", "dynamic", "micro_batches", "one"])
@pytest.mark.parametrize("seed", range(20))
def test_of_what_is_attained_no_share_is_above_the_bound(seed, filling):
    problem, bands = drawn(seed)
    problem = replace(problem, costs=filled(problem.costs, filling))
    result = pl.solve(problem, objective="regret", within=bands)
    if result.placement is None:
        return
    corners = product(*[{1 - x, 1 + x} for x in bands.values()])
    speeds = [dict.fromkeys(bands, 1.0), *(dict(zip(bands, c, strict=True)) for c in corners)]
    others = [replace(problem, costs=with_speeds(problem.costs, one)) for one in speeds]
    placements = fitting(problem)
    values = [[pl.evaluate(one, p).throughput for one in others] for p in placements]
    shares = (np.array(values) / np.max(values, axis=0)).min(axis=1)
    goal = result.objective
    assert shares.max() <= (1 - goal.bound / 100) * (1 + 1e-6)
    mine = shares[placements.index(result.placement)]
    assert 1 - goal.value / 100 == pytest.approx(mine, rel=1e-6)
    assert result.details["nominal_lost"] >= goal.value / 100 - 1e-12


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(20))
def test_a_plan_loses_what_it_loses_against_all_placements_and_turns_where_it_falls_behind(seed):
    problem, bands = drawn(seed)
    placements = fitting(problem)
    if not placements:
        with pytest.raises(pl.errors.InvalidValue, match="problem"):
            pl.sensitivity(problem, objective="rate")
        return
    best = pl.solve(problem, objective="rate")
    found = pl.sensitivity(problem, best, within=bands)

    def loss(what, factor):
        others, _, name = what.rpartition(", ")
        speed = {kind: 1 + share if others else 1.0 for kind, share in bands.items()}
        speed |= {t: factor for t in bands if name in (t, "all GPUs")}
        by = factor if name == "links" else 1.0
        other = replace(problem, cluster=problem.cluster.scaled_bandwidth(by))
        of_best, top = (rates(other, p, [speed]).max() for p in ([best.placement], placements))
        return 1 - of_best / top

    for s in found.scenarios:
        assert s.loss == pytest.approx(max(0.0, loss(s.what, s.factor)), abs=1e-9)
    turned = {(t.what, t.factor > 1): t.factor for t in found.turns}
    most = {**bands, "all GPUs": min(bands.values()), "links": max(bands.values())}
    for what, share in most.items():
        for far in (1 - share, 1 + share) if share else ():
            at = turned.get((what, far > 1), far)
            inside = np.linspace(1, at, 20)[:-1]
            assert all(loss(what, x + (1e-4 if far < 1 else -1e-4)) <= 0.01 + 1e-9 for x in inside)
            assert (loss(what, at) > 0.01) == ((what, far > 1) in turned)
    assert found.covers_all
    other = pl.sensitivity(problem, placements[seed % len(placements)], within=bands)
    assert (
        not other.turns or other.scenarios[0].loss <= 0.01
    )  # behind from the first: it turns nowhere
    steps = [np.linspace(1 - x, 1 + x, 9) for x in bands.values()]
    grid = [dict(zip(bands, speeds, strict=True)) for speeds in product(*steps)]
    table = rates(problem, placements, grid)
    shares = table[placements.index(best.placement)] / table.max(axis=0)
    assert found.worst.loss == pytest.approx(1 - shares.min(), abs=1e-9)


@pytest.mark.quick(1)
@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", range(20))
def test_no_cheaper_fleet_serves_a_load_at_every_speed(seed):
    problem, bands = drawn(seed)
    problem = priced(problem, seed)
    most = pl.deploy(problem).throughput
    if most is None:
        return
    load = most * float(np.random.default_rng(seed).uniform(0.2, 0.9))
    robust, nominal = pl.deploy(problem, load, within=bands), pl.deploy(problem, load)
    corners = list(product(*[(1 - x, 1 + x) for x in bands.values()]))
    totals = []
    for speeds in [corners[0], (1.0,) * len(bands), corners[seed % len(corners)]]:
        costs = with_speeds(problem.costs, dict(zip(bands, speeds, strict=True)))
        other = replace(problem, costs=costs)
        best = [0.0] * (1 << len(problem.cluster))
        for placement in fitting(problem):
            mask = mask_of(placement.gpus)
            best[mask] = max(best[mask], pl.evaluate(other, placement).throughput)
        totals.append(divided(best))
        if robust.pipelines:
            assert pl.evaluate(other, robust).throughput >= load * (1 - 1e-9)
    enough = np.flatnonzero(np.min(totals, axis=0) >= load * (1 + 1e-9)).tolist()
    assert bool(enough) == bool(robust.pipelines)
    if enough:
        cheapest = min(hourly(problem, of_mask(mask)) for mask in enough)
        assert robust.usd_per_hour == pytest.approx(cheapest)
        assert f"costs {cheapest / nominal.usd_per_hour - 1:.1%} more" in robust.sentence.lower()
        found = pl.sensitivity(problem, nominal, within=bands)
        fails = [s.value == np.inf for s in found.scenarios]
        assert any(fails) or cheapest == pytest.approx(nominal.usd_per_hour)


@pytest.mark.nightly
def test_where_limits_are_kept_at_some_speeds_alone_shares_are_lost_and_nothing_fails():
    """Of requests and pools; a challenger that keeps the limits far out may serve nothing on the way there."""
    problem = three_types((1, 2, 2), phase="mixed", batch_size=8, output_tokens=200)
    robust = pl.deploy(
        problem, within=0.1, tpot_ms=100, ttft_ms=5000, pools=True, batches=[8], time_limit=600
    )
    kept = 1 - robust.objective.value / 100
    assert 0 < kept <= 1
    found = pl.sensitivity(problem, robust, within=0.1)
    assert all(0 <= scenario.loss <= 1 for scenario in (*found.scenarios, *found.turns))


def not_dominated(vectors):
    """Rows that no other row exceeds in one number without falling behind in another."""
    rows = np.unique(np.array(vectors), axis=0)
    below = (rows[:, None] <= rows).all(axis=2) & (rows[:, None] < rows).any(axis=2)
    return rows[~below.any(axis=1)]


@pytest.mark.quick(1)
@pytest.mark.daily(2)
@pytest.mark.parametrize("filling", ["synchronous", "by_stages", "dynamic", "micro_batches", "one"])
@pytest.mark.parametrize("seed", range(20))
def test_no_deployment_keeps_more_than_the_bound_and_the_answer_what_it_says(seed, filling):
    problem, bands = drawn(seed)
    problem = replace(problem, costs=filled(problem.costs, filling))
    result = pl.deploy(problem, within=bands, single=seed % 5 == 4)
    if not result.pipelines:
        return
    corners = product(*[{1 - x, 1 + x} for x in bands.values()])
    speeds = [dict.fromkeys(bands, 1.0), *(dict(zip(bands, c, strict=True)) for c in corners)]
    others = [replace(problem, costs=with_speeds(problem.costs, one)) for one in speeds]
    everyone, of_sets = (1 << len(problem.cluster)) - 1, {}
    for placement in fitting(problem):
        attained = [pl.evaluate(one, placement).throughput for one in others]
        of_sets.setdefault(mask_of(placement.gpus), []).append(attained)
    fronts = {0: np.zeros((1, len(others)))}
    for mask in range(1, everyone + 1):  # what all divisions of these GPUs attain
        parts = [one for one in of_sets if one & mask == one and one & mask & -mask]
        sums = [
            np.array(of_sets[one])[:, None] + fronts[0 if result.single else mask ^ one]
            for one in parts
        ]
        rows = [rows.reshape(-1, len(others)) for rows in [fronts[mask & (mask - 1)], *sums]]
        fronts[mask] = not_dominated(np.concatenate(rows))
    top = fronts[everyone].max(axis=0)
    mine = min(
        pl.evaluate(one, result).throughput / best for one, best in zip(others, top, strict=True)
    )
    kept, most = 1 - result.objective.value / 100, 1 - result.objective.bound / 100
    assert kept == pytest.approx(mine, rel=1e-6)
    assert (fronts[everyone] / top).min(axis=1).max() <= most * (1 + 1e-6)
    assert (result.status == "optimal") == (most <= kept * (1 + 1e-5))


def test_a_plan_for_training_turns_by_the_time_of_its_step():
    """And the links, which no speed changes, count as well."""
    tiny = pl.load_case("tiny", link_units="tokens", max_gpus_per_stage=2)
    load = replace(tiny.workload, phase="training", microbatches=4)
    problem = replace(oracle.heavier(tiny, 20.0), workload=load)
    result = pl.solve(problem, objective="step_time")
    found = pl.sensitivity(problem, result, within={"A100": 0.3, "V100": 0.1})
    assert found.scenarios[0].value == pytest.approx(result.objective.value)
    for scenario in (*found.scenarios, *found.turns):
        assert scenario.best.objective.value <= scenario.value * (1 + 1e-9)
        assert (scenario.loss > 0.01) or scenario not in found.turns
    slower = {s.factor: s.value for s in found.scenarios if s.what == "all GPUs"}
    assert slower[0.9] > found.scenarios[0].value > slower[1.1]


def test_what_was_never_compared_and_what_is_no_share_are_refused_by_name():
    for within, told in (("band", "Roofline"), (1, "within"), ({"A10": 0.1}, "A10")):
        for ask in (pl.sensitivity, pl.solve):
            with pytest.raises(pl.errors.InvalidValue, match=told):
                ask(course.three_sites(), within=within)
    for others in (
        {"runs_on": "vLLM"},
        {"batches": [1]},
        {"objective": "cost"},
        {"method": "joint"},
    ):
        with pytest.raises(pl.errors.InvalidValue, match=r"within = 0\.1: expected"):
            pl.solve(course.three_sites(), within=0.1, **others)


@pytest.mark.nightly
def test_the_page_has_what_robust_plans_keep_and_cost():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "within_the_error.md").read_text(encoding="utf-8")
    script = runpy.run_path(str(root / "tests" / "benchmarks" / "price_of_robustness.py"))
    for name, within in product(script["CASES"], (0.1, "band")):
        cells = " | ".join(script["row"](name, within)[:-1])
        assert f"| {cells} |" in page
