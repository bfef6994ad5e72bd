"""The joint ILP: its registry, its numbers, its big-M, and its answers against brute force."""

import dataclasses
import re

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab.engine.formulations import joint_ilp_forms as joint
from pipelab.engine.formulations.candidates import Candidates, enumerate_candidates
from pipelab.engine.formulations.joint_ilp_forms import FORMS, joint_formulation
from pipelab.engine.formulations.program_size import count_candidates
from pipelab.engine.methods import joint as joint_method
from pipelab.engine.methods import single_gpu
from pipelab.engine.methods.joint import (
    joint_capacity,
    joint_lp_bound,
    joint_program,
    joint_size,
)
from pipelab.engine.objective_and_bound import status_and_bound
from pipelab.engine.solvers import scip
from pipelab.files.bundled_folders import notebooks_dir

ANSWERS = {1: 217.52, 2: 301.784, 3: 301.784, 4: 345.4944}


def violations(program, x, tolerance=1e-6):
    """How many rows of each block `x` breaks; blocks that hold are left out."""
    broken = {}
    for name, block in program.blocks.items():
        value = block.matrix @ x
        slack = tolerance * np.maximum(
            1, np.abs(np.where(np.isfinite(block.upper), block.upper, 0))
        )
        number = int(((value < block.lower - slack) | (value > block.upper + slack)).sum())
        if number:
            broken[name] = number
    return broken


def _point(candidates, form, placement):
    """The values of all columns that a placement stands for."""
    columns = FORMS[form].columns(candidates)
    index = {
        (start, stop, candidates.sets[s]): a
        for a, (start, stop, s) in enumerate(
            zip(candidates.start, candidates.stop, candidates.set_of, strict=True)
        )
    }
    z = np.zeros(len(candidates.start))
    for stage in placement.stages:
        z[index[stage.layers.start, stage.layers.stop, stage.gpus]] = 1
    e = ((z[candidates.tail] * z[candidates.head]) > 0).astype(float)
    nu = joint.incidence_of(candidates, FORMS[form]).nu.diagonal()
    rates = [*candidates.throughput[z > 0], *candidates.link_throughput[e > 0]]
    values = {"z": z, "e": e, "tau": candidates.throughput * z, "rho": nu * e, "t": min(rates)}
    x = np.zeros(columns.total)
    for group, where in columns.slices.items():
        x[where] = values[group]
    return x, columns.slices


@pytest.mark.quick(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_tiny(k, form):
    problem = pl.load_case("tiny", max_gpus_per_stage=k)
    result = pl.solve(problem, "joint", form=form)
    assert result.status == "optimal"
    assert result.bound == result.throughput == pytest.approx(ANSWERS[k], rel=1e-12)
    assert pl.evaluate(problem, result.placement).throughput == result.throughput


@pytest.mark.slow
def test_small_with_one_gpu_per_stage():
    result = pl.solve(pl.load_case("small"), "joint", form="tight")
    assert (result.status, result.throughput) == ("optimal", pytest.approx(301.424, rel=1e-12))
    assert [s.gpus for s in result.placement.stages] in ([(8,)], [(9,)])


@pytest.mark.parametrize(
    ("k", "how", "bound"),
    [
        (1, {"big_m": "as_written"}, 236.7093),
        (2, {"big_m": "as_written"}, 329.0797),
        (3, {"big_m": "as_written"}, 330.0185),
        (4, {"big_m": "as_written"}, 377.4368),
        (2, {"form": "tight"}, 301.784),
    ],
)
def test_root_bounds(k, how, bound):
    problem = pl.load_case("tiny", max_gpus_per_stage=k)
    assert joint_lp_bound(problem, **how) == pytest.approx(bound, abs=5e-5)
    # A valid M for links is smaller here than the write-up's, and so is the bound.
    assert joint_lp_bound(problem) < joint_lp_bound(problem, big_m="as_written")


def test_heavy_layers_leave_the_tight_bound_the_better_one(two_stages):
    heavy = oracle.heavier(two_stages, 20)
    assert pl.solve(heavy, "joint").throughput == pytest.approx(213.52)
    assert joint_lp_bound(heavy, big_m="as_written") == pytest.approx(318.67, abs=0.005)
    assert joint_lp_bound(heavy, form="tight") == pytest.approx(241.94, abs=0.005)


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
    assert "That is set aside" in faulty.sentence
    ours = pl.solve(slow, "joint")
    assert (ours.status, ours.throughput) == ("optimal", pytest.approx(301.784))
    assert ours.reason == ""


def test_the_big_m_of_each_form(tiny):
    """M_stage: 1.1 · max θ in the joint ILP, max θ with one GPU per stage."""

    candidates = enumerate_candidates(tiny)
    fastest = candidates.throughput.max()
    written = joint.build(candidates, FORMS["written"])
    assert written.blocks["stage_bottleneck"].upper == pytest.approx(1.1 * fastest)
    segments = single_gpu.listed(single_gpu.rules(tiny))
    original = joint.build(segments, joint.ONE_GPU, most=300.0)
    assert original.blocks["gpu_bottleneck"].upper == pytest.approx(217.52)
    assert segments.throughput.max() == pytest.approx(217.52)


@pytest.mark.slow
def test_values_of_m_are_those_of_the_authors_code(tiny):
    """The write-up states none."""
    slow = dataclasses.replace(tiny, cluster=tiny.cluster.scaled_bandwidth(1 / 8))
    assert "code of the write-up's author" in pl.solve(slow, "joint", big_m="as_written").reason
    root = notebooks_dir().parent
    for path in [
        *root.glob("pipelab/**/*.py"),
        *root.glob("notebooks/**/*.ipynb"),
        root / "notebooks/data.md",
    ]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"write-up's (M\b|letter)|the write-up takes", text), path


