"""The whole copy: every notebook run and written as a page, with an index and one plotly.js, or nothing at all."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelab.cli.static_pages.one_page import page, prepared, title_of
from pipelab.cli.student import is_solution
from pipelab.errors import InvalidValue, refuse_unknown
from pipelab.figures.html_charts import plotly_js
from pipelab.files.bundled_folders import notebook_files
from pipelab.files.reading_and_writing import path_of, refused

if TYPE_CHECKING:
    from nbformat import NotebookNode

_MARK = ".pipelab-static"  # marks a folder that may be replaced


def static_copy(
    folder: str | Path,
    notebooks: Sequence[str] | None = None,
    *,
    student: bool = False,
    progress: bool = False,
) -> list[Path]:
    """Run the notebooks and write them as pages that need no kernel, no server and no network.

    Parameters
    ----------
    folder : path
        A folder that does not exist yet, is empty, or holds an earlier copy, which is replaced.
    notebooks : sequence of str, optional
        Names such as "00_start_here" or "solutions/05_joint_ilp"; by default all. Links to others
        become text.
    student : bool
        Leave out all solutions.
    progress : bool
        Show a progress bar.

    Returns
    -------
    list of Path
        The pages, `index.html` first.

    Raises
    ------
    InvalidValue
        The folder holds something else, or its name is empty.
    InvalidData
        The folder cannot be written.
    UnknownName
        A notebook is unknown.
    PipelabError
        A notebook failed. Nothing is written then.
    """
    folder = path_of("static_copy", folder, "folder")
    files = _files(notebooks, student)
    _check(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pipelab-") as scratch:
            made = Path(scratch) / "made"
            written = _write(made, files, student, progress)
            if folder.exists():
                shutil.move(folder, Path(scratch) / "old")
            made.rename(folder)
    except OSError as error:
        raise refused(folder, "write", error) from None
    return [folder / name for name in written]


def _files(wanted: Sequence[str] | None, student: bool) -> dict[str, Path]:
    known = notebook_files()
    known = {n: file for n, file in known.items() if not (student and is_solution(n))}
    for name in wanted or ():
        refuse_unknown("notebook", name, known)
    return {name: file for name, file in known.items() if not wanted or name in wanted}


def _check(folder: Path) -> None:
    """Refuse an unsuitable folder before the notebooks run, which takes minutes."""
    try:
        os.lstat(folder)
        free = folder.is_dir() and (not any(folder.iterdir()) or (folder / _MARK).is_file())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise refused(folder, "write", error) from None
    if not free:
        expected = "expected a folder that is new, empty or an earlier copy; it holds other files"
        raise InvalidValue("static_copy", [("folder", str(folder), expected)])


def _write(made: Path, files: dict[str, Path], student: bool, progress: bool) -> list[str]:
    from nbformat.v4 import new_markdown_cell, new_notebook
    from tqdm import tqdm

    pages = ["index.html", *(f"{name}.html" for name in files)]
    entries: dict[str, str] = {}
    bar = tqdm(files.items(), disable=not progress, unit="notebook", leave=False)
    for name, file in bar:
        bar.set_postfix_str(name)
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".md":
            notebook = new_notebook(cells=[new_markdown_cell(text)])
        else:
            notebook = prepared(text, student=student, name=file.name)
        entries[name] = _entry(name, notebook)  # before its formulas are typeset
        _put(made / f"{name}.html", page(notebook, f"{name}.html", pages))
    _put(made / "index.html", page(_index(entries), "index.html", pages))
    _put(made / "plotly.min.js", plotly_js())
    _put(made / _MARK, "Made by `pipelab static`, which may replace this folder.\n")
    return pages


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _entry(name: str, notebook: "NotebookNode") -> str:
    """Return a notebook's title and first paragraph."""
    number = f"{name[:2]} " if name[:2].isdigit() else ""
    first = [*notebook.cells[0].source.split("\n\n"), ""][1]
    first = first.replace("](#", f"]({name}.ipynb#")  # a place in the notebook
    return f"### [{number}{title_of(notebook)}]({name}.ipynb)\n\n{first}"


def _index(entries: dict[str, str]) -> "NotebookNode":
    """Return the entry of every notebook; below them the solutions."""
    from nbformat.v4 import new_markdown_cell, new_notebook

    note = "A copy of pipelab's notebooks to read. Sliders and buttons work only in the live notebooks."
    parts = [f"# Which GPUs should hold which layers?\n\n{note}"]
    parts += [entry for name, entry in entries.items() if not is_solution(name)]
    solutions = [f"[{name[10:12]}]({name}.ipynb)" for name in entries if is_solution(name)]
    if solutions:
        parts.append(f"### Solutions of the exercises\n\n{' '.join(solutions)}")
    return new_notebook(cells=[new_markdown_cell(text) for text in parts])
