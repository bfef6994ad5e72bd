"""Labs: points by the way from a baseline to the best; the kit is off while the reader's function runs."""

import itertools
import json
import math
import random
import re
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial

import nbformat
import numpy as np
import pytest
from make_solutions import FOLD

import pipelab as pl
from pipelab.course import (
    lab_placement,
    lab_pricing,
    lab_schedule,
    plain_answers,
    scored_labs,
)
from pipelab.course.checks import EXERCISES
from pipelab.course.exercises import Given
from pipelab.course.scored_labs import Lab, UsesTheKit, alone, plain
from pipelab.files.bundled_folders import notebooks_dir
from pipelab.splits import split_even

# By name, so that `quick(3)` leaves out the schedules, whose proofs take some seconds.
LABS = {name: EXERCISES[name] for name in sorted(EXERCISES) if isinstance(EXERCISES[name], Lab)}
# How much of the point each folded solution earns at least, on the notebook's problems and on others.
EARNS = {"lab_schedule": 0.92, "lab_pricing": 0.99, "lab_placement": 0.99, "lab_roofline": 1}
# By day, of all problems and of hidden ones: those of the others take their time.
QUICKER = ("lab_roofline",)
BASELINES = {
    "lab_schedule": "one_f_one_b",
    "lab_pricing": "one_type_each",
    "lab_placement": "in_listed_order",
    "lab_roofline": "fastest_seen",
}


def _cells(name, kind):
    notebook = nbformat.read(notebooks_dir() / f"{name}.ipynb", as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def _function(name, source):
    space = {"np": np}
    exec(source, space)
    return space[name]


def _solution(name):
    (fold,) = (fold for cell in _cells(name, "markdown") for fold in FOLD.findall(cell))
    return _function(LABS[name].signature.partition("(")[0], fold)


def _baseline(name):
    source = "\n".join(
        re.sub(r"^(course|slowest\(in|\[).*", "", cell, flags=re.M)
        for cell in _cells(name, "code")
        if re.search(r"^(def|from|import) ", cell, re.M)
    )
    return _function(BASELINES[name], source)


def _hidden(name, seed=7):
    return replace(LABS[name], inputs=partial(LABS[name].inputs, seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_a_baseline_is_what_the_notebook_shows_and_earns_nothing(name):
    """Every problem has a row, also where there is no notebook."""
    lab = LABS[name]
    tries = lab.tries(_baseline(name))
    assert [each.wrong for each in tries] == [""] * len(tries)
    assert [each.value for each in tries] == pytest.approx([each.baseline for each in tries])
    said = pl.course.check(name, _baseline(name))
    first, names, *rows = str(said).splitlines()
    assert first.startswith(f"exercise {name}: 0% of the points; the full share on 0 of ")
    assert names.split()[:4] == ["input", "of", "baseline", "yours"]
    assert [int(row.split()[0]) for row in rows] == [*range(len(tries))]
    assert said.figure is not None
    assert "<table" in said.html


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_the_folded_solution_earns_most_of_the_point(name):
    """On four of the notebook's problems; on all of them at night."""
    few = replace(LABS[name], inputs=lambda: LABS[name].inputs()[:4])
    points, says = few.grade(_solution(name))
    assert EARNS[name] - 0.02 <= points <= 1
    assert says.startswith(
        f"{points:.0%} of the points"
    )  # and how long it took, where that is long


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in QUICKER else pytest.mark.nightly)
        for name in LABS
    ],
)
def test_solutions_keep_their_points_on_other_problems_and_with_the_grader(name, monkeypatch):
    """`pipelab grade` has them cross as plain data, and computes the points itself."""
    monkeypatch.setattr(scored_labs, "LIMIT", math.inf)  # what is said of a slow machine
    lab, shown, hidden = LABS[name], LABS[name].inputs(), _hidden(name).inputs()
    assert len(shown) == len(hidden)
    assert not set(map(repr, shown)) & set(map(repr, hidden))
    assert hidden == _hidden(name).inputs()
    answers = [alone(_solution(name), given) for given in shown]
    played = iter(answers)
    assert EARNS[name] <= replace(lab, call=lambda *_: next(played)).grade(max)[0]
    said = plain_answers._stated(name, lambda: _solution(name), 7)
    points, why = plain_answers.checked(name, json.dumps(said), 7)
    assert points >= EARNS[name] - 0.05
    assert (points, why) == _hidden(name).grade(_solution(name))
    by_heart = {repr([*given]): answer for given, answer in zip(shown, answers, strict=True)}
    assert _hidden(name).grade(lambda *given: by_heart[repr([*given])])[0] == 0


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", LABS)
def test_the_share_is_of_the_way_from_the_baseline_to_the_best(name):
    lab = LABS[name]
    for given in lab.inputs():
        base, best = lab.baseline(given), lab.best(given)
        # as good as there is the full share
        for share, of in ((0, 0), (0.25, 0.25), (0.9, 0.9), (1, 1), (1, 0.9995), (1, 2), (0, -1)):
            value = base + of * (best - base)
            one = replace(
                lab,
                call=lambda *_: 0,
                off=None,
                value=lambda *_, value=value: value,
                inputs=lambda given=given: [given],
            )
            points, says = one.grade(max)
            assert points == pytest.approx(share)
            assert (f"On input 0, {lab.measure}" in says) == (share < 1)