def test_a_smaller_m_than_ours_cuts_off_the_best_placement(tiny):
    candidates = enumerate_candidates(tiny)
    x, _ = _point(candidates, "written", pl.Placement.of([(4, (0, 1))]))
    written = FORMS["written"]
    program = joint.build(candidates, written)
    assert violations(program, x) == {}
    for name in ("big_m_stage", "big_m_link"):
        small = dataclasses.replace(
            joint.incidence_of(candidates, written), **{name: 0.9 * candidates.throughput.max()}
        )
        family = {"big_m_stage": "stage_bottleneck", "big_m_link": "link_bottleneck"}[name]
        rows = joint.FAMILIES[family].rows(small, program.columns)
        assert (rows.matrix @ x > rows.upper + 1).any()


@pytest.mark.quick(30)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(40))
def test_the_registry_counts_the_rows_that_are_built(seed, form):
    problem = oracle.random_problem(seed)
    if count_candidates(problem)["allocations"] == 0:
        pytest.skip("no layer fits any GPU")
    program, _ = joint_program(problem, form)
    counts = count_candidates(problem)
    assert {f.name: f.count(counts) for f in FORMS[form].families} == {
        n: len(b) for n, b in program.blocks.items()
    }
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


def _tight_and_original(tiny, two_stages):
    candidates = enumerate_candidates(two_stages)
    yield candidates, FORMS["tight"], joint.build(candidates, FORMS["tight"])
    segments = single_gpu.listed(single_gpu.rules(tiny, as_run=False))
    yield segments, joint.ONE_GPU, joint.build(segments, joint.ONE_GPU, most=1e9)


def test_the_rows_of_every_family_say_what_its_sentence_says(tiny, two_stages):
    """Of the others `tests/equal/test_definitions_placement.py` holds the rows against the definition."""
    rng, read = np.random.default_rng(0), set()
    for candidates, form, program in _tight_and_original(tiny, two_stages):
        for most, rate in ((2, 1), (400, 1), (2, 1e6)):  # a rate that nothing reaches, too
            x = rng.uniform(0, most, program.columns.total)
            x[program.columns.slices["t"]] *= rate
            point = {group: x[where] for group, where in program.columns.slices.items()}
            for family in set(form.families) - set(FORMS["written"].families):
                block = program.blocks[family.name]
                value = block.matrix @ x
                violation = np.maximum(np.maximum(block.lower - value, value - block.upper), 0)
                missed = MISSES[family.name](
                    candidates, point, candidates.throughput.max(initial=0.0)
                )
                assert np.maximum(missed, 0) == pytest.approx(violation, abs=1e-6), family.name
                read.add(family.name)
    assert read == MISSES.keys()


# What to break in a valid point so that a family's rows are broken; (form, family) → change.


