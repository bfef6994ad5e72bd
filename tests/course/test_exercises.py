"""Exercises: each has a computed target, a wrong answer is told what is off, and nothing right is called wrong."""

import ast
import itertools
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from make_solutions import solution

import pipelab as pl
from pipelab.course import n04, n07, n08, n16, plain_answers
from pipelab.course.checks import EXERCISES
from pipelab.course.exercises import Function, Given, Number
from pipelab.course.scored_labs import Lab

NUMBERS = {name: exercise for name, exercise in EXERCISES.items() if isinstance(exercise, Number)}


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", EXERCISES)
def test_hints_come_one_at_a_time_and_none_gives_the_answer(name):
    hints = EXERCISES[name].hints()
    assert len(set(hints)) == len(hints) >= 1
    for place, says in enumerate(hints, start=1):
        shown = str(pl.course.hint(name, place))
        assert shown == f"exercise {name}, hint {place} of {len(hints)}: {says}"
    if name in NUMBERS:
        assert f"{NUMBERS[name].target():,.4g}" not in " ".join(hints)
    for wrong in (0, len(hints) + 1):
        with pytest.raises(pl.errors.InvalidValue, match=f"expected 1 to {len(hints)}"):
            pl.course.hint(name, wrong)


@pytest.mark.parametrize(
    "name", [name for name, one in EXERCISES.items() if getattr(one, "signature", "") and one.hint]
)
def test_a_mistake_in_the_code_has_no_hint_about_the_input(name):
    for mistake in (lambda: 1, lambda *given: given.nothing, lambda *given: nothing):  # noqa: F821
        assert "Hint" not in EXERCISES[name].seen(mistake).says


def test_a_hint_of_a_function_names_the_smallest_input_that_it_is_about():
    said, inputs = str(pl.course.hint("01.2", 2)), EXERCISES["01.2"].inputs()
    smallest = next(x for x in inputs if "too slow" in EXERCISES["01.2"].hint(x))
    assert f"for {smallest}: here a layer is too slow for one of the GPUs" in said
    sizes = [len(x.costs) + len(x.speeds) for x in inputs]
    assert sizes == sorted(sizes)


def test_what_is_not_attempted():
    for name, value in itertools.product(("04.1", "00.1", "05.2"), (..., None)):
        said = f'exercise {name}: not attempted yet; course.hint("{name}") gives a hint'
        assert str(pl.course.check(name, value)) == said
    for asked in (pl.course.hint, lambda name: pl.course.check(name, 1)):
        with pytest.raises(pl.errors.UnknownName, match=r"there is no exercise '05\.9'"):
            asked("05.9")


# Numbers


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_right_or_told_its_mistake_without_the_answer(name):
    """Every mistake has a number and a sentence of its own; of others, one 4 % further away is told the same."""
    exercise, target = NUMBERS[name], NUMBERS[name].target()
    assert math.isfinite(target)
    assert str(pl.course.check(name, target)).startswith(f"exercise {name}: right, ")
    assert exercise.half or exercise.mistakes
    for points, mistakes in ((0.5, exercise.half), (0, exercise.mistakes)):
        for says, value in mistakes.items():
            earned, said = exercise.grade(value())
            assert earned == points
            assert said.endswith(f"Hint: {says}")
    plain = replace(exercise, target=lambda: target, half={}, mistakes={})
    for factor in (0.3, 0.99, 1.01, 3.3):
        how = "too high" if factor > 1 else "too low"
        assert f", {how}. Hint: " in plain.grade(target * factor)[1]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (40_000, "too high. Hint: it is 1,000 times the answer: look at the"),
        (0.4, "too low. Hint: it is a hundredth of the answer: per cent, or"),
        (52, "Yours is 52 layers, too high. Hint: count them"),
        (float("nan"), "Expected a finite number, yours is nan"),
        (10**400, "Expected a finite number, yours has too many digits"),
        ("40 layers", "Expected a number, without unit and commas, yours is '40 layers'"),
    ],
)
def test_common_slips_are_named(value, says):
    exercise = Number(target=lambda: 40.0, unit="layers", hint="count them")
    assert exercise.grade(40.003) == (True, "40.003 layers")
    right, why = exercise.grade(value)
    assert not right
    assert says in why


