"""Predicted against measured: the roofline held against times that others have published."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipelab.fields import instance
from pipelab.hardware.calibration import read_measurements
from pipelab.hardware.expected_rates import errors_held_out
from pipelab.hardware.roofline import Roofline
from pipelab.io.csv_cells import frame_of, place
from pipelab.io.paths import data_dir
from pipelab.io.whole_files import path_of

if TYPE_CHECKING:
    from pandas import DataFrame


def against_measured(costs: Roofline | None = None, file: str | Path | None = None) -> "DataFrame":
    """Compare each measurement with what the roofline predicts.

    Parameters
    ----------
    costs : Roofline, optional
        By default `Roofline()`. A row that names an engine is predicted for that engine.
    file : str or Path, optional
        A CSV with the columns of `data/measured_times.csv`.

    Returns
    -------
    pandas.DataFrame
        `what`, `measured`, `predicted` (in the unit of `measured`), `unit` ("ms" or "tokens/s"),
        `error` = predicted time / measured time - 1, whatever the unit, so above 0 means the model
        is too slow; then the file's other columns.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, a value does not fit, or there is no such model,
        precision, engine or GPU.
    InvalidValue
        `costs` is no `Roofline`, or `file` is not a path.

    References
    ----------
    `data/measured_times.csv` names the source of every row; `notebooks/data.md` says which constants
    were fitted to them.

    Examples
    --------
    >>> import pipelab as pl
    >>> table = pl.against_measured()
    >>> bool(table["error"].abs().median() < 0.08)
    True
    """
    costs = Roofline() if costs is None else costs
    instance("against_measured", "costs", costs, Roofline, "Roofline()")
    path = (
        data_dir() / "measured_times.csv"
        if file is None
        else path_of("against_measured", file, "file")
    )
    table = frame_of(path, "what").reset_index()
    times, predicted = [], []
    for row, one in read_measurements(path):
        milliseconds = place(row, {}, partial(one.predicted, costs))
        times.append(milliseconds / one.milliseconds)
        in_rows_unit = (
            milliseconds if one.unit == "ms" else 1000 * one.workload.tokens / milliseconds
        )
        predicted.append(in_rows_unit)
    table["predicted"], table["error"] = predicted, [ratio - 1 for ratio in times]
    first = ["what", "measured", "predicted", "unit", "error"]
    return table[[*first, *[c for c in table.columns if c not in first]]]


def held_out_errors() -> "DataFrame":
    """Return the rows of `data/held_out_times.csv` with their `error` by the bundled constants.

    A request is predicted as its prompt and then token by token, with half its answer in context;
    nearly all of its time is decoding, so that is its phase.

    Returns
    -------
    pandas.DataFrame
        The rows of the file with `error`, predicted / measured time − 1. No constant was fitted to them.

    Examples
    --------
    >>> errors = held_out_errors()["error"]
    >>> print(f"{len(errors)} times: median {errors.abs().median():.1%}")
    267 times: median 8.0%
    """
    return errors_held_out(Roofline())
