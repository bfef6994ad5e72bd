"""The road to the ILP: rules of thumb, exhaustive search, the single-GPU MILP, the heuristic that failed."""

import dataclasses
import signal
import threading

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab import course
from pipelab.engine.formulations.joint_ilp_forms import twins
from pipelab.engine.methods import single_gpu
from pipelab.engine.methods.counts_and_averages import build as build_type_count
from pipelab.engine.methods.counts_and_averages import list_options, most_layers
from pipelab.engine.methods.exhaustive import count_placements
from pipelab.engine.methods.single_gpu import single_gpu_size
from pipelab.engine.solvers import scip


@pytest.mark.slow
def test_every_method_returns_one_kind_of_answer(tiny):
    for method, result in pl.compare(tiny).results.items():
        assert isinstance(result, pl.Result), method
        assert result.method == method
        if result.placement:
            assert pl.evaluate(tiny, result.placement).throughput == result.throughput


def test_tiny_has_340_placements():
    problem = pl.load_case("tiny", max_gpus_per_stage=2)
    assert count_placements(problem) == {1: 10, 2: 126, 3: 180, 4: 24}
    assert pl.solve(problem, "exhaustive").size["placements"] == 340


@pytest.mark.parametrize("seed", range(60))
def test_counting_placements_equals_listing_them(seed):
    problem = oracle.random_problem(seed, layers=4, gpus=4)
    roomy = tuple(pl.GPU(g.type, 1e6) for g in problem.cluster.gpus)
    problem = dataclasses.replace(
        problem, cluster=pl.Cluster(roomy, problem.cluster.bandwidth_matrix())
    )
    sets, layers = list(oracle.gpu_sets(problem)), problem.model.layers

    def count(done, used):
        if done == layers:
            return 1
        free = [s for s in sets if not used & set(s)]
        return sum(
            count(done + n, used | set(s)) for s in free for n in range(1, layers - done + 1)
        )

    assert sum(count_placements(problem).values()) == count(0, frozenset())


@pytest.mark.parametrize("seed", range(500))
def test_exhaustive_equals_the_oracle(seed):
    problem = oracle.random_problem(seed)
    best, result = oracle.best(problem), pl.solve(problem, "exhaustive")
    if best is None:
        assert result.status == "infeasible"
        assert result.reason
    else:
        assert (result.status, result.throughput) == ("optimal", pytest.approx(best, rel=1e-9))


def test_too_many_placements_are_refused_with_their_number():
    with pytest.raises(
        pl.errors.TooLarge, match="small has 48,341,594,125 placements, more than limit=1,000,000"
    ):
        pl.solve(pl.load_case("small", max_gpus_per_stage=2), "exhaustive")


@pytest.mark.slow
def test_a_stopped_search_keeps_its_best():
    stop = threading.Event()
    stop.set()
    result = pl.solve(pl.load_case("tiny", max_gpus_per_stage=2), "exhaustive", stop=stop)
    assert (result.status, result.stopped_by) == ("unknown", "stop")
    small = pl.load_case("small")
    heavy = oracle.heavier(small, 20)
    result = pl.solve(heavy, "exhaustive", limit=10**18, time_limit=0.2)
    assert (result.status, result.stopped_by) == ("feasible", "time limit")
    assert result.throughput < result.bound
    assert result.reason == f"{result.details['tried']:,} of 1,757,211,400 placements were tried"
    assert 0 < result.details["tried"] < 1_757_211_400


def test_an_interrupted_search_keeps_its_best():
    class Pressed(threading.Event):
        looked = 0  # at each GPU set, and then about once in a thousand steps

        def is_set(self):
            self.looked += 1
            if self.looked == 60:
                signal.raise_signal(signal.SIGINT)
            return False

    small, pressed = pl.load_case("small"), Pressed()
    heavy = oracle.heavier(small, 20)
    result = pl.solve(heavy, "exhaustive", limit=10**18, time_limit=60, stop=pressed)
    assert (result.status, result.stopped_by, pressed.looked) == ("feasible", "interrupt", 60)
    assert pl.evaluate(heavy, result.placement).throughput == result.throughput < result.bound


