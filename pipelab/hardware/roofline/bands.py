"""Quantiles of the errors of predictions of a kind."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame


def error_bands(table: "DataFrame") -> "DataFrame":
    """How far off predictions of a kind are: quantiles of the error by phase, GPUs per layer and engine.

    Parameters
    ----------
    table : pandas.DataFrame
        From `against_measured`.

    Returns
    -------
    pandas.DataFrame
        Per group `rows`, the `median` of |error|, and its quantiles `low` (10%) and `high` (90%);
        the index is (phase, GPUs that cut a layer, engine), "all" standing for the rest.
    """
    import pandas as pd

    degree = table.get("tensor_parallel", pd.Series(1, table.index)).fillna(1).astype(int)
    cut = degree.map(lambda t: "1" if t == 1 else "2" if t < 4 else "4 or more")
    engine = table.get("engine", pd.Series("", table.index)).fillna("")
    groups = [(("all", "all", "all"), table["error"])]
    groups += [((p, "all", "all"), e) for p, e in table["error"].groupby(table["phase"])]
    groups += [((*k, "all"), e) for k, e in table["error"].groupby([table["phase"], cut])]
    groups += [(k, e) for k, e in table["error"].groupby([table["phase"], cut, engine])]
    rows = {key: (len(e), e.abs().median(), e.quantile(0.1), e.quantile(0.9)) for key, e in groups}
    found = pd.DataFrame.from_dict(rows, orient="index", columns=["rows", "median", "low", "high"])
    found.index = pd.MultiIndex.from_tuples(rows, names=["phase", "GPUs per layer", "engine"])
    return found
