"""Write the functions that the notebooks show as solutions into `notebooks/solutions/`.

python tests/make_solutions.py

A function that answers an exercise is written once, folded below its check. The notebook of solutions, which
begins on its own and says more, gets the same one; `test_course.py` fails where they differ.
"""

import ast
import linecache
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nbformat

from pipelab.course.checks import EXERCISES
from pipelab.files.bundled_folders import notebooks_dir

FOLD = re.compile(r"<summary>Solution</summary>.*?```python\n(.*?)```", flags=re.S)
_CHECK = re.compile(r"course\.check\(\"\d\d\.\d\", (\w+)\)")


def folded_functions(path: Path) -> dict[str, str]:
    """The functions that answer a notebook's exercises, by name, as text."""
    cells = nbformat.read(path, as_version=4).cells
    folds = [fold for cell in cells for fold in FOLD.findall(cell.source)]
    asked = [name for cell in cells for name in _CHECK.findall(cell.source)]
    found = {}
    for name, fold in zip(asked, folds, strict=True):
        found |= {own: text for own, text in functions(fold) if own == name}
    return found


def differing(path: Path) -> list[tuple[int, str, str]]:
    """Cells of a notebook of solutions with another function: number, its text, and what belongs there."""
    wanted, found = folded_functions(path), []
    for number, cell in enumerate(nbformat.read(solutions_of(path), as_version=4).cells):
        for name, text in functions(cell.source) if cell.cell_type == "code" else ():
            if name in wanted and ast.dump(ast.parse(text)) != ast.dump(ast.parse(wanted[name])):
                found.append((number, text, wanted[name]))
    return found


def solutions_of(path: Path) -> Path:
    """The notebook of solutions."""
    return path.parent / "solutions" / path.name


def defined(path: Path) -> set[str]:
    """The functions that a notebook of solutions defines."""
    cells = nbformat.read(path, as_version=4).cells
    return {name for c in cells if c.cell_type == "code" for name, _ in functions(c.source)}


def functions(source: str) -> Iterator[tuple[str, str]]:
    """Name and text of every function at the top of a cell."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, ast.get_source_segment(source, node) or ""


@cache
def solution(exercise: str, slip: tuple[str, str] = ("", "")) -> Callable[..., Any]:
    """Make the function that answers an exercise, with a slip in it: what stands there, and what instead."""
    (path,) = notebooks_dir().glob(f"solutions/{exercise[:2]}_*.ipynb")
    first, *others = (
        c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"
    )
    written = [text for source in others for _, text in functions(source)]
    text, name = "\n\n".join([first, *written]), f"<{exercise} {slip}>"
    assert slip[0] in text
    text, names = text.replace(*slip), dict[str, Any]()
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name  # for getsource
    exec(compile(text, name, "exec"), names)
    return names[EXERCISES[exercise].signature.partition("(")[0]]


def main() -> None:
    """Write every function that differs."""
    for path in sorted(notebooks_dir().glob("[0-9][0-9]_*.ipynb")):
        wrong = differing(path)
        if wrong:
            solutions = solutions_of(path)
            notebook = nbformat.read(solutions, as_version=4)
            for number, old, new in wrong:
                cell = notebook.cells[number]
                cell.source = cell.source.replace(old, new)
            nbformat.write(notebook, solutions)
            print(solutions.name, len(wrong))


if __name__ == "__main__":
    main()