SLOW_AS_WRITTEN = (72, 124, 159, 183, 192)  # SCIP takes 3 to 10 s for each


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(160))
def test_both_forms_and_brute_force_agree(seed):
    """Both on every problem but five."""
    problem = oracle.random_problem(seed)
    best = oracle.best(problem)
    for form in ["tight"] if seed in SLOW_AS_WRITTEN else FORMS:
        result = pl.solve(problem, "joint", form=form)
        if best is None:
            assert result.status == "infeasible", (seed, form)
            assert result.reason
            continue
        assert result.status == "optimal", (seed, form)
        assert result.throughput == pytest.approx(best, rel=1e-9), (seed, form)
        assert pl.evaluate(problem, result.placement).throughput == result.throughput


def test_no_layer_fits_says_which_and_how_much(tiny):
    heavy = oracle.heavier(tiny, 90)
    result = pl.solve(heavy, "joint")
    assert (result.status, result.placement, result.throughput) == ("infeasible", None, None)
    assert "layer 1 alone needs 91.64 GB on one GPU (90 GB of weights and 1.635 GB" in result.reason
    assert "GPU 0 (A100), offers 80 GB" in result.reason


def test_a_batch_shared_by_two_can_fit_where_one_cannot(tiny):
    """Activations of 1.635 GB fit only when two GPUs share them; the reason names the share."""
    memory = 0.5 + 1.0
    cluster = pl.Cluster.from_counts({"A100": 1, "V100": 1}, {"A100": memory, "V100": memory}, 100)
    shared = dataclasses.replace(
        tiny, cluster=cluster, model=dataclasses.replace(tiny.model, layers=1)
    )
    assert pl.solve(shared, "joint").status == "optimal"
    smaller = pl.Cluster.from_counts({"A100": 1, "V100": 1}, {"A100": memory, "V100": 1.2}, 100)
    result = pl.solve(dataclasses.replace(shared, cluster=smaller), "joint")
    assert (
        "shared by 2 GPUs it needs 1.318 GB on each, and number 2 by size, GPU 1 (V100), offers 1.2"
        in result.reason
    )


def test_what_is_too_large_is_refused_with_its_counts_and_a_way_out(tiny, monkeypatch):
    monkeypatch.setattr(joint_method, "free_gigabytes", lambda: 8.0)
    with pytest.raises(
        pl.errors.TooLarge,
        match=r"345,465 allocations, 4,943,458,540 connections, 9,887,608,011 var",
    ) as caught:
        pl.solve(pl.load_case("demo", max_gpus_per_stage=3), "joint")
    assert "What would fit: max_gpus_per_stage=1" in str(caught.value)
    assert caught.value.size["variables"] == 9_887_608_011
    monkeypatch.setattr(joint_method, "free_gigabytes", lambda: 1e-4)
    with pytest.raises(pl.errors.TooLarge, match="tiny would have 100 allocations"):
        pl.solve(tiny, "joint")


def test_options_that_do_not_exist_name_the_nearest(tiny):
    with pytest.raises(pl.errors.UnknownName, match="no method 'jiont'; did you mean 'joint'"):
        pl.solve(tiny, "jiont")
    with pytest.raises(
        pl.errors.UnknownName, match="no option 'timelimit'; did you mean 'time_limit'"
    ):
        pl.solve(tiny, "joint", timelimit=3)
    with pytest.raises(pl.errors.UnknownName, match="no form 'tigth'; did you mean 'tight'"):
        pl.solve(tiny, "joint", form="tigth")
    with pytest.raises(pl.errors.UnknownName, match="no big_m 'written'"):
        pl.solve(tiny, "joint", big_m="written")
    with pytest.raises(pl.errors.UnknownName, match="only form='written' has an M"):
        pl.solve(tiny, "joint", form="tight", big_m="as_written")


def test_the_tight_form_fixes_what_nothing_can_follow():
    candidates = enumerate_candidates(pl.load_case("tiny", max_gpus_per_stage=4))
    program = joint.build(candidates, FORMS["tight"])
    all_gpus = [a for a, s in enumerate(candidates.set_of) if len(candidates.sets[s]) == 4]
    whole = [a for a in all_gpus if candidates.size[a] == 4]
    assert program.upper[all_gpus].sum() == len(whole) == 1


