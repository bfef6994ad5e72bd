"""Grading: right, wrong, hanging and hostile notebooks; answers cross to the checker as plain data only."""

import inspect
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from make_solutions import solution
from nbformat.v4 import new_code_cell, new_notebook
from typer.testing import CliRunner

import pipelab as pl
from pipelab.cli import grading
from pipelab.cli.command_line import app
from pipelab.cli.grading import _checks, _exercises, grade, grade_folder
from pipelab.cli.grading import _run as _run_notebook
from pipelab.course import plain_answers
from pipelab.course.checks import EXERCISES
from pipelab.files.bundled_folders import in_clone

ROOT = Path(__file__).parents[2]
NUMBER = EXERCISES["00.1"].target()
# A right number after a wrong try, and a right function.
RIGHT = f"""
import pipelab as pl
from pipelab.course import three_sites
def rate(cuts):
    placed = pl.Placement.of([(n, (gpu,)) for n, gpu in cuts if n])
    try:
        return pl.evaluate(three_sites(), placed).throughput
    except pl.errors.InvalidPlacement:
        return 0
pl.course.check("00.1", 1)
pl.course.check("00.1", {NUMBER!r})
pl.course.check("00.2", rate)
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


def _run(*arguments):
    return CliRunner().invoke(app, ["grade", *map(str, arguments)])


@pytest.mark.slow
def test_a_hostile_notebook_gains_nothing(tmp_path):
    copy = _saved(
        tmp_path / "00_start_here.ipynb",
        HOSTILE,
        "pl.course.check('00.1', 1.0)",
        "pl.course.check('00.2', lambda cuts: 1.0)",
        "os._exit(0)",
    )
    done = _run(copy)
    assert (done.exit_code, "no sandbox" in done.stderr) == (0, True)
    first, second, last = done.stdout.splitlines()
    assert first.startswith("0/1  exercise 00.1: ")
    assert second.startswith("0/3  exercise 00.2: ")
    assert last.startswith("0 of 4 points. The notebook's process ended before its last cell")


@pytest.mark.slow
def test_a_hanging_notebook_keeps_what_was_answered_before(tmp_path):
    copy = _saved(
        tmp_path / "00_mine.ipynb",
        f"import pipelab as pl\npl.course.check('00.1', {NUMBER!r})",
        "loop = []\nloop.append(loop)\npl.course.check('00.2', loop)",
        "import time; time.sleep(600)",
        "pl.course.check('00.1', 0)",
    )
    result = grade(copy, limit=6)  # from the first cell on
    assert _points(result) == {"00.1": 1, "00.2": 0}
    assert result["output"] == "The notebook was stopped after 6 s."
    earlier = "an earlier check of it counts, with 1 of 1 point"
    assert result["tests"][0]["output"] == f"The notebook was stopped after 6 s; {earlier}"
    assert "its value cannot be found: RecursionError" in result["tests"][1]["output"]


@pytest.mark.slow
def test_what_fails_or_never_ends_costs_no_other_answer_and_is_counted(tmp_path):
    """A name gone in the second check hides no first answer; half right is half a point here, too."""
    half, mistake = EXERCISES["00.1"].half, EXERCISES["00.1"].mistakes
    points = {value(): 0.5 for value in half.values()} | {value(): 0 for value in mistake.values()}
    for value, expected in points.items():
        assert _crossed("00.1", value)[0] == expected
    copy = _saved(
        tmp_path / "00.ipynb",
        "import pipelab as pl",
        "def rate(cuts):\n    while True:\n        pass",
        "if False:\n    pl.course.check('00.2', rate)",  # asked all the same
        f"mine = {next(iter(points))!r}\npl.course.check('00.1', mine)",
        "1 / 0",
        "del mine\npl.course.check('00.1', mine)",
    )
    result = grade(copy, limit=120, each=4)
    assert _points(result) == {"00.1": 0.5, "00.2": 0}
    assert {test["status"] for test in result["tests"]} == {"failed"}
    assert result["tests"][1]["output"] == "no answer: its check was interrupted after 4 s"
    expected = "The notebook ran to its end, but 2 cells failed, the first with ZeroDivisionError."
    assert result["output"] == expected


# what crosses


def _crossed(name, value):
    return plain_answers.checked(name, json.dumps(plain_answers._stated(name, lambda: value)))


@pytest.mark.slow
def test_every_kind_of_answer_crosses_and_is_checked_as_in_the_notebook():
    values = {
        "00.1": [
            NUMBER,
            np.float64(6166.8),
            Fraction(3),
            "five",
            math.nan,
            None,
            ...,
            [1],
            10**5000,
        ],
        "02.1": [lambda layers, ms: sum(ms), lambda layers, ms: None, 3],
        "07.2": [pl.schedule("1F1B", 4, 8), pl.schedule("GPipe", 4, 8), 5],
        "13.2": [lambda costs, stages: [len(costs)], lambda *_: 1 / 0],
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
    assert "ZeroDivisionError: division by zero" in _crossed("13.2", lambda *_: 1 / 0)[1]


def test_the_last_check_of_an_exercise_in_a_cell_counts_and_only_checks_are_asked():
    cell = "check('00.1', 1)\n%time x\ncourse.check('00.2', rate)\ncheck('00.1', 2)\nguess('7', 3)"
    assert dict(_checks(Path("00.ipynb"), cell)) == {"00.1": "2", "00.2": "rate"}
    assert dict(_checks(Path("00.ipynb"), "check('00.1', (")) == {}


def test_forged_text_is_no_answer():
    for stated in (
        "", "no JSON", "3", "[]", "{}", '{"answer": {"placement": 3}}', '{"returned": []}',
        '{"answer": {"os.system": "echo"}}', '{"returned": [{"answer": 1.0}]}', "[" * 5000,
        '{"returned": [{"failed": 1}]}', '{"answer": {"tuple": [[1], 2], "set": []}}',
        '{"answer": "' + "x" * plain_answers.LONGEST + '"}',
    ):  # fmt: skip
        for name in ("00.1", "00.2", "08.2", "13.2"):
            right, _ = plain_answers.checked(name, stated)
            assert not right, (name, stated)


def test_what_is_no_notebook_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "00_torn.ipynb").write_text("{")
    for name, told in (
        ("00_torn", r"00_torn\.ipynb: expected a Jupyter notebook"),
        ("00_gone", "cannot be read"),
        ("mine", "number of a notebook with exercises"),
    ):
        _saved(tmp_path / "mine.ipynb", "1 + 1")
        with pytest.raises(pl.errors.InvalidData, match=told):
            grade(tmp_path / f"{name}.ipynb")
    for option, value in (("limit", 0), ("each", 0), ("seed", -1)):
        with pytest.raises(pl.errors.InvalidValue, match=option):
            grade(tmp_path / "mine.ipynb", **{option: value})
    with pytest.raises(pl.errors.InvalidValue, match="expected a folder with notebooks"):
        grade_folder(tmp_path / "mine.ipynb")


def test_a_copy_is_of_the_notebook_that_its_checks_belong_to():
    """A student's number before the name says nothing, nor does a check copied from elsewhere."""
    of = ["07.1", "07.2"]
    assert _exercises(Path("12034567_smith_07.ipynb"), [*of, "12.1"]) == of
    assert _exercises(Path("12034567_smith_07_late.ipynb"), []) == of
    assert _exercises(Path("lab_pricing_smith.ipynb"), []) == ["lab_pricing"]