def test_a_search_ends_where_its_bound_is_reached():
    """On medium_small the fastest stage holds all layers: nothing can be better, so nothing more is tried."""

    class Impatient(threading.Event):
        asked = 0  # about once in a thousand steps

        def is_set(self):
            self.asked += 1
            assert self.asked < 100, "still searching"
            return False

    result = pl.solve(pl.load_case("medium_small"), "exhaustive", limit=10**18, stop=Impatient())
    assert (result.status, result.throughput) == ("optimal", pytest.approx(249.52))
    assert result.stopped_by is None


def test_an_exhaustive_search_says_how_many_placements_it_tried(tiny):
    early = pl.solve(tiny, "exhaustive")
    assert (early.size["placements"], early.details["tried"]) == (340, 5)
    ending = (
        "5 of 340 placements were tried: none can be faster than the fastest stage, 301.8 tokens/s"
    )
    assert early.reason == ending
    assert ending in early.sentence
    whole = pl.solve(tiny, "exhaustive", stop_at_bound=False)
    assert (whole.details["tried"], whole.reason) == (340, "all 340 placements were tried")
    assert whole.throughput == early.throughput
    assert whole.status == early.status == "optimal"


def test_placements_that_do_not_fit_are_not_counted_as_tried(tiny):
    """With 20 GB a layer a V100 holds one, so some placements do not fit; the others are listed by the oracle."""
    heavy = oracle.heavier(tiny, 20)
    fitting = sum(1 for _ in oracle.placements(heavy))
    result = pl.solve(heavy, "exhaustive", stop_at_bound=False)
    assert 0 < fitting < 340
    assert result.details["tried"] == fitting
    assert result.reason == f"all {fitting} placements that fit were tried, of 340"


# The original MILP.


def test_the_authors_run_on_medium_is_counted_to_the_row():
    size = single_gpu_size(pl.load_case("medium"), segments="as_run")
    assert (size["segments"], size["connections"]) == (5_740, 312_210)
    assert (size["variables"], size["rows"]) == (630_291, 1_568_029)
    tiny = single_gpu_size(pl.load_case("tiny"), segments="as_run")
    assert (tiny["segments"], tiny["connections"], tiny["variables"]) == (40, 120, 289)


def _usable(candidates):
    """Segments that lie on some run of segments from the first layer to the last, whatever they need."""
    ahead, back = {0}, {candidates.layers}
    ends = sorted(set(zip(candidates.start.tolist(), candidates.stop.tolist(), strict=True)))
    for start, stop in ends:  # by start
        if start in ahead:
            ahead.add(stop)
    for start, stop in reversed(ends):
        if stop in back:
            back.add(start)
    return np.isin(candidates.start, [*ahead]) & np.isin(candidates.stop, [*back])


