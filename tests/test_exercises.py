"""Exercises: each has a computed target, a wrong answer is told what is off, and nothing right is called wrong."""

import ast
import inspect
import itertools
import math
from dataclasses import replace

import pytest

import pipelab as pl
from pipelab.course.exercises import (
    EXERCISES,
    Contest,
    Exercise,
    Mistake,
    Puzzle,
    cuts,
    joint,
    pipelines,
    programs,
    rules,
    splits,
)

NUMBERS = {name: exercise for name, exercise in EXERCISES.items() if isinstance(exercise, Exercise)}


def test_every_notebook_has_two():
    assert {name[:2] for name in EXERCISES} == {f"{n:02}" for n in range(10)}
    for notebook in range(10):
        assert [name for name in EXERCISES if name[:2] == f"{notebook:02}"] >= [
            f"{notebook:02}.1",
            f"{notebook:02}.2",
        ]


@pytest.mark.parametrize("name", NUMBERS)
def test_the_answer_is_right_and_what_is_near_it_is_not(name):
    target = NUMBERS[name].target()
    assert math.isfinite(target)
    assert str(pl.check(name, target)).startswith(f"exercise {name}: right, ")
    assert "too high. Hint: " in str(pl.check(name, target * 1.01))
    assert "too low. Hint: " in str(pl.check(name, target * 0.99))


@pytest.mark.parametrize("name", NUMBERS)
def test_every_mistake_is_told_apart(name):
    """Each leads to a number of its own, and its sentence is the one that is said."""
    exercise = NUMBERS[name]
    assert exercise.mistakes
    for mistake in exercise.mistakes:
        said = str(pl.check(name, mistake.value()))
        assert said.startswith(f"exercise {name}: not yet. Yours is ")
        assert said.endswith(f"Hint: {mistake.says}")


def test_none_is_an_answer_where_a_reader_arrives_at_it():
    """04.1: a result without a placement has no throughput."""
    said = pl.solve(pl.load_case("small", max_gpus_per_stage=4), "type_count").throughput
    assert said is None
    assert str(pl.check("04.1", said)).startswith(
        "exercise 04.1: not yet. Yours is None. Hint: the heuristic names no GPU"
    )
    assert str(pl.check("04.1", ...)) == "exercise 04.1: not attempted yet"
    assert (
        str(pl.check("00.1", ...))
        == str(pl.check("00.1", None))
        == "exercise 00.1: not attempted yet"
    )
    assert str(pl.check("07.2", ...)) == "exercise 07.2: not attempted yet"


def test_the_first_hint_is_not_the_solution():
    hint = EXERCISES["00.1"].hint
    assert "split_proportional" not in hint
    assert "weights" not in hint


def test_common_slips_are_named():
    exercise = Exercise(lambda: 40.0, "layers", "count them")
    for value, says in [
        (
            40_000,
            "more than ten times the answer. Hint: it is 1,000 times the answer: look at the units",
        ),
        (
            0.4,
            "less than a tenth of the answer. Hint: it is a hundredth of the answer: per cent, or a share?",
        ),
        (-40, "far too low. Hint: it has the right size and the wrong sign"),
        (1 / 40, "Hint: it is 1 divided by the answer: which of the two belongs on top?"),
        (
            41,
            "slightly too high. Hint: you are one off; is an end counted twice, or not at all? And count them",
        ),
        (52, "Yours is 52 layers, too high. Hint: count them"),
        (float("nan"), "Expected a finite number, yours is nan"),
        ("forty", "Expected a number, yours is 'forty'"),
        ("40 layers", "yours is '40 layers'; write it without unit and without commas"),
        ((1, 757), "yours is (1, 757); write it without unit and without commas"),
        (10**400, "Expected a finite number, yours has too many digits"),
        (
            pl.solve(pl.load_case("tiny")),
            "yours is of type Result; take one of its numbers, such as .throughput",
        ),
        (list(range(1000)), "Expected a number, yours is of type list"),
    ]:
        right, why = exercise.grade(value)
        assert not right
        assert says in why
        assert len(why) < 200
    assert exercise.grade(40.003) == (True, "40.003 layers")


def test_an_answer_rounded_too_far_is_told_so():
    exercise = Exercise(lambda: 190.5972, "tokens/s", "take the largest")
    assert exercise.grade(190.6)[0]
    assert exercise.grade(191)[1].endswith(
        "Hint: it is the answer, rounded too far: give one or two digits more"
    )
    assert exercise.grade(192)[1].endswith("Hint: take the largest")