def test_a_check_says_when_the_grader_would_stop(monkeypatch):
    clock = itertools.count(0, 7)  # two looks at it per problem
    monkeypatch.setattr(scored_labs, "monotonic", lambda: next(clock))
    says = str(pl.course.check("lab_roofline", _baseline("lab_roofline")))
    assert "0% of the points (84 s; `pipelab grade` stops after 60); the full share" in says


# What a function may not do


def _swallows():
    try:
        pl.splits.split_even(4, 2)
    except Exception:
        return split_even(4, 2)


def _in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(split_even(4, 2)))
    thread.start()
    thread.join()
    return found


def _in_a_process():
    return subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True)


def _bit_by_bit():
    yield split_even(4, 2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("mine", [_swallows, _bit_by_bit, _in_a_thread, _in_a_process])
def test_the_kit_is_off_while_a_function_runs(mine):
    before = sys.getprofile()
    with pytest.raises(UsesTheKit, match="in a lab your function does without"):
        alone(mine, Given())
    assert sys.getprofile() is before
    assert split_even(4, 2)  # and on again


def test_a_function_may_use_everything_else_and_has_arguments_of_its_own():
    given = Given(numbers=[3, 1, 2])

    def mine(numbers):
        numbers.sort()
        return float(np.linalg.norm(numbers)), random.Random(1).random(), sorted(numbers)

    assert alone(mine, given)[0] == pytest.approx(math.sqrt(14))
    assert given.numbers == [3, 1, 2]


def test_a_call_of_the_kit_earns_nothing_and_says_so(monkeypatch):
    monkeypatch.delitem(vars(pl), "solve", raising=False)  # it is imported when first asked for
    points, says = LABS["lab_roofline"].grade(lambda *_: pl.solve(pl.load_case("tiny")))
    assert points == 0
    assert "On input 0: it uses pipelab (solve); in a lab your function does without" in says


# Answers that are not allowed


def _wrong_schedules(given):
    ranks, m = len(given.forward), given.microbatches
    gpipe = [[f"{kind}{i}" for kind in "FIW" for i in range(m)] for _ in range(ranks)]
    reversed_ = [[f"{kind}{i}" for i in range(m) for kind in "WIF"] for _ in range(ranks)]
    return [
        (gpipe, " microbatches and has room for "),
        (gpipe[:-1], f"expected a list of {ranks} rows"),
        ([row[:-1] for row in gpipe], f"rank 0 lacks W{m - 1}"),
        (reversed_, "cannot be run: 0W0 (rank 0, position 0) waits for 0I0"),
        (5, "expected a list"),
    ]


def _wrong_deployments(given):
    none = [0] * len(given.gpus)
    one = [*lab_pricing._alone(given)[0]]
    return [
        (([one] * 1000, [1] * len(none)), "all pipelines together have"),
        (([none], [1] * len(none)), "do not hold"),
        (([one], none), "at these prices a whole pipeline costs nothing"),
        (([one[:-1]], [1] * len(none)), f"expected pipelines of {len(none)} numbers"),
        (([], [1] * len(none)), "expected pipelines"),
        (3, "expected (pipelines, prices)"),
    ]


def _wrong_placements(given):
    return [
        ([(given.layers, 0)], f"GPU 0 holds at most {given.most[0]} layers"),
        ([(1, 0), (1, 0)], "GPU 0 has two stages"),
        ([(1, 0)], f"that is 1 of {given.layers} layers"),
        ([(1, -1)], "is no stage"),
        ([], "expected a list of (layers, GPU)"),
    ]


def _wrong_times(given):
    n = len(given.asked)
    return [
        ([1.0] * (n - 1), f"expected a list of {n} times"),
        ([0.0] * n, "more than 0"),
        ([math.nan] * n, "more than 0"),
        (None, f"expected a list of {n} times"),
    ]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("lab_pricing", _wrong_deployments),
        ("lab_placement", _wrong_placements),
        ("lab_roofline", _wrong_times),
        ("lab_schedule", _wrong_schedules),
    ],
)
def test_what_is_not_allowed_is_told_why_and_can_be_drawn(name, wrong):
    lab = LABS[name]
    given = lab.inputs()[0]
    for answer, why in wrong(given):
        tried = lab._try(lambda *_, answer=answer: answer, given)
        assert why in tried.wrong
        assert "Error" not in tried.wrong
        assert tried.share == 0
        assert lab.drawn(tried).layout.title.text


