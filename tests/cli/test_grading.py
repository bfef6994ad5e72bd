"""Grading: right, wrong, hanging and hostile notebooks; answers cross to the checker as plain data only."""

import inspect
import json
import math
import os
import shutil
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import pipelab as pl
from pipelab.cli.command_line import grade as command
from pipelab.cli.grading import _answers, _checks, _exercises, _test, grade, grade_folder
from pipelab.course import plain_answers
from pipelab.course.checks import EXERCISES
from pipelab.course.scored_labs import LIMIT
from pipelab.files.bundled_folders import in_clone

ROOT = Path(__file__).parents[2]

RIGHT = """
import pipelab as pl
from pipelab.course import three_sites
def rate(cuts):
    placed = pl.Placement.of([(n, (gpu,)) for n, gpu in cuts if n])
    try:
        return pl.evaluate(three_sites(), placed).throughput
    except pl.errors.InvalidPlacement:
        return 0
"""
# It redefines what checks, patches the package in memory, prints what a right answer would, and leaves.
HOSTILE = """
import os, sys
import pipelab as pl
from pipelab.course import checks, exercises, plain_answers
for cls in (exercises.Number, exercises.Function):
    cls.grade = lambda self, value: (True, "right")
exercises.Number.target = exercises.Function.target = property(lambda self: lambda *_: 1.0)
checks.check = pl.course.check = lambda name, value: print(f"exercise {name}: right")
checks.EXERCISES.clear()
plain_answers._stated = lambda name, value: {"answer": 1.0, "right": True, "score": 99}
plain_answers.checked = lambda *_: (True, "right")
print('{"score": 2, "tests": [{"name": "exercise 00.1", "score": 1}]}')
"""


def _saved(path, *cells):
    nbformat.write(new_notebook(cells=[new_code_cell(cell) for cell in cells]), path)
    return path


def _points(result):
    return {test["name"][-4:]: test["score"] for test in result["tests"]}


