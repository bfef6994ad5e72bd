"""The road to the ILP: rules of thumb, exhaustive search, the single-GPU MILP, the heuristic that failed."""

import dataclasses
import signal
import threading

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab import course
from pipelab.course.ledger.type_count import build as build_type_count
from pipelab.course.ledger.type_count import list_options, most_layers
from pipelab.engine.formulations.joint_ilp_forms import FORMS, twins
from pipelab.engine.methods import single_gpu
from pipelab.engine.methods.exhaustive import count_placements
from pipelab.engine.methods.single_gpu import single_gpu_size
from pipelab.engine.solvers import scip


def check_proven(problem, best, method, **options):
    """Assert that a method proves this rate, or that there is no placement."""
    result = pl.solve(problem, method, **options)
    if best is None:
        assert result.status == "infeasible", (method, options)
        assert result.reason
        return result
    assert result.status == "optimal", (method, options)
    assert result.bound == result.throughput == pytest.approx(best, rel=1e-9), (method, options)
    assert pl.evaluate(problem, result.placement).throughput == result.throughput
    return result


RULES_OF_THUMB = ("even", "proportional", "by_flops", "bandwidth_aware")


@pytest.mark.quick(4)
@pytest.mark.daily(10)
@pytest.mark.parametrize("seed", range(500))
def test_every_method_proves_what_the_oracle_lists(seed, capfd):
    """With one GPU per stage the original MILP does, too, no rule of thumb is better, and no solver prints."""
    if seed % 3:
        problem = oracle.random_problem(seed)
    else:
        problem = oracle.random_problem(seed, layers=4, gpus=3, unlike=True)
    every = list(oracle.placements(problem))
    best = max((rate for rate, _, _ in every), default=None)
    check_proven(problem, best, "exhaustive")
    whole = check_proven(problem, best, "exhaustive", stop_at_bound=False)
    assert whole.details.get("tried", 0) == len(every)
    for form in FORMS:
        check_proven(problem, best, "joint", form=form)
    alone = dataclasses.replace(problem, max_gpus_per_stage=1)
    best = oracle.best(alone)
    check_proven(alone, best, "single_gpu")
    for rule in RULES_OF_THUMB:
        assert (pl.solve(alone, rule).throughput or 0.0) <= (best or 0.0) * (1 + 1e-9)
    if problem.model.uniform:  # counted are those that would fit in any memory
        roomy = tuple(pl.GPU(gpu.type, 1e6) for gpu in problem.cluster.gpus)
        cluster = pl.Cluster(roomy, problem.cluster.bandwidth_matrix())
        all_fit = dataclasses.replace(problem, cluster=cluster)
        number = sum(1 for _ in oracle.placements(all_fit))
        assert sum(count_placements(problem).values()) == number
    assert tuple(capfd.readouterr()) == ("", "")


def test_an_exhaustive_search_says_how_many_placements_it_tried(tiny):
    assert count_placements(tiny) == {1: 10, 2: 126, 3: 180, 4: 24}
    early = pl.solve(tiny, "exhaustive")
    assert (early.size["placements"], early.details["tried"]) == (340, 5)
    with pytest.raises(
        pl.errors.TooLarge, match="small has 48,341,594,125 placements, more than limit=1,000,000"
    ):
        pl.solve(pl.load_case("small", max_gpus_per_stage=2), "exhaustive")


def test_a_stopped_search_keeps_its_best(tiny):
    stop = threading.Event()
    stop.set()
    result = pl.solve(tiny, "exhaustive", stop=stop)
    assert (result.status, result.stopped_by) == ("unknown", "stop")
    heavy = oracle.heavier(pl.load_case("small"), 20)
    stop = lambda progress: progress.incumbent is not None  # noqa: E731
    result = pl.solve(heavy, "exhaustive", limit=10**18, stop=stop)
    assert (result.status, result.stopped_by) == ("feasible", "stop")
    assert pl.evaluate(heavy, result.placement).throughput == result.throughput < result.bound
    assert 0 < result.details["tried"] < 1_757_211_400


# The original MILP.


