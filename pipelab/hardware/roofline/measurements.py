"""Predicted against measured: the roofline held against times that others have published."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipelab.cluster import GPU
from pipelab.errors import InvalidValue, nearest
from pipelab.fields import Count, Positive, checked, instance
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.roofline.cost_model import Roofline
from pipelab.io.csv_cells import Row, frame_of, number, path_of, place, read_rows
from pipelab.io.paths import data_dir
from pipelab.problem import Workload

if TYPE_CHECKING:
    from pandas import DataFrame

_TEXTS = ("what", "model", "gpu_type", "phase", "unit")
_NUMBERS = ("batch", "tokens", "measured")
_OPTIONAL = ("tensor_parallel", "layers", "node_gb_per_s")


@checked
class _Measurement:
    """One row: what ran where, and how long it took."""

    what: str
    model: str
    gpu_type: str
    phase: Literal["prefill", "decode", "mixed"]
    batch: Count
    tokens: Count
    measured: Positive
    unit: Literal["ms", "tokens/s"]
    tensor_parallel: Count = 1
    layers: Count | None = None
    node_gb_per_s: Positive | None = None

    @property
    def workload(self) -> Workload:
        return Workload(self.tokens, self.batch, self.phase)

    def predicted(self, costs: Roofline) -> float:
        """In the unit of `measured`."""
        model = load_model(self.model)
        if self.gpu_type not in costs.gpus:
            expected = f"expected a GPU of the cost model; {nearest(self.gpu_type, costs.gpus)}"
            raise InvalidValue("against_measured", [("gpu_type", self.gpu_type, expected)])
        if self.layers and self.layers > max(1, model.layers - 2):
            expected = f"expected at most {model.layers - 2} layers from the middle of {model.name}, or empty for all"
            raise InvalidValue("against_measured", [("layers", self.layers, expected)])
        node = "measured" if self.node_gb_per_s else ""
        gpu = GPU(
            self.gpu_type, costs.gpus[self.gpu_type].memory_gb, None, node, self.node_gb_per_s
        )
        # A profile of single layers is one from the middle: no embedding, no head.
        layers = range(1, 1 + self.layers) if self.layers else range(model.layers)
        seconds = costs.pass_seconds(
            model, self.workload, gpu, layers, tensor_parallel=self.tensor_parallel
        )
        return self.workload.tokens / seconds if self.unit == "tokens/s" else 1000 * seconds


def against_measured(costs: Roofline | None = None, file: str | Path | None = None) -> "DataFrame":
    """One row per measurement: what was measured, what the roofline says, and by how much it is off.

    Parameters
    ----------
    costs : Roofline, optional
        By default `Roofline()`. No constant of it belongs to a single row.
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
        The file is not there or cannot be read, a value does not fit, or there is no such model.
    InvalidValue
        `costs` is no `Roofline`, or `file` is not a path.

    References
    ----------
    `data/measured_times.csv` names the source of every row; `data/README.md` says which constants
    were taken from them.

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
    rows = read_rows(path, _TEXTS + _NUMBERS)
    table = frame_of(path, "what").reset_index()
    table["predicted"] = [_predicted(costs, row) for row in rows]
    ratio = table["predicted"] / table["measured"]
    table["error"] = ratio.where(table["unit"] == "ms", 1 / ratio) - 1
    first = ["what", "measured", "predicted", "unit", "error"]
    return table[[*first, *[c for c in table.columns if c not in first]]]


def _predicted(costs: Roofline, row: Row) -> float:
    values: dict[str, Any] = {c: row.cells[c] for c in _TEXTS} | {
        c: number(row, c) for c in _NUMBERS
    }
    values |= {c: number(row, c) for c in _OPTIONAL if row.cells.get(c)}
    if values["model"] not in models().index:
        raise row.error(
            "model",
            values["model"],
            f"there is no such model; {nearest(values['model'], models().index)}",
        )
    return place(
        row, {"sequence_length": "tokens"}, lambda: _Measurement(**values).predicted(costs)
    )