@pytest.fixture(scope="module")
def right_copy(tmp_path_factory):
    """What the command says of a right number after a wrong try, and a right function."""
    right = EXERCISES["00.1"].target()
    copy = _saved(
        tmp_path_factory.mktemp("grading") / "00_start_here.ipynb",
        RIGHT,
        "mine = 1\npl.course.check('00.1', mine)",
        f"mine = {right!r}\npl.course.check('00.1', mine)\npl.course.check('00.2', rate)",
    )
    return subprocess.run(
        [sys.executable, "-m", "pipelab.cli.command_line", "grade", str(copy), "--json"],
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_right_notebook_has_all_points(right_copy):
    assert right_copy.returncode == 0, right_copy.stderr
    assert "no sandbox" in right_copy.stderr
    result = json.loads(right_copy.stdout)
    assert set(result) == {"score", "execution_time", "output", "tests"}
    assert _points(result) == {"00.1": 1, "00.2": 3}  # a number, and a function
    assert result["score"] == 4
    assert {test["status"] for test in result["tests"]} == {"passed"}
    assert [test["max_score"] for test in result["tests"]] == [1, 3]


@pytest.mark.slow
def test_a_hanging_notebook_keeps_what_was_answered_before_and_a_wrong_one_says_why(
    right_copy, tmp_path
):
    right = EXERCISES["00.1"].target()
    wrong = "def rate(cuts):\n    return 1 / 0\npl.course.check('00.2', rate)"
    copy = _saved(
        tmp_path / "00_mine.ipynb",
        f"import pipelab as pl\npl.course.check('00.1', {right!r})",
        wrong,
        "import time; time.sleep(600)",
        "pl.course.check('00.1', 0)",
    )
    # Long enough for the cells before, however slow this machine is now.
    limit = max(4.0, 1.5 * json.loads(right_copy.stdout)["execution_time"])
    began = time.monotonic()
    result = grade(copy, limit=limit)
    assert time.monotonic() - began < 60 + limit
    assert _points(result) == {"00.1": 1, "00.2": 0}
    stopped = f"The notebook was stopped after {limit:g} s"
    assert result["output"] == f"{stopped}."
    earlier = "an earlier check of it counts, with 1 of 1 point"
    assert result["tests"][0]["output"] == f"{stopped}; {earlier}"
    assert "ZeroDivisionError: division by zero" in result["tests"][1]["output"]


@pytest.mark.slow
def test_a_hostile_notebook_gains_nothing(tmp_path):
    copy = _saved(
        tmp_path / "00_start_here.ipynb",
        HOSTILE,
        "pl.course.check('00.1', 1.0)",
        "pl.course.check('00.2', lambda cuts: 1.0)",
        "os._exit(0)",
    )
    result = grade(copy, limit=60)
    assert _points(result) == {"00.1": 0, "00.2": 0}
    assert result["score"] == 0
    assert "ended before its last cell" in result["output"]


# what crosses


def _crossed(name, value):
    return plain_answers.checked(name, json.dumps(plain_answers._stated(name, lambda: value)))


@pytest.mark.slow
def test_every_kind_of_answer_crosses_and_is_checked_as_in_the_notebook():
    values = {
        "00.1": [
            EXERCISES["00.1"].target(),
            np.float64(6166.8172),
            Fraction(3),
            "five",
            math.nan,
            None,
            ...,
            [1],
        ],
        "02.1": [lambda layers, stages: [(layers,)], lambda layers, stages: None, 3],
        "04.2": [(3, 4, 4), [0, 0, 0], [3, 4], "three"],
        "07.2": [pl.schedule("1F1B", 4, 8), pl.schedule("GPipe", 4, 8), 5],
        "13.1": [pl.Placement.of([(4, (0,)), (4, (1, 2))]), None],
        "14.2": [lambda costs, stages: [len(costs)], lambda *_: 1 / 0],
    }
    for name, tried in values.items():
        for value in tried:
            points, why = _crossed(name, value)
            said = str(pl.course.check(name, value))
            assert (points is None) == ("not attempted" in said), (name, value)
            right = said.startswith(f"exercise {name}: right")
            assert (points == 1) == right, (name, value, why, said)
            if points is not None and not callable(value):
                assert why.split(" (")[0][1:] in said, (name, value)


def test_the_last_check_of_an_exercise_in_a_cell_counts_and_only_checks_are_asked():
    cell = (
        "check('00.1', 1)\n%time x\ncourse.check('00.2', rate)\ncheck('00.1', 2)\nguess('00.1', 3)"
    )
    assert dict(_checks(cell)) == {"00.1": "2", "00.2": "rate"}
    assert dict(_checks("check('00.1', (")) == {}


@pytest.mark.slow
def test_what_fails_takes_no_answer_away_and_is_counted(tmp_path):
    """A name gone in the second check hides no first answer; half right is half a point here, too."""
    half, mistake = EXERCISES["00.1"].half, EXERCISES["00.1"].mistakes
    points = {value(): 0.5 for value in half.values()} | {value(): 0 for value in mistake.values()}
    for value, expected in points.items():
        assert _crossed("00.1", value)[0] == expected
    copy = _saved(
        tmp_path / "00.ipynb",
        f"import pipelab as pl\nmine = {next(iter(points))!r}\npl.course.check('00.1', mine)",
        "1 / 0",
        "del mine\npl.course.check('00.1', mine)",
    )
    result = grade(copy, limit=60)
    assert (result["score"], result["tests"][0]["status"]) == (0.5, "failed")
    expected = "The notebook ran to its end, but 2 cells failed, the first with ZeroDivisionError."
    assert result["output"] == expected


def test_forged_text_is_no_answer():
    for stated in (
        "", "no JSON", "3", "[]", "{}", '{"answer": {"placement": 3}}', '{"returned": []}',
        '{"answer": {"os.system": "echo"}}', '{"returned": [{"answer": 1.0}]}', "[" * 5000,
        '{"returned": [{"failed": 1}]}', '{"answer": {"tuple": [[1], 2], "set": []}}',
        '{"answer": "' + "x" * plain_answers.LONGEST + '"}',
    ):  # fmt: skip
        for name in ("00.1", "00.2", "13.1", "14.2"):
            right, _ = plain_answers.checked(name, stated)
            assert not right, (name, stated)


def test_what_is_no_notebook_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "00_torn.ipynb").write_text("{")
    with pytest.raises(pl.errors.InvalidData, match=r"00_torn\.ipynb: expected a Jupyter notebook"):
        grade(tmp_path / "00_torn.ipynb")
    with pytest.raises(pl.errors.InvalidData, match="cannot be read"):
        grade(tmp_path / "00_gone.ipynb")
    with pytest.raises(pl.errors.InvalidData, match="number of a notebook with exercises"):
        grade(_saved(tmp_path / "mine.ipynb", "1 + 1"))
    with pytest.raises(pl.errors.InvalidValue, match="expected seconds"):
        grade(_saved(tmp_path / "00_a.ipynb", "1"), limit=0)


