"""Measured times, one row each: what ran where, and how long one traversal of the batch took."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipelab.cluster import GPU
from pipelab.errors import InvalidValue, nearest
from pipelab.fields import Count, Positive, checked
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.roofline.arrays import Span
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.pass_times import hardware_of, stage_seconds
from pipelab.io.csv_cells import Row, number, place, read_rows
from pipelab.problem import Workload

if TYPE_CHECKING:
    from pipelab.hardware.roofline.cost_model import Roofline

_TEXTS = ("what", "model", "gpu_type", "phase", "unit")
_NUMBERS = ("batch", "tokens", "measured")
_MORE_NUMBERS = ("tensor_parallel", "layers", "node_gb_per_s")
_MORE_TEXTS = ("engine", "precision")


@checked
class Measurement:
    """One row."""

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
    engine: str = ""
    precision: str = ""

    @property
    def workload(self) -> Workload:
        """A batch of sequences of so many tokens."""
        return Workload(self.tokens, self.batch, self.phase)

    @property
    def milliseconds(self) -> float:
        """Of one traversal of the whole batch."""
        return self.measured if self.unit == "ms" else 1000 * self.workload.tokens / self.measured

    def predicted(self, costs: "Roofline") -> float:
        """The same by this cost model, in milliseconds."""
        return Traversal(self, costs).milliseconds(costs)


class Traversal:
    """What `stage_seconds` computes the time of a row from, whatever the constants."""

    def __init__(self, row: Measurement, costs: "Roofline") -> None:
        model = load_model(row.model, precision=row.precision or "bf16")
        self.engine = row.engine or costs.engine
        if self.engine not in costs.engines:
            expected = (
                f"expected an engine of the cost model; {nearest(self.engine, costs.engines)}"
            )
            raise InvalidValue("a measurement", [("engine", self.engine, expected)])
        if row.gpu_type not in costs.gpus:
            expected = f"expected a GPU of the cost model; {nearest(row.gpu_type, costs.gpus)}"
            raise InvalidValue("a measurement", [("gpu_type", row.gpu_type, expected)])
        if row.layers and row.layers > max(1, model.layers - 2):
            expected = f"expected at most {model.layers - 2} layers from the middle of {model.name}, or empty for all"
            raise InvalidValue("a measurement", [("layers", row.layers, expected)])
        if row.tensor_parallel > 1 and not row.node_gb_per_s:
            expected = "expected the bandwidth inside the node where GPUs cut layers"
            raise InvalidValue("a measurement", [("node_gb_per_s", row.node_gb_per_s, expected)])
        memory = costs.gpus[row.gpu_type].memory_gb
        node = "measured" if row.node_gb_per_s else ""
        self.gpu = GPU(row.gpu_type, memory, None, node, row.node_gb_per_s)
        # A profile of single layers is one from the middle: no embedding, no head.
        layers = range(1, 1 + row.layers) if row.layers else range(model.layers)
        self.demand, self.span = Demand(model, row.workload), Span.of(model, layers)
        self.batch, self.degree = np.array([row.batch]), row.tensor_parallel

    def milliseconds(self, costs: "Roofline") -> float:
        """With the constants of this cost model, of which only the row's engine counts."""
        own = costs.running(self.engine)
        hardware = hardware_of(own, self.demand, [self.gpu])
        seconds = stage_seconds(own, self.demand, hardware, self.span, self.batch, self.degree)
        return 1000 * float(seconds[0])


def read_measurements(path: Path) -> list[Row]:
    """The rows of a file with the columns of `data/measured_times.csv`."""
    return read_rows(path, _TEXTS + _NUMBERS)


def measurement_of(row: Row) -> Measurement:
    """A row of a file, checked; an error names the file, the row and the column."""
    values: dict[str, Any] = {c: row.cells[c] for c in _TEXTS}
    values |= {c: number(row, c) for c in _NUMBERS}
    values |= {c: number(row, c) for c in _MORE_NUMBERS if row.cells.get(c)}
    values |= {c: row.cells[c] for c in _MORE_TEXTS if row.cells.get(c)}
    name = values["model"]
    if name not in models().index:
        raise row.error("model", name, f"there is no such model; {nearest(name, models().index)}")
    return place(row, {"sequence_length": "tokens"}, lambda: Measurement(**values))
