"""How far off the ratio of two plans' rates may be: errors of one GPU type, where those of all types cancel.

A ranking of two plans does not change where all times are off by one factor. What changes it is the error of one type
against the others. So each type is left out in turn: constants are fitted to the bundled measurements of the others
(`data/measured_times.csv`), and times to which nothing was fitted stand beside them (`published_errors`). The error of
a row is taken against the median error of the other types in its group: phase, layout, engine, dense or experts.
"""

from functools import cache
from typing import NamedTuple

from pipelab.display import DataFrame
from pipelab.files.bundled_folders import data_dir
from pipelab.hardware.calibration import ConstantsFit
from pipelab.hardware.published_times import LEAST_TIMES, published_errors, read_measurements
from pipelab.hardware.roofline import Roofline

_FOUR_OF_FIVE = 0.8
_GROUP = ["phase", "layout", "engine", "experts"]


class RelativeBand(NamedTuple):
    """How far off times of a GPU type may be against those of other types.

    Attributes
    ----------
    share : float
        Four of five relative errors are at most this; of all types where the type has fewer than ten.
    measurements : int
        Of the type.
    """

    share: float
    measurements: int


def relative_band(gpu_type: str) -> RelativeBand:
    """Return the relative band of a GPU type.

    Parameters
    ----------
    gpu_type : str
        Any; of a type that was never measured the band is that of all types.

    Examples
    --------
    >>> relative_band("no such GPU").measurements
    0
    """
    table = relative_errors()
    of_type = table.loc[table["gpu_type"] == gpu_type, "error"].abs()
    few = len(of_type) < LEAST_TIMES
    errors = table["error"].abs() if few else of_type
    return RelativeBand(float(errors.quantile(_FOUR_OF_FIVE)), len(of_type))


@cache
def relative_errors() -> DataFrame:
    """Return the `gpu_type` and the `error` of every bundled measurement against those of other types.

    Rows of groups in which no other type was measured are left out.
    """
    import pandas as pd

    costs = Roofline()
    rows = [row for _, row in read_measurements(data_dir() / "measured_times.csv")]
    types = [row.gpu_type for row in rows]
    left_out = ConstantsFit(costs, rows).errors_from_others(types)
    fitted = pd.DataFrame({"gpu_type": types, "error": left_out, "group": -1})
    published = published_errors(costs)
    published = published.assign(group=published.groupby(_GROUP, dropna=False).ngroup())
    parts = []
    for _, group in pd.concat([fitted, published[fitted.columns]]).groupby("group"):
        for name, of_type in group.groupby("gpu_type"):
            common = 1 + group.loc[group["gpu_type"] != name, "error"].median()
            parts.append(of_type.assign(error=(1 + of_type["error"]) / common - 1))
    return pd.concat(parts).dropna()[["gpu_type", "error"]]
