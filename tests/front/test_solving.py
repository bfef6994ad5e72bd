"""Time limit, stop, interrupt and progress: nothing found is lost, and what is said is true."""

import dataclasses
import gc
import math
import signal
import threading
import time

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab.engine import instance
from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.methods.joint import joint_program
from pipelab.engine.solvers import scip
from pipelab.writeup.linear_rates import with_link_units


@pytest.mark.quick(10)
@pytest.mark.parametrize("case", pl.writeup.cases())
@pytest.mark.parametrize("gpus", [None, 1, 2, 3, 4])
def test_every_bundled_case_is_answered_at_once(case, gpus):
    problem = pl.load_case(case, **({} if gpus is None else {"max_gpus_per_stage": gpus}))
    result = pl.solve(problem)
    assert (result.status, result.method) == ("optimal", "aggregated")
    assert result.seconds < 5


def test_where_the_aggregated_search_is_refused_the_joint_ilp_answers_and_says_why(
    tiny, monkeypatch
):
    balanced = dataclasses.replace(tiny, batch_split="balanced")
    usual = pl.solve(balanced)
    monkeypatch.setattr(instance, "_MOST_CELLS", 10)
    result = pl.solve(balanced)
    assert (usual.method, result.method) == ("aggregated", "joint")
    assert result.status == "optimal"
    assert result.throughput == pytest.approx(usual.throughput, rel=1e-12)
    assert result.reason.startswith("method 'aggregated' refuses: tiny has up to 5 mixtures")
    assert ". Method 'aggregated' refuses: tiny has" in result.sentence
    none = pl.solve(oracle.heavier(balanced, 90.0))
    assert none.status == "infeasible"
    assert none.reason.startswith("layer 1 alone needs")


def test_where_both_are_refused_both_reasons_are_given(monkeypatch):
    monkeypatch.setattr(instance, "_MOST_CELLS", 10)
    with pytest.raises(
        pl.errors.TooLarge,
        match=r"'aggregated' refuses: demo has .* mixtures.*; and method 'joint': the joint ILP",
    ):
        pl.solve(pl.load_case("demo", max_gpus_per_stage=3, batch_split="balanced"))


def test_an_option_of_one_method_alone_is_said_to_be_its():
    with pytest.raises(
        pl.errors.UnknownName, match="'auto' has no option 'form'; name a method that has it: joint"
    ):
        pl.solve(pl.load_case("tiny"), form="tight")
    with pytest.raises(
        pl.errors.UnknownName, match="'auto' has no option 'gapp'; did you mean 'gap'"
    ):
        pl.solve(pl.load_case("tiny"), gapp=0.1)


def test_the_objective_is_what_is_solved_for(tiny):
    problem = with_link_units(tiny, "tokens")
    gpus = tuple(dataclasses.replace(gpu, usd_per_hour=1.0) for gpu in problem.cluster.gpus)
    problem = dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, gpus=gpus))
    assert pl.solve(problem, objective="throughput").objective is None
    for objective, name in (("latency", "seconds_per_pass"), ("cost", "usd_per_million_tokens")):
        assert pl.solve(problem, objective=objective).objective.name == name
        job = pl.solve_in_background(problem, objective=objective, at_least=1)
        assert job.result().objective.name == name
    assert pl.solve(problem, objective="rate").memory_for == 1
    with pytest.raises(
        pl.errors.UnknownName, match="no objective 'latncy'; did you mean 'latency'"
    ):
        pl.solve(problem, objective="latncy")
    with pytest.raises(
        pl.errors.InvalidValue, match="method = 'joint': expected 'auto' or 'aggregated'"
    ):
        pl.solve(problem, "joint", objective="latency")


@pytest.mark.parametrize("method", ["even", "exhaustive"])
def test_methods_without_news_are_solved_in_the_background_too(tiny, method):
    assert pl.solve_in_background(tiny, method).result().throughput > 0


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("stop", 3, "expected a threading.Event, or None"),
        ("on_progress", 3, "expected a function of Progress, or None"),
        ("gap", None, "expected a number, at least 0"),
        ("gap", 10**400, "expected a finite number, at least 0"),
        ("gap", math.inf, "expected a finite number, at least 0"),
        ("gap", -1, "expected a number, at least 0"),
        ("time_limit", math.nan, "expected a number, at least 0"),
        ("time_limit", 10**400, "expected a finite number, at least 0"),
    ],
    ids=lambda part: str(part)[:12],
)
def test_options_that_do_not_fit_are_named(tiny, option, value, expected):
    with pytest.raises(pl.errors.InvalidValue, match=f"solve: {option} = .*: {expected}"):
        pl.solve(tiny, **{option: value})


