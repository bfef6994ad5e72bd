"""The students' edition: the same notebooks, and no solution in them, wherever one looks."""

import re

import nbformat
from typer.testing import CliRunner

import outputs_as_html
from pipelab.cli.command_line import app
from pipelab.files.bundled_folders import notebook_files, notebooks_dir

SUMMARY = r"<summary>(?:Solution|An answer)</summary>"
SOLUTION = re.compile(rf"<details>{SUMMARY}.*?</details>", flags=re.S)


def _read(path):
    return nbformat.read(path, as_version=4)


def test_a_students_copy_is_the_course_without_its_solutions(tmp_path):
    done = CliRunner().invoke(app, ["copy", "--student", str(tmp_path)])
    assert str(tmp_path / "01_splitting_layers.ipynb") in done.stdout
    names = {path.name for path in notebooks_dir().glob("*.ipynb")}
    assert {path.name for path in tmp_path.rglob("*.ipynb")} == names
    solutions, everything = [], ""
    for name in names:
        copied, whole = _read(tmp_path / name), _read(notebooks_dir() / name)
        nbformat.validate(copied)
        code = [cell.source for cell in whole.cells if cell.cell_type == "code"]
        assert [cell.source for cell in copied.cells if cell.cell_type == "code"] == code
        text, left = (" ".join(cell.source for cell in book.cells) for book in (whole, copied))
        folds = SOLUTION.findall(text)
        assert len(folds) == len(re.findall(SUMMARY, text))
        assert left.split() == SOLUTION.sub("", text).split()  # nothing else is gone
        solutions += [
            code for fold in folds for code in re.findall(r"```python\n(.*?)```", fold, re.S)
        ]
        everything += left
    assert len(solutions) >= 39
    assert not any(solution in everything for solution in solutions)


def test_the_site_for_students_has_no_solutions(monkeypatch):
    monkeypatch.setattr(outputs_as_html, "executed", lambda notebook, name: notebook)
    text = notebook_files()["01_splitting_layers"].read_text(encoding="utf-8")
    shown = [
        "".join(cell.source for cell in outputs_as_html.prepared(text, student=student).cells)
        for student in (False, True)
    ]
    assert all("Exercises" in text for text in shown)
    assert ["Solution</summary>" in text for text in shown] == [True, False]
