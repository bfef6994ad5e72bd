"""The files of a case: parameters of config.csv, rows of gpu_pool.csv, the links, and how layers differ."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from pipelab.errors import InvalidData, InvalidValue, nearest
from pipelab.fields import Count, Number, Positive, checked, described
from pipelab.files.csv_rows import Row, number, read_objects, read_rows

_Factor = Annotated[Number, Gt(0), described("a finite number above 0")]


@checked
class PoolRow:
    """One row of gpu_pool.csv."""

    gpu_type: str
    count: Annotated[int, Ge(0), Le(999_999), described("a whole number from 0 to 999999")]
    memory_gb: Positive
    usd_per_hour: Positive | None = None
    node: str = ""
    node_gb_per_s: Positive | None = None
    machine: str = ""
    index: str = ""  # what the machine calls each of them, with spaces between


@checked
class _LayerRow:
    """One row of layers.csv."""

    layer: Count
    weight_factor: _Factor
    work_factor: _Factor


def read_config(folder: Path) -> dict[str, Row]:
    """Read the rows of config.csv by parameter name.

    Raises
    ------
    InvalidData
        The file cannot be read, or it has a parameter twice.
    """
    parameters: dict[str, Row] = {}
    for row in read_rows(folder / "config.csv", ("parameter", "value")):
        name = row.cells["parameter"]
        if name in parameters:
            raise row.error("parameter", name, f"is already in row {parameters[name].number}")
        parameters[name] = row
    return parameters


def check_names(
    path: Path, parameters: Mapping[str, Row], required: Sequence[str], known: Sequence[str]
) -> None:
    """Refuse a configuration without a parameter that is needed; warn of one that is not known.

    Raises
    ------
    InvalidData
    """
    for name in required:
        if name not in parameters:
            raise InvalidData(f"{path}: parameter {name!r} is missing; {nearest(name, parameters)}")
    for name, row in parameters.items():
        if name not in known:
            place_text = f"{path}, row {row.number}: parameter {name!r} is not used by pipelab"
            warnings.warn(f"{place_text}; {nearest(name, known)}", stacklevel=4)


def part_of(
    make: Callable,
    columns: Mapping[str, str],
    parameters: Mapping[str, Row],
    texts: Sequence[str] = ("name",),
    **defaults: Any,
) -> Any:
    """Make a Model, a Workload, costs or a problem; a refused value is reported at its row of config.csv.

    `columns` has the parameter for each field, and `texts` the fields that are not numbers.
    """
    values = {
        field: parameters[column].cells["value"]
        if field in texts
        else number_of(parameters, column)
        for field, column in columns.items()
        if column in parameters
    }
    try:
        return make(**{**defaults, **values})
    except InvalidValue as error:
        field, value, expected = error.problems[0]
        row = parameters.get(columns.get(field, field))
        if row is None:
            raise
        raise row.error("value", value, f"{expected} ({row.cells['parameter']})") from None


def number_of(parameters: Mapping[str, Row], name: str) -> str:
    """Return the text of a parameter, which must read as a number."""
    return number(parameters[name], "value", f" ({name})")


def read_pool(folder: Path, cls: type = PoolRow) -> list[tuple[Row, Any]]:
    """Read the rows of gpu_pool.csv, which have at least one GPU."""
    rows = read_objects(folder / "gpu_pool.csv", cls)
    if not any(one.count for _, one in rows):
        first = rows[0][0]
        raise first.error("count", first.cells["count"], "expected at least one GPU in the pool")
    return rows


def read_bandwidth(folder: Path, gpus: int) -> np.ndarray:
    """Read network_bandwidth.csv as a matrix in id order; labels gpu_0, gpu_1, … may be in any order, each once."""
    path = folder / "network_bandwidth.csv"
    rows = read_rows(path, ())
    corner, *labels = rows[0].cells
    wanted, expected = [f"gpu_{i}" for i in range(gpus)], f"expected gpu_0 … gpu_{gpus - 1}"
    if len(labels) != gpus or len(rows) != gpus:
        size = f"{len(rows)} rows × {len(labels)} columns"
        raise InvalidData(f"{path}: {size}; expected {gpus} × {gpus}, one per GPU of gpu_pool.csv")
    for label in set(labels) - set(wanted):
        raise InvalidData(f"{path}, row 1: label {label!r} matches no GPU; {expected}")
    by_label: dict[str, list[float]] = {}
    for row in rows:
        label = row.cells[corner]
        if label not in labels:
            raise row.error("label", label, f"matches no GPU; {expected}")
        if label in by_label:
            raise row.error("label", label, "is already in an earlier row")
        by_label[label] = [_bandwidth(row, name, label == name) for name in wanted]
    return np.array([by_label[label] for label in wanted])


def _bandwidth(row: Row, receiver: str, to_itself: bool) -> float:
    """Read one cell; the diagonal must also be a number, but is never used."""
    value = float(number(row, receiver, " (GB/s)"))
    if not np.isfinite(value) or value < 0 or (value == 0 and not to_itself):
        expected = "expected a finite number above 0 (GB/s)"
        raise row.error(receiver, row.cells[receiver], expected)
    return value


def read_layers(folder: Path, layers: int) -> dict[str, tuple[float, ...]]:
    """Read both factors of every layer from layers.csv, counted from 1 and in order; nothing without that file."""
    path = folder / "layers.csv"
    if not os.path.lexists(path):  # a link that dangles is named when it is read
        return {}
    rows = read_objects(path, _LayerRow)
    for count, (row, one) in enumerate(rows, 1):
        if one.layer != count:
            expected = f"expected {count}: layers count from 1, in order"
            raise row.error("layer", row.cells["layer"], expected)
    if len(rows) != layers:
        expected = f"expected the {layers} of num_decoder_layers"
        raise InvalidData(f"{path}: {len(rows)} layers, {expected}")
    return {
        f"{name}s": tuple(getattr(one, name) for _, one in rows)
        for name in ("weight_factor", "work_factor")
    }
