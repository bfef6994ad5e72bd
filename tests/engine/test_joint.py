"""The joint ILP: its registry, its numbers, its big-M, and its answers against brute force."""

import dataclasses

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab.engine.formulations import joint_ilp_forms as joint
from pipelab.engine.formulations.candidates import enumerate_candidates
from pipelab.engine.formulations.joint_ilp_forms import FORMS, joint_formulation
from pipelab.engine.formulations.program_size import count_candidates
from pipelab.engine.methods import joint as joint_method
from pipelab.engine.methods import single_gpu
from pipelab.engine.methods.joint import (
    joint_lp_bound,
    joint_program,
    joint_size,
)
from pipelab.engine.objective_and_bound import status_and_bound
from pipelab.engine.solvers import scip


@pytest.mark.parametrize(
    ("k", "gb", "how", "bound"),
    [
        (1, 0.5, {"big_m": "as_written"}, 236.7093),
        (2, 0.5, {"big_m": "as_written"}, 329.0797),
        (3, 0.5, {"big_m": "as_written"}, 330.0185),
        (4, 0.5, {"big_m": "as_written"}, 377.4368),
        (2, 0.5, {"form": "tight"}, 301.784),
        (2, 20, {"big_m": "as_written"}, 318.67),
        (2, 20, {"form": "tight"}, 241.94),  # where heavy layers leave 213.52
    ],
)
def test_root_bounds(k, gb, how, bound):
    problem = oracle.heavier(pl.load_case("tiny", max_gpus_per_stage=k), gb)
    assert joint_lp_bound(problem, **how) == pytest.approx(bound, abs=5e-5 if gb < 1 else 5e-3)
    # A valid M for links is smaller here than the write-up's, and so is the bound.
    assert joint_lp_bound(problem) < joint_lp_bound(problem, big_m="as_written")


@pytest.mark.slow
def test_the_write_ups_m_proves_220_where_301_784_is_right(tiny):
    """Where it happens to be large enough its proof counts."""
    enough = pl.solve(tiny, "joint", big_m="as_written")
    assert (enough.status, enough.reason) == ("optimal", "")
    slow = dataclasses.replace(tiny, cluster=tiny.cluster.scaled_bandwidth(1 / 8))
    faulty = pl.solve(slow, "joint", big_m="as_written")
    assert faulty.details["solver_status"] == "optimal"
    assert faulty.details["solver_objective"] == pytest.approx(220.0, abs=1e-4)
    assert faulty.bound >= 301.784 - 1e-9
    assert "SCIP calls 220 optimal" in faulty.reason
    ours = pl.solve(slow, "joint")
    assert (ours.status, ours.throughput) == ("optimal", pytest.approx(301.784))
    nothing = oracle.heavier(slow, 70)
    assert pl.solve(nothing, "joint", big_m="as_written").status == "infeasible"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(40))
def test_the_registry_counts_the_rows_that_are_built(seed, form):
    problem = oracle.random_problem(seed)
    counts = count_candidates(problem)
    if counts["allocations"] == 0:
        pytest.skip("no layer fits any GPU")
    program, _ = joint_program(problem, form)
    rows = {name: len(block) for name, block in program.blocks.items()}
    assert {family.name: family.count(counts) for family in FORMS[form].families} == rows
    assert program.size["rows"] == FORMS[form].size(counts)["rows"]
    assert program.size["variables"] == FORMS[form].size(counts)["variables"]


def _of_gpu(c, g):
    """Which allocations hold a GPU."""
    return c.membership[c.set_of, g].astype(bool)


def _crossing(c, layer):
    return c.start[c.head] == layer


# Every family that `pipelab.joint_ilp` does not state, read from its sentence: what a point of values
# x misses in each row, of the rows A x = b the absolute and of others what is beyond. c are the
# candidates, M the largest rate of a stage and ν no more than that.
MISSES = {
    "flow_out": lambda c, x, M: [abs(x["e"][c.tail == a].sum() - x["z"][a]) for a in np.unique(c.tail)],
    "flow_in": lambda c, x, M: [abs(x["e"][c.head == b].sum() - x["z"][b]) for b in np.unique(c.head)],
    "layer_rate": lambda c, x, M: [
        x["t"][0] - (c.throughput * x["z"])[(c.start <= layer) & (layer < c.stop)].sum()
        for layer in range(c.layers)
    ],
    "boundary_rate": lambda c, x, M: [
        x["t"][0] - (np.minimum(c.link_throughput, M) * x["e"])[_crossing(c, layer)].sum()
        - M * (1 - x["e"][_crossing(c, layer)].sum())
        for layer in range(1, c.layers)
    ],
    "link_forced": lambda c, x, M: x["z"][c.tail] + x["z"][c.head] - 1 - x["e"],
    "gpu_bottleneck": lambda c, x, M: [
        x["t"][0] - (c.throughput * x["z"])[_of_gpu(c, g)].sum() - M * (1 - x["z"][_of_gpu(c, g)].sum())
        for g in range(c.gpus)
    ],
    "twins_in_order": lambda c, x, M: [  # of tiny
        x["z"][_of_gpu(c, g + 1)].sum() - x["z"][_of_gpu(c, g)].sum() for g in (0, 2)
    ],
    "boundary_balance": lambda c, x, M: [
        abs(x["z"][c.start == layer].sum() - x["z"][c.stop == layer].sum())
        for layer in np.unique(c.start[c.start > 0])
    ],
}  # fmt: skip