def test_a_count_is_exact_and_written_in_full():
    said = str(pl.check("02.1", EXERCISES["02.1"].target() + 1))
    assert said.startswith("exercise 02.1: not yet. Yours is 3,387,760,049 placements, ")
    assert str(pl.check("02.1", 3387760048)) == "exercise 02.1: right, 3,387,760,048 placements"
    assert pl.check("02.1", 3387760048.0).text.startswith("exercise 02.1: right")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_wrong_answer_does_not_give_the_right_one_away(name):
    """What is said of a number says nothing of how far the answer is from it: one 4 % further away is told the same."""
    exercise, target = NUMBERS[name], NUMBERS[name].target()
    for factor in (0.3, 0.71, 1.43, 3.3):
        said = [
            exercise.grade(target * factor * more)[1].split("Hint")[0].split(", ")[-1]
            for more in (1, 1.04)
        ]
        assert said[0] == said[1]
        assert not any(sign.isdigit() for sign in said[0])


def test_a_mistake_that_happens_to_be_right_is_right():
    exercise = Exercise(
        lambda: 40.0,
        "",
        "count them",
        (Mistake(lambda: 40.0, "no"), Mistake(lambda: 1 / 0, "never")),
    )
    assert exercise.grade(40) == (True, "40")


def test_a_schedule_that_loses_is_told_why():
    contest = EXERCISES["07.2"]
    assert isinstance(contest, Contest)
    assert (
        "expected a schedule, as pl.Schedule.of('mine', rows) makes it; yours is 54"
        in contest.grade(54)[1]
    )
    rows = pl.schedule("1F1B", 4, 8).actions
    assert len(contest.grade(rows)[1]) < 300
    assert "expected 8 microbatches" in contest.grade(pl.schedule("1F1B", 4, 4))[1]
    assert "Hint: split backwards" in contest.grade(pl.schedule("1F1B", 4, 8))[1]
    assert "at its peak and has room for" in contest.grade(pl.schedule("ZBH2", 4, 8))[1]
    assert str(pl.check("07.2", 54)).startswith("exercise 07.2: not yet. Expected a schedule")


def _rate(parts, head=1.1, reserved=2, ends=2.23, skip=True, order=False):
    """Tokens/s of these cuts as a reader may write it; with other arguments, as one may get it wrong."""
    problem = pl.course.three_sites()
    gpus, ms = problem.cluster.gpus, problem.costs.ms_per_layer
    used = [(n, g) for n, g in parts if n]
    for i, (n, g) in enumerate(used):
        more = ((i == 0) + (i == len(used) - 1)) * (ends - 1)
        if 1.71 * (n + more) + reserved > gpus[g].memory_gb:
            return 0
    stages = [ms[gpus[g].type] * n for n, g in used]
    stages[-1] += (head - 1) * ms[gpus[used[-1][1]].type]
    line = [g for _, g in (used if skip else parts)]
    bandwidth = problem.cluster.bandwidth_between
    links = [31.25 / bandwidth(a, b) for a, b in itertools.pairwise(line)]
    return 2048000 / (sum(stages) if order else max(stages + links))


@pytest.mark.parametrize(
    "wrong", [{"head": 1}, {"reserved": 0}, {"ends": 1}, {"skip": False}, {"order": True}], ids=str
)
def test_a_function_is_right_or_told_the_smallest_input_on_which_it_is_not(wrong):
    puzzle = EXERCISES["00.2"]
    assert isinstance(puzzle, Puzzle)
    assert str(pl.check("00.2", _rate)) == "exercise 00.2: right, it agrees on all 200 inputs"
    tried = puzzle.inputs()
    first = next(x for x in tried if not math.isclose(_rate(x, **wrong), _rate(x), rel_tol=1e-6))
    said = str(pl.check("00.2", lambda x: _rate(x, **wrong)))
    assert said.startswith(f"exercise 00.2: not yet. On {first} yours gives ")
    assert [len(x) for x in tried] == sorted(len(x) for x in tried)


def test_what_is_no_function_or_raises_is_told_so():
    grade = EXERCISES["00.2"].grade
    assert "expected the function itself, as `def rate(cuts):` makes it; yours is 3" in grade(3)[1]
    assert "yours gives ZeroDivisionError: " in grade(lambda cuts: 1 / 0)[1]
    assert "yours gives TypeError: " in grade(lambda: 1)[1]
    assert "yours gives TypeError: " in grade(lambda cuts: None)[1]

    def changes_its_argument(cuts):
        answer = _rate(cuts)
        cuts.clear()
        return answer

    assert grade(changes_its_argument)[0]
    hints = {EXERCISES["00.2"].hint(given) for given in EXERCISES["00.2"].inputs()}
    assert len(hints) == 3


def _reach(costs, speeds, ms, skip=True, at=True):
    """Layers within the limit as a reader may count them; with other arguments, as one may get it wrong."""
    done = 0
    for speed in speeds:
        held = 0
        while done < len(costs) and (held + costs[done] < ms * speed + (1e-9 if at else 0)):
            held += costs[done]
            done += 1
        if not held and not skip:
            return done
    return done