def test_most_segments_of_the_authors_run_can_never_be_used():
    candidates = single_gpu.listed(single_gpu.rules(pl.load_case("medium"), as_run=True))
    usable = _usable(candidates)
    assert int(usable.sum()) == 1_175
    assert int((usable[candidates.tail] & usable[candidates.head]).sum()) == 63_410
    types = {candidates.problem.cluster.gpus[g].type for g in candidates.set_of[usable]}
    assert types == {"A100", "L20", "A40", "V100"}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("case", "segments", "status", "throughput"),
    [
        ("tiny", "as_run", "optimal", 217.52),
        ("tiny", "all", "optimal", 217.52),
        ("small", "as_run", "optimal", 301.424),
        ("small", "all", "optimal", 301.424),
        ("medium", "as_run", "feasible", 262.336),
    ],
)
def test_the_original_milp(case, segments, status, throughput):
    result = pl.solve(pl.load_case(case), "single_gpu", segments=segments, time_limit=120)
    assert (result.status, result.throughput) == (status, pytest.approx(throughput, rel=1e-12))
    assert result.bound == pytest.approx(
        {"tiny": 217.52, "small": 301.424, "medium": 264.236}[case]
    )
    if status == "feasible":
        assert result.details["solver_status"] == "optimal"
        assert "Best among the segments of the author's run" in result.sentence


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2])
def test_the_segments_of_the_authors_run_say_what_they_lead_to(most):
    """A remark is kept where stages may have more GPUs, and "best" is said of a placement only."""
    medium, small = (
        pl.load_case("medium", max_gpus_per_stage=most),
        pl.load_case("small", max_gpus_per_stage=most),
    )

    def as_run(problem, gb):
        heavy = oracle.heavier(problem, gb)
        return pl.solve(heavy, "single_gpu", segments="as_run")

    best, none = as_run(small, 10.0), as_run(medium, 9.0)
    misfit = pl.solve(
        oracle.random_problem(13, max_gpus_per_stage=most), "single_gpu", segments="as_run"
    )
    # B holds all layers but one, C the last, over a slow link; A, on a fast link, not even that
    # one.
    costs = pl.writeup.LinearThroughput(
        {name: pl.writeup.Coefficients(0, 0, 0, 9) for name in "ABC"}
    )
    trio = pl.Cluster(
        tuple(map(pl.GPU, "ABC", (0.5, 8.2, 1.2))), [[1e9, 1e9, 1e-6]] * 2 + [[1e-6, 1e-6, 1e9]]
    )
    nine = pl.Problem(
        trio,
        pl.Model("nine", 9, 1, 1, 1.0),
        pl.Workload(1, 1),
        costs,
        max_gpus_per_stage=most,
        same_type_stages=False,
    )
    fewer = pl.solve(nine, "single_gpu", segments="as_run")
    results = (best, none, misfit, fewer)
    assert [(r.status, r.details["solver_status"]) for r in results] == [
        ("feasible", "optimal"),
        ("unknown", "infeasible"),
        ("unknown", "optimal"),
        ("unknown", "optimal"),
    ]
    assert "best among the segments of the author's run" in best.reason
    assert "no placement consists of segments of the author's run" in none.reason
    assert "SCIP's choice does not fit: stage " in misfit.reason
    assert "needs 1 GB on GPU 0 (A), which has 0.5 GB" in fewer.reason
    for result in results:
        assert result.reason.startswith("with one GPU per stage: ") == (most == 2)
        assert result.reason.endswith("; more per stage may be faster") == (most == 2)
        assert ("best among" in result.reason) == (result is best)


@pytest.mark.slow
def test_medium_without_the_restrictions():
    result = pl.solve(pl.load_case("medium"), "single_gpu", time_limit=300)
    assert result.throughput <= result.bound == pytest.approx(264.236)
    assert (result.status, result.throughput) == ("optimal", pytest.approx(264.236, rel=1e-12))


def test_the_rows_as_written_are_counted():
    """As the model is stated: rows per GPU, per connection, per segment with a neighbour, and the others."""
    for seed in range(40):
        problem = oracle.random_problem(seed, max_gpus_per_stage=1)
        chosen = single_gpu.rules(problem, as_run=bool(seed % 2))
        c, size = single_gpu.listed(chosen), single_gpu.size(chosen)
        assert (size["segments"], size["connections"]) == (len(c.start), len(c.tail))
        followed, preceded = len(np.unique(c.tail)), len(np.unique(c.head))
        per_gpu, per_link = ("capacity", "u", "tau", "bottleneck"), 5
        others = c.layers + 1 + 1 + len(twins(problem)) + len(np.unique(c.start[c.start > 0]))
        rows = len(per_gpu) * c.gpus + per_link * len(c.tail) + followed + preceded + others
        assert size["rows"] == rows
        assert size["variables"] == len(c.start) + 2 * len(c.tail) + 2 * c.gpus + 1


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(120))
def test_the_original_milp_equals_brute_force(seed):
    problem = oracle.random_problem(seed, max_gpus_per_stage=1)
    best, result = oracle.best(problem), pl.solve(problem, "single_gpu")
    if best is None:
        assert result.status == "infeasible"
    else:
        assert (result.status, result.throughput) == ("optimal", pytest.approx(best, rel=1e-9))


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
def test_the_original_milp_with_rates_over_thirty_orders_of_magnitude(seed):
    problem = dataclasses.replace(oracle.wild_problem(seed), max_gpus_per_stage=1)
    best = oracle.best(problem)
    try:
        result = pl.solve(problem, "single_gpu")
    except pl.errors.NotApplicable:  # too far apart
        return
    assert (result.status == "infeasible") == (best is None)
    if best is not None:
        assert result.throughput * (1 - 1e-9) <= best <= result.bound * (1 + 1e-9)


