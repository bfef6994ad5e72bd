"""Exercises: each has a computed target, a wrong answer is told what is off, and nothing right is called wrong."""

import ast
import inspect
import itertools
import math

import pytest

import pipelab as pl
from pipelab.course.exercises import (
    EXERCISES,
    Contest,
    Exercise,
    Mistake,
    Puzzle,
    cuts,
    one_gpu_per_stage,
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


def _no_rings(big_m=None, grow=True, add=True):
    """Rows of 03.1 as a reader may write them; with other arguments, as one may get them wrong."""

    def family(scip, v, d):
        for g, h in d.link if add else ():
            m = d.layers if big_m is None else big_m
            scip.addCons(v.done[h] >= v.done[g] + grow * v.n[h] - m * (1 - v.x[g, h]))

    return family


@pytest.mark.parametrize(
    ("wrong", "below"),
    [({"add": False}, True), ({"grow": False}, True), ({"big_m": 2}, False)],
    ids=str,
)
def test_rows_are_right_or_told_the_smallest_program_that_they_spoil(wrong, below):
    """A ring claims less time than any pipeline takes; an M that is too small cuts pipelines off."""
    assert str(pl.check("03.1", _no_rings())) == "exercise 03.1: right, it agrees on all 40 inputs"
    puzzle = EXERCISES["03.1"]
    assert isinstance(puzzle, Puzzle)
    mine = [puzzle.apply(_no_rings(**wrong), x) for x in puzzle.inputs()]
    wanted = [puzzle.target(x) for x in puzzle.inputs()]
    off = [i for i, (a, b) in enumerate(zip(mine, wanted, strict=True)) if not math.isclose(a, b)]
    assert (mine[off[0]] < wanted[off[0]]) == below
    said = str(pl.check("03.1", _no_rings(**wrong)))
    assert said.startswith(f"exercise 03.1: not yet. On {puzzle.inputs()[off[0]]} yours gives ")


def _stairs(ms, most, layers, head, memory=True, heads=True, whole=True):
    times = sorted({(n + h) * tau for tau in ms for n in range(layers + 1) for h in (0, head)})
    for time in times:
        for last, tau in enumerate(ms):
            held = [time / t - (heads and g == last) * head + 1e-9 for g, t in enumerate(ms)]
            held = [math.floor(n) if whole else n for n in held]
            held = [min(n, top) for n, top in zip(held, most, strict=True)] if memory else held
            if time >= tau * (1 + head * heads) - 1e-9 and sum(held) >= layers:
                return time
    return math.inf


@pytest.mark.parametrize("wrong", [{"memory": False}, {"heads": False}, {"whole": False}], ids=str)
def test_a_staircase_is_right_or_told_the_smallest_input(wrong):
    puzzle = EXERCISES["03.2"]
    assert str(pl.check("03.2", _stairs)) == "exercise 03.2: right, it agrees on all 300 inputs"
    first = next(x for x in puzzle.inputs() if not math.isclose(_stairs(*x, **wrong), _stairs(*x)))
    said = str(pl.check("03.2", lambda *x: _stairs(*x, **wrong)))
    assert said.startswith(f"exercise 03.2: not yet. On {first} yours gives ")


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


@pytest.mark.parametrize("module", [cuts, splits, one_gpu_per_stage, rules, programs, pipelines])
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