def _split(costs, speeds, empty=True, worst=max, limit=math.inf):
    """The recurrence with GPUs left out; with other arguments, as one may get it wrong."""
    best = [0] + [limit] * len(costs)
    for speed in speeds:
        best = [
            min((worst(best[i], sum(costs[i:j]) / speed) for i in range(j + empty)), default=limit)
            for j in range(len(costs) + 1)
        ]
    return best[-1]


@pytest.mark.parametrize(
    ("name", "function", "wrong"),
    [
        ("01.2", _reach, {"skip": False}),
        ("01.2", _reach, {"at": False}),
        ("01.3", _split, {"empty": False}),
        ("01.3", _split, {"worst": lambda a, b: a + b}),
    ],
)
def test_functions_of_the_exact_split_are_right_or_told_the_smallest_input(name, function, wrong):
    puzzle = EXERCISES[name]
    assert str(pl.check(name, function)) == f"exercise {name}: right, it agrees on all 300 inputs"
    tried = puzzle.inputs()
    assert [len(x.costs) + len(x.speeds) for x in tried] == sorted(
        len(x.costs) + len(x.speeds) for x in tried
    )

    def mine(*given):
        return function(*given, **wrong)

    first = next(
        x for x in tried if not math.isclose(puzzle.apply(mine, x), puzzle.apply(function, x))
    )
    said = str(pl.check(name, mine))
    assert said.startswith(f"exercise {name}: not yet. On {first} yours gives ")
    assert str(first).startswith("costs=[")
    assert len({puzzle.hint(x) for x in tried}) == 3


def _linked(z, e, connections, forced=-1):
    """A link is on where both its ends are chosen; with another number, as one may get it wrong."""
    return [e[i] >= z[c.sender] + z[c.receiver] + forced for i, c in enumerate(connections)]


def _budget(z, allocations, price, most, sharing=True):
    """What the stages cost; with False, only the first GPU of each is paid for."""
    cost = [sum(price[g] for g in (a.gpus if sharing else a.gpus[:1])) for a in allocations]
    return sum(c * z[i] for i, c in enumerate(cost)) <= most


@pytest.mark.parametrize(
    ("name", "function", "wrong"),
    [
        ("05.3", _linked, {"forced": -2}),
        ("05.3", _linked, {"forced": 0}),
        ("05.4", _budget, {"sharing": False}),
    ],
)
def test_families_of_constraints_are_right_or_told_the_smallest_problem(name, function, wrong):
    puzzle = EXERCISES[name]
    assert str(pl.check(name, function)) == f"exercise {name}: right, it agrees on all 40 inputs"
    tried = puzzle.inputs()
    assert [len(x.ms) + x.layers for x in tried] == sorted(len(x.ms) + x.layers for x in tried)
    said = str(pl.check(name, lambda *given: function(*given, **wrong)))
    first = next(x for x in tried if said.startswith(f"exercise {name}: not yet. On {x} yours "))
    for case in tried[: tried.index(first)]:
        agrees = puzzle.apply(lambda *given: function(*given, **wrong), case)
        assert math.isclose(agrees, puzzle.target(case), rel_tol=1e-6)
    assert len({puzzle.hint(x) for x in tried}) == 2


def test_links_slower_than_the_answer_are_of_no_use_and_break_their_m():
    """05.1 and 05.2 compute their answers by a short cut; solving on both sides of it agrees."""
    gbps, factor = EXERCISES["05.1"].target(), EXERCISES["05.2"].target()
    used = [
        len(pl.solve(pl.course.seven_gpus(gbps=(10, share * gbps, 0.1))).placement)
        for share in (1.001, 0.999)
    ]
    assert used == [3, 2]
    problem = pl.course.seven_gpus()
    margin = 1.1 * problem.link_throughput(problem.cluster.bandwidth_between(0, 1))
    for share, breaks in ((0.999, False), (1.001, True)):
        slower = replace(problem, cluster=problem.cluster.scaled_bandwidth(1 / (share * factor)))
        assert (margin / (share * factor) < pl.solve(slower).throughput) == breaks


@pytest.mark.parametrize("module", [cuts, splits, rules, joint, programs, pipelines])
def test_no_target_is_typed_in(module):
    """A target is a call, or made of calls; never a number."""
    for call in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Exercise":
            target = call.args[0]
            assert isinstance(target, ast.Name) or any(
                isinstance(part, ast.Call) for part in ast.walk(target.body)
            )


def test_a_name_that_is_none_is_refused():
    with pytest.raises(pl.UnknownName, match=r"no exercise '05\.9'"):
        pl.check("05.9", 1)
    assert str(pl.check("05.2", None)) == "exercise 05.2: not attempted yet"
