"""`pl.best_schedule` against every order of small pipelines, its limits, its ends, and OR-tools beside highspy."""

import itertools
import random
import subprocess
import sys
import threading

import pytest

import pipelab as pl
from pipelab.engine.schedules import defects


def orders(m, kinds, in_turn):
    """Every order of one rank's actions; with `in_turn` microbatches go in order."""
    found = []

    def extend(row, left):
        if not left:
            found.append(tuple(row))
        for kind, j in left:
            i = kinds.index(kind)
            if (i and (kinds[i - 1], j) not in row) or (in_turn and j and (kind, j - 1) not in row):
                continue
            extend([*row, (kind, j)], [a for a in left if a != (kind, j)])

    extend([], [(kind, j) for kind in kinds for j in range(m)])
    return found


def keeps(row, in_flight, memory, whole, kept):
    full = rest = 0
    for kind, _ in row:
        full += kind == "F"
        held = [(full, rest)]
        full -= kind in "IB"
        rest += (kind == "I") - (kind == "W")
        held.append((full, rest))
        if max(full for full, _ in held) > in_flight:
            return False
        if memory is not None and any(f * whole + r * kept > memory + 1e-9 for f, r in held):
            return False
    return True


def ends(rows, length, comm, free):
    """When each rank ends its row, begun when it is free; None where nobody can go on."""
    p, place, end, free = len(rows), [0] * len(rows), {}, list(free)
    moved = True
    while moved:
        moved = False
        for r in range(p):
            while place[r] < len(rows[r]):
                kind, j = rows[r][place[r]]
                needs, delay = None, 0
                if kind == "W":
                    needs = (r, "I", j)
                elif kind == "F" and r:
                    needs, delay = (r - 1, "F", j), comm[r - 1]
                elif kind in "IB":
                    needs, delay = ((r + 1, kind, j), comm[r]) if r < p - 1 else ((r, "F", j), 0)
                if needs is not None and needs not in end:
                    break
                start = max(free[r], end[needs] + delay if needs else free[r])
                end[r, kind, j] = free[r] = start + length[kind][r]
                place[r] += 1
                moved = True
    return free if all(n == len(row) for n, row in zip(place, rows, strict=True)) else None


def step(rows, length, comm):
    """Of many steps one after the other the time of each: a mean over 6, for up to 3 ranks."""
    history = [[0] * len(rows)]
    for _ in range(40):
        history.append(ends(rows, length, comm, history[-1]))
    return (history[-1][0] - history[-7][0]) / 6


def by_trying_all(p, m, length, comm, in_flight, memory, whole, kept, split, objective):
    kinds = ("F", "I", "W") if split else ("F", "B")
    every = orders(m, kinds, in_turn=m > 2 or objective == "span")
    kept = kept if split else 0
    allowed = [
        [row for row in every if keeps(row, in_flight[r], memory and memory[r], whole, kept)]
        for r in range(p)
    ]
    found = []
    for rows in itertools.product(*allowed):
        finished = ends(rows, length, comm, [0] * p)
        if finished is not None:
            found.append(max(finished) if objective == "makespan" else step(rows, length, comm))
    return min(found, default=None)


def problem(seed):
    rnd = random.Random(seed)
    p, m = rnd.choice([(1, 3), (2, 2), (2, 3), (2, 3), (3, 2)])
    split = rnd.random() < 0.6
    objective = "makespan" if (p, m, split) == (2, 3, True) or rnd.random() < 0.5 else "span"
    number = (lambda: rnd.randint(0, 4)) if rnd.random() < 0.5 else (lambda: rnd.uniform(0, 2))
    length = {kind: [number() for _ in range(p)] for kind in "FIW"}
    length["B"] = [i + w for i, w in zip(length["I"], length["W"], strict=True)]
    comm = [number() / 2 for _ in range(p - 1)]
    in_flight = [rnd.randint(1, m) for _ in range(p)]
    whole = rnd.choice([1, 0.7])
    kept = whole * rnd.choice([0, 0.5, 32 / 34, 1])
    memory = None
    if rnd.random() < 0.5:
        memory = [rnd.uniform(0.9, m + 0.5) * whole for _ in range(p)]
    return p, m, length, comm, in_flight, memory, whole, kept, split, objective


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(80))
def test_no_order_of_a_small_pipeline_is_shorter(seed):
    p, m, length, comm, in_flight, memory, whole, kept, split, objective = asked = problem(seed)
    expected = by_trying_all(*asked)
    held = {"activation": whole, "weight_activation": kept}
    costs = pl.StageCosts(*(length[kind] for kind in "FIW"), comm=comm or 0.0, **held)
    limits = {"max_in_flight": in_flight, "memory": memory, "split_backward": split}
    best = pl.best_schedule(costs, m, p, **limits, objective=objective, workers=1)
    if expected is None:
        assert best.status == "infeasible"
        assert best.timeline is None
        return
    assert best.status == "optimal"
    assert best.value == pytest.approx(expected, rel=1e-8, abs=1e-12)
    assert best.bound <= best.value <= best.bound * (1 + 1e-8) + 1e-12
    if objective == "span":
        assert best.question.least("span") <= expected * (1 + 1e-9) + 1e-12
    assert not defects(best.schedule)
    assert all(n <= k for n, k in zip(best.timeline.peak_in_flight, in_flight, strict=True))