def test_the_rows_of_every_family_say_what_its_sentence_says(tiny, two_stages):
    """Of the others `tests/equal/test_definitions_placement.py` holds the rows against the definition."""
    rng, read = np.random.default_rng(0), set()
    listed = enumerate_candidates(two_stages)
    segments = single_gpu.segment_candidates(single_gpu.rules(tiny))
    for c, form, program in (
        (listed, FORMS["tight"], joint.build(listed, FORMS["tight"])),
        (segments, joint.ONE_GPU, joint.build(segments, joint.ONE_GPU, most=1e9)),
    ):
        for most, rate in ((2, 1), (400, 1), (2, 1e6)):  # a rate that nothing reaches, too
            x = rng.uniform(0, most, program.columns.total)
            x[program.columns.slices["t"]] *= rate
            point = {group: x[where] for group, where in program.columns.slices.items()}
            for family in set(form.families) - set(FORMS["written"].families):
                block = program.blocks[family.name]
                value = block.matrix @ x
                violation = np.maximum(np.maximum(block.lower - value, value - block.upper), 0)
                missed = MISSES[family.name](c, point, c.throughput.max(initial=0.0))
                assert np.maximum(missed, 0) == pytest.approx(violation, abs=1e-6), family.name
                read.add(family.name)
    assert read == MISSES.keys()


def test_what_is_too_large_is_refused_with_its_counts_and_a_way_out(monkeypatch):
    monkeypatch.setattr(joint_method, "free_gigabytes", lambda: 8.0)
    with pytest.raises(
        pl.errors.TooLarge,
        match=r"345,465 allocations, 4,943,458,540 connections, 9,887,608,011 var",
    ):
        pl.solve(pl.load_case("demo", max_gpus_per_stage=3), "joint")


def test_options_that_do_not_exist_name_the_nearest(tiny):
    for call in (
        lambda: pl.solve(tiny, "joint", form="tigth"),
        lambda: joint_formulation(tiny, "tigth"),
        lambda: joint_lp_bound(tiny, "tigth"),
    ):
        with pytest.raises(pl.errors.UnknownName, match="no form 'tigth'; did you mean 'tight'"):
            call()
    with pytest.raises(pl.errors.UnknownName, match="no big_m 'written'"):
        pl.solve(tiny, "joint", big_m="written")
    with pytest.raises(pl.errors.UnknownName, match="only form='written' has an M"):
        pl.solve(tiny, "joint", form="tight", big_m="as_written")


def test_a_bound_of_scip_that_is_refuted_is_dropped(tiny, monkeypatch):
    """SCIP's bound is below the rate of its placement: the fastest stage is the bound."""
    real = scip.run

    def too_low(program, **options):
        return dataclasses.replace(real(program, **options), bound=150.0)

    monkeypatch.setattr(scip, "run", too_low)
    heavy = oracle.heavier(tiny, 20)
    result = pl.solve(heavy, "joint")
    assert result.throughput > 150
    assert result.status == "feasible"
    assert result.bound == enumerate_candidates(heavy).throughput.max() > result.throughput
    with pytest.raises(pl.PipelabError, match="one of them is wrong"):
        status_and_bound(100.0, 99.0)


def test_more_mixtures_than_can_be_paired_are_refused():
    pool = tuple(pl.GPU(t, 40.0 + i / 64) for i, t in enumerate(["A100", "L20", "A10", "T4"] * 6))
    cluster = pl.Cluster(pool, [[1e3]], [0] * len(pool))
    problem = dataclasses.replace(pl.load_case("tiny"), cluster=cluster, max_gpus_per_stage=6)
    with pytest.raises(pl.errors.TooLarge, match="mixtures of 24 kinds of GPU"):
        joint_size(problem)


@pytest.mark.parametrize("seed", range(60))
def test_rates_over_thirty_orders_of_magnitude(seed):
    problem = oracle.wild_problem(seed)
    alone = dataclasses.replace(problem, max_gpus_per_stage=1)
    asked = [(problem, "joint", {"form": form}) for form in FORMS] + [(alone, "single_gpu", {})]
    for given, method, options in asked:
        truth = oracle.best(given)
        try:
            result = pl.solve(given, method, **options)
        except pl.errors.NotApplicable:  # too far apart
            continue
        assert (result.status == "infeasible") == (truth is None)
        if truth is not None:
            assert result.throughput * (1 - 1e-9) <= truth <= result.bound * (1 + 1e-9)


@pytest.mark.parametrize("share", [1 - 1e-6, 1 - 1e-12, 1 + 1e-6])
def test_memory_at_the_limit_is_evaluated_listed_and_counted_alike(tiny, share):
    need = 4 * 0.5 + tiny.costs.activation_gb(tiny.model, tiny.workload)
    cluster = pl.Cluster.from_counts({"A100": 1}, need * share, {})
    exact, whole = dataclasses.replace(tiny, cluster=cluster), pl.Placement.of([(4, (0,))])
    fits = share > 1 - 1e-9
    assert (4 in enumerate_candidates(exact).size) == fits
    assert count_candidates(exact)["allocations"] == (10 if fits else 9)
    if fits:
        pl.evaluate(exact, whole)
    else:
        with pytest.raises(pl.errors.InvalidPlacement, match="GB on GPU 0"):
            pl.evaluate(exact, whole)