def _chain(rates, links, layers=3, memory=4.05, d_hidden=64, workload=(8, 1)):
    """GPUs of the given rates whatever they hold, layers of 2 GB, links in transfers/s."""
    types = {f"G{i}": pl.writeup.Coefficients(0, 0, 0, rate) for i, rate in enumerate(rates)}
    memory = [memory] * len(rates) if np.isscalar(memory) else memory
    model, load = pl.Model("m", layers, 64, d_hidden, 2.0), pl.Workload(*workload)
    tensor = load.batch_size * load.sequence_length * 64 * 2 / 2**30
    gpus = tuple(pl.GPU(t, m) for t, m in zip(types, memory, strict=True))
    cluster = pl.Cluster(gpus, np.array(links, dtype=float) * tensor)
    return pl.Problem(cluster, model, load, pl.writeup.LinearThroughput(types))


@pytest.mark.quick(7)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fast", [1e3, 1e6, 1e10, 1e13])
def test_links_far_faster_than_any_stage_do_not_drown_it(form, fast):
    """Uncapped, a link of 1e10 made SCIP itself prove 1.0 where 31.607 is right."""
    problem = _chain(
        [31.607, 24895.0],
        [[1, 1], [fast, 1]],
        memory=[4.02, 4.06],
        d_hidden=4096,
        workload=(2048, 3),
    )
    program, _ = joint_program(problem, form)
    run = scip.run(program)
    assert (run.status, run.objective) == ("optimal", pytest.approx(31.607))
    result = pl.solve(problem, "joint", form=form)
    assert (result.status, result.throughput) == (
        "optimal",
        pytest.approx(oracle.best(problem), rel=1e-9),
    )


@pytest.mark.slow
def test_a_bound_of_scip_that_is_refuted_is_dropped(tiny, monkeypatch):
    """SCIP's bound is below the rate of its placement: the fastest stage is the bound."""
    tiny, real = dataclasses.replace(tiny, max_gpus_per_stage=2), scip.run

    def too_low(program, **options):
        return dataclasses.replace(real(program, **options), bound=150.0)

    monkeypatch.setattr(scip, "run", too_low)
    heavy = oracle.heavier(tiny, 20)
    result = pl.solve(heavy, "joint")
    assert result.throughput > 150
    assert result.status == "feasible"
    assert result.bound == enumerate_candidates(heavy).throughput.max() > result.throughput


def test_more_mixtures_than_can_be_paired_are_refused():
    pool = tuple(pl.GPU(t, 40.0 + i / 64) for i, t in enumerate(["A100", "L20", "A10", "T4"] * 6))
    cluster = pl.Cluster(pool, [[1e3]], [0] * len(pool))
    problem = dataclasses.replace(pl.load_case("tiny"), cluster=cluster, max_gpus_per_stage=6)
    with pytest.raises(pl.errors.TooLarge, match="mixtures of 24 kinds of GPU"):
        joint_size(problem)
    assert pl.solve(problem).status == "optimal"


@pytest.mark.quick(1)
@pytest.mark.parametrize("form", FORMS)
def test_stages_a_trillion_times_as_fast_as_links(form):
    """SCIP alone calls 1000 optimal: its tolerance swallows the links."""
    rates = np.array([[1.0, 1e3], [1e6, 1.0]])
    cluster = pl.Cluster((pl.GPU("T", 2.001123046875),) * 2, rates * 2.0**-12)
    costs = pl.writeup.LinearThroughput(
        {"T": pl.writeup.Coefficients(0, 0, -1e5, 1e12)}, link_units="transfers"
    )
    model, load = pl.Model("m", 3, 1024, 1024, 1.0), pl.Workload(128, 1)
    problem = pl.Problem(cluster, model, load, costs, 2, same_type_stages=False)
    with pytest.raises(
        pl.errors.NotApplicable, match=r"fastest stage has .*method='aggregated' takes any"
    ):
        pl.solve(problem, "joint", form=form)
    answer = pl.solve(problem, "aggregated")
    assert (answer.status, answer.throughput) == (
        "optimal",
        pytest.approx(oracle.best(problem), rel=1e-12),
    )
    assert answer.throughput == pytest.approx(1e6)


