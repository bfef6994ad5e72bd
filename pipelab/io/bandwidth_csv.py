"""The bandwidth matrix of a case: `network_bandwidth.csv`."""

from pathlib import Path

import numpy as np

from pipelab.errors import InvalidData
from pipelab.io.csv_cells import NUMBER, Row, read_rows


def read_bandwidth(folder: Path, gpus: int) -> np.ndarray:
    """The matrix in id order; labels gpu_0, gpu_1, … may be in any order, each once."""
    path = folder / "network_bandwidth.csv"
    rows = read_rows(path, ())
    first, *labels = rows[0].cells
    wanted = [f"gpu_{i}" for i in range(gpus)]
    if len(labels) != gpus or len(rows) != gpus:
        size = f"{len(rows)} rows × {len(labels)} columns"
        raise InvalidData(f"{path}: {size}; expected {gpus} × {gpus}, one per GPU of gpu_pool.csv")
    column = {label: i for i, label in enumerate(wanted)}
    for label in labels:
        if label not in column:
            raise InvalidData(
                f"{path}, row 1: label {label!r} matches no GPU; expected gpu_0 … gpu_{gpus - 1}"
            )
    matrix = np.full((gpus, gpus), np.nan)
    seen: set[str] = set()
    for row in rows:
        label = row.cells[first]
        if label not in column:
            raise row.error("label", label, f"matches no GPU; expected gpu_0 … gpu_{gpus - 1}")
        if label in seen:
            raise row.error("label", label, "is already in an earlier row")
        seen.add(label)
        for name in labels:
            matrix[column[label], column[name]] = _bandwidth(row, label, name)
    return matrix


def _bandwidth(row: Row, sender: str, receiver: str) -> float:
    """One cell; the diagonal must be a number too, but is never used."""
    text = row.cells[receiver]
    if not NUMBER.fullmatch(text):
        raise row.error(receiver, text, "expected a number (GB/s)")
    value = float(text)
    if not np.isfinite(value) or value < 0 or (value == 0 and sender != receiver):
        raise row.error(receiver, text, "expected a finite number above 0 (GB/s)")
    return value
