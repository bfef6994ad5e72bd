"""Measured times from a file: a table of your own, or what another tool measured."""

from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, InvalidValue
from pipelab.fields import Count, Positive, checked
from pipelab.hardware.known_gpus import load_gpus
from pipelab.hardware.measured_times import Measured
from pipelab.hardware.measurement_files import format_of, refuse_stated, stated_of, table_of
from pipelab.hardware.roofline import Roofline
from pipelab.hardware.timed_passes import Stated
from pipelab.io.csv_cells import path_of, read_objects


def load_measured(path: str | Path, needs: Any, **options: Any) -> Measured:
    """`Measured` from a table of your own, or from what another tool measured.

    Parameters
    ----------
    path : str or Path
        A CSV file with the columns gpu_type, layers, batch, milliseconds. Or times of a whole
        model, shared evenly among its layers: `llama-bench -o json`, `vllm bench serve` or
        `latency` (JSON). Or a profile of one layer: Vidur's `mlp.csv` (without attention), Helix's
        `prompt_bs2time.csv` and `decode_bs2time.csv`.
    needs : cost model
        As for `Measured`.
    **options
        `per_layer` (of a table of your own) and `beyond`, as for `Measured`. Of other tools' files,
        what they do not say: `gpu_type`, `model`, `precision`, `phase`, `batch`, `tokens` (of a
        prompt, or of the context in decode; where the file has several, those that count) and
        `output_tokens`. `data/README.md` says what each format needs.

    Returns
    -------
    Measured
        Of the types that the file names, or of `gpu_type`.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, a value does not fit, a pair of layers and batch
        is listed twice or is missing, or neither the file nor an option says what is needed; the
        message names the file, and row and column where it is one row's.
    InvalidValue
        `needs` is no cost model, an option is not one of these, or its value does not fit, or what
        is given is no path.
    UnknownName
        The model is unknown.
    """
    file = path_of("load_measured", path)
    given = {name: v for name, v in options.items() if name in Stated.__dataclass_fields__}
    others = {name: v for name, v in options.items() if name not in given}
    stated, kind = stated_of("load_measured", given), format_of(file)
    if kind == "own":
        refuse_stated("load_measured", file, given)
        found = _own_table(file)
    else:
        if "per_layer" in others:
            expected = "expected none: such a file has times of one layer, or of a whole model"
            raise InvalidValue("load_measured", [("per_layer", others["per_layer"], expected)])
        gpus = needs.gpus if isinstance(needs, Roofline) else load_gpus()
        found, others = table_of(file, kind, stated, gpus), others | {"per_layer": True}
    try:
        return Measured(found, needs, **others)
    except InvalidValue as error:
        if {"needs", *others} & {name for name, _, _ in error.problems}:
            raise
        raise InvalidData(f"{path}: {error}") from None


@checked
class _Own:
    """One row of a table of one's own."""

    gpu_type: str
    layers: Count
    batch: Positive
    milliseconds: Positive


def _own_table(path: Path) -> dict[str, dict[tuple[int, float], float]]:
    """Milliseconds by type of GPU, layers and batch."""
    found: dict[str, dict[tuple[int, float], float]] = {}
    for row, one in read_objects(path, _Own):
        table = found.setdefault(one.gpu_type, {})
        if (one.layers, one.batch) in table:
            expected = f"{one.layers} layers with this batch are listed already"
            raise row.error("batch", row.cells["batch"], expected)
        table[one.layers, one.batch] = one.milliseconds
    return found
