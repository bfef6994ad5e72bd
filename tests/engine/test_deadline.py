"""One deadline for a whole solve: whatever is being done, it ends within a second, and what was found is kept."""

import dataclasses
import gc
import signal
import threading
import time

import numpy as np
import psutil
import pytest

import pipelab as pl
from pipelab.engine import solving
from pipelab.engine.classes import find_classes
from pipelab.engine.deadline import NEVER, Deadline, Ended, deadline_of, waited_for
from pipelab.engine.formulations.candidates import enumerate_candidates
from pipelab.engine.formulations.program_size import compositions
from pipelab.engine.instance import instance_of
from pipelab.engine.solvers import highs, scip
from pipelab.engine.solvers.linear_program import Columns, LinearProgram
from pipelab.stage_arrays import stage_tables


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
    assert (NEVER.within(5).limited, NEVER.limited) == (True, False)
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


def pressed_before(function):
    def pressed(*args):
        signal.raise_signal(signal.SIGINT)
        return function(*args)

    return pressed


def test_ctrl_c_while_a_method_is_imported_is_answered(monkeypatch):
    monkeypatch.setattr(solving, "method_of", pressed_before(solving.method_of))
    result = pl.solve(pl.load_case("medium", max_gpus_per_stage=4))
    assert (result.status, result.stopped_by) == ("feasible", "interrupt")


@pytest.mark.slow
def test_ctrl_c_while_a_public_name_is_imported_is_for_what_is_called_then(monkeypatch):
    problem = pl.load_case("medium", max_gpus_per_stage=2, link_units="tokens")
    monkeypatch.setattr(pl, "_import", pressed_before(pl._import))
    deploy = pl.__getattr__("deploy")
    assert deploy(problem).stopped_by == "interrupt"
    with pytest.raises(KeyboardInterrupt):  # nothing of pipelab runs
        _ = pl.__getattr__("deploy"), time.sleep(2)


class Slow:
    """Linear rates whose tables take a while: each look costs so many seconds, and at the third something happens."""

    def __init__(self, costs, seconds, at_the_third):
        self.costs, self.seconds, self.at_the_third, self.looks = costs, seconds, at_the_third, 0

    def __getattr__(self, name):
        return getattr(self.costs, name)

    def mixes_as_slowest(self, problem):
        return False

    def stage_tables(self, model, workload, kinds, composition, batch_split):
        time.sleep(self.seconds)
        self.looks += 1
        if self.looks == 3:
            self.at_the_third()
        return stage_tables(self.costs, model, workload, kinds, composition, batch_split)


def many_mixtures(seconds=0.02, at_the_third=lambda: None):
    """24 kinds of GPU in stages of up to 4: 20,474 mixtures with 80 spans, whose tables would take minutes."""
    medium = pl.load_case("medium", max_gpus_per_stage=4, link_units="tokens")
    first = medium.cluster.gpus[0]
    gpus = tuple(
        dataclasses.replace(first, memory_gb=60.0 + i, usd_per_hour=1.0)
        for i in range(24)
        for _ in range(4)
    )
    cluster = pl.Cluster(gpus, np.full((24, 24), 50.0), np.repeat(np.arange(24), 4))
    return dataclasses.replace(
        medium, cluster=cluster, costs=Slow(medium.costs, seconds, at_the_third)
    )


GOALS = {
    "aggregated": lambda problem, **options: pl.solve(problem, "aggregated", **options),
    "quickest": lambda problem, **options: pl.solve(problem, objective="latency", **options),
    "cheapest": lambda problem, **options: pl.solve(problem, objective="cost", **options),
    "rate": lambda problem, **options: pl.solve(problem, "aggregated", "rate", **options),
}


@pytest.mark.slow
@pytest.mark.parametrize("goal", GOALS)
def test_tables_that_take_minutes_are_ended_in_time_and_a_placement_is_there_before(goal):
    problem, began = many_mixtures(), time.perf_counter()
    result = GOALS[goal](problem, time_limit=0.3)
    assert time.perf_counter() - began < 2.3  # a second, and one more on a busy machine
    assert (result.status, result.stopped_by) == ("feasible", "time limit")
    pl.evaluate(problem, result.placement)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["stop", "interrupt"])
def test_an_end_among_the_tables_is_heeded_and_a_placement_is_kept(by):
    stop = threading.Event()
    end = {"stop": stop.set, "interrupt": lambda: signal.raise_signal(signal.SIGINT)}[by]
    problem, began = many_mixtures(at_the_third=end), time.perf_counter()
    result = pl.solve(problem, "aggregated", stop=stop)
    assert time.perf_counter() - began < 2.5
    assert 3 <= problem.costs.looks < 100  # of 20,474
    assert (result.status, result.stopped_by) == ("feasible", by)
    pl.evaluate(problem, result.placement)


