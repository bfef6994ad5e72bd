"""The students' edition: the same notebooks, and no solution in them, wherever one looks."""

import re

import nbformat
import pytest
from typer.testing import CliRunner

from pipelab.cli.command_line import app
from pipelab.cli.static_pages import one_page, site
from pipelab.files.bundled_folders import notebooks_dir

SOLUTION = re.compile(r"<details><summary>Solution</summary>.*?</details>", flags=re.S)


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
        assert len(folds) == text.count("<summary>Solution")
        assert left.split() == SOLUTION.sub("", text).split()  # nothing else is gone
        solutions += [
            code for fold in folds for code in re.findall(r"```python\n(.*?)```", fold, re.S)
        ]
        everything += left
    assert len(solutions) >= 39
    assert not any(solution in everything for solution in solutions)


@pytest.mark.slow
def test_pages_for_students_have_no_solutions(tmp_path, monkeypatch):
    assert [name for name in site._files(None, student=True) if "/" in name] == []
    monkeypatch.setattr(one_page, "executed", lambda notebook, name: notebook)
    pages = site.static_copy(tmp_path / "pages", ["01_splitting_layers"], student=True)
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert "Exercises" in text
    assert "Solution</summary>" not in text
