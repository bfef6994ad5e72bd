"""save(x, path): a plan, a schedule or a timeline as a file that other programs read."""

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from pipelab.engine.deployments.result import Deployment
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.io.csv_cells import path_of
from pipelab.io.deployments import save_deployment
from pipelab.io.placements import save_placement
from pipelab.io.schedule_files import to_csv
from pipelab.io.trace_files import save_chrome_trace
from pipelab.schedules import Schedule
from pipelab.solving import Result


def save(x: Any, path: str | Path, **options: Any) -> Path:
    """Write a result's plan, a schedule or a timeline, replacing the file whole.

    Parameters
    ----------
    x : Result, Deployment, Schedule or Timeline
        Of a result or a deployment the plan: JSON (everything) or CSV (one row per stage). A
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
    UnknownName
        There is no such option for it.
    InvalidData
        Nothing can be written there.

    Examples
    --------
    >>> import pipelab as pl, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "plan.csv"
    >>> pl.save(pl.solve(pl.load_case("tiny")), path) == path
    True
    """
    for kind, write in _WRITERS.items():
        if isinstance(x, kind):
            known = list(signature(write).parameters)[2:]
            for option in options:
                if option not in known:
                    remedy = nearest(option, known) if known else "it takes none"
                    raise UnknownName(
                        f"save has no option {option!r} for {kind.__name__}; {remedy}"
                    )
            return write(x, path, **options)
    expected = "expected a Result, a Deployment, a Schedule or a Timeline; tables: x.to_frame().to_csv(path)"
    raise InvalidValue("save", [("x", type(x).__name__, expected)])


def _save_plan(x: Result, path: str | Path, layout: str = "pipelab") -> Path:
    return save_placement(x.problem, x, path, layout=layout)


def _save_schedule(x: Schedule, path: str | Path) -> Path:
    to_csv(x, path)
    return path_of("save", path)


def _save_trace(x: Timeline, path: str | Path) -> Path:
    save_chrome_trace(x, path)
    return path_of("save", path)


# What can be saved, and the function that does it; its further parameters are the options.
_WRITERS: dict[type, Callable[..., Path]] = {
    Result: _save_plan,
    Deployment: save_deployment,
    Schedule: _save_schedule,
    Timeline: _save_trace,
}