def test_a_copy_of_an_older_edition_is_refused_with_the_number_of_today(tmp_path):
    """Every function under every other number, and under one that there is no more."""
    functions = [name for name, one in EXERCISES.items() if getattr(one, "signature", "")]
    for name, old in itertools.product(functions, [*functions[::7], "19.1"]):
        asked = EXERCISES[name].signature.partition("(")[0]
        copy = _saved(tmp_path / "old.ipynb", f"pl.course.check({old!r}, {asked})")
        if old != name:
            with pytest.raises(pl.errors.InvalidData, match=f"was {old} and is {name} now"):
                grade(copy)


# what one copy may have in it, and an honest student too
ODD_CELLS = {
    "deep": f"pl.course.check('00.1', {'+'.join('1' * 900)})",
    "deeper": f"pl.course.check('00.1', {'-' * 90_000}1)",
    "exit": "raise SystemExit(3)",
    "interrupt": "raise KeyboardInterrupt",
    "gone": "import os; os._exit(1)",
    "wide": "for _ in range(20):\n    print('x' * 1_000_000)",
    "memory": "raise MemoryError",
    "null": "x = '\0'",
}


@pytest.mark.slow
@pytest.mark.parametrize("odd", [["gone"], pytest.param([*ODD_CELLS], marks=pytest.mark.nightly)])
def test_a_folder_is_one_table_whatever_a_copy_has_in_it(odd, tmp_path):
    copies = tmp_path / "in"
    for folder in ("ada", "cy/.ipynb_checkpoints"):
        (copies / folder).mkdir(parents=True)
    for name in odd:
        _saved(copies / f"00_{name}.ipynb", "import pipelab as pl", ODD_CELLS[name])
    marked = new_code_cell("type(1)", metadata={"pipelab-asks": ["x"]})
    elsewhere = {"kernelspec": {"name": "my-venv", "display_name": "mine", "language": "python"}}
    book = new_notebook(cells=[new_code_cell(RIGHT), marked], metadata=elsewhere)
    nbformat.write(book, copies / "ada" / "00.ipynb")
    (copies / "cy" / ".ipynb_checkpoints" / "00.ipynb").write_text("{")
    torn = {"bytes": b"\xff\xfe\x00", "list": b"[" * 100_000, "torn": b"{"}
    for name, content in torn.items():
        (copies / f"07_{name}.ipynb").write_bytes(content)
    (copies / "00_folder.ipynb").mkdir()
    strange = []
    if sys.platform == "linux":
        strange = [Path(os.fsdecode(os.fsencode(copies) + b"/00_\xff.ipynb"))]
        strange[0].write_text("{")
    done = _run(copies, "--limit", 60, "--csv", tmp_path / "points.csv")
    assert done.exit_code == 0, done.stderr
    table = pd.read_csv(tmp_path / "points.csv", dtype=str, keep_default_na=False)
    assert list(table)[:4] == ["copy", "score", "00.1", "00.2"]
    rows = {copy: cells for copy, *cells in table.to_numpy().tolist()}
    assert len(rows) == len(table) == len(odd) + len(torn) + len(strange) + 2
    ran = "The notebook ran to its end."
    assert rows["ada/00.ipynb"][:3] + rows["ada/00.ipynb"][-1:] == ["4.0", "1.0", "3.0", ran]
    assert "expected a Jupyter notebook" in rows["07_torn.ipynb"][-1]
    assert (table["output"] != "").all()
    assert (table["score"] == "").sum() == len(table) - len(odd) - 1


