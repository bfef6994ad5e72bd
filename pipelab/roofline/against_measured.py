"""Predicted against measured: the roofline held against times that others have published."""

from dataclasses import replace
from pathlib import Path

from pipelab.cluster import GPU
from pipelab.facts.models import load_model
from pipelab.paths import data_dir
from pipelab.problem import Workload
from pipelab.roofline.roofline import Roofline

__all__ = ["against_measured"]


def against_measured(costs: Roofline | None = None, file: str | Path | None = None):
    """One row per measurement: what was measured, what the roofline says, and by how much it is off.

    Parameters
    ----------
    costs : Roofline, optional
        By default `Roofline()`. No constant of it belongs to a single row.
    file : str or Path, optional
        A CSV with the columns of `data/measured_times.csv`.

    Returns
    -------
    DataFrame
        `predicted` in the unit of `measured`; `error` = predicted time / measured time - 1, whatever
        the unit, so above 0 means the model is too slow.

    Examples
    --------
    >>> import pipelab as pl
    >>> table = pl.against_measured()
    >>> bool(table["error"].abs().median() < 0.08)
    True
    """
    import pandas as pd

    costs = costs or Roofline()
    table = pd.read_csv(Path(file) if file else data_dir() / "measured_times.csv")
    seconds = [_predicted_seconds(costs, row) for row in table.to_dict("records")]
    streams, seconds = table["unit"] == "tokens/s", pd.Series(seconds)
    table["predicted"] = (table["batch"] / seconds).where(streams, 1000 * seconds)
    ratio = table["predicted"] / table["measured"]
    table["error"] = ratio.where(~streams, 1 / ratio) - 1
    first = ["what", "measured", "predicted", "unit", "error"]
    return table[[*first, *[c for c in table.columns if c not in first]]]


def _predicted_seconds(costs: Roofline, row: dict) -> float:
    model = load_model(row["model"])
    load = Workload(int(row["tokens"]), int(row["batch"]), row["phase"])
    inside = row["node_gb_per_s"] if row["node_gb_per_s"] == row["node_gb_per_s"] else None  # an empty cell is NaN
    gpu = GPU(row["gpu_type"], costs.gpus[row["gpu_type"]].memory_gb)
    gpu = replace(gpu, node="measured", node_gb_per_s=inside) if inside else gpu
    # A profile of single layers is one from the middle: no embedding, no head.
    layers = range(model.layers) if row["layers"] != row["layers"] else range(1, 1 + int(row["layers"]))
    return costs.pass_seconds(model, load, gpu, layers, tensor_parallel=int(row["tensor_parallel"]))
