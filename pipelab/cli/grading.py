"""Run a student's copy of a notebook in a kernel of its own, and check its answers here.

This process runs no code of the student's. After every cell that calls `check`, the kernel is asked for the value;
it says plain data, which is checked here as `pl.course.check` would. So a notebook gains nothing by redefining `check`,
changing the package in memory, printing results or ending its process. It is no sandbox all the same: the kernel
has the rights of whoever runs it.
"""

import ast
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelab.course.checks import EXERCISES, exercise_of, group_of
from pipelab.course.plain_answers import MIME, checked
from pipelab.course.scored_labs import LIMIT
from pipelab.display import DataFrame, counted, data_frame
from pipelab.errors import InvalidData, InvalidValue
from pipelab.fields import Natural, Positive, checked_arguments
from pipelab.files.reading_and_writing import refused

if TYPE_CHECKING:
    from nbformat import NotebookNode

_ASK = (
    "from pipelab.course.plain_answers import tell as _tell\n"
    "_tell({name!r}, lambda: ({value}), {seed})"
)
_MARK = "pipelab-asks"


@checked_arguments
def grade_folder(
    folder: str | Path,
    limit: Positive = 600.0,
    each: Positive = LIMIT,
    seed: Natural = 0,
    *,
    progress: bool = False,
) -> DataFrame:
    """Compute the points for every copy in a folder and in the folders below it.

    Parameters
    ----------
    folder : str or Path
        Of notebooks, of one or of several students and lessons.
    limit, each, seed
        As for `grade`.
    progress : bool
        Show a progress bar.

    Returns
    -------
    pandas.DataFrame
        One row per copy: `copy`, its path within the folder, its `score`, the points for each
        exercise, and `output`, how it ended. A copy that cannot be graded, for whatever reason, has
        that there, and no points. Ctrl-C ends the grading.

    Raises
    ------
    InvalidValue
        A limit is not a positive number, or the folder has no notebook.
    """
    from tqdm import tqdm

    folder, rows = Path(folder), []
    notebooks = sorted(folder.rglob("*.ipynb"))
    copies = [path for path in notebooks if ".ipynb_checkpoints" not in path.parts]
    if not copies:
        raise InvalidValue("grade", [("folder", str(folder), "expected a folder with notebooks")])
    for path in tqdm(copies, disable=not progress, unit="copy", leave=False):
        row: dict[str, Any] = {"copy": path.relative_to(folder).as_posix()}
        try:
            result = grade(path, limit, each, seed)
        except InvalidData as error:
            row["output"] = str(error)
        except Exception as error:  # whatever is in one copy, the others are graded
            row["output"] = f"could not be graded: {type(error).__name__}: {_first_line(error)}"
        else:
            row |= {"score": result["score"], "output": result["output"]}
            row |= {test["number"]: test["score"] for test in result["tests"]}
        for name in ("copy", "output"):  # a file's name may have what no CSV file holds
            row[name] = row[name].encode(errors="replace").decode()
        rows.append(row)
    named = sorted({name for row in rows for name in row if name in EXERCISES})
    return data_frame(rows, columns=["copy", "score", *named, "output"])


@checked_arguments
def grade(
    path: str | Path, limit: Positive = 600.0, each: Positive = LIMIT, seed: Natural = 0
) -> dict[str, Any]:
    """Compute the points for every exercise of a notebook.

    Parameters
    ----------
    path : str or Path
        A student's copy of a notebook of the course: its exercises are those of the notebook that
        most of its checks belong to, or without a check, of the number or the lab in its name.
    limit : float
        Seconds for the whole notebook. What was answered before it ends, counts.
    each : float
        Seconds for a cell, which is interrupted then; the next one begins.
    seed : int
        If it is positive, functions are also tried on as many inputs that no notebook shows,
        drawn with this number.

    Returns
    -------
    dict
        As Gradescope's `results.json`: `score`, `execution_time`, `output` and `tests`.

    Raises
    ------
    InvalidValue
        A limit is not a positive number.
    InvalidData
        The file cannot be read, is no notebook, or belongs to no exercise.
    MissingPackage
        The extra `lab` is not installed.
    """
    began = time.monotonic()
    path = Path(path)
    notebook = _read(path)
    asked = {
        i: list(_checks(path, cell.source))
        for i, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
    }
    names = _exercises(path, [name for checks in asked.values() for name, _ in checks])
    for name in names:  # whatever a check imports is imported before any code of the student's runs
        EXERCISES[name].grade((lambda *_: None) if hasattr(EXERCISES[name], "inputs") else 0.0)
    stopped = _run(_with_questions(notebook, asked, seed), limit, each)
    said, late = _answers(notebook, each, stopped)
    tests = [_test(name, said.get(name), late.get(name, ""), seed) for name in names]
    return {
        "score": sum(test["score"] for test in tests),
        "execution_time": round(time.monotonic() - began, 1),
        "output": stopped or f"The notebook ran to its end{_failed(notebook)}.",
        "tests": tests,
    }


def _read(path: Path) -> "NotebookNode":
    import nbformat

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise refused(path, "read", error) from None
    try:
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat's own kinds, and KeyErrors
        raise InvalidData(f"{path}: expected a Jupyter notebook ({_first_line(error)})") from None
    return notebook