def test_an_error_of_one_copy_is_its_row(tmp_path, monkeypatch):
    def grade_one(path, *limits):
        if path.stem == "00_b":
            raise AttributeError
        return {"score": 1, "output": "", "tests": []}

    for name in "abc":
        (tmp_path / f"00_{name}.ipynb").touch()
    monkeypatch.setattr(grading, "grade", grade_one)
    table = grade_folder(tmp_path)
    assert table["score"].fillna(0).tolist() == [1, 0, 1]
    assert table["output"][1]


@pytest.mark.slow
def test_of_what_a_cell_prints_no_more_is_kept_than_memory_holds():
    notebook = new_notebook(cells=[new_code_cell(ODD_CELLS["wide"])])
    _run_notebook(notebook, 60, 60)
    assert sum(len(output["text"]) for output in notebook.cells[0].outputs) < 10e6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_while_a_copy_runs_ends_the_grading(tmp_path):
    for name in "ab":  # as if the teacher had pressed it
        cell = f"import os, signal, time\nos.kill({os.getpid()}, signal.SIGINT)\ntime.sleep(30)"
        _saved(tmp_path / f"00_{name}.ipynb", cell)
    with pytest.raises(KeyboardInterrupt):
        grade_folder(tmp_path, limit=60)


@pytest.mark.slow
def test_answers_written_down_for_the_inputs_of_the_notebook_do_not_pass_with_a_seed(tmp_path):
    shown = [given.times for given in EXERCISES["10.1"].inputs()]
    known = {tuple(times): -(-sum(times) // max(times)) for times in shown}
    copy = _saved(
        tmp_path / "10.ipynb",
        f"import pipelab as pl\nknown = {known!r}",
        "pl.course.check('10.1', lambda times: known.get(tuple(times), 1))",
        inspect.getsource(solution("10.2")),
        "pl.course.check('10.2', best_rate)",
    )
    assert EXERCISES["10.1"].grade(lambda times: known.get(tuple(times), 1))[0] == 1
    assert _points(grade(copy, limit=60, seed=3)) == {"10.1": 0, "10.2": 3}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32" or not in_clone(), reason="a shell script of the clone")
def test_gradescopes_script_leaves_results_in_an_empty_folder(tmp_path):
    # what setup.sh installs there
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    command = tmp_path / "venv" / "bin" / "pipelab"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pipelab "$@"\n')
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
    assert "could not be graded" in graded()["output"]
    _saved(copy, RIGHT)
    result = graded()
    assert result["score"] == 4
    told = [(test["number"], test["status"], test["max_score"]) for test in result["tests"]]
    assert told == [("00.1", "passed", 1), ("00.2", "passed", 3)]