def test_the_run_of_its_author_is_refused_where_rates_are_too_far_apart():
    costs = pl.writeup.LinearThroughput(
        {"A": pl.writeup.Coefficients(0, 0, 0, 1e13), "B": pl.writeup.Coefficients(0, 0, 0, 2)}
    )
    pool = (pl.GPU("A", 6.01), pl.GPU("B", 6.01))
    problem = pl.Problem(
        pl.Cluster(pool, [[1e9]], [0, 0]),
        pl.Model("six", 6, 1, 1, 1.0),
        pl.Workload(1, 1),
        costs,
        name="far apart",
    )
    with pytest.raises(
        pl.errors.NotApplicable,
        match=r"fastest stage has 1e\+13 tokens/s and the slowest stage or link 2",
    ):
        pl.solve(problem, "single_gpu", segments="as_run")
    other = oracle.wild_problem(8)
    with pytest.raises(pl.errors.NotApplicable, match="expected LinearThroughput"):
        pl.solve(other, "single_gpu", segments="as_run")


@pytest.mark.parametrize("ratio", [1 + 1e-12, 1 + 1e-9, 1 + 1e-7])
def test_near_ties_of_the_original_milp_are_not_called_optimal(ratio):
    """Two ways to hold three layers whose rates differ by less than SCIP's tolerance."""
    costs = pl.writeup.LinearThroughput(
        {
            "A": pl.writeup.Coefficients(0, 0, 0, 100),
            "B": pl.writeup.Coefficients(0, 0, 0, 100 * ratio),
        }
    )
    pool = (pl.GPU("A", 2.01), pl.GPU("B", 1.01), pl.GPU("B", 2.01))
    model, load = pl.Model("near", 3, 1, 1, 1.0), pl.Workload(1, 1)
    problem = pl.Problem(pl.Cluster(pool, [[1e9]], [0] * 3),
                         model, load, costs)  # fmt: skip
    result = pl.solve(problem, "single_gpu")
    best = oracle.best(problem)
    assert result.bound == pytest.approx(best, rel=1e-9)
    assert (result.status == "optimal") == (result.throughput >= best * (1 - 1e-9))


def test_a_bound_out_of_reach_is_given_up_and_all_segments_are_asked(tiny):
    """Two GPUs hold 5 layers each; 8 layers at the rate of 5 cannot be had: 5 + 3 is slower, and so is 4 + 4."""
    two = pl.Cluster.from_counts({"A100": 2}, 80, 400)
    model = dataclasses.replace(tiny.model, layers=8, layer_weight_gb=15)
    problem = dataclasses.replace(tiny, cluster=two, model=model, max_gpus_per_stage=1)
    chosen = single_gpu.rules(problem)
    assert int(chosen.fits.sum(axis=1).max()) == 5
    result = pl.solve(problem, "single_gpu")
    assert result.throughput < single_gpu.upper_bound(problem)
    assert (result.status, result.throughput) == (
        "optimal",
        pytest.approx(oracle.best(problem), rel=1e-12),
    )
    assert [len(stage.layers) for stage in result.placement.stages] == [4, 4]


def test_one_gpu_per_stage_claims_nothing_about_more(tiny):
    result = pl.solve(tiny, "single_gpu")
    assert (result.status, result.bound) == ("feasible", None)
    assert "more per stage may be faster" in result.sentence


# The heuristic that failed.