def test_an_answer_rounded_too_far_is_told_so_and_a_count_is_exact():
    exercise = Number(target=lambda: 190.5972, unit="tokens/s", hint="take the largest")
    assert exercise.grade(190.6)[0]
    assert "Hint: it is the answer, rounded too far: give one" in exercise.grade(191)[1]
    assert exercise.grade(192)[1].endswith("Hint: take the largest")
    assert (
        str(pl.course.check("02.2", 173966763.0)) == "exercise 02.2: right, 173,966,763 placements"
    )
    assert "Yours is 173,966,764 placements, " in str(pl.course.check("02.2", 173966764))


def test_a_mistake_that_happens_to_be_right_is_right():
    wrong = {"no": lambda: 40.0, "never": lambda: 1 / 0}
    exercise = Number(target=lambda: 40.0, hint="count them", mistakes=wrong)
    assert exercise.grade(40) == (True, "40")


def test_no_target_is_typed_in():
    """A target is a call, or made of calls; never a number."""
    for path in Path(n04.__file__).parent.glob("n[01]?.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Number":
                target = next(word.value for word in call.keywords if word.arg == "target")
                assert isinstance(target, ast.Name) or any(
                    isinstance(part, ast.Call) for part in ast.walk(target.body)
                )


@pytest.mark.slow
def test_links_slower_than_the_answer_are_of_no_use():
    """05.1 computes its answer by a short cut; solving on both sides of it agrees."""
    gbps = EXERCISES["05.1"].target()
    used = [
        len(pl.solve(pl.course.seven_gpus(gbps=(10, share * gbps, 0.1))).placement)
        for share in (1.001, 0.999)
    ]
    assert used == [3, 2]


# What is found


def test_a_schedule_may_be_half_right():
    tried = pl.schedule("1F1B", 4, 8), pl.schedule("GPipe", 4, 8)
    assert [EXERCISES["08.2"].grade(one)[0] for one in tried] == [0.5, 0]


# Functions: the solutions, and what becomes of them by a slip

# Slips that leave an answer half right, and one that leaves nothing: what stands in the solution, and what instead.
# (15.2 is in test_lab15.py.)
SLIPS = {
    "00.2": (
        [("[(n, gpu) for n, gpu in cuts if n]", "cuts"), (" + problem.costs.reserved_gb", "")],
        ("0.1 * ms", "0 * ms"),
    ),
    "01.2": (
        [("<= ms * v", "< ms * v"), ("1\n    return", "1\n        if not held:\n            break\n    return")],
        ("return done", "return 0"),
    ),
    "01.3": (
        [("min(max(best[i], sum(costs[i:j]) / v) for i in range(j + 1))",
          "min([max(best[i], sum(costs[i:j]) / v) for i in range(j)] or [float('inf')])")],
        ("max(best[i], sum(costs[i:j]) / v)", "best[i] + sum(costs[i:j]) / v"),
    ),
    "02.1": (
        [("finished[layers - 1]", "layers / sum(1 / tau for tau in ms)")],
        ("finished[layers - 1]", "finished[-1]"),
    ),
    "03.1": ([("d.layers", "2")], (" + v.n[h]", "")),
    "04.2": ([("permutations(stages)", "[stages]")], ("max(times)", "sum(times)")),
    "05.2": ([(" - 1 for", " for")], (" - 1 for", " - 2 for")),
    "06.1": (
        [("min(prices) >= 0 and ", ""), ("total < layers", "total <= layers")],
        ("covered and ", ""),
    ),
    "07.1": (
        [(" + 2 * (len(forward) - 1) * message", "")],
        ("sum(forward) + (m - 1)", "m"),
    ),
    "07.2": (
        [("min(room[: rank + 1])", "room[rank]")],
        ("min(len(room) - 1 - rank, min(room[: rank + 1]) - 1)", "len(room) - 1 - rank"),
    ),
    "08.1": (
        [("else share - 1\n        waiting += [action[1:]] if action[0] == \"I\" else []\n        done.append(action)",
          "else -1\n        done += [action] if action[0] == \"F\" else [action, 'W' + action[1:]]"),
         ("pop(0)", "pop()")],
        ("held + 1 > room", "False"),
    ),
    "09.1": ([('else float("inf")', "else 0")], (" - cache / bandwidth", "")),
    "09.2": ([(" + 1 / unsure**2", "")], ("log(measured / predicted)", "measured / predicted")),
    "10.1": (
        [("ceil(sum(times) / max(times))", f"sum(times) {over} max(times)") for over in ("//", "/")],
        ("max(times)", "min(times)"),
    ),
    "10.2": ([("room // b + 1", "2")], ("seconds <= promise", "True")),
    "11.1": ([("(tokens - 1)", "tokens")], (", m * max(decode)", ", 0")),
    "11.2": (
        [("    free, waited =", "    stages = [max(stages)]\n    free, waited =")],
        ("max(now, free[s])", "now"),
    ),
    "12.1": (
        [("max(rates[k - 1] + best[n - k] for k in range(1, min(n, len(rates)) + 1))",
          "max((rates[k - 1] / k, rates[k - 1] + best[n - k]) for k in range(1, min(n, len(rates)) + 1))[1]")],
        ("best[-1]", "rates[min(gpus, len(rates)) - 1]"),
    ),
    "12.2": (
        [("max(rate / cost(mix)", "min(rate / cost(mix)")],
        (" * max(rate / cost(mix) for mix, rate in pipelines)", ""),
    ),
    "12.3": (
        [("fewest[-1]", "min((d / r, d * -(-load // r)) for d, r in pipelines)[1]")],
        ("fewest[-1]", "min(d / r for d, r in pipelines) * load"),
    ),
    "13.1": (
        [("rate(1)", "min([gb_per_s / gb for gb_per_s in links] or stages)")],
        ("rate(tokens) / rate(1)", "1"),
    ),
    "13.2": (
        [("    share, sizes", "    costs = [1] * len(costs)\n    share, sizes")],
        ("(load >= share or left == to_open)", "left >= to_open and load >= share"),
    ),
    "13.3": (
        [("all(number <= order.ranks - rank for rank, number in enumerate(held))", "True")],
        ("return False", "return True"),
    ),
    "14.1": ([(" + (whole if n else 0)", "")], ("return n", "return layers")),
    "14.2": ([('return float("inf")', "return 0")], ("sum(parts[:stage]), sum(parts[stage:])", "18, 0")),
    "15.1": ([("seen[seen.index(rank) :]", "seen")], ("seen[seen.index(rank) :]", "[]")),
    "16.1": ([("min(m, len(rooms) - rank)", "len(rooms) - rank")], ("order if fits else None", "[*range(len(rooms))]")),
    "16.2": ([("bound >= best", "bound > best")], ("sorted(zip(bounds, steps, strict=True))", "zip(bounds, steps)")),
    "17.1": ([("min(passed)", "min(filter(None, passed))")], ("min(passed)", "min(rates)")),
    "17.2": (
        [("ceil(in_flight / tokens)", "in_flight / tokens")],
        ("rate * seconds", "rate * seconds / len(way)"),
    ),
}  # fmt: skip


def _slips(name):
    """Wrong functions, and what they earn."""
    halves, wrong = SLIPS[name]
    return [*((0.5, solution(name, slip)) for slip in halves), (0, solution(name, wrong))]


def test_every_function_is_here():
    named = {n for n, x in EXERCISES.items() if isinstance(x, Function) and not isinstance(x, Lab)}
    assert named - {"15.2"} == set(SLIPS)
    undrawn = {name for name in named if not EXERCISES[name].picture}
    of_numbers = {"10.2", "11.1", "11.2", "16.2", "17.2"}  # the input and a hint say it all
    assert undrawn == of_numbers | {"09.2", "13.1", "13.2", "13.3", "15.1", "15.2"}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", SLIPS)
def test_a_function_is_right_or_shown_the_smallest_input_and_has_half_a_point_by_the_rubric(name):
    exercise, inputs = EXERCISES[name], EXERCISES[name].inputs()
    does = "agrees" if exercise.target else "keeps the rule"
    said = f"exercise {name}: right, it {does} on all {len(inputs)} inputs"
    assert str(pl.course.check(name, solution(name))) == said
    if exercise.hint:
        assert len({exercise.hint(x) for x in inputs}) >= 2
    for points, mine in _slips(name):
        earned, why = exercise.grade(mine)
        assert earned == points
        answer, failure = pl.course.check(name, mine), exercise.smallest_failure(mine)
        assert str(answer) == f"exercise {name}: not yet. {why[0].upper()}{why[1:]}"
        assert why.startswith(f"on {failure.given} yours ") or name == "16.1"
        assert answer.figure == (exercise.picture(failure) if exercise.picture else None)
        if exercise.target and not exercise.off:
            assert failure.given == next(
                given
                for given in inputs
                if not math.isclose(
                    exercise.call(mine, given), exercise.target(given), rel_tol=1e-6
                )
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", SLIPS)
def test_hidden_inputs_come_to_those_of_the_notebook(name):
    shown, others = EXERCISES[name].inputs(), EXERCISES[name].inputs(1)
    assert all(given in others for given in shown)
    assert sum(given not in shown for given in others) >= 38


@pytest.mark.nightly
@pytest.mark.parametrize("name", SLIPS)
def test_verdicts_stay_with_hidden_inputs(name):
    hidden = replace(EXERCISES[name], inputs=partial(EXERCISES[name].inputs, 1))
    assert hidden.grade(solution(name))[0] == 1
    for points, mine in _slips(name):
        assert hidden.grade(mine)[0] == points


@pytest.mark.parametrize(
    ("name", "mine", "why"),
    [
        ("00.2", 3, "expected the function itself, as `def rate(cuts):` makes it; yours is 3"),
        ("00.2", lambda: 1, "yours gives TypeError: "),
        ("13.2", solution("13.2", SLIPS["13.2"][1]), "yours gives [2]: that is 1 of 2 stages"),
        ("13.2", lambda c, s: [1] * s, "yours gives [1]: that is 1 of 2 layers"),
        ("07.2", solution("07.2", SLIPS["07.2"][0][0]), "cannot be run: deadlock"),
        ("07.2", solution("07.2", SLIPS["07.2"][1]), "microbatches and has room for"),
        ("07.2", lambda r, m, room: ["F0"], "rank 0 lacks B0"),
        ("07.2", lambda r, m, room: ["F0", "B0", "W0"], "rank 0 has 'W0', which it should not"),
        ("08.1", solution("08.1", SLIPS["08.1"][0][0]), "could wait: "),
        ("08.1", lambda row, *_: ["W0", *solution("08.1")(row, 1, 9)[:-1]], "W0 comes before I0"),
        (
            "08.1",
            lambda row, *_: sorted(solution("08.1")(row, 0, 9)),
            "no longer in the given order",
        ),
        ("16.1", lambda *x: None, "it says that no order fits, and one does"),
        ("16.1", lambda rooms, m: [0], "it is no order of the GPUs 0 to 1"),
    ],
)
def test_what_is_wrong_is_told(name, mine, why):
    assert why in EXERCISES[name].grade(mine)[1]


def test_answers_may_be_tuples_and_arguments_may_be_changed():
    def changes_its_argument(cuts):
        answer = solution("00.2")(cuts)
        cuts.clear()
        return answer

    assert EXERCISES["00.2"].grade(changes_its_argument)[0] == 1
    assert EXERCISES["13.2"].grade(lambda *x: tuple(solution("13.2")(*x)))[0] == 1


def test_half_points_are_for_failures_that_are_all_half_right_and_of_the_kind():
    one = Function(
        signature="f(x)",
        inputs=lambda _=0: [Given(x=1), Given(x=2)],
        target=lambda given: given.x,
        half=lambda given, answer: answer + given.x == 1,
    )
    assert [one.grade(f)[0] for f in (lambda x: 1 - x, lambda x: 0, lambda x: "")] == [0.5, 0, 0]


def _orders(m, most, row=()):
    """Every order of full backwards on a rank that may hold so many microbatches."""
    done, back = (sum(action[0] == kind for action in row) for kind in "FB")
    if back == m:
        yield row
    if done < min(m, back + most):
        yield from _orders(m, most, (*row, f"F{done}"))
    if back < done:
        yield from _orders(m, most, (*row, f"B{back}"))


@pytest.mark.parametrize(("m", "room"), [(2, (1, 2, 1)), (2, (2, 1)), (3, (2, 3)), (3, (2, 2, 1))])
def test_on_small_inputs_no_order_within_the_memory_is_faster(m, room):
    """By trying all; a larger input has a faster one, as 07's solutions say."""
    off = EXERCISES["07.2"].off
    given = Given(m=m, room=list(room))
    mine = [solution("07.2")(rank, m, list(room)) for rank in range(len(room))]
    assert off(given, mine) == ""
    all_orders = itertools.product(*(list(map(list, _orders(m, most))) for most in room))
    ends = {n07.run_rows(rows, m).makespan for rows in all_orders if not off(given, list(rows))}
    assert ends == {n07.run_rows(mine, m).makespan}


def test_what_1f1b_holds_is_what_the_simulator_says():
    """The needs of exercise 16.1, and the peak of 14.1 with nothing recomputed."""
    for given in EXERCISES["16.1"].inputs()[::10]:
        timeline = pl.simulate(
            pl.schedule("1F1B", len(given.rooms), given.m), pl.StageCosts(1, 1, 1)
        )
        assert list(timeline.peak_in_flight) == n16.held_by_1f1b(given)


def test_littles_number_is_what_the_timeline_needs():
    """On stages alone, of whole seconds: one layer each, on GPUs of different speeds."""
    for given in EXERCISES["10.1"].inputs()[::25]:
        kinds = [f"G{g}" for g in range(len(given.times))]
        gpus = pl.Cluster.from_counts(dict.fromkeys(kinds, 1), dict.fromkeys(kinds, 80), 1e15)
        times = {kind: 1000 * ms for kind, ms in zip(kinds, given.times, strict=True)}
        model = pl.Model("m", len(kinds), 1024, 1024, 1.0)
        load = pl.Workload(128, 1, "decode")
        problem = pl.Problem(gpus, model, load, pl.LayerTimes(times))
        plan = pl.Placement.of([(1, (g,)) for g in range(len(kinds))])
        assert pl.timeline_of(problem, plan).in_flight_needed == EXERCISES["10.1"].target(given)


def test_what_is_held_in_a_row_is_what_the_simulator_says():
    for given in EXERCISES["08.1"].inputs()[::5]:
        row = [[f"0{action}" for action in solution("08.1")(*given)]]
        costs = pl.StageCosts(1, 1, 1, weight_activation=given.share)
        (peak,) = pl.simulate(pl.Schedule.of("", row), costs).peak_memory
        assert peak == max(n08._held([a[1:] for a in row[0]], given.share)) <= given.room


# Pictures


def test_a_figure_is_shown_below_the_words(monkeypatch):
    answer, shown = pl.course.check("00.2", lambda cuts: 0.0), []
    monkeypatch.setattr("IPython.display.display", lambda *what: shown.extend(what))
    answer._ipython_display_()
    assert [shown[0].data, *shown[1:]] == [answer.html, answer.figure]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", [name for name in SLIPS if EXERCISES[name].picture])
def test_what_raises_is_drawn_too_and_no_input_is_too_odd_to_draw(name):
    """Without an answer, the picture is of the right one."""
    puzzle = EXERCISES[name]
    failure = puzzle.smallest_failure(lambda *given: 1 / 0)
    assert "ZeroDivisionError" in failure.says
    for given in puzzle.inputs()[::59]:
        title = puzzle.picture(failure._replace(given=given)).layout.title.text
        assert "None" not in title
        assert "yours" not in title


FUNCTIONS = sorted(name for name, one in EXERCISES.items() if isinstance(one, Function))
NEVER = [-1], [0, -1], [1e-9, 1e-8], [1e300, 2e300], [math.inf], [-math.inf, 0], [True], [[]]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(FUNCTIONS)))
def test_no_function_earns_a_point_with_values_that_no_program_gives(case):
    """As a kernel may say that was changed in memory; `grade` believes of it the values alone."""
    name = FUNCTIONS[case]
    for values in NEVER:
        answers = [
            {"answer": v}
            for _, v in zip(EXERCISES[name].inputs(), itertools.cycle(values), strict=False)
        ]
        assert plain_answers.checked(name, json.dumps({"returned": answers}))[0] == 0
