"""save(x, path): a plan, a schedule or a timeline as a file that other programs read."""

from functools import singledispatch
from pathlib import Path
from typing import Any

from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidValue
from pipelab.io.csv_cells import path_of
from pipelab.io.placements import save_placement
from pipelab.io.schedule_files import to_csv
from pipelab.io.trace_files import save_chrome_trace
from pipelab.schedules import Schedule
from pipelab.solving import Result


@singledispatch
def save(x: Any, path: str | Path, **options: Any) -> Path:
    """Write a result's plan, a schedule or a timeline, replacing the file whole.

    Parameters
    ----------
    x : Result, Schedule or Timeline
        Of a result the plan: JSON (everything, links included) or CSV (one row per stage). A
        schedule becomes CSV as torch writes it, a timeline a Chrome trace (JSON).
    path : str or Path
        Its suffix chooses the format where there are several.
    **options
        Of a result `layout`: "pipelab" (default), or "write-up" for the fields of its author's
        solution.json.

    Returns
    -------
    Path
        Where it was written.

    Raises
    ------
    InvalidValue
        Nothing of this kind can be saved, a result has no placement, or the suffix does not fit.
    InvalidData
        Nothing can be written there.

    Examples
    --------
    >>> import pipelab as pl, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "plan.csv"
    >>> pl.save(pl.solve(pl.load_case("tiny")), path) == path
    True
    """
    expected = "expected a Result, a Schedule or a Timeline; tables: x.to_frame().to_csv(path)"
    raise InvalidValue("save", [("x", type(x).__name__, expected)])


@save.register
def _(x: Result, path: str | Path, **options: Any) -> Path:
    return save_placement(x.problem, x, path, **options)


@save.register
def _(x: Schedule, path: str | Path) -> Path:
    to_csv(x, path)
    return path_of("save", path)


@save.register
def _(x: Timeline, path: str | Path) -> Path:
    save_chrome_trace(x, path)
    return path_of("save", path)
