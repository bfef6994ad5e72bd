"""Time limit, stop, interrupt and progress: nothing found is lost, and what is said is true."""

import dataclasses
import gc
import inspect
import math
import re
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab.engine import instance
from pipelab.engine.deadline import Deadline
from pipelab.engine.methods.joint import joint_program
from pipelab.engine.solvers import scip
from pipelab.engine.solving import METHODS, OBJECTIVES, function_of
from pipelab.writeup.linear_rates import with_link_units


@pytest.mark.quick(3)
@pytest.mark.parametrize("case", pl.writeup.cases())
def test_every_bundled_case_is_answered_at_once(case):
    for gpus in (None, 1, 2, 3, 4):
        problem = pl.load_case(case, **({} if gpus is None else {"max_gpus_per_stage": gpus}))
        result = pl.solve(problem, stop=lambda progress: progress.nodes >= 1000)
        assert (result.status, result.method) == ("optimal", "aggregated")


def test_where_the_aggregated_search_is_refused_the_joint_ilp_answers_and_says_why(
    tiny, monkeypatch
):
    balanced = dataclasses.replace(tiny, batch_split="balanced")
    usual = pl.solve(balanced)
    monkeypatch.setattr(instance, "_MOST_CELLS", 10)
    result = pl.solve(balanced)
    assert (usual.method, result.method, result.status) == ("aggregated", "joint", "optimal")
    assert result.throughput == pytest.approx(usual.throughput, rel=1e-12)
    assert result.reason.startswith("method 'aggregated' refuses: tiny has up to 5 mixtures")
    assert pl.solve(oracle.heavier(balanced, 90.0)).reason.startswith("layer 1 alone needs")
    both = r"'aggregated' refuses: demo has .* mixtures.*; and method 'joint': the joint ILP"
    with pytest.raises(pl.errors.TooLarge, match=both):
        pl.solve(pl.load_case("demo", max_gpus_per_stage=3, batch_split="balanced"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"method": "joint", "objective": "latency"}, "expected 'auto' or 'aggregated'"),
        ({"objective": "latncy"}, "no objective 'latncy'; did you mean 'latency'"),
        ({"form": "tight"}, "'auto' has no option 'form'"),
    ],
)
def test_options_that_do_not_fit_are_named(tiny, options, expected):
    with pytest.raises((pl.errors.InvalidValue, pl.errors.UnknownName), match=expected):
        pl.solve(tiny, **options)


def _functions_with_options():
    """Every function that finds a best, with what it needs besides the name of each of its options."""
    tiny = with_link_units(pl.load_case("tiny", max_gpus_per_stage=2), "tokens")
    training = dataclasses.replace(tiny.workload, phase="training", microbatches=4)
    step = dataclasses.replace(tiny, workload=training)
    costs = pl.StageCosts(1, 1, 1, weight_activation=0.5)
    for function, arguments in (
        (pl.solve, (tiny,)),
        (pl.deploy, (tiny,)),
        (pl.flow, (tiny,)),
        (pl.trade_off, (tiny,)),
        (pl.best_schedule, (costs, 3, 2)),
    ):
        yield partial(function, *arguments), function
    for method in METHODS:
        yield partial(pl.solve, tiny, method), function_of(method)
    for objective, function in OBJECTIVES.items():
        if function is not None:
            problem = step if objective == "step_time" else tiny
            yield partial(pl.solve, problem, objective=objective), function


@pytest.mark.parametrize("value", [-1, "three", math.nan, object()])
def test_every_option_says_its_name_the_value_and_what_is_expected_the_same_everywhere(value):
    said = {}
    for call, function in _functions_with_options():
        parameters = inspect.signature(function).parameters.values()
        options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        for option in options:
            with pytest.raises((pl.errors.InvalidValue, pl.errors.UnknownName)) as error:
                call(**{option: value})
            text = str(error.value).removeprefix("solve_for_")
            assert option in text
            assert pl.errors.shown(value) in text
            assert "expected" in text or "Known" in text
            said.setdefault(option, set()).add(text.partition(": ")[2])
    assert {option: texts for option, texts in said.items() if len(texts) > 1} == {}


@pytest.mark.slow
def test_a_time_limit_keeps_what_is_true_and_the_python_lock_is_free_while_scip_runs():
    """Another thread goes on counting while SCIP presolves: it could not if SCIP held the lock."""
    small = oracle.heavier(pl.load_case("small"), 30.0)
    slower = dataclasses.replace(small, cluster=small.cluster.scaled_bandwidth(1 / 8))
    counted = 0
    job = pl.solve_in_background(slower, "joint", time_limit=2)
    while job.running:
        time.sleep(0.01)
        counted += not job.progress
    result = job.result()
    assert counted > 20
    assert (result.status, result.stopped_by) == ("feasible", "time limit")
    assert pl.evaluate(slower, result.placement).throughput == result.throughput <= result.bound