def test_the_heuristic_promises_452_676_and_places_nothing(tiny):
    result = pl.solve(tiny, "type_count")
    assert result.details["predicted"] == pytest.approx(452.676)
    assert result.details["predicted"] == pytest.approx(1.5 * 301.784)
    assert (result.placement, result.throughput, result.status) == (None, None, "unknown")
    plain = pl.solve(tiny, "type_count", factor=False)
    assert plain.details["predicted"] == pytest.approx(301.784)
    (stage,) = result.details["stages"]
    assert (stage.gpu_type, stage.number, stage.layers) == ("A100", 2, range(4))


@pytest.mark.slow
def test_with_times_per_layer_it_scales_one_gpu_by_its_factor():
    """12 of Llama-3-70B's layers on four L4: four GPUs are predicted to be almost six times as fast as one."""
    problem = course.three_sites(max_gpus_per_stage=4)
    model = dataclasses.replace(problem.model, layers=12, weight_factors=None, work_factors=None)
    four = problem.cluster.with_counts({"L4": 4})
    part = dataclasses.replace(problem, cluster=four, model=model)
    one_gpu = 2048000 / (12 * 81)
    for factor, wanted in ((True, 0.85 * (2 - 1 / 4) * 4), (False, 0.85 * 4)):
        found = pl.solve(part, "type_count", factor=factor).details
        assert found["predicted"] == pytest.approx(wanted * one_gpu)
        assert (found["misfits"], found["real_misfits"]) == (0, 0)
    assert pl.solve(part).throughput == pytest.approx(4 * one_gpu)


def test_its_model_has_the_sizes_that_the_write_up_reports():
    assert (
        pl.solve(pl.load_case("tiny", max_gpus_per_stage=2), "type_count").size["variables"] == 81
    )
    for k, variables in ((3, 1914), (4, 2153)):
        options = list_options(pl.load_case("demo", max_gpus_per_stage=k))
        assert 2 * len(options.segments.start) + len(options.start) + 2 * 455 + 1 == variables
        assert int((~options.passes).sum()) == 76
    options = list_options(pl.load_case("medium", max_gpus_per_stage=4))
    assert int((~options.passes).sum()) == 2024


def test_its_memory_formula_lets_through_what_does_not_fit():
    details = pl.solve(
        pl.load_case("demo", max_gpus_per_stage=3), "type_count", time_limit=0
    ).details
    assert (details["misfits"], details["real_misfits"]) == (76, 114)


@pytest.mark.parametrize("k", [1, 3])
def test_its_row_lets_each_type_hold_one_stage_and_so_calls_medium_infeasible(k):
    medium = pl.load_case("medium", max_gpus_per_stage=k)
    result = pl.solve(medium, "type_count")
    assert result.details["solver_status"] == "infeasible"
    assert "at most 63 of 80 layers" in result.reason
    assert "proves nothing" in result.reason


def test_what_is_counted_infeasible_is_so_for_scip_too():
    """Every layer of a type costs its one stage: the count never calls infeasible what SCIP can solve."""
    counted = []
    for seed in range(60):
        problem = oracle.random_problem(seed)
        options = list_options(problem)
        if most_layers(options) < problem.model.layers:
            counted.append(scip.run(build_type_count(options)).status)
    assert len(counted) > 5
    assert set(counted) == {"infeasible"}


def test_counting_rows_allow_what_the_written_ones_forbid(two_stages):
    """tiny with heavy layers needs both A100, one per stage: one type, two stages."""
    alone = dataclasses.replace(two_stages, max_gpus_per_stage=1)
    only = dataclasses.replace(alone, cluster=pl.Cluster.from_counts({"A100": 2}, 80, 400))
    assert pl.solve(only, "type_count").details["solver_status"] == "infeasible"
    assert pl.solve(only, "type_count", rows="counting").details["predicted"] == pytest.approx(
        213.52
    )


# Rules of thumb.