def _first_line(error: Exception) -> str:
    """Return the first line of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _checks(path: Path, source: str) -> Iterator[tuple[str, str]]:
    """List the exercises that a cell checks, each with the expression of its answer; of several the last.

    Raises
    ------
    InvalidData
        A function has another number than in the notebooks of today: the copy is of an older edition.
    """
    plain = re.sub(r"^[ \t]*[%!].*$", "", source, flags=re.M)
    try:
        tree = ast.parse(plain)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # too deep for Python's parser
        return
    expressions: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name, value = node.args
            if called == "check" and isinstance(name, ast.Constant):
                number, answer = str(name.value), ast.get_source_segment(plain, value) or ""
                if (now := exercise_of(answer)) not in ("", number):
                    expected = f"expected a copy of today's notebook {group_of(now)}"
                    raise InvalidData(f"{path}: {answer} was {number} and is {now} now; {expected}")
                if number in EXERCISES:
                    expressions[number] = answer
    yield from expressions.items()


def _exercises(path: Path, checks: list[str]) -> list[str]:
    """List the names of all exercises that there are points for."""
    groups = dict.fromkeys(map(group_of, EXERCISES))
    most = Counter(map(group_of, checks)).most_common(1)
    named = re.findall(rf"(?<!\d)(?:{'|'.join(groups)})(?!\d)", path.name)
    of = [group for group, _ in most] or named
    names = [name for name in EXERCISES if group_of(name) in of]
    if not names:
        known = ", ".join(groups)
        expected = f"expected a check, or a name with the number of a notebook with exercises, or a lab: {known}"
        raise InvalidData(f"{path}: {expected}")
    return names


def _with_questions(
    notebook: "NotebookNode", asked: dict[int, list[tuple[str, str]]], seed: int
) -> "NotebookNode":
    """Put a question for its answer below every check; what the copy shows so far goes."""
    from nbformat.v4 import new_code_cell

    cells = []
    for i, cell in enumerate(notebook.cells):
        cell.metadata.pop(_MARK, None)
        if cell.cell_type == "code":
            cell.outputs = []
        cells.append(cell)
        for name, value in asked.get(i, ()):
            ask = _ASK.format(name=name, value=value, seed=seed)
            cells.append(new_code_cell(ask, metadata={_MARK: name}))
    notebook.cells = cells
    return notebook


def _run(notebook: "NotebookNode", limit: float, each: float) -> str:
    """Run it; say why it stopped early, or nothing."""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    from pipelab.cli.kernel_client import NotebookRunner

    began: list[float] = []  # with the first cell: a kernel may take its time to start

    def left(_: object) -> float:
        began.append(time.monotonic())
        rest = limit - (began[-1] - began[0])
        if rest <= 0:
            raise CellTimeoutError
        return min(rest, each)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        client = NotebookRunner(
            notebook,
            timeout_func=left,
            interrupt_on_timeout=True,
            error_on_timeout={"ename": "TimeoutError", "evalue": "", "traceback": []},
            allow_errors=True,
            kernel_name="python3",  # of this environment, whatever the copy's was called
            resources={"metadata": {"path": scratch}},
        )
        try:
            client.execute(stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        except CellTimeoutError:
            return f"The notebook was stopped after {limit:g} s."
        except Exception as error:
            if client.stopped_by_hand:
                raise KeyboardInterrupt from None
            if not isinstance(error, DeadKernelError | RuntimeError):
                raise
            return f"The notebook's process ended before its last cell ({type(error).__name__})."
    return ""


def _answers(
    notebook: "NotebookNode", each: float, stopped: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what the kernel said last of every exercise, and why it says nothing of a later check, if any.

    A value that cannot be found hides no earlier one.
    """
    said, late = dict[str, str](), dict[str, str]()
    for cell in notebook.cells:
        name = cell.metadata.get(_MARK)
        for output in cell.get("outputs", []) if name else []:
            text = output.get("data", {}).get(MIME)
            if isinstance(text, str) and (name not in said or not text.startswith('{"failed"')):
                said[name] = text
                late.pop(name, None)
            if output.get("ename") == "KeyboardInterrupt":
                late[name] = f"its check was interrupted after {each:g} s"
        if name and stopped and not cell.outputs:
            late.setdefault(name, stopped.removesuffix("."))
    return said, late


def _failed(notebook: "NotebookNode") -> str:
    """Say how many of the student's cells raise, and what the first one does."""
    errors = [
        output.get("ename", "")
        for cell in notebook.cells
        if cell.cell_type == "code" and _MARK not in cell.metadata
        for output in cell.outputs
        if output.output_type == "error"
    ]
    if not errors:
        return ""
    return f", but {counted(len(errors), 'cell')} failed, the first with {errors[0]}"


def _test(name: str, stated: str | None, late: str, seed: int) -> dict[str, Any]:
    worth = EXERCISES[name].worth
    missing = late or "its check is gone from the notebook"
    share, why = (0, f"no answer: {missing}") if stated is None else checked(name, stated, seed)
    if late and stated is not None:  # what is said of that answer would be read as of this one
        has = f"{worth * (share or 0):g} of {counted(worth, 'point')}"
        why = f"{late}; an earlier check of it counts, with {has}"
    return {
        "number": name,
        "name": f"exercise {name}",
        "score": worth * (share or 0),
        "max_score": worth,
        "status": "passed" if share == 1 else "failed",
        "output": why,
        "visibility": "visible",
    }