@pytest.mark.slow
def test_a_time_limit_keeps_what_is_true(long_solve):
    result = pl.solve(long_solve, "joint", time_limit=1)
    assert result.stopped_by == "time limit"
    assert result.status in ("feasible", "unknown")
    assert result.bound is not None
    assert result.seconds < 30
    if result.placement:
        assert (
            pl.evaluate(long_solve, result.placement).throughput
            == result.throughput
            <= result.bound
        )


def test_no_time_at_all_still_gives_a_placement_and_a_valid_bound(long_solve):
    result = pl.solve(long_solve, "joint", time_limit=0)
    assert (result.status, result.stopped_by, result.throughput) == ("feasible", "time limit", 75)
    assert result.bound == pytest.approx(276.424)  # the fastest stage there is
    assert "stopped by time limit" in result.sentence


def test_no_time_at_all_where_pairs_use_up_the_gpus_still_gives_a_placement(long_solve):
    """A stage is fastest on two GPUs; in pairs, the seven hold six of the eight layers."""
    pairs = dataclasses.replace(long_solve, max_gpus_per_stage=2)
    result = pl.solve(pairs, "joint", form="tight", time_limit=0)
    assert (result.status, result.stopped_by) == ("feasible", "time limit")
    assert max(len(stage.gpus) for stage in result.placement.stages) == 1
    assert result.throughput == pl.evaluate(pairs, result.placement).throughput < result.bound


def test_time_that_runs_out_among_the_columns_ends_the_handing_over():
    program, _ = joint_program(pl.load_case("small"), "tight")
    assert program.size["variables"] > 20_000
    with pytest.raises(Ended, match="time limit"):
        scip._load(program, Deadline(0))


def test_a_stop_before_the_start_ends_at_once(long_solve):
    stop = threading.Event()
    stop.set()
    result = pl.solve(long_solve, "joint", stop=stop)
    assert (result.status, result.stopped_by) == ("feasible", "stop")
    assert result.seconds < 20


@pytest.mark.slow
def test_a_gap_limit_is_kept_and_said(long_solve):
    seen = []
    result = pl.solve(long_solve, "joint", gap=3.0, time_limit=60, on_progress=seen.append)
    assert (result.status, result.stopped_by) == ("feasible", "gap limit")
    assert result.throughput >= 50
    assert 0 < result.gap <= 3.0
    # SCIP's clearing of its tree afterwards is no news: it would say that the incumbent is the
    # bound.
    gc.collect()
    assert tuple(seen) == result.details["progress"][:-1]
    assert seen[-1].bound > seen[-1].incumbent


@pytest.mark.slow
def test_stop_ends_a_background_solve_and_keeps_its_incumbent(long_solve):
    job = pl.solve_in_background(long_solve, "joint")
    _wait_for(lambda: any(p.incumbent is not None for p in job.progress), 120)
    with pytest.raises(TimeoutError, match="still solving small"):
        job.result(timeout=0)
    asked = time.perf_counter()
    job.stop()
    result = job.result(timeout=60)
    assert time.perf_counter() - asked < 20
    assert (result.status, result.stopped_by) == ("feasible", "stop")
    assert 50 <= result.throughput < result.bound < 276.5
    assert result.gap > 0
    assert pl.evaluate(long_solve, result.placement).throughput == result.throughput
    assert "not proven optimal (stopped on request); the best may be up to" in result.sentence


@pytest.mark.slow
def test_an_interrupt_ends_the_solve_and_keeps_the_answer(long_solve):
    threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
    result = pl.solve(long_solve, "joint", time_limit=200)
    assert (result.status, result.stopped_by) == ("feasible", "interrupt")
    assert result.seconds < 60
    assert result.throughput <= result.bound
    # nothing goes on behind our back
    assert "scip" not in {thread.name for thread in threading.enumerate()}


def test_an_interrupt_while_scips_thread_starts_is_no_different(long_solve, monkeypatch):
    """The worst moment: SCIP runs, and nobody waits for it yet."""
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        if thread.name == "scip":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    before = signal.getsignal(signal.SIGINT)
    result = pl.solve(long_solve, "joint", time_limit=200)
    assert (result.status, result.stopped_by) == ("feasible", "interrupt")
    assert "scip" not in {thread.name for thread in threading.enumerate()}
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.quick(1)
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_an_interrupt_between_two_questions_keeps_what_was_found(moment):
    """Where questions take milliseconds, it seldom meets a solver at work."""
    problem, seen = pl.load_case("medium", max_gpus_per_stage=3), []

    def press(at):
        seen.append(at)
        if len(seen) == moment:
            signal.raise_signal(signal.SIGINT)

    result = pl.solve(problem, "aggregated", on_progress=press)
    whole = pl.solve(problem, "aggregated")
    assert len(seen) <= moment + 1
    assert len(result.details["subproblems"]) < len(whole.details["subproblems"])
    assert result.stopped_by == "interrupt"
    assert result.throughput <= whole.throughput <= result.bound
    assert pl.evaluate(problem, result.placement).throughput == result.throughput