COSTS = pl.StageCosts([9, 14, 6, 11], [13, 7, 12, 8], [7, 10, 5, 9], comm=[1, 2, 1])


def test_eight_unequal_ranks_reach_the_bound():
    rnd = random.Random(6)
    forward = [round(rnd.uniform(0.7, 1.3), 3) for _ in range(8)]
    costs = pl.StageCosts(forward, [1.2 * f for f in forward], [0.8 * f for f in forward], comm=0.1)
    best = pl.best_schedule(costs, 16, max_in_flight=8, time_limit=120)
    least = pl.lower_bound(costs, 16, 8, max_in_flight=8)
    assert best.status == "optimal"
    assert best.makespan == pytest.approx(least, rel=1e-9)
    assert best.makespan < min(best.first.values()) * (1 - 1e-6)


def test_equal_costs_are_proven_without_a_solver():
    for p, m in ((2, 4), (4, 8), (8, 32)):
        best = pl.best_schedule(pl.StageCosts(1, 1, 1), m, p, max_in_flight=p)
        assert (best.status, best.solver, best.makespan) == ("optimal", "", 3 * m + p - 1)


@pytest.mark.slow
def test_a_time_limit_and_a_stop_keep_what_is_there():
    at_once = pl.best_schedule(COSTS, 8, max_in_flight=4, time_limit=0)
    assert (at_once.status, at_once.stopped_by) == ("feasible", "time limit")
    assert 0 < at_once.gap < 1
    stop, seen = threading.Event(), []

    def first_found(progress):
        seen.append(progress)
        stop.set()

    hard = pl.StageCosts(*([7.3 + i % 3 for i in range(8)] for _ in range(3)), comm=1.7)
    ended = pl.best_schedule(hard, 24, max_in_flight=6, stop=stop, on_progress=first_found)
    assert ended.timeline is not None
    assert ended.value >= ended.bound
    assert ended.stopped_by == "stop" if ended.status == "feasible" else not ended.stopped_by
    assert all(step.bound <= step.incumbent for step in seen)


@pytest.mark.parametrize("split", [True, False])
def test_where_no_rule_keeps_to_the_limits_there_is_a_schedule_at_once(split):
    """With two ahead of rank 2 and three of rank 3, both would wait for ever."""
    most = [2, 4, 1, 3]
    found = pl.best_schedule(COSTS, 8, max_in_flight=most, split_backward=split, time_limit=0)
    assert (found.status, found.stopped_by) == ("feasible", "time limit")
    assert all(n <= k for n, k in zip(found.timeline.peak_in_flight, most, strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_in_flight": [1]}, "2 for 2 ranks"),
        ({"ranks": None}, "ranks"),
        ({"memory": 2}, "weight_activation"),
        ({"memory": -1, "split_backward": False}, "memory"),
        ({"objective": "time"}, "makespan"),
        ({"costs": pl.StageCosts(1, 1, 1, weight_activation=2)}, "at most `activation`"),
        ({"microbatches": 100_000}, "lower_bound"),
    ],
)
def test_what_is_wrong_is_named(arguments, words):
    asked = {"costs": pl.StageCosts(1, 1, 1), "microbatches": 4, "ranks": 2}
    with pytest.raises(pl.PipelabError, match=words):
        pl.best_schedule(**asked | arguments)


@pytest.mark.slow
@pytest.mark.parametrize("order", [("ortools", "highspy"), ("highspy", "ortools")])
def test_ortools_and_highspy_work_in_one_process(order):
    """Both bring a libhighs.so.1, and the second to load finds the first (9.15 and 1.15 clash)."""
    cp = """
from ortools.sat.python import cp_model
model = cp_model.CpModel()
model.maximize(2 * model.new_int_var(0, 9, "x"))
solver = cp_model.CpSolver()
assert solver.status_name(solver.solve(model)) == "OPTIMAL" and solver.objective_value == 18
"""
    highs = """
import highspy
h = highspy.Highs()
h.silent()
h.maximize(3 * h.addVariable(ub=2.5, type=highspy.HighsVarType.kInteger))
assert round(h.getObjectiveValue(), 6) == 6
"""
    code = "".join({"ortools": cp, "highspy": highs}[name] for name in (*order, *order))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