def test_a_copy_is_of_the_notebook_that_its_checks_belong_to():
    """A student's number before the name says nothing, nor does a check copied from elsewhere."""
    of = ["07.1", "07.2"]
    assert _exercises(Path("12034567_smith_07.ipynb"), [*of, "12.1"]) == of
    assert _exercises(Path("12034567_smith_07_late.ipynb"), []) == of
    assert _exercises(Path("lab_pricing_smith.ipynb"), []) == ["lab_pricing"]


@pytest.mark.slow
def test_an_endless_loop_costs_its_own_exercise_only(tmp_path):
    right = EXERCISES["00.1"].target()
    endless = "def rate(cuts):\n    while True:\n        pass\n\n\npl.course.check('00.2', rate)"
    copy = _saved(
        tmp_path / "00.ipynb",
        "import pipelab as pl",
        endless,
        f"pl.course.check('00.1', {right!r})",
    )
    result = grade(copy, limit=120, each=4)
    assert _points(result) == {"00.1": 1, "00.2": 0}
    assert result["tests"][1]["output"] == "no answer: its check was interrupted after 4 s"
    with pytest.raises(pl.errors.InvalidValue, match="each"):
        grade(copy, each=0)


def test_of_a_check_that_is_interrupted_an_earlier_answer_is_not_taken_for_its_own():
    """In a lab, the check of the baseline comes first."""
    zero = {"answer": [0.0] * 30}
    shown = new_output("display_data", {plain_answers.MIME: json.dumps({"returned": [zero] * 12})})
    late = new_output("error", ename="KeyboardInterrupt", evalue="", traceback=[])
    interrupted = "its check was interrupted after 60 s"

    def why(outputs, stopped=""):
        marked = {"pipelab-asks": "lab_roofline"}
        cells = [new_code_cell("", metadata=marked, outputs=[*each]) for each in outputs]
        said, missing = _answers(new_notebook(cells=cells), 60, stopped)
        name = "lab_roofline"
        return _test(name, said.get(name), missing.get(name, ""), 0)["output"]

    earlier = "an earlier check of it counts, with 0 of 12 points"
    assert why([[shown], [late]]) == f"{interrupted}; {earlier}"
    assert why([[shown], []], "It ended early.") == f"It ended early; {earlier}"
    assert why([[late]]) == f"no answer: {interrupted}"
    assert why([]) == "no answer: its check is gone from the notebook"
    assert "On input 0: expected seconds, more than 0" in why([[late], [shown]])


@pytest.mark.slow
def test_what_cannot_be_written_down_is_a_wrong_answer_with_its_reason(tmp_path):
    """Python writes no number of more than 4,300 digits, and a list within itself has no end."""
    loop = "loop = []\nloop.append(loop)\npl.course.check('00.2', loop)"
    copy = _saved(
        tmp_path / "00.ipynb", "import pipelab as pl\npl.course.check('00.1', 10**5000)", loop
    )
    first, second = grade(copy, limit=60)["tests"]
    assert first["output"] == EXERCISES["00.1"].grade(10**5000)[1]
    assert second["output"].startswith("its value cannot be found: RecursionError")


def _command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "pipelab.cli.command_line", *map(str, arguments)],
        capture_output=True,
        text=True,
        **options,
    )


@pytest.mark.slow
def test_a_folder_of_copies_becomes_one_table(tmp_path):
    right = EXERCISES["00.1"].target()
    for student in ("ada", "bob", "cy"):
        (tmp_path / "in" / student).mkdir(parents=True)
    _saved(
        tmp_path / "in" / "ada" / "00.ipynb",
        f"import pipelab as pl\npl.course.check('00.1', {right!r})",
    )
    _saved(tmp_path / "in" / "bob" / "07.ipynb", "import pipelab as pl\npl.course.check('07.1', 5)")
    (tmp_path / "in" / "cy" / "00_torn.ipynb").write_text("{")
    (tmp_path / "in" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "in" / ".ipynb_checkpoints" / "00.ipynb").write_text("{")
    done = _command("grade", tmp_path / "in", "--csv", tmp_path / "points.csv")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "points.csv", dtype=str, keep_default_na=False)
    assert list(table) == ["copy", "score", "00.1", "00.2", "07.1", "07.2", "output"]
    ada, bob, cy = table.to_numpy().tolist()
    ran = "The notebook ran to its end."
    assert ada == ["ada/00.ipynb", "1.0", "1.0", "0.0", "", "", ran]
    assert bob == ["bob/07.ipynb", "0.0", "", "", "0.0", "0.0", ran]
    assert cy[:6] == ["cy/00_torn.ipynb", *[""] * 5]
    assert "expected a Jupyter notebook" in cy[-1]
    with pytest.raises(pl.errors.InvalidValue, match="expected a folder with notebooks"):
        grade_folder(tmp_path / "in" / "ada" / "00.ipynb")
    refused = _command("grade", tmp_path / "in", "--json")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "a folder has --csv" in refused.stderr


