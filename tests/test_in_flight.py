"""The greatest steady rate that memory allows, against all placements with all numbers in flight."""

import dataclasses
import json
import math
import threading
from collections import Counter
from functools import cache

import numpy as np
import pytest

import oracle
import pipelab as pl
import roofline_oracle
from pipelab.engine.in_flight_result import enough_in_flight, steady_rate
from pipelab.engine.methods.in_flight import _AtBest, solve_for_throughput_in_flight
from pipelab.engine.methods.latency import solve_for_latency
from pipelab.engine.stage_arrays import stage_tables


def with_in_flight(problem, n):
    return dataclasses.replace(problem, workload=dataclasses.replace(problem.workload, in_flight=n))


def by_brute_force(problem):
    """(greatest steady rate, fewest in flight that have it) over every placement and number; None where none fits."""
    best, n = None, 0
    while True:
        n += 1
        every = [(rate, seconds) for rate, _, seconds in oracle.passes(with_in_flight(problem, n))]
        if not every:
            return best
        tokens = oracle.tokens_of(problem.workload)
        most = max(min(rate, n * tokens / seconds) for rate, seconds in every)
        if best is None or most > best[0] * (1 + 1e-9):
            best = most, n
        if all(n * tokens / seconds >= rate for rate, seconds in every):
            # no more in flight for any: by rate, a way that is left with less memory is no faster
            return best


def tight(seed, late=False, prefer="rate"):
    """Random problems in which many microbatches do not fit: memory for a few of them on some span of layers."""
    problem = roofline_oracle.random_problem(seed, layers=5, gpus=4, max_gpus_per_stage=2)
    problem = dataclasses.replace(problem, costs=dataclasses.replace(problem.costs, prefer=prefer))
    rng, m = np.random.default_rng(seed), problem.model.layers
    sized = {}
    for gpu in problem.cluster.kinds:
        span, n = range(int(rng.integers(1, max(2, m)))), int(rng.integers(1, 5))
        need = roofline_oracle.memory_gb(
            with_in_flight(problem, n), gpu, span, problem.workload.batch_size, 1
        )
        need -= (1 - problem.costs.memory_share) * gpu.memory_gb
        sized[gpu] = dataclasses.replace(gpu, memory_gb=1.001 * need / problem.costs.memory_share)
    pool = tuple(sized[gpu] for gpu in problem.cluster.gpus)
    matrix = problem.cluster.bandwidth_matrix()
    sent = 1000 * float(np.median(problem.message_seconds(matrix, 0.0)))
    latency = sent * rng.choice([0.0, 2.0], matrix.shape) if late else 0.0
    return dataclasses.replace(problem, cluster=pl.Cluster(pool, matrix, None, latency))


# The last four are harder than most: ranges of numbers, and single ones, have to be looked at.
SEEDS = (*range(50), 54, 90, 103, 119)


def closed(answer):
    """Whether the subproblems rule out more than the best for every number in flight, from 1 to infinity."""
    ranges = sorted(
        (r.first, r.last) for r in answer.rounds if r.bound <= answer.steady_rate * (1 + 3e-9)
    )
    reached = 0
    for first, last in ranges:
        if first <= reached + 1:
            reached = max(reached, last)
    return reached == math.inf