def test_rules_cut_where_their_splits_cut():
    small = pl.load_case("small")
    sizes = {
        m: [len(s.layers) for s in pl.solve(small, m).placement.stages]
        for m in ("even", "by_flops")
    }
    assert sizes["even"] == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    two = pl.solve(small, "proportional", gpus=(0, 4)).placement
    assert [len(s.layers) for s in two.stages] == [9, 3]
    assert [
        len(s.layers) for s in pl.solve(small, "bandwidth_aware", gpus=(0, 4)).placement.stages
    ] == [6, 6]


def test_a_rule_that_cuts_where_memory_does_not_hold_says_so(two_stages):
    result = pl.solve(two_stages, "even", gpus=(0, 2))
    assert (result.status, result.placement) == ("unknown", None)
    assert "needs 51.64 GB on GPU 2 (V100), which has 32 GB" in result.sentence


@pytest.mark.parametrize("method", ["even", "proportional", "by_flops", "bandwidth_aware"])
@pytest.mark.parametrize("gpus", [(), (0, 9), (0, 0), (0.5, 1), "01", 0, (-1,)])
def test_gpus_that_make_no_pipeline_are_refused(method, gpus):
    with pytest.raises(
        pl.errors.InvalidValue, match=r"gpus = .*expected different GPU ids from 0 to 3"
    ):
        pl.solve(pl.load_case("tiny"), method, gpus=gpus)


@pytest.mark.parametrize("method", ["even", "proportional", "by_flops", "bandwidth_aware"])
def test_no_rule_beats_the_proven_optimum(method):
    for seed in range(60):
        problem = oracle.random_problem(seed, max_gpus_per_stage=1)
        result, best = pl.solve(problem, method), oracle.best(problem)
        if result.throughput is not None:
            assert result.throughput <= best * (1 + 1e-9)


# Side by side.


@pytest.mark.slow
def test_a_comparison_is_one_table_and_one_figure(tiny):
    both = pl.compare(tiny, joint={"form": "tight"})
    frame = both.to_frame().set_index("method")
    assert frame.loc["joint", "outcome"] == frame.loc["exhaustive", "outcome"] == "proven"
    assert frame.loc["even", "outcome"] == "not proven"
    assert both.optimum == pytest.approx(301.784)
    assert both.shares()["even"] == pytest.approx(133.116 / 301.784)
    figure = pl.plot(both)
    names = figure.layout.yaxis.ticktext
    drawn = {
        names[y]: x for trace in figure.data[:5] for y, x in zip(trace.y, trace.x, strict=True)
    }
    assert drawn["joint"] == pytest.approx(301.784)
    assert "type_count" not in drawn  # a promise is no bar
    assert list(figure.data[-1].x) == [pytest.approx(452.676)]
    assert "even, proportional and 2 more lose 56% against the optimum" in figure.layout.title.text


def test_a_comparison_of_an_infeasible_problem_says_so():
    heavy = oracle.heavier(pl.load_case("tiny"), 90)
    both = pl.compare(heavy, ["even", "exhaustive", "joint"])
    assert "infeasible, proven by exhaustive and joint" in pl.plot(both).layout.title.text


@pytest.mark.slow
def test_an_interrupt_ends_a_comparison_and_keeps_what_there_is(tiny, monkeypatch):
    real = scip.run

    def pressed(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return real(*args, **options)

    asked = ["even", "exhaustive", "joint", "aggregated", "single_gpu"]
    whole = pl.compare(tiny, asked)
    monkeypatch.setattr(scip, "run", pressed)
    both = pl.compare(tiny, asked)
    assert list(both.results) == ["even", "exhaustive", "joint"]
    assert both.refused == dict.fromkeys(
        ["aggregated", "single_gpu"], "not asked, after an interrupt"
    )
    assert both.results["joint"].throughput == whole.results["joint"].throughput


def test_comparisons_refuse_what_they_do_not_understand(tiny):
    with pytest.raises(pl.errors.InvalidValue, match="expected a list of methods"):
        pl.compare(tiny, "even")
    with pytest.raises(
        pl.errors.UnknownName, match="options for 'evn', which is not compared; did you mean 'even'"
    ):
        pl.compare(tiny, ["even"], evn={})