def _in_arrays(answer):
    """The same in what numpy has, as far as rows are equally long; a row alone as a tuple."""
    if not isinstance(answer, list | tuple):
        return answer if isinstance(answer, str) else np.float64(answer)
    try:
        return np.array(answer, float)
    except ValueError:
        return tuple(map(_in_arrays, answer))


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", LABS)
def test_arrays_tuples_and_whole_floats_are_worth_what_lists_are(name):
    """Also where they cross to the grader, and from an iterator."""
    lab, mine = LABS[name], _baseline(name)
    given = lab.inputs()[0]
    lists = lab._try(mine, given)
    arrays = lab._try(lambda *problem: iter(_in_arrays(mine(*problem))), given)
    assert lists.wrong == arrays.wrong == ""
    assert arrays.answer == plain(lists.answer)
    assert arrays.value == pytest.approx(lists.value)
    crossed = plain_answers._value(plain_answers._plain(iter(_in_arrays(mine(*given)))))
    assert plain(crossed) == arrays.answer


def test_a_function_that_ends_python_is_wrong_and_ends_nothing():
    for name in ("lab_roofline", "00.2"):
        said = str(pl.course.check(name, lambda *_: sys.exit("enough")))
        assert "yours gives SystemExit: enough" in said
    said = plain_answers._tried(alone, lambda *_: sys.exit("enough"), Given())
    assert said == {"failed": ["SystemExit", "enough"]}


# The evaluators


