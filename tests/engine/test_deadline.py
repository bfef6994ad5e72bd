"""One deadline for a whole solve: whatever is being done, it ends within a second, and what was found is kept."""

import contextlib
import dataclasses
import gc
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import scipy.sparse as sp

import pipelab as pl
from pipelab.costs import WrappedCosts
from pipelab.engine import deadline, solving
from pipelab.engine.deadline import NEVER, Deadline, Ended, deadline_of, waited_for
from pipelab.engine.methods.batches import solved_in_turn
from pipelab.engine.solvers import highs, scip
from pipelab.engine.solvers.linear_program import LinearProgram, VariableGroups

MOST_AFTER = 150  # looks, after time is over


def test_the_first_end_counts_and_a_part_never_lasts_longer_than_the_whole():
    stop = threading.Event()
    assert Deadline(3600, stop).reason is None
    over, part = Deadline(0, stop), Deadline(None, stop).within(5)
    with pytest.raises(Ended) as ended:
        over.check()
    assert ended.value.reason == over.reason == "time limit"
    stop.set()  # it comes before the time limit
    assert over.reason == part.reason == Deadline(None, stop).called_off == "stop"
    whole = Deadline(10)
    assert whole.within(1).left <= 1 < whole.left <= 10
    assert whole.within(3600).end <= whole.end + 1e-3
    assert (NEVER.within(5).limited, NEVER.limited) == (True, False)


@pytest.mark.parametrize("seed", range(8))
def test_problems_in_turn_have_half_of_what_is_left_and_have_to_beat_the_best(seed, monkeypatch):
    rng, clock = np.random.default_rng(seed), [0.0]
    monkeypatch.setattr(deadline, "clock", lambda: clock[0])
    number, whole = int(rng.integers(1, 6)), float(rng.choice([8.0, np.inf]))
    rates, share = rng.choice([0.0, 1.0, 2.0, 3.0], number).tolist(), rng.uniform(0.1, 3, number)
    asked = []

    def solve(problem, options, to_beat):
        assert to_beat == max([0.5, *rates[:problem]])
        last = 1 if problem + 1 == number else 2
        left = whole - clock[0]
        assert options == ({} if whole == np.inf else {"time_limit": pytest.approx(left / last)})
        asked.append(problem)
        clock[0] += share[problem] * options.get("time_limit", 1.0)
        return SimpleNamespace(throughput=rates[problem] or None, stopped_by=None)

    until = Deadline(None if whole == np.inf else whole)
    found = solved_in_turn(number, lambda found: (len(found), {}), solve, until, 0.5)
    assert asked == list(range(len(found)))
    assert len(found) == number or until.reason == "time limit"


def pressed_before(function):
    def pressed(*args):
        signal.raise_signal(signal.SIGINT)
        return function(*args)

    return pressed


@pytest.mark.slow
def test_ctrl_c_while_something_is_imported_is_answered(monkeypatch):
    medium = pl.load_case("medium", max_gpus_per_stage=2, link_units="tokens")
    with monkeypatch.context() as patch:
        patch.setattr(solving, "method_of", pressed_before(solving.method_of))
        result = pl.solve(medium)
        assert (result.status, result.stopped_by) == ("feasible", "interrupt")
    monkeypatch.setattr(pl, "_import", pressed_before(pl._import))
    # it is for what is called then
    assert pl.__getattr__("deploy")(medium).stopped_by == "interrupt"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Slow(WrappedCosts):
    """Linear rates whose tables take a while: each look costs 20 ms, and at the third something happens."""

    at_the_third: Callable[[], None]
    looks: list = dataclasses.field(default_factory=list)

    def mixes_as_slowest(self, problem):
        return False

    def stage_tables(self, model, workload, kinds, composition, batch_split):
        time.sleep(0.02)
        self.looks.append("one more")
        if len(self.looks) == 3:
            self.at_the_third()
        return self.costs.stage_tables(model, workload, kinds, composition, batch_split)


