"""The students' edition: the same notebooks, and no solution in them, wherever one looks."""

import json
import re

import nbformat
import pytest

from pipelab.cli.command_line import main
from pipelab.cli.open_notebooks import copy_notebooks
from pipelab.cli.static_pages.site import _files
from pipelab.cli.student import without_solutions
from pipelab.files.bundled_folders import notebooks_dir

FOLD = re.compile(r"<summary>Solution</summary>.*?```python\n(.*?)```", flags=re.S)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("student")
    copy_notebooks(folder, student=True)
    return {path.name: nbformat.read(path, as_version=4) for path in folder.rglob("*.ipynb")}


def _read(name):
    return nbformat.read(notebooks_dir() / name, as_version=4)


def test_a_students_copy_is_the_course_without_its_solutions(copied):
    assert set(copied) == {path.name for path in notebooks_dir().glob("*.ipynb")}
    everything = "\n".join(cell.source for book in copied.values() for cell in book.cells)
    assert "<summary>Solution" not in everything
    folds = 0
    for name, book in copied.items():
        nbformat.validate(book)
        whole = _read(name)
        solutions = [fold for cell in whole.cells for fold in FOLD.findall(cell.source)]
        folds += len(solutions)
        for solution in solutions:
            assert solution not in everything
        # nothing else is gone
        assert len(whole.cells) - len(solutions) <= len(book.cells) <= len(whole.cells)
        code = [cell.source for cell in whole.cells if cell.cell_type == "code"]
        assert [cell.source for cell in book.cells if cell.cell_type == "code"] == code
        words = re.sub(
            r"<details><summary>Solution</summary>.*?</details>",
            "",
            " ".join(cell.source for cell in whole.cells),
            flags=re.S,
        )
        assert " ".join(cell.source for cell in book.cells).split() == words.split()
    assert folds >= 39


def test_the_command_copies_them_and_overwrites_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "00_start_here.ipynb").write_text("my own work")
    monkeypatch.setattr("sys.argv", ["pipelab", "copy", "--student", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "01_splitting_layers.ipynb" in capsys.readouterr().out
    assert not (tmp_path / "solutions").exists()
    assert (tmp_path / "00_start_here.ipynb").read_text() == "my own work"
    assert "Solution" not in (tmp_path / "01_splitting_layers.ipynb").read_text(encoding="utf-8")


@pytest.mark.slow
def test_pages_for_students_have_no_solutions(tmp_path, monkeypatch):
    assert [name for name in _files(None, student=True) if "/" in name] == []
    from pipelab.cli.static_pages import site

    monkeypatch.setattr(site, "executed", lambda notebook, name: _read(name))
    pages = site.static_copy(tmp_path / "pages", ["01_splitting_layers"], student=True)
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert "Exercises" in text
    assert "Solution</summary>" not in text


def test_a_notebook_read_as_json_and_one_read_by_nbformat_come_to_the_same():
    path = notebooks_dir() / "05_joint_ilp.ipynb"
    plain = without_solutions(json.loads(path.read_text(encoding="utf-8")))
    read = without_solutions(_read(path.name))
    texts = [["".join(cell["source"]) for cell in book["cells"]] for book in (plain, read)]
    assert texts[0] == texts[1]