def test_a_placements_rate_is_the_evaluators():
    for given in LABS["lab_placement"].inputs():
        stages = _baseline("lab_placement")(*given)
        placed = pl.Placement.of([(layers, (gpu,)) for layers, gpu in stages])
        tokens = pl.evaluate(lab_placement._problem(given), placed).throughput
        assert lab_placement._rate(given, stages) == pytest.approx(tokens / 1000)


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_of_prices_is_that_of_all_pipelines(seed):
    """By trying every pipeline; and no deployment of small problems has more."""
    chance = random.Random(seed)
    types, layers = chance.randint(1, 3), chance.randint(2, 6)
    given = Given(
        gpus=[chance.randint(1, 3) for _ in range(types)],
        ms=[chance.randint(1, 9) for _ in range(types)],
        most=[chance.randint(1, layers) for _ in range(types)],
        overhead=chance.randint(0, 9),
        layers=layers,
    )
    mixes = list(itertools.product(*(range(n + 1) for n in given.gpus)))
    rates = {mix: rate for mix in mixes if (rate := lab_pricing.rate(given, mix))}
    for mix, rate in rates.items():  # against every cut of the layers
        kinds = [a for a, n in enumerate(mix) for _ in range(n)]
        cuts = itertools.product(*(range(given.most[a] + 1) for a in kinds))
        held = (cut for cut in cuts if sum(cut) == layers)
        slowest = (
            max(given.overhead + n * given.ms[a] for n, a in zip(cut, kinds, strict=True) if n)
            for cut in held
        )
        assert rate == pytest.approx(1000 / min(slowest))
    prices = [chance.choice((0, 1, 2, 5)) for _ in range(types)]
    bound = lab_pricing.bound(given, prices)
    if not rates:
        return
    costs = {mix: float(np.dot(prices, mix)) for mix in rates}
    if min(costs.values()) == 0:
        assert math.isinf(bound)
        return
    factor = max(rate / costs[mix] for mix, rate in rates.items())
    assert bound == pytest.approx(factor * np.dot(prices, given.gpus))

    def best(left):
        fitting = (
            mix for mix in rates if all(n <= have for n, have in zip(mix, left, strict=True))
        )
        return max(
            (
                rates[mix] + best(tuple(h - n for h, n in zip(left, mix, strict=True)))
                for mix in fitting
            ),
            default=0.0,
        )

    assert best(tuple(given.gpus)) <= bound * (1 + 1e-9)


def test_exact_pricing_ends_at_the_optimum_of_the_master_program():
    """Its bound and the program over its own columns are equal, and nothing beats the bound."""
    for given in LABS["lab_pricing"].inputs():
        found = lab_pricing.generated(given)
        bound = lab_pricing.bound(given, found.prices.tolist())
        assert bound == pytest.approx(found.prices @ given.gpus)
        yields = sum(lab_pricing.rate(given, mix) for mix in found.chosen)
        assert yields <= bound * (1 + 1e-9)
        worse = found.prices * np.random.default_rng(0).uniform(0.9, 1.1, len(found.prices))
        assert lab_pricing.bound(given, worse.tolist()) >= bound * (1 - 1e-9)


@pytest.mark.slow
def test_without_or_tools_there_are_problems_and_the_check_says_what_is_missing(monkeypatch):
    """So that the notebook runs to its end everywhere, and becomes a page."""
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    lab_schedule._proven.cache_clear()
    inputs = lab_schedule.EXERCISES["lab_schedule"].inputs
    inputs.cache_clear()
    try:
        assert len(pl.course.lab_problems("lab_schedule")) == 12
        said = str(pl.course.check("lab_schedule", _baseline("lab_schedule")))
        assert said.startswith("exercise lab_schedule: cannot be checked here. best_schedule: ")
        assert 'pip install "pipelab[schedules]"' in said
    finally:
        lab_schedule._proven.cache_clear()


@pytest.mark.slow
def test_the_best_schedule_is_proven_and_the_makespan_the_simulators():
    for given in LABS["lab_schedule"].inputs():
        proven = lab_schedule._proven(given)
        assert proven.status == "optimal"
        rows = [[str(action)[1:] for action in row] for row in proven.timeline.schedule.actions]
        assert LABS["lab_schedule"].off(given, rows) == ""
        assert (
            LABS["lab_schedule"].value(given, rows)
            == proven.value
            == LABS["lab_schedule"].best(given)
        )


def test_a_roofline_that_is_known_is_right_and_hidden_from_the_function():
    lab, slowest = LABS["lab_roofline"], []
    for given in lab.inputs():
        true = [given.machine.seconds(work) for work in given.asked]
        assert lab.value(given, true) == 0
        assert lab.value(given, [2 * t for t in true]) == pytest.approx(100 * math.log(2))
        assert len([*given]) == 2
        assert "machine" not in repr(given)
        late = [t / given.machine.seconds((f, b)) for f, b, t in given.measured]
        assert 0.6 < min(late) < 0.95
        assert 0.9 < np.median(late) < 1.1
        slowest.append(max(late))
    assert 1.5 < np.median(slowest) <= max(slowest) < 6
