"""Predicted against measured: the roofline held against times that others have published."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipelab.fields import instance
from pipelab.hardware.roofline.cost_model import Roofline
from pipelab.hardware.roofline.measurement_rows import measurement_of, read_measurements
from pipelab.io.csv_cells import frame_of, path_of, place
from pipelab.io.paths import data_dir

if TYPE_CHECKING:
    from pandas import DataFrame


def against_measured(costs: Roofline | None = None, file: str | Path | None = None) -> "DataFrame":
    """One row per measurement: what was measured, what the roofline says, and by how much it is off.

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
    `data/measured_times.csv` names the source of every row; `data/README.md` says which constants
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
    for row in read_measurements(path):
        one = measurement_of(row)
        milliseconds = place(row, {}, partial(one.predicted, costs))
        times.append(milliseconds / one.milliseconds)
        in_rows_unit = (
            milliseconds if one.unit == "ms" else 1000 * one.workload.tokens / milliseconds
        )
        predicted.append(in_rows_unit)
    table["predicted"], table["error"] = predicted, [ratio - 1 for ratio in times]
    first = ["what", "measured", "predicted", "unit", "error"]
    return table[[*first, *[c for c in table.columns if c not in first]]]