def test_the_authors_run_is_counted_to_the_row():
    size = single_gpu_size(pl.load_case("medium"), segments="as_run")
    assert (size["segments"], size["connections"]) == (5_740, 312_210)
    assert (size["variables"], size["rows"]) == (630_291, 1_568_029)
    tiny = single_gpu_size(pl.load_case("tiny"), segments="as_run")
    assert (tiny["segments"], tiny["connections"], tiny["variables"]) == (40, 120, 289)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("case", "segments", "status", "throughput"),
    [
        ("tiny", "as_run", "optimal", 217.52),
        ("tiny", "all", "optimal", 217.52),
        ("small", "as_run", "optimal", 301.424),
        ("small", "all", "optimal", 301.424),
        ("medium", "as_run", "feasible", 262.336),
        ("medium", "all", "optimal", 264.236),
    ],
)
def test_the_original_milp(case, segments, status, throughput):
    result = pl.solve(pl.load_case(case), "single_gpu", segments=segments, time_limit=300)
    assert (result.status, result.throughput) == (status, pytest.approx(throughput, rel=1e-12))
    most = {"tiny": 217.52, "small": 301.424, "medium": 264.236}[case]
    assert result.bound == pytest.approx(most)
    if status == "feasible":
        assert result.details["solver_status"] == "optimal"


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2])
def test_the_segments_of_the_authors_run_say_what_they_lead_to(most):
    problems = (
        oracle.heavier(pl.load_case("small", max_gpus_per_stage=most), 10.0),
        oracle.heavier(pl.load_case("medium", max_gpus_per_stage=most), 9.0),
        oracle.random_problem(13, max_gpus_per_stage=most),
    )
    ended = (("feasible", "optimal"), ("unknown", "infeasible"), ("unknown", "optimal"))
    for problem, of_both in zip(problems, ended, strict=True):
        result = pl.solve(problem, "single_gpu", segments="as_run")
        assert (result.status, result.details["solver_status"]) == of_both
        assert "more per stage may be faster" in result.reason or most == 1


def test_the_rows_as_written_are_counted():
    """As the model is stated: rows per GPU, per connection, per segment with a neighbour, and the others."""
    for seed in range(20):
        problem = oracle.random_problem(seed, max_gpus_per_stage=1)
        chosen = single_gpu.rules(problem, single_gpu.SEGMENTS[seed % 2])
        c, size = single_gpu.segment_candidates(chosen), single_gpu.size(chosen)
        assert (size["segments"], size["connections"]) == (len(c.start), len(c.tail))
        followed, preceded = len(np.unique(c.tail)), len(np.unique(c.head))
        per_gpu, per_link = ("capacity", "u", "tau", "bottleneck"), 5
        others = c.layers + 1 + 1 + len(twins(problem)) + len(np.unique(c.start[c.start > 0]))
        rows = len(per_gpu) * c.gpus + per_link * len(c.tail) + followed + preceded + others
        assert size["rows"] == rows
        assert size["variables"] == len(c.start) + 2 * len(c.tail) + 2 * c.gpus + 1


def test_the_run_of_its_author_is_refused_where_it_has_no_meaning():
    wild, tiny = oracle.wild_problem(8), pl.load_case("tiny")
    model = dataclasses.replace(tiny.model, work_factors=(1, 1, 1, 2))
    unlike = dataclasses.replace(tiny, model=model)
    as_run = {"segments": "as_run"}
    for problem, method, options, told in (
        (wild, "single_gpu", as_run, "expected LinearThroughput"),
        (unlike, "single_gpu", as_run, "expected identical layers"),
        (unlike, "type_count", {}, "expected identical layers"),
    ):
        with pytest.raises(pl.errors.NotApplicable, match=told):
            pl.solve(problem, method, **options)


def _of_constant_rates(rates, memory, layers):
    """GPUs of types A, B, … whose rates do not depend on what they hold, layers of 1 GB and fast links."""
    costs = {t: pl.writeup.Coefficients(0, 0, 0, rate) for t, rate in rates.items()}
    pool = tuple(pl.GPU(t, gb) for t, gb in memory)
    return pl.Problem(
        pl.Cluster(pool, [[1e9]], [0] * len(pool)),
        pl.Model("made", layers, 1, 1, 1.0),
        pl.Workload(1, 1),
        pl.writeup.LinearThroughput(costs),
    )


@pytest.mark.parametrize("ratio", [1 + 1e-12, 1 + 1e-9, 1 + 1e-7])
def test_near_ties_of_the_original_milp_are_not_called_optimal(ratio):
    """Two ways to hold three layers whose rates differ by less than SCIP's tolerance."""
    memory = (("A", 2.01), ("B", 1.01), ("B", 2.01))
    problem = _of_constant_rates({"A": 100, "B": 100 * ratio}, memory, 3)
    result, best = pl.solve(problem, "single_gpu"), oracle.best(problem)
    assert result.bound == pytest.approx(best, rel=1e-9)
    assert (result.status == "optimal") == (result.throughput >= best * (1 - 1e-9))


def test_rates_too_far_apart_for_scip_are_refused():
    for rate in (1e8, 1e13):  # by their share, and by themselves
        problem = _of_constant_rates({"A": rate, "B": 2}, (("A", 6.01), ("B", 6.01)), 6)
        for method in ("joint", "single_gpu"):
            with pytest.raises(pl.errors.NotApplicable, match="fastest stage has"):
                pl.solve(problem, method)


# The heuristic that failed.


def test_the_heuristic_promises_452_676_and_places_nothing(tiny):
    result = pl.solve(tiny, "type_count")
    assert result.details["predicted"] == pytest.approx(452.676) == pytest.approx(1.5 * 301.784)
    assert (result.placement, result.throughput, result.status) == (None, None, "unknown")
    plain = pl.solve(tiny, "type_count", factor=False)
    assert plain.details["predicted"] == pytest.approx(301.784)
    (stage,) = result.details["stages"]
    assert (stage.gpu_type, stage.number, stage.layers) == ("A100", 2, range(4))