def test_no_time_at_all_still_gives_a_placement_and_a_valid_bound(long_solve):
    result = pl.solve(long_solve, "joint", time_limit=0)
    assert (result.status, result.stopped_by, result.throughput) == ("feasible", "time limit", 75)
    assert result.bound == pytest.approx(276.424)  # the fastest stage there is
    # a stage is fastest on two GPUs; in pairs, the seven hold six of the eight layers
    pairs = dataclasses.replace(long_solve, max_gpus_per_stage=2)
    result = pl.solve(pairs, "joint", form="tight", time_limit=0)
    assert max(len(stage.gpus) for stage in result.placement.stages) == 1
    assert result.throughput == pl.evaluate(pairs, result.placement).throughput < result.bound
    stop = threading.Event()
    stop.set()
    result = pl.solve(long_solve, "joint", stop=stop)
    assert (result.status, result.stopped_by) == ("feasible", "stop")


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
    end = time.perf_counter() + 120
    while not any(p.incumbent for p in job.progress) and time.perf_counter() < end:
        time.sleep(0.02)
    with pytest.raises(TimeoutError, match="still solving small"):
        job.result(timeout=0)
    job.stop()
    result = job.result(timeout=300)
    assert (result.status, result.stopped_by) == ("feasible", "stop")
    assert 50 <= result.throughput < result.bound < 276.5
    assert result.gap > 0
    assert pl.evaluate(long_solve, result.placement).throughput == result.throughput
    assert "not proven optimal (stopped on request); the best may be up to" in result.sentence


def test_an_interrupt_ends_the_solve_and_keeps_the_answer(long_solve, monkeypatch):
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


def test_an_interrupt_between_two_questions_keeps_what_was_found():
    """Where questions take milliseconds, it seldom meets a solver at work."""
    problem, seen = pl.load_case("medium", max_gpus_per_stage=3), []

    def press(at):
        seen.append(at)
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)

    result = pl.solve(problem, "aggregated", on_progress=press)
    whole = pl.solve(problem, "aggregated")
    assert len(seen) <= 3
    assert len(result.details["subproblems"]) < len(whole.details["subproblems"])
    assert result.stopped_by == "interrupt"
    assert result.throughput <= whole.throughput <= result.bound
    assert pl.evaluate(problem, result.placement).throughput == result.throughput


@pytest.mark.slow
def test_an_interrupt_while_waiting_leaves_the_background_solve_alone(long_solve):
    job = pl.solve_in_background(long_solve, "joint", time_limit=0.8)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        job.result()
    assert job.running
    assert repr(job).startswith("<solving small: ")
    assert job.result(60).placement is not None


def test_progress_moves_towards_the_answer(two_stages):
    seen = []
    result = pl.solve(two_stages, "joint", on_progress=seen.append)
    assert tuple(seen) == result.details["progress"][:-1]  # the last entry is the answer itself
    incumbents = [p.incumbent for p in seen if p.incumbent is not None]
    bounds = [p.bound for p in seen if p.bound is not None]
    assert incumbents == sorted(incumbents)
    assert bounds == sorted(bounds, reverse=True)
    assert all(bound >= result.throughput - 1e-6 for bound in bounds)


@pytest.mark.parametrize(
    "option", [{"batches": [1, 2]}, {"within": 0.1}, {"runs_on": "vLLM"}], ids=str
)
def test_what_solve_takes_is_taken_in_the_background_too(option):
    cluster = pl.Cluster.from_counts({"L4": 2, "T4": 1}, {"L4": 24, "T4": 16}, 10.0)
    load = pl.Workload(512, 2, "decode")
    problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline())
    there, here = pl.solve_in_background(problem, **option).result(), pl.solve(problem, **option)
    assert (there.placement, there.status) == (here.placement, here.status)


def test_an_error_reaches_the_caller(two_stages):
    def broken(moment):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        pl.solve(two_stages, "joint", on_progress=broken)
    job = pl.solve_in_background(two_stages, "joint", form="no such form")
    with pytest.raises(pl.errors.UnknownName):
        job.result()
    program, _ = joint_program(two_stages, "tight")
    program.objective[-1] = 1e25  # infinite for SCIP, which raises a class without a name
    with pytest.raises(pl.PipelabError, match=r"SCIP cannot compute .*method='aggregated'"):
        scip.run(program)


def test_an_incumbent_is_reported_with_its_value_or_not_at_all(tiny):
    """The waiting thread gives up while the first incumbent is being read back."""
    program, candidates = joint_program(tiny, "tight")

    def slowly(z):
        time.sleep(0.6)
        return candidates.placement(np.flatnonzero(z > 0.5))

    run = scip.run(program, deadline=Deadline(0.1), reading=(program.columns.slices["z"], slowly))
    assert (run.status, run.stopped_by) == ("stopped", "time limit")
    assert (run.x is None) == (run.objective is None)


ASKED = [
    *(partial(pl.solve, method=m) for m in METHODS if m != "type_count"),  # nothing attained is told
    *(partial(pl.solve, objective=what) for what in ("rate", "latency", "cost")),
    pl.deploy, partial(pl.deploy, ttft_ms=1e12), partial(pl.deploy, pools=True),
    pl.flow, partial(pl.flow, objective="rate"), partial(pl.trade_off, against="seconds_per_pass"),
]  # fmt: skip


@pytest.mark.quick(4)
@pytest.mark.parametrize("ask", range(len(ASKED)))
@pytest.mark.parametrize(
    "ms", [1e-3, *(pytest.param(ms, marks=pytest.mark.nightly) for ms in (1e-5, 1e-7)), 1e-9]
)
def test_long_latencies_with_short_stages_have_an_answer_or_one_reason(ms, ask):
    """Billions of microbatches in flight are refused with the latency that makes them so many."""
    cluster = pl.Cluster.from_counts({"A": 2}, 2.5, 1e5, latency_ms=1e6, usd_per_hour=1.0)
    model, load = pl.Model("four layers", 4, 8, 8, 1.0), pl.Workload(100, 1, output_tokens=5)
    problem = pl.Problem(cluster, model, load, pl.LayerTimes({"A": ms}), 1)
    try:
        ASKED[ask](problem)
    except pl.errors.PipelabError as error:
        told = str(error)
    else:
        told = "rates within a factor of"
    assert re.search("latency_ms = 1000000|rates within a factor of", told)