@pytest.mark.parametrize("seed", range(60))
def test_rates_over_thirty_orders_of_magnitude(seed):
    problem = oracle.wild_problem(seed)
    truth = oracle.best(problem)
    for form in FORMS:
        try:
            result = pl.solve(problem, "joint", form=form)
        except pl.errors.NotApplicable:  # too far apart
            continue
        assert (result.status == "infeasible") == (truth is None)
        if truth is not None:
            assert result.throughput * (1 - 1e-9) <= truth <= result.bound * (1 + 1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("slow", [1e-1, 1e-3])
def test_links_far_slower_than_any_stage_are_still_solved(form, slow):
    rng = np.random.default_rng(0)
    problem = _chain([200.0, 210.0, 220.0], slow * rng.uniform(1, 3, (3, 3)), layers=3, memory=2.05)
    result = pl.solve(problem, "joint", form=form)
    best = oracle.best(problem)
    assert result.throughput <= best * (1 + 1e-9)
    assert (
        best * (1 - 1e-9) <= result.bound <= best + 2e-6 * 220
    )  # SCIP's tolerance, of the fastest


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("apart", [1e-4, 1e-7, 1e-9, 1e-11])
def test_near_ties_are_not_called_optimal(form, apart):
    """Closer than SCIP tells apart: the better one is the bound, and only the better one is the optimum."""
    problem = _chain([100.0, 100.0 * (1 + apart)], [[1e4, 1e4], [1e4, 1e4]], layers=1)
    result, best = pl.solve(problem, "joint", form=form), 100.0 * (1 + apart)
    assert result.bound == pytest.approx(best, rel=1e-9)
    assert (result.status == "optimal") == (result.throughput >= best * (1 - 1e-9))
    assert result.status == "optimal" or apart < 1e-6


def test_the_write_ups_m_on_an_infeasible_problem_says_infeasible(tiny):
    heavy = oracle.heavier(tiny, 70)
    slow = dataclasses.replace(heavy, cluster=tiny.cluster.scaled_bandwidth(1 / 8))
    assert pl.solve(slow, "joint", big_m="as_written").status == "infeasible"


def test_a_bound_below_the_placement_is_an_error_and_never_a_proof():
    with pytest.raises(pl.PipelabError, match="one of them is wrong"):
        status_and_bound(100.0, 99.0)
    assert status_and_bound(100.0, 100.0 * (1 + 1e-9)) == ("feasible", 100.0 * (1 + 1e-9))
    assert status_and_bound(100.0, None) == ("feasible", None)


@pytest.mark.slow
def test_what_a_faulty_m_proved_never_becomes_a_bound(tiny, monkeypatch):
    asked = []
    rate_at_most = Candidates.rate_at_most
    monkeypatch.setattr(
        Candidates, "rate_at_most", lambda self, b: asked.append(b) or rate_at_most(self, b)
    )
    slow = dataclasses.replace(tiny, cluster=tiny.cluster.scaled_bandwidth(1 / 12))
    result = pl.solve(slow, "joint", big_m="as_written")
    assert asked == [None]
    assert result.status == "feasible"
    assert result.throughput == pytest.approx(193.147, abs=5e-4)
    assert result.bound == pytest.approx(301.784)


@pytest.mark.parametrize("share", [1 - 1e-6, 1 - 1e-12, 1 + 1e-6])
def test_memory_at_the_limit_is_evaluated_listed_and_counted_alike(tiny, share):
    need = 4 * 0.5 + tiny.costs.activation_gb(tiny.model, tiny.workload)
    cluster = pl.Cluster.from_counts({"A100": 1}, need * share, {})
    exact = dataclasses.replace(tiny, cluster=cluster)
    fits = share > 1 - 1e-9
    assert (4 in enumerate_candidates(exact).size) == fits
    assert count_candidates(exact)["allocations"] == (10 if fits else 9)
    if fits:
        pl.evaluate(exact, pl.Placement.of([(4, (0,))]))
    else:
        with pytest.raises(pl.errors.InvalidPlacement, match="GB on GPU 0"):
            pl.evaluate(exact, pl.Placement.of([(4, (0,))]))


def test_forms_with_a_typo_are_refused_everywhere(tiny):
    for call in (
        lambda: joint_formulation(tiny, "tigth"),
        lambda: joint_capacity("tigth"),
        lambda: joint_lp_bound(tiny, "tigth"),
    ):
        with pytest.raises(pl.errors.UnknownName, match="did you mean 'tight'"):
            call()