def many_mixtures(at_the_third=lambda: None):
    """24 kinds of GPU in stages of up to 4: 20,474 mixtures with 80 spans, whose tables would take minutes."""
    medium = pl.load_case("medium", max_gpus_per_stage=4, link_units="tokens")
    first = medium.cluster.gpus[0]
    gpus = tuple(
        dataclasses.replace(first, memory_gb=60.0 + i, usd_per_hour=1.0)
        for i in range(24)
        for _ in range(4)
    )
    cluster = pl.Cluster(gpus, np.full((24, 24), 50.0), np.repeat(np.arange(24), 4))
    costs = Slow(costs=medium.costs, at_the_third=at_the_third)
    return dataclasses.replace(medium, cluster=cluster, costs=costs)


def unequal(number):
    """As many classes as GPUs."""
    links = np.random.default_rng(0).random((number, number)) + 1
    cluster = pl.Cluster((pl.GPU("A100", 80),) * number, links)
    return dataclasses.replace(pl.load_case("tiny"), cluster=cluster)


def of_layers(number, **factors):
    model = pl.Model("deep", number, 4096, 11008, 0.001, **factors)
    problem = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    return dataclasses.replace(problem, model=model)


LONG = {
    "mixtures": (many_mixtures, {"method": "aggregated"}),
    "mixtures, quickest": (many_mixtures, {"objective": "latency"}),
    "mixtures, cheapest": (many_mixtures, {"objective": "cost"}),
    "mixtures, front": (many_mixtures, {"against": "seconds_per_pass"}),
    "classes": (lambda: unequal(2000), {"objective": "rate"}),
    "layers": (lambda: of_layers(100_000), {"objective": "latency"}),
    "segments": (lambda: pl.load_case("medium"), {"method": "single_gpu"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LONG)
def test_what_takes_minutes_to_list_is_ended_in_time_and_a_placement_is_there_before(
    what, monkeypatch
):
    prepare, options = LONG[what]
    problem, ask = prepare(), pl.trade_off if "against" in options else pl.solve
    with looked_at(monkeypatch, 20_000_000) as clock:  # a rule of thumb deals out 100,000 layers
        result = ask(problem, time_limit=0.2, **options)
    assert clock.number <= 20 + MOST_AFTER
    if ask is pl.trade_off:
        assert not result.complete
        return
    if result.status == "optimal" and not isinstance(problem.costs, Slow):  # on a quick machine
        return
    assert result.stopped_by == ("list limit" if what == "layers" else "time limit")
    assert result.status == "feasible"
    assert result.bound is None or result.bound >= result.throughput
    pl.evaluate(problem, result.placement)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["stop", "interrupt"])
def test_an_end_among_the_tables_is_heeded_and_a_placement_is_kept(by):
    stop = threading.Event()
    end = {"stop": stop.set, "interrupt": lambda: signal.raise_signal(signal.SIGINT)}[by]
    problem = many_mixtures(at_the_third=end)
    result = pl.solve(problem, "aggregated", stop=stop)
    assert 3 <= len(problem.costs.looks) < 100  # of 20,474
    assert (result.status, result.stopped_by) == ("feasible", by)
    pl.evaluate(problem, result.placement)


class Looks:
    """A clock that only looks move on, 10 ms each; it fails where the calls from one look to the next are too many."""

    def __init__(self, most_calls):
        self.number, self.calls, self.most_calls = 0, 0, most_calls

    def __call__(self):
        self.number += 1
        if threading.current_thread() is threading.main_thread():
            self.calls = 0
        return 0.01 * self.number

    def count(self, frame, event, argument):
        self.calls += event in ("call", "c_call")
        if self.calls > self.most_calls:
            self.calls = -math.inf
            pytest.fail("nobody looks at the clock here")  # no `except Exception` catches it


@contextlib.contextmanager
def looked_at(monkeypatch, most_calls=200_000):
    clock = Looks(most_calls)
    with monkeypatch.context() as patch:
        patch.setattr(deadline, "clock", clock)
        sys.setprofile(clock.count)
        try:
            yield clock
        finally:
            sys.setprofile(None)


def random_long(seed):
    """A small problem that may have millions in flight: long latencies, tiny memories, stages of several GPUs."""
    rng = np.random.default_rng(seed)
    number, layers = int(rng.integers(3, 7)), int(rng.integers(3, 11))
    gpus = tuple(
        pl.GPU(f"T{i % 4}", float(rng.uniform(1.5, 4)), usd_per_hour=1.0 + i % 4)
        for i in range(number)
    )
    latency = float(rng.choice([0.0, 10.0, 1e5]))
    cluster = pl.Cluster(gpus, rng.uniform(0.01, 2, (number, number)), None, latency)
    model = pl.Model("small", layers, 1000, 4000, 1.0)
    load = pl.Workload(1000, 1, output_tokens=10)
    costs = pl.LayerTimes({f"T{i}": 1.0 + i for i in range(4)})
    return pl.Problem(cluster, model, load, costs, int(rng.integers(1, 4)))


ASKED = {
    "throughput": pl.solve,
    "rate": partial(pl.solve, objective="rate"),
    "latency": partial(pl.solve, objective="latency"),
    "cost": partial(pl.solve, objective="cost"),
    "exhaustive": partial(pl.solve, method="exhaustive"),
    "joint": partial(pl.solve, method="joint"),
    "batches": partial(pl.solve, batches=range(1, 9)),
    "deployment": pl.deploy,
    "load": partial(pl.deploy, at_least=2000),
    "many batches": partial(pl.deploy, batches=range(1, 9)),
    "requests": partial(pl.deploy, ttft_ms=1e9),
    "pools": partial(pl.deploy, pools=True),
    "flow": pl.flow,
    "flow of rates": partial(pl.flow, objective="rate"),
    "curve": partial(pl.trade_off, against="seconds_per_pass"),
    "deployments": partial(pl.trade_off, against="usd_per_hour", deployments=True),
}


@pytest.mark.quick(2)
@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("what", ASKED)
def test_whoever_looks_at_the_clock_does_so_often_and_ends_when_time_is_over(
    what, seed, monkeypatch
):
    """Work is counted, and not timed, so a busy machine changes nothing."""
    problem, ask = random_long(seed), ASKED[what]
    ask(problem, time_limit=0.0)  # imports are not counted
    looks = int(np.random.default_rng(seed).choice([0, 10, 100, 300]))
    with looked_at(monkeypatch) as clock:
        ask(problem, time_limit=0.01 * looks)
    assert clock.number <= looks + MOST_AFTER


WORKS = {
    **ASKED,
    "single_gpu": partial(pl.solve, method="single_gpu"),
    "type_count": partial(pl.solve, method="type_count"),
    "on an engine": partial(pl.solve, runs_on="vLLM"),
    "deployed on an engine": partial(pl.deploy, runs_on="vLLM"),
    "curve of GPUs": partial(pl.trade_off, against="gpus"),
    "curve of prices": partial(pl.trade_off, against="usd_per_million_tokens"),
    "curve of times": partial(pl.trade_off, against="tpot_ms", deployments=True),
    "step": partial(pl.solve, objective="step_time"),
    "step of any schedule": partial(pl.solve, objective="step_time", schedule="best"),
    "gain of one more GPU": lambda problem, **ends: pl.deploy(
        problem, stop=lambda progress: False
    ).one_more(**ends),
    "speeds": pl.sensitivity,
    "schedule": lambda problem, **ends: pl.best_schedule(
        pl.StageCosts([5.0, 7.3, 6.1, 8.2], 6.7, 7.9, comm=1.7), 8, max_in_flight=4, **ends
    ),
}


def ended_after(asked, ask, problem, slower, monkeypatch):
    """What an ask answers that ends at this question, on a machine so many times slower; what it said."""
    said = []

    def stop(progress):
        said.append((progress.nodes, progress.incumbent, progress.bound))
        return len(said) >= asked

    with monkeypatch.context() as patch:
        patch.setattr(deadline, "clock", lambda: slower * time.perf_counter())
        found = ask(problem, stop=stop, **ENDLESS.get(ask, {}))
    known = [
        (incumbent or 0.0, math.inf if bound is None else bound) for _, incumbent, bound in said
    ]
    if ask in TOLD:
        assert max(incumbent for incumbent, _ in known) <= (found.throughput or 0.0) * (1 + 1e-5)
        assert min(bound for _, bound in known) >= (found.throughput or 0.0) * (1 - 1e-5)
    return without_seconds(found), said


TOLD = {  # what is found best, in tokens/s
    WORKS[what]
    for what in (
        *("throughput", "rate", "exhaustive", "joint", "single_gpu", "batches", "on an engine"),
        *("deployment", "many batches", "deployed on an engine", "flow", "flow of rates"),
    )
}
ENDLESS = {WORKS["schedule"]: {"time_limit": None}}


def without_seconds(answer):
    """An answer as text, but for how long it took."""
    frame = answer if hasattr(answer, "columns") else answer.to_frame()
    told = [text for text in map(str, frame.columns) if "seconds" not in text or "per" in text]
    ended = [getattr(answer, name, None) for name in ("status", "stopped_by", "value", "bound")]
    return frame[told].to_string(), ended


@pytest.mark.quick(1)
@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", [1, 4, 3, 0, 2])
@pytest.mark.parametrize("what", WORKS)
def test_a_function_of_progress_ends_at_the_same_point_on_every_machine(what, seed, monkeypatch):
    rng, problem = np.random.default_rng(seed), random_long(seed)
    if what.startswith("step"):
        load = dataclasses.replace(problem.workload, phase="training", output_tokens=None)
        problem = dataclasses.replace(problem, workload=dataclasses.replace(load, microbatches=8))
    asked = int(rng.choice([1, 3, 20, 300]))
    (answer, said), again = (
        ended_after(asked, WORKS[what], problem, slower, monkeypatch) for slower in (1, 1000)
    )
    assert (answer, said) == again
    if what != "speeds":  # each of its solves has its own count
        assert [nodes for nodes, *_ in said] == sorted(nodes for nodes, *_ in said)


def attained(ask, problem, looks, monkeypatch):
    with looked_at(monkeypatch):
        return ask(problem, time_limit=0.01 * looks).throughput or 0.0


@pytest.mark.quick(1)
@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", range(12))
def test_what_ends_early_is_never_worse_than_what_is_known(seed, monkeypatch):
    """A flow attains what `deploy` finds in the same time, and that the best pipeline of the first part of it."""
    problem = random_long(seed)
    for looks in (0, 1, 3, 10, 30, 100):
        alone, several, flow = (
            attained(ask, problem, part, monkeypatch)
            for ask, part in ((pl.solve, 0.4 * looks), (pl.deploy, looks), (pl.flow, looks))
        )
        assert flow >= several * (1 - 1e-9)
        assert several >= alone * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
def test_a_model_is_freed_once_it_has_been_read(large, monkeypatch):
    """Left to Python's own habits, hundreds of SCIP's models stay in memory, a megabyte each and more."""
    from pyscipopt import Model

    if not hasattr(Model, "free"):
        pytest.skip("before 6.3, PySCIPOpt has no way to free a model with an event handler")
    if large:  # those are freed after their answer was given
        monkeypatch.setattr(scip, "_LARGE", 0)
        monkeypatch.setattr(scip, "_FREE_AFTER_SECONDS", 0.01)
    tiny, process = pl.load_case("tiny"), psutil.Process()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert pl.solve(tiny, "joint").status == "optimal"
        before = process.memory_info().rss
        for _ in range(10):
            pl.solve(tiny, "joint")
        assert process.memory_info().rss - before < 30e6
    finally:
        gc.enable()


@pytest.mark.slow
def test_nobody_waits_for_a_step_or_a_solver_that_does_not_hear(monkeypatch):
    import highspy

    over, ended = threading.Event(), []

    def goes_on(*_):
        over.wait(300)
        ended.append(True)

    class Deaf:
        asked = 0
        optimizeNogil = goes_on

        def interruptSolve(self):
            self.asked += 1

    deaf = Deaf()
    with pytest.raises(Ended, match="time limit"):
        waited_for(goes_on, Deadline(0.1))
    with pytest.raises(Ended, match="time limit"):
        scip._optimize(deaf, Deadline(0.1))
    assert deaf.asked > 1  # SCIP forgets one that comes before it starts
    monkeypatch.setattr(highspy.Highs, "run", goes_on)
    one = np.ones(1)
    program = LinearProgram(VariableGroups({"x": 1}), 0 * one, one, one.astype(bool), one, {})
    run = highs.run(program, deadline=Deadline(0.1))
    assert (run.status, run.stopped_by) == ("stopped", "time limit")
    assert not ended
    over.set()
    with pytest.raises(ZeroDivisionError):
        waited_for(lambda: 1 / 0, NEVER)


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


def test_an_interrupt_that_scip_refuses_is_given_again():
    now = "SCIP: method cannot be called at this time in solution process!"
    wrong = "SCIP: error in input data!"
    with deadline_of(0.0, None) as over:
        refused = _BetweenStages(3, now)
        scip._optimize(refused, over)
        assert refused.refusals == -1
        with pytest.raises(Ended, match="time limit"):  # it ended, and there is nothing to read
            scip._optimize(_BetweenStages(0, "", now), over)
        for model in (_BetweenStages(1, wrong), _BetweenStages(0, "", wrong)):
            with pytest.raises(Exception, match="error in input data"):
                scip._optimize(model, over)
            model.interrupted.set()


def test_runs_of_unlike_layers_beyond_memory_are_refused():
    factors = tuple(np.random.default_rng(0).uniform(0.5, 1.5, 5000))
    problem = of_layers(5000, weight_factors=factors)
    for ask in (pl.solve, pl.deploy):
        with pytest.raises(
            pl.errors.TooLarge, match=r"5,000 layers that differ .* 12,502,500 spans"
        ):
            ask(problem, time_limit=5)


def test_memory_that_does_not_suffice_is_said(monkeypatch):
    def none_left(*args, **options):
        raise MemoryError("Unable to allocate 246 GiB")

    monkeypatch.setattr("pipelab.engine.in_flight.instance_of", none_left)
    told = r"more memory than there is .Unable to allocate 246 GiB"
    with pytest.raises(pl.errors.TooLarge, match=told):
        pl.solve(many_mixtures(), objective="cost")


@pytest.mark.parametrize("seed", range(20))
def test_a_linear_program_that_is_stopped_has_no_false_bound(seed, monkeypatch):
    """After each number of steps of the primal simplex method, which stay below what is best."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(3, 9, 2)
    names = VariableGroups({"x": int(columns)})
    matrix = sp.csr_array(rng.uniform(0, 1, (rows, columns)))
    program = LinearProgram(
        names,
        np.zeros(columns),
        np.full(columns, np.inf),
        np.zeros(columns, dtype=bool),
        rng.uniform(0, 1, columns),
        {"room": names.rows({"x": matrix}, upper=1.0)},
    )
    best, stopped = highs.run(program), 0
    assert best.bound == best.objective
    monkeypatch.setitem(highs._ENDS, "kIterationLimit", "stopped")
    monkeypatch.setitem(highs._OPTIONS, "simplex_strategy", 4)
    for steps in range(10):
        monkeypatch.setitem(highs._OPTIONS, "simplex_iteration_limit", steps)
        run = highs.run(program)
        stopped += run.status == "stopped"
        assert run.bound is None or run.bound >= best.objective * (1 - 1e-9)
    assert stopped