def test_the_seconds_for_a_cell_are_those_that_a_check_of_a_lab_names():
    defaults = [inspect.signature(each).parameters["each"].default for each in (grade, command)]
    assert defaults == [LIMIT, LIMIT]


@pytest.mark.slow
def test_answers_written_down_for_the_inputs_of_the_notebook_do_not_pass_with_a_seed(tmp_path):
    shown = [given.times for given in EXERCISES["10.1"].inputs()]
    known = {tuple(times): -(-sum(times) // max(times)) for times in shown}
    copy = _saved(
        tmp_path / "10.ipynb",
        f"import pipelab as pl\nknown = {known!r}",
        "pl.course.check('10.1', lambda times: known.get(tuple(times), 1))",
        "def answer(prefill, decode, tokens, m):\n"
        "    return sum(prefill) + (tokens - 1) * max(sum(decode), m * max(decode))",
        "pl.course.check('10.2', answer)",
    )
    assert EXERCISES["10.1"].grade(lambda times: known.get(tuple(times), 1))[0] == 1
    assert _points(grade(copy, limit=60, seed=3)) == {"10.1": 0, "10.2": 3}
    with pytest.raises(pl.errors.InvalidValue, match="seed"):
        grade(copy, seed=-1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32" or not in_clone(), reason="a shell script of the clone")
def test_gradescopes_script_leaves_results_in_an_empty_folder(tmp_path):
    # what setup.sh installs there
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    command = tmp_path / "venv" / "bin" / "pipelab"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pipelab.cli.command_line "$@"\n')
    command.chmod(0o755)
    script = ROOT / "docs" / "gradescope" / "run_autograder"
    environment = dict(os.environ, AUTOGRADER=str(tmp_path))
    (tmp_path / "submission").mkdir()

    def graded():
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "results" / "results.json").read_text())

    assert "no notebook here" in graded()["output"]
    copy = tmp_path / "submission" / "00.ipynb"
    copy.write_text("{")
    torn = graded()
    assert (torn["score"], "could not be graded" in torn["output"]) == (0, True)
    right = EXERCISES["00.1"].target()
    _saved(copy, f"import pipelab as pl\npl.course.check('00.1', {right!r})")
    result = graded()
    assert result["score"] == 1
    assert [test["number"] for test in result["tests"]] == ["00.1", "00.2"]


LAB = """
import numpy as np
from scipy.optimize import least_squares
from pipelab import course
def my_times(measured, asked):
    def seconds(logs, work):
        return np.maximum(*(np.exp(logs[:2]) * work).T) + np.exp(logs[2])
    work, measured = np.array(measured)[:, :2], np.array(measured)[:, 2]
    start = np.log([*(measured / work.T).min(axis=1), measured.min()])
    fit = least_squares(lambda logs: np.log(seconds(logs, work) / measured), start)
    return seconds(fit.x, np.array(asked))
course.check("lab_roofline", my_times)
"""
KIT = """
from pipelab import course
from pipelab.course.lab_roofline import fitted, _naive
def my_times(measured, asked):
    machine = fitted(measured, _naive(type("G", (), {"measured": measured})))
    return [machine.seconds(work) for work in asked]
course.check("lab_roofline", my_times)
"""


@pytest.mark.slow
def test_a_lab_has_a_share_of_its_point_and_a_solver_of_the_kit_none(tmp_path):
    """Also with problems that no notebook shows; a lab is graded for itself alone."""
    result = grade(_saved(tmp_path / "mine.ipynb", LAB), seed=5)
    (test,) = result["tests"]
    assert test["number"] == "lab_roofline"
    assert test["max_score"] == 12
    assert 0.2 * 12 < test["score"] == result["score"] < 0.99 * 12
    assert test["output"].startswith(f"{test['score'] / 12:.0%} of the points; the full share on ")
    (test,) = grade(_saved(tmp_path / "kit.ipynb", KIT))["tests"]
    assert test["score"] == 0
    assert "On input 0: it uses pipelab (_naive); " in test["output"]
