"""One deadline for a whole solve: whatever is being done, it ends within a second, and what was found is kept."""

import dataclasses
import signal
import threading
import time

import numpy as np
import pytest

import pipelab as pl
from pipelab.engine.deadline import NEVER, Deadline, Ended, deadline_of, waited_for
from pipelab.engine.formulations.aggregated.classes import find_classes
from pipelab.engine.formulations.aggregated.order import link_order
from pipelab.engine.formulations.aggregated.rates import distinct, stage_rates
from pipelab.engine.formulations.candidates import all_candidates
from pipelab.engine.formulations.latency.times import pass_times
from pipelab.engine.solvers import highs, scip
from pipelab.engine.solvers.linear_program import Columns, LinearProgram


def test_a_stop_comes_before_the_time_limit_and_both_are_named():
    stop = threading.Event()
    assert Deadline(3600, stop).reason is None
    over = Deadline(0, stop)
    with pytest.raises(Ended) as ended:
        over.check()
    assert ended.value.reason == over.reason == "time limit"
    stop.set()
    assert over.reason == Deadline(None, stop).called_off == "stop"


def test_part_of_a_deadline_never_lasts_longer_than_the_whole():
    whole = Deadline(10)
    assert whole.within(1).left <= 1 < whole.left <= 10
    assert whole.within(3600).end <= whole.end + 1e-3
    assert (NEVER.within(5).limited, NEVER.limited, NEVER.seconds_left) == (True, False, None)
    stop = threading.Event()
    part = Deadline(None, stop).within(5)
    stop.set()
    assert part.reason == "stop"


def test_ctrl_c_is_noted_and_not_raised():
    with deadline_of(None) as deadline:
        assert deadline.reason is None
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)
        assert deadline.reason == "interrupt"


class Slow:
    """Linear rates whose tables take a while: every look at a table of stages costs so many seconds."""

    def __init__(self, costs, seconds):
        self.costs, self.seconds = costs, seconds

    def __getattr__(self, name):
        return getattr(self.costs, name)

    def mixes_as_slowest(self, problem):
        return False

    def stage_tables(self, model, workload, kinds, composition, batch_split):
        time.sleep(self.seconds)
        return self.costs.stage_tables(model, workload, kinds, composition, batch_split)


def many_mixtures(seconds=0.02):
    """24 kinds of GPU in stages of up to 4: 20,474 mixtures with 80 spans, whose tables would take minutes."""
    medium = pl.load_case("medium", max_gpus_per_stage=4, link_units="tokens")
    first = medium.cluster.gpus[0]
    gpus = tuple(
        dataclasses.replace(first, memory_gb=60.0 + i, usd_per_hour=1.0)
        for i in range(24)
        for _ in range(4)
    )
    cluster = pl.Cluster(gpus, np.full((24, 24), 50.0), np.repeat(np.arange(24), 4))
    return dataclasses.replace(medium, cluster=cluster, costs=Slow(medium.costs, seconds))


GOALS = {
    "aggregated": lambda problem, **options: pl.solve(problem, "aggregated", **options),
    "quickest": pl.quickest,
    "cheapest": pl.cheapest,
    "in flight": pl.solve_in_flight,
}


@pytest.mark.parametrize("goal", GOALS)
def test_tables_that_take_minutes_are_ended_in_time_and_a_placement_is_there_before(goal):
    problem, began = many_mixtures(), time.perf_counter()
    result = GOALS[goal](problem, time_limit=0.8)
    assert time.perf_counter() - began < 2.8  # a second, and one more on a busy machine
    assert (result.status, result.stopped_by) == ("feasible", "time limit")
    pl.evaluate(problem, result.placement)


@pytest.mark.parametrize("goal", GOALS)
def test_a_stop_among_the_tables_is_heeded_and_a_placement_is_kept(goal):
    problem, stop = many_mixtures(), threading.Event()
    timer = threading.Timer(0.8, stop.set)
    began = time.perf_counter()
    timer.start()
    result = GOALS[goal](problem, stop=stop)
    assert time.perf_counter() - began < 2.8
    assert (result.status, result.stopped_by) == ("feasible", "stop")
    pl.evaluate(problem, result.placement)


def test_the_front_ends_in_time_while_tables_are_made():
    began = time.perf_counter()
    curve = pl.trade_off(many_mixtures(), "seconds_per_pass", time_limit=0.5)
    assert time.perf_counter() - began < 2.5
    assert not curve.complete


def test_ctrl_c_among_the_tables_is_heeded_and_a_placement_is_kept():
    problem = many_mixtures()
    threading.Timer(0.8, signal.raise_signal, (signal.SIGINT,)).start()
    began = time.perf_counter()
    result = pl.solve(problem, "aggregated")
    assert time.perf_counter() - began < 2.8
    assert (result.status, result.stopped_by) == ("feasible", "interrupt")


