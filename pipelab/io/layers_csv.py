"""layers.csv: how layers differ, one row for each."""

import os
from pathlib import Path

from pipelab.errors import InvalidData
from pipelab.io.csv_cells import csv_text, number, plain, read_rows, write_to
from pipelab.io.whole_files import refused
from pipelab.problem import Model

_FACTORS = {"weight_factor": "weight_factors", "work_factor": "work_factors"}


def read_layers(folder: Path, layers: int) -> dict[str, tuple[str, ...]]:
    """Both factors of every layer from layers.csv, layers counted from 1 and in order; nothing without that file."""
    path = folder / "layers.csv"
    if not os.path.lexists(path):  # a link that dangles is named when it is read
        return {}
    rows = read_rows(path, ("layer", *_FACTORS))
    for count, row in enumerate(rows, 1):
        if row.cells["layer"] != str(count):
            raise row.error(
                "layer", row.cells["layer"], f"expected {count}: layers count from 1, in order"
            )
        for column in _FACTORS:
            if not 0 < float(number(row, column)) < float("inf"):
                raise row.error(column, row.cells[column], "expected a finite number above 0")
    if len(rows) != layers:
        raise InvalidData(
            f"{path}: {len(rows)} layers, expected the {layers} of num_decoder_layers"
        )
    return {field: tuple(row.cells[column] for row in rows) for column, field in _FACTORS.items()}


def write_layers(path: Path, model: Model) -> None:
    """layers.csv where layers differ; where they do not, an old one goes."""
    if model.weight_factors is None and model.work_factors is None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise refused(path, "write", error) from None
        return
    equal = (1.0,) * model.layers
    factors = zip(model.weight_factors or equal, model.work_factors or equal, strict=True)
    rows = [[str(i), plain(weight), plain(work)] for i, (weight, work) in enumerate(factors, 1)]
    write_to("save_case", path, csv_text(["layer", *_FACTORS], rows))