@cache  # asked by two tests
def problem_and_answer(seed):
    problem = tight(seed, late=seed % 3 == 0)
    return problem, solve_for_throughput_in_flight(
        problem, solver="highs" if seed % 5 == 0 else "scip"
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_the_most_of_all_placements_with_all_numbers_in_flight(seed):
    problem, answer = problem_and_answer(seed)
    truth = by_brute_force(problem)
    if truth is None:
        assert (answer.status, answer.placement, answer.steady_rate) == ("infeasible", None, None)
        assert answer.reason
        return
    assert answer.status == "optimal"
    assert answer.steady_rate == answer.bound == pytest.approx(truth[0], rel=1e-8)
    assert closed(answer)
    assert answer.problem.workload.in_flight == answer.in_flight >= truth[1]
    placed = answer.timeline()  # the evaluator accepts it with so many, and the simulation agrees
    assert placed.steady_rate == pytest.approx(answer.steady_rate, rel=1e-6)
    assert placed.in_flight == answer.in_flight
    assert placed.reaches_predicted_rate == (
        answer.steady_rate >= answer.evaluation.throughput * (1 - 1e-6)
    )


def test_the_random_problems_ask_for_something():
    """Memory binds in many of them, and the answer takes more than solving again."""
    predicted_too_much = short = 0
    solved_for = Counter()
    for seed in (*SEEDS[:50:2], 9, 21, *SEEDS[50:]):
        problem, answer = problem_and_answer(seed)
        naive = pl.solve(with_in_flight(problem, 1), "aggregated")
        solved_for.update({r.solved_for for r in answer.rounds})
        if answer.placement is None:
            continue
        predicted_too_much += answer.steady_rate < naive.throughput * (1 - 1e-6)
        short += answer.steady_rate < answer.evaluation.throughput * (1 - 1e-6)
    assert predicted_too_much >= 5
    assert short >= 5  # the best placement yields less than it predicts, for want of memory
    assert solved_for["end-to-end latency"] >= 8
    assert solved_for["both"] >= 1


@pytest.mark.parametrize("seed", range(20))
def test_where_memory_does_not_depend_on_it_the_prediction_holds(seed):
    problem = oracle.random_problem(
        seed, layers=4, twins=seed % 2 == 0, unlike=seed % 3 == 0, link_units="tokens"
    )
    best, answer = pl.solve(problem, "aggregated"), solve_for_throughput_in_flight(problem)
    assert answer.status == best.status
    if best.placement is not None:
        assert answer.steady_rate == pytest.approx(best.throughput, rel=1e-9)
        assert answer.in_flight == pl.timeline_of(problem, answer.placement).in_flight_needed


@pytest.mark.parametrize("seed", range(30))
def test_what_bounds_many_numbers_is_no_better_with_more_in_flight(seed):
    """The lemma of the proof: with fewer in flight no stage is slower; and never worse than what is really run."""
    problem = tight(seed, prefer="time" if seed % 2 else "rate")
    costs, kinds = _AtBest(problem.costs), problem.cluster.kinds
    composition = np.array(
        [[1 + (k == i) for k in range(len(kinds))] for i in range(len(kinds) + 1)]
    )
    before = None
    for n in (1, 2, 3, 5, 8):
        load = dataclasses.replace(problem.workload, in_flight=n)
        args = problem.model, load, kinds, composition, problem.batch_split
        best, real = stage_tables(costs, *args), stage_tables(problem.costs, *args)
        fits = real.fits(kinds)
        assert (best.fits(kinds) == fits).all()
        assert best.pass_seconds is None
        assert (best.throughput >= real.throughput * (1 - 1e-12))[fits].all()
        assert (load.tokens / best.throughput <= real.pass_seconds * (1 + 1e-12))[fits].all()
        if before is not None:
            assert (before[0] | ~fits).all()
            assert (best.throughput <= before[1] * (1 + 1e-12))[fits].all()
        before = fits, best.throughput


@pytest.mark.parametrize("limit", [0.0, 0.02, 0.1, 0.3])
def test_ended_early_the_bound_holds(limit):
    for seed in (16, 20, 54, 90):
        problem = tight(seed)
        truth, answer = (
            solve_for_throughput_in_flight(problem),
            solve_for_throughput_in_flight(problem, time_limit=limit),
        )
        most = truth.steady_rate or 0.0
        assert answer.bound is None or answer.bound >= most * (1 - 1e-8)
        if answer.placement:
            assert (
                steady_rate(answer.evaluation, answer.in_flight)
                == answer.steady_rate
                <= most * (1 + 1e-8)
            )
        if answer.status not in ("optimal", "infeasible"):
            assert answer.stopped_by == "time limit"
            assert "; proven the highest" not in answer.sentence


def test_a_stop_ends_it():
    stop = threading.Event()
    stop.set()
    problem = tight(3)
    answer = solve_for_throughput_in_flight(problem, stop=stop)
    assert (answer.status, answer.stopped_by, answer.bound) == ("feasible", "stop", None)
    assert answer.steady_rate <= solve_for_throughput_in_flight(problem).steady_rate


def test_an_interrupt_of_one_question_ends_the_search(monkeypatch):
    from pipelab.engine.methods import in_flight as module

    problem, asked = tight(54), []
    whole = solve_for_throughput_in_flight(problem)

    def interrupted(rates, floor, *rest, **options):
        asked.append(floor)
        answer = solve_for_latency(rates.problem, floor, time_limit=0)
        return dataclasses.replace(answer, status="unknown", placement=None, stopped_by="interrupt")

    monkeypatch.setattr(module, "latency_of_rates", interrupted)
    answer = solve_for_throughput_in_flight(problem)
    assert len(asked) == 1
    assert (answer.status, answer.stopped_by) == ("feasible", "interrupt")
    assert answer.bound >= whole.steady_rate * (1 - 1e-8)
    assert "stopped by interrupt" in answer.sentence


def test_the_simplest_cases_by_hand():
    """Two L4: a cut where the one with the head has two layers less; r and L by hand."""
    load = pl.Workload(4096, 8, "decode")
    problem = pl.Problem(pl.Cluster.from_counts({"L4": 2}, 24, 1.0), pl.load_model("Llama-3-8B"), load, pl.Roofline(),
                         link_units="tokens", name="two L4")  # fmt: skip
    answer = solve_for_throughput_in_flight(problem)
    halves = pl.Placement.of([(17, (0,)), (15, (1,))])
    evaluated = pl.evaluate(problem, halves)
    needs = math.ceil(evaluated.throughput * evaluated.seconds_per_pass / 8 - 1e-9)
    assert enough_in_flight(evaluated) == needs == pl.timeline_of(problem, halves).in_flight_needed
    assert answer.steady_rate == pytest.approx(evaluated.throughput)
    among = "of all placements and numbers in flight with a batch of 8, in"
    assert f"in flight, all of which fit; proven the highest {among}" in answer.sentence
    told = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert told["placement"] == answer.placement.to_dict()
    assert (told["steady_rate_tokens_per_s"], told["in_flight"]) == (answer.steady_rate, needs)
    assert (told["bound_tokens_per_s"], told["gap"], told["stopped_by"]) == (answer.bound, 0, None)
    assert [r["bound_tokens_per_s"] for r in told["rounds"]] == [r.bound for r in answer.rounds]
    assert told["rounds"][0]["in_flight_to"] is None  # without end
    frame = answer.to_frame()
    assert list(frame.columns) == list(told["rounds"][0])
    assert (frame["in_flight_to"][0], len(frame)) == ("…", len(answer.rounds))
    heavy = dataclasses.replace(problem, workload=pl.Workload(400_000, 8, "decode"))
    none = solve_for_throughput_in_flight(heavy)
    assert none.status == "infeasible"
    assert "can hold at most 2 of the 32 layers" in none.sentence
    assert none.problem is heavy


def test_what_it_refuses():
    tiny = pl.load_case("tiny")
    with pytest.raises(pl.InvalidValue, match=r"replace\(problem, link_units='tokens'\)"):
        solve_for_throughput_in_flight(tiny)
    with pytest.raises(pl.InvalidValue, match="time_limit = -1"):
        solve_for_throughput_in_flight(
            dataclasses.replace(tiny, link_units="tokens"), time_limit=-1
        )
    with pytest.raises(pl.UnknownName, match="there is no solver='cplex'"):
        solve_for_throughput_in_flight(tiny, solver="cplex")