class Watched(Deadline):
    """Ends after so many seconds of computing, and counts how often somebody looked at it."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.looks, self.first = seconds, 0, time.process_time()

    def check(self):
        now = time.process_time()  # not the clock: others may keep this machine busy
        self.looks += 1
        if now - self.first > self.seconds:
            raise Ended("time limit")


def nodes(number):
    """Nodes of eight GPUs each, in stages of up to 8: 125,969 mixtures in 12 nodes, 735,470 in 16."""
    gpus = tuple(
        pl.GPU("A100-SXM-40", 40, 1.29, f"node {i}", 300.0) for i in range(number) for _ in range(8)
    )
    links = np.where(np.eye(number), 300.0, 12.5)
    cluster = pl.Cluster(gpus, links, np.repeat(np.arange(number), 8))
    load = pl.Workload(2048, 32, "decode")
    return pl.Problem(
        cluster, pl.load_model("Llama-3-70B"), load, pl.Roofline(), max_gpus_per_stage=8, same_type_stages=True,
        link_units="tokens",
    )  # fmt: skip


def chained(number):
    """States of which each is a part of many others: the links from class to class are random."""
    rng = np.random.default_rng(0)
    return rng.random((number, number)) < 0.9, np.ones(number, dtype=bool)


def unequal(number):
    return pl.Cluster(
        (pl.GPU("A", 80),) * number, np.random.default_rng(0).random((number, number)) + 1
    )


LISTINGS = {
    "rates of 16 nodes": (lambda: nodes(16), stage_rates),
    "classes of 2,000 unequal GPUs": (lambda: unequal(2000), find_classes),
    "orders of 24 classes": (
        lambda: chained(24),
        lambda given, until: link_order(*given, 4, until).arcs,
    ),
    "passes through 12 nodes": (
        lambda: nodes(12),
        lambda given, until: pass_times(given, 0.0, until),
    ),
    "allocations of medium": (lambda: pl.load_case("medium", max_gpus_per_stage=2), all_candidates),
}


@pytest.mark.parametrize("what", LISTINGS)
def test_whatever_is_listed_looks_at_the_deadline_all_the_time(what):
    prepare, listed = LISTINGS[what]
    given = prepare()
    watched = Watched(0.3)
    with pytest.raises(Ended):
        listed(given, watched)
    assert watched.looks > 5


def test_nobody_waits_for_one_step_that_takes_long():
    began = time.perf_counter()
    with pytest.raises(Ended, match="time limit"):
        waited_for(lambda: time.sleep(3), Deadline(0.1))
    assert time.perf_counter() - began < 1
    assert waited_for(lambda: 7, NEVER) == 7
    with pytest.raises(ZeroDivisionError):
        waited_for(lambda: 1 / 0, NEVER)


def test_nobody_waits_for_a_scip_that_does_not_hear():
    class Deaf:
        asked = 0

        def optimizeNogil(self):
            time.sleep(3)

        def interruptSolve(self):
            self.asked += 1

    began, deaf = time.perf_counter(), Deaf()
    solving = scip._Solving(deaf)
    assert solving.wait(Deadline(0.1)) == "time limit"
    assert time.perf_counter() - began < 1.5
    assert not solving.ended.is_set()
    assert deaf.asked > 1  # SCIP forgets one that comes before it starts


def test_nobody_waits_for_a_highs_that_does_not_hear(monkeypatch):
    import highspy

    monkeypatch.setattr(highspy.Highs, "run", lambda self: time.sleep(3))
    columns = Columns({"x": 1})
    program = LinearProgram(
        columns, np.zeros(1), np.ones(1), np.ones(1, dtype=bool), np.ones(1), {}
    )
    began = time.perf_counter()
    run = highs.run(program, time_limit=0.1)
    assert (run.status, run.stopped_by) == ("stopped", "time limit")
    assert time.perf_counter() - began < 1.5


@pytest.mark.parametrize("solver", ["scip", "highs"])
def test_stops_at_random_moments_end_a_search_at_once(solver):
    rng, medium = np.random.default_rng(0), pl.load_case("medium", max_gpus_per_stage=4)
    for moment in rng.uniform(0, 0.2, 10):
        job = pl.solve_in_background(medium, "aggregated", solver=solver)
        time.sleep(moment)
        job.stop()
        result = job.result(timeout=3)
        assert result.status in ("optimal", "feasible", "unknown")


def test_different_numbers_of_a_table_are_the_same_in_parts():
    table = np.random.default_rng(0).integers(-3, 500, (300, 7)) / 7
    expected = np.unique(table[table > 0])
    for at_once in (7, 50, 1000, 10**6):
        assert np.array_equal(distinct(table, at_once=at_once), expected)


def test_what_stages_of_one_kind_hold_is_part_of_what_all_hold():
    problem = pl.load_case("demo", max_gpus_per_stage=3)
    problem = dataclasses.replace(problem, costs=Slow(problem.costs, 0.0))
    every, alone = stage_rates(problem), stage_rates(problem, alone=True)
    number = {tuple(row): i for i, row in enumerate(every.composition.tolist())}
    assert 0 < len(alone.composition) < len(every.composition)
    for row, rate in zip(alone.composition.tolist(), alone.rate, strict=True):
        assert np.count_nonzero(row) == 1
        assert np.array_equal(rate, every.rate[number[tuple(row)]])
    for i, row in enumerate(every.composition):
        for k, part in enumerate(every.without_one[i]):
            fewer = row - np.eye(len(row), dtype=int)[k]
            expected = (
                number.get(tuple(fewer.tolist()), len(every.composition))
                if row[k]
                else len(every.composition)
            )
            assert part == expected