@pytest.mark.parametrize(("factor", "wanted"), [(True, 0.85 * (2 - 1 / 4) * 4), (False, 0.85 * 4)])
def test_with_times_per_layer_it_scales_one_gpu_by_its_factor(factor, wanted):
    """12 of Llama-3-70B's layers on four L4: four GPUs are predicted to be almost six times as fast as one."""
    problem = course.three_sites(max_gpus_per_stage=4)
    model = dataclasses.replace(problem.model, layers=12, weight_factors=None, work_factors=None)
    four = problem.cluster.with_counts({"L4": 4})
    part = dataclasses.replace(problem, cluster=four, model=model)
    found = pl.solve(part, "type_count", factor=factor).details
    assert found["predicted"] == pytest.approx(wanted * 2048000 / (12 * 81))


def test_its_model_has_the_sizes_and_misfits_that_the_write_up_reports(tiny):
    assert pl.solve(tiny, "type_count").size["variables"] == 81
    for k, variables in ((3, 1914), (4, 2153)):
        options = list_options(pl.load_case("demo", max_gpus_per_stage=k))
        assert 2 * len(options.segments.start) + len(options.start) + 2 * 455 + 1 == variables
        assert int((~options.passes).sum()) == 76


def test_its_row_lets_each_type_hold_one_stage_and_so_calls_medium_infeasible(two_stages):
    result = pl.solve(pl.load_case("medium", max_gpus_per_stage=3), "type_count")
    assert result.details["solver_status"] == "infeasible"
    # tiny with heavy layers needs both A100, one per stage; counting rows allow two stages of a type
    cluster = pl.Cluster.from_counts({"A100": 2}, 80, 400)
    only = dataclasses.replace(two_stages, max_gpus_per_stage=1, cluster=cluster)
    assert pl.solve(only, "type_count").details["solver_status"] == "infeasible"
    counting = pl.solve(only, "type_count", rows="counting")
    assert counting.details["predicted"] == pytest.approx(213.52)


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


# Rules of thumb.


def test_rules_cut_where_their_splits_cut(two_stages):
    def sizes(method, gpus=None):
        placed = pl.solve(pl.load_case("small"), method, gpus=gpus).placement
        return [len(stage.layers) for stage in placed.stages]

    assert sizes("even") == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert sizes("proportional", (0, 4)) == [9, 3]
    assert sizes("bandwidth_aware", (0, 4)) == [6, 6]
    misfit = pl.solve(two_stages, "even", gpus=(0, 2))
    assert (misfit.status, misfit.placement) == ("unknown", None)
    assert "needs 51.64 GB on GPU 2 (V100), which has 32 GB" in misfit.sentence
    for gpus in ((), (0, 9), (0, 0), (0.5, 1)):
        with pytest.raises(pl.errors.InvalidValue, match="expected different GPU ids from 0 to 3"):
            pl.solve(two_stages, "even", gpus=gpus)


# Side by side.


@pytest.mark.slow
def test_a_comparison_is_one_table_and_goes_on_where_a_method_refuses(tiny):
    both = pl.compare(tiny, joint={"form": "tight"})
    for method, result in both.results.items():
        assert result.method == method
        if result.placement:
            assert pl.evaluate(tiny, result.placement).throughput == result.throughput
    frame = both.to_frame().set_index("method")
    assert frame.loc["joint", "outcome"] == frame.loc["exhaustive", "outcome"] == "proven"
    assert frame.loc["even", "outcome"] == "not proven"
    assert both.optimum == pytest.approx(301.784)
    assert both.shares()["even"] == pytest.approx(133.116 / 301.784)
    model = dataclasses.replace(tiny.model, work_factors=(1, 1, 1, 2))
    both = pl.compare(dataclasses.replace(tiny, model=model), ["type_count", "aggregated"])
    assert "identical layers" in both.refused["type_count"]
    assert both.results["aggregated"].status == "optimal"
    with pytest.raises(pl.errors.InvalidValue, match="expected a list of methods"):
        pl.compare(tiny, "even")
    with pytest.raises(pl.errors.UnknownName, match="options for 'evn', which is not compared"):
        pl.compare(tiny, ["even"], evn={})


def test_an_interrupt_ends_a_comparison_and_keeps_what_there_is(tiny, monkeypatch):
    real = scip.run

    def pressed(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return real(*args, **options)

    monkeypatch.setattr(scip, "run", pressed)
    both = pl.compare(tiny, ["even", "joint", "aggregated", "single_gpu"])
    assert list(both.results) == ["even", "joint"]
    left_out = ["aggregated", "single_gpu"]
    assert both.refused == dict.fromkeys(left_out, "not asked, after an interrupt")
    assert both.results["joint"].throughput == pytest.approx(301.784)