@pytest.mark.slow
def test_the_front_ends_in_time_while_tables_are_made():
    began = time.perf_counter()
    curve = pl.trade_off(many_mixtures(), "seconds_per_pass", time_limit=0.3)
    assert time.perf_counter() - began < 2.3
    assert not curve.complete


class Watched(Deadline):
    """Ends after so many seconds of computing, and counts how often somebody looked at it."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.looks, self.longest = seconds, 0, 0.0
        self.first = self.last = time.process_time()

    def check(self):
        now = time.process_time()  # not the clock: others may keep this machine busy
        self.looks += 1
        self.last, self.longest = now, max(self.longest, now - self.last)
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
    )  # fmt: skip


def unequal(number):
    return pl.Cluster(
        (pl.GPU("A", 80),) * number, np.random.default_rng(0).random((number, number)) + 1
    )


def of_types(number):
    """Eight GPUs of each of so many sizes of memory, whose mixed stages have to be listed."""
    gpus = tuple(pl.GPU("A100-SXM-40", 40.0 + i) for i in range(number) for _ in range(8))
    cluster, load = (
        pl.Cluster(gpus, np.full((1, 1), 12.5), np.zeros(8 * number, dtype=int)),
        pl.Workload(2048, 32, "decode"),
    )
    return pl.Problem(
        cluster, pl.load_model("Llama-3-70B"), load, pl.Roofline(),
        max_gpus_per_stage=8, same_type_stages=False, batch_split="balanced",
    )  # fmt: skip


LISTINGS = {
    "allocations of medium": (
        lambda: pl.load_case("medium", max_gpus_per_stage=2),
        enumerate_candidates,
    ),
    "classes of 2,000 unequal GPUs": (lambda: unequal(2000), find_classes),
    "stages of 12 types": (lambda: of_types(12), instance_of),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("what", LISTINGS)
def test_whatever_is_listed_looks_at_the_deadline_all_the_time(what):
    prepare, listed = LISTINGS[what]
    given = prepare()
    watched = Watched(0.1)
    with pytest.raises(Ended):
        listed(given, watched)
    assert watched.looks > 5


@pytest.mark.slow
def test_no_step_of_listing_mixtures_takes_long():
    groups = [pl.GPU("A100", 40.0 + i) for i in range(16)]
    watched = Watched(60)
    mixtures = compositions(nodes(16), groups, [8] * 16, watched)
    watched.check()
    assert len(mixtures) == 735_470
    assert watched.longest < 0.5


@pytest.mark.slow
def test_no_garbage_is_looked_for_right_after_a_model_was_built():
    with scip._without_garbage_collection():
        many = [[i] for i in range(100_000)]
    assert gc.isenabled()
    assert gc.get_count()[0] < 10_000  # else the next list would have all of these looked through
    assert not any(thing is many for generation in (0, 1) for thing in gc.get_objects(generation))


def test_a_large_model_is_freed_after_its_answer_was_given(monkeypatch):
    class Model:
        freed = threading.Event()

        def free(self):
            self.freed.set()

    monkeypatch.setattr(scip, "_LARGE", 2)
    scip._free(Model(), [None] * 3)
    assert not Model.freed.is_set()
    assert Model.freed.wait(10)


@pytest.mark.slow
def test_a_model_is_freed_once_it_has_been_read():
    """Left to Python's own habits, hundreds of SCIP's models stay in memory, a megabyte each and more."""
    from pyscipopt import Model

    if not hasattr(Model, "free"):
        pytest.skip("before 6.3, PySCIPOpt has no way to free a model with an event handler")
    tiny, process = pl.load_case("tiny"), psutil.Process()
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            assert pl.solve(tiny, "aggregated").details["subproblems"]
        before = process.memory_info().rss
        for _ in range(25):
            pl.solve(tiny, "aggregated")
        assert process.memory_info().rss - before < 10e6
    finally:
        gc.enable()


@pytest.mark.slow
def test_tables_that_are_not_finished_leave_a_proven_bound():
    problem = nodes(16)
    result = pl.solve(problem, "aggregated", time_limit=0.5)
    assert result.bound >= result.throughput > 0
    assert (result.status, result.stopped_by) in (("optimal", None), ("feasible", "time limit"))


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
    with pytest.raises(Ended, match="time limit"):
        scip._optimize(deaf, Deadline(0.1))
    assert time.perf_counter() - began < 1.5
    assert deaf.asked > 1  # SCIP forgets one that comes before it starts


def test_nobody_waits_for_a_highs_that_does_not_hear(monkeypatch):
    import highspy

    monkeypatch.setattr(highspy.Highs, "run", lambda self: time.sleep(3))
    columns = Columns({"x": 1})
    program = LinearProgram(
        columns, np.zeros(1), np.ones(1), np.ones(1, dtype=bool), np.ones(1), {}
    )
    began = time.perf_counter()
    run = highs.run(program, deadline=Deadline(0.1))
    assert (run.status, run.stopped_by) == ("stopped", "time limit")
    assert time.perf_counter() - began < 1.5


@pytest.mark.slow
def test_stops_at_random_moments_end_a_search_at_once():
    rng, medium = np.random.default_rng(0), pl.load_case("medium", max_gpus_per_stage=4)
    for moment in rng.uniform(0, 0.2, 10):
        job = pl.solve_in_background(medium, "aggregated")
        time.sleep(moment)
        job.stop()
        result = job.result(timeout=3)
        assert result.status in ("optimal", "feasible", "unknown")


def test_parts_of_a_composition_are_found():
    problem = pl.load_case("demo", max_gpus_per_stage=3)
    problem = dataclasses.replace(problem, costs=Slow(problem.costs, 0.0, lambda: None))
    every = instance_of(problem)
    number = {tuple(row): i for i, row in enumerate(every.composition.tolist())}
    for i, row in enumerate(every.composition):
        for k, part in enumerate(every.without_one[i]):
            fewer = row - np.eye(len(row), dtype=int)[k]
            expected = (
                number.get(tuple(fewer.tolist()), len(every.composition))
                if row[k]
                else len(every.composition)
            )
            assert part == expected


class _BetweenStages:
    """A model that SCIP moves from one stage to the next, where it refuses to be interrupted."""

    def __init__(self, refusals, message, at_the_end=""):
        self.refusals, self.message, self.at_the_end = refusals, message, at_the_end
        self.interrupted = threading.Event()

    def optimizeNogil(self):
        assert self.interrupted.wait(20)
        if self.at_the_end:
            raise Exception(self.at_the_end)

    def interruptSolve(self):
        self.refusals -= 1
        if self.refusals >= 0:
            raise Exception(self.message)
        self.interrupted.set()


NOW = "SCIP: method cannot be called at this time in solution process!"
INPUT = "SCIP: error in input data!"


def test_an_interrupt_that_scip_refuses_is_given_again():
    with deadline_of(0.0, None) as deadline:
        refused = _BetweenStages(3, NOW)
        scip._optimize(refused, deadline)
        assert refused.refusals == -1
        with pytest.raises(Ended, match="time limit"):  # it ended, and there is nothing to read
            scip._optimize(_BetweenStages(0, "", NOW), deadline)
        for model in (_BetweenStages(1, INPUT), _BetweenStages(0, "", INPUT)):
            with pytest.raises(Exception, match="error in input data"):
                scip._optimize(model, deadline)
            model.interrupted.set()


def of_layers(number, **factors):
    model = pl.Model("deep", number, 4096, 11008, 0.001, **factors)
    problem = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    return dataclasses.replace(problem, model=model)


@pytest.mark.slow
def test_a_model_of_a_hundred_thousand_layers_ends_in_time():
    began = time.perf_counter()
    result = pl.solve(of_layers(100_000), objective="latency", time_limit=1)
    assert time.perf_counter() - began < 3
    assert (result.status, result.stopped_by) == ("feasible", "list limit")


def test_runs_of_unlike_layers_beyond_memory_are_refused():
    factors = tuple(np.random.default_rng(0).uniform(0.5, 1.5, 5000))
    problem = of_layers(5000, weight_factors=factors)
    for call in (lambda: pl.solve(problem, time_limit=5), lambda: pl.deploy(problem, time_limit=5)):
        with pytest.raises(
            pl.errors.TooLarge, match=r"5,000 layers that differ .* 12,502,500 spans"
        ):
            call()


def test_memory_that_does_not_suffice_is_said(monkeypatch):
    def none_left(*args, **options):
        raise MemoryError("Unable to allocate 246 GiB")

    monkeypatch.setattr("pipelab.engine.in_flight.instance_of", none_left)
    with pytest.raises(
        pl.errors.TooLarge, match=r"more memory than there is .Unable to allocate 246 GiB"
    ):
        pl.solve(many_mixtures(), objective="cost")