@pytest.mark.slow
def test_an_interrupt_while_waiting_leaves_the_background_solve_alone(long_solve):
    job = pl.solve_in_background(long_solve, "joint", time_limit=1.5)
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        job.result()
    assert job.running
    assert repr(job).startswith("<solving small: ")
    assert job.result(60).placement is not None


@pytest.mark.slow
def test_the_python_lock_is_free_while_scip_runs():
    """Another thread goes on counting while SCIP presolves for seconds; holding the lock stalled it for 1.8 s."""
    small = pl.load_case("small")
    heavy = dataclasses.replace(small.model, layer_weight_gb=30.0)
    slower = dataclasses.replace(small, cluster=small.cluster.scaled_bandwidth(1 / 8), model=heavy)
    job = pl.solve_in_background(slower, "joint", time_limit=2)
    stalls, last = [], time.perf_counter()
    while job.running:
        time.sleep(0.01)
        now = time.perf_counter()
        stalls.append(now - last)
        last = now
    assert job.result().seconds > 1.5
    assert max(stalls) < 1


def test_progress_moves_towards_the_answer(two_stages):
    seen = []
    result = pl.solve(two_stages, "joint", on_progress=seen.append)
    assert tuple(seen) == result.details["progress"][:-1]  # the last entry is the answer itself
    incumbents = [p.incumbent for p in seen if p.incumbent is not None]
    bounds = [p.bound for p in seen if p.bound is not None]
    assert incumbents == sorted(incumbents)
    assert bounds == sorted(bounds, reverse=True)
    assert all(p.bound >= result.throughput - 1e-6 for p in seen if p.bound is not None)


def test_an_error_in_on_progress_reaches_the_caller(two_stages):
    def broken(moment):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        pl.solve(two_stages, "joint", on_progress=broken)


def test_an_error_in_the_background_is_raised_by_result(tiny):
    job = pl.solve_in_background(tiny, "joint", form="no such form")
    with pytest.raises(pl.errors.UnknownName):
        job.result()


@pytest.mark.slow
def test_a_result_explains_itself(tiny):
    result = pl.solve(tiny, "joint")
    assert result.gap == 0
    assert "301.8 tokens/s with 1 in flight, proven optimal" in str(result)
    assert "layers 1–4 on [0, 1]" in str(result)
    assert result.to_frame()["variables"][0] == 1041
    assert "stage 1" in result.to_dict()["bottlenecks"]
    assert "301.8</td>" in result._repr_html_()
    assert result.solver.startswith("SCIP 1")


def _wait_for(condition, seconds):
    end = time.perf_counter() + seconds
    while not condition() and time.perf_counter() < end:
        time.sleep(0.05)


@pytest.mark.slow
def test_an_incumbent_is_reported_with_its_value_or_not_at_all():
    """The waiting thread gives up while the first incumbent is being read back."""
    problem = pl.load_case("tiny", max_gpus_per_stage=2)
    program, candidates = joint_program(problem, "tight")

    def slowly(z):
        time.sleep(1.2)
        return candidates.placement(np.flatnonzero(z > 0.5))

    run = scip.run(program, deadline=Deadline(0.5), reading=(program.columns.slices["z"], slowly))
    assert (run.status, run.stopped_by) == ("stopped", "time limit")
    assert (run.x is None) == (run.objective is None)


@pytest.mark.parametrize("where", ["while it is handed over", "while it is solved"])
def test_what_scip_itself_raises_is_told_in_words(where, monkeypatch):
    program, _ = joint_program(pl.load_case("tiny"), "tight")
    if where == "while it is handed over":
        program.objective[-1] = 1e25  # infinite for SCIP

    def fails(model, deadline):
        raise Exception("SCIP: error in LP solver!")

    if where == "while it is solved":
        monkeypatch.setattr(scip, "_optimize", fails)
    with pytest.raises(pl.PipelabError, match=r"SCIP cannot compute .*method='aggregated'"):
        scip.run(program)
