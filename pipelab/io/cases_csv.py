"""CSV in, `Problem` out: the write-up's three files per case, and the bundled cases.

`config.csv` (parameter, value), `gpu_pool.csv` (gpu_type, count, memory_gb) and
`network_bandwidth.csv` (a labelled square matrix, row = sender). Two more are optional:
`throughput_coefficients.csv` replaces the bundled coefficients, `layers.csv` (layer,
weight_factor, work_factor) says how layers differ; and gpu_pool.csv may have a column
usd_per_hour. `data/README.md` gives unit and source of every column.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.errors import InvalidData, InvalidValue, NotApplicable, UnknownName, nearest, shown
from pipelab.hardware.linear_rates import Coefficients, LinearThroughput
from pipelab.io.bandwidth_csv import read_bandwidth
from pipelab.io.csv_cells import (
    NUMBER,
    Row,
    csv_text,
    number,
    path_of,
    place,
    plain,
    read_rows,
    write_to,
)
from pipelab.io.layers_csv import read_layers, write_layers
from pipelab.io.paths import data_dir
from pipelab.io.whole_files import is_file, is_folder
from pipelab.problem import Model, Problem, Workload

_MODEL = {
    "name": "model_name",
    "layers": "num_decoder_layers",
    "d_model": "d_model",
    "d_hidden": "d_hidden",
    "layer_weight_gb": "layer_weight_memory_gb",
    "bytes_per_element": "bytes_per_element",
}
_WORKLOAD = {"sequence_length": "sequence_length", "batch_size": "batch_size"}
_RULES = {n: n for n in ("max_gpus_per_stage", "same_type_stages", "batch_split", "link_units")}
_COSTS = {"efficiency": "stage_efficiency", "activation_overhead": "activation_overhead"}
_REQUIRED = (
    "sequence_length",
    "batch_size",
    "num_decoder_layers",
    "d_model",
    "d_hidden",
    "layer_weight_memory_gb",
)
# The write-up's files carry these too; no stage or link depends on them; see `author_settings`.
_UNUSED = ("vocab_size", "num_attention_heads", "time_limit_seconds", "optimality_gap")
_OWN_RATES = "For another type, put a throughput_coefficients.csv beside this file"
_COEFFICIENTS = ("per_token", "per_sequence", "per_layer", "constant")


def cases() -> tuple[str, ...]:
    """Names of the bundled cases, smallest first.

    Returns
    -------
    tuple of str
        What `load_case` takes.
    """
    folders = (data_dir() / "cases").iterdir()
    sized = [(len(_read_pool(f)[1]), f.name) for f in folders if (f / "gpu_pool.csv").is_file()]
    return tuple(name for _, name in sorted(sized))


def load_case(case: str | Path, **options: Any) -> Problem:
    """A bundled case by name, or any folder in the write-up's CSV format.

    Parameters
    ----------
    case : str or Path
        `"tiny"`, …, or the path of a folder.
    **options
        Fields of `Problem` to set, such as `max_gpus_per_stage=2`.

    Returns
    -------
    Problem
        Its name is that of the folder. Units and sources of every column are in `data/README.md`.
        The bundled cases, which are the write-up's, set `link_units="transfers"` in their files,
        and every result says so.

    Raises
    ------
    UnknownName
        Neither a bundled case nor a folder, or no such field; the message names the nearest one.
    InvalidData
        A file, column, row or value that does not fit; the message says where.
    InvalidValue
        An option that does not fit.

    Warns
    -----
    UserWarning
        `config.csv` has an unknown parameter.

    Examples
    --------
    >>> problem = load_case("tiny", max_gpus_per_stage=2)
    >>> len(problem.cluster), problem.model.layers
    (4, 4)
    """
    folder = _find(case)
    parameters = _read_config(folder)
    rows, gpus = _read_pool(folder)
    costs = _part(
        replace, _COSTS, parameters, {"obj": load_coefficients(_coefficients_file(folder))}
    )
    for row in rows:
        if row.cells["gpu_type"] not in costs.gpu_types:
            known = nearest(row.cells["gpu_type"], costs.gpu_types)
            raise row.error(
                "gpu_type",
                row.cells["gpu_type"],
                f"is not a GPU type the cost model knows; {known}. {_OWN_RATES}",
            )
    cluster = Cluster(gpus, read_bandwidth(folder, len(gpus)))
    model = _part(Model, _MODEL, parameters, {"name": folder.name})
    model = dataclasses.replace(model, **read_layers(folder, model.layers))
    workload = _part(Workload, _WORKLOAD, parameters)
    rules: dict[str, Any] = {n: parameters[n].cells["value"] for n in _RULES if n in parameters}
    if "same_type_stages" in rules:
        rules["same_type_stages"] = _flag(parameters["same_type_stages"])

    def make() -> Problem:
        return Problem(cluster, model, workload, costs, name=folder.name, **rules)

    try:
        problem = make()
    except InvalidValue as error:
        field, value, expected = error.problems[0]
        if field not in parameters:
            raise
        raise parameters[field].error("value", value, f"{expected} ({field})") from None
    return _with_options(problem, options)


def _with_options(problem: Problem, options: Mapping) -> Problem:
    known = [f.name for f in dataclasses.fields(Problem)]
    for name in options:
        if name not in known:
            raise UnknownName(f"a problem has no option {name!r}; {nearest(name, known)}")
    return dataclasses.replace(problem, **options)


def author_settings(case: str | Path) -> dict[str, float]:
    """With which MIP gap and time limit in seconds a case's author ran it; pipelab uses neither.

    Examples
    --------
    >>> author_settings("tiny")
    {'gap': 0.01, 'seconds': 60.0}
    """
    parameters = _read_config(_find(case))
    columns = {"gap": "optimality_gap", "seconds": "time_limit_seconds"}
    return {
        name: float(_value(parameters[c], name)) for name, c in columns.items() if c in parameters
    }


def load_coefficients(path: str | Path | None = None) -> LinearThroughput:
    """The linear cost model with coefficients from a CSV file, the bundled one by default.

    Parameters
    ----------
    path : str or Path, optional
        A CSV with the columns gpu_type, per_token, per_sequence, per_layer and constant; units as
        in `Coefficients`.

    Returns
    -------
    LinearThroughput
        With the default efficiency and activation overhead.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, a value is not a finite number, or a type is listed
        twice.
    InvalidValue
        `path` is not a path.

    References
    ----------
    The bundled coefficients are the write-up's and synthetic: `data/README.md`.
    """
    path = (
        data_dir() / "linear_throughput.csv" if path is None else path_of("load_coefficients", path)
    )
    coefficients = {}
    for row in read_rows(path, ("gpu_type", *_COEFFICIENTS)):
        name = row.cells["gpu_type"]
        if not name or name in coefficients:
            raise row.error("gpu_type", name, "expected a name that no other row has")
        values: dict[str, Any] = {c: number(row, c) for c in _COEFFICIENTS}
        coefficients[name] = place(row, {}, partial(Coefficients, **values))
    return LinearThroughput(coefficients)


def save_case(problem: Problem, folder: str | Path) -> Path:
    """Write a problem in the write-up's CSV format, so that `load_case` gives it back.

    Every file is replaced whole. The coefficients are written beside the three files, so
    that the folder is complete. The problem's name becomes that of the folder.

    Parameters
    ----------
    problem : Problem
        With `LinearThroughput` and a `Model`.
    folder : str or Path
        Made where it is not there.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    NotApplicable
        The format cannot hold this cost model, this model, or a cluster's latencies.
    InvalidData
        The folder cannot be written.
    InvalidValue
        `folder` is not a path.

    Notes
    -----
    The format has no place for nodes of GPUs, nor for `Workload.in_flight` and `output_tokens`;
    `LinearThroughput` reads none of them, and `load_case` gives their defaults.
    """
    folder = path_of("save_case", folder, "folder")
    if not isinstance(problem.costs, LinearThroughput) or not isinstance(problem.model, Model):
        expected = "expected LinearThroughput and a Model: the write-up's format knows no others; see save_placement"
        raise NotApplicable("save_case", [("costs", type(problem.costs).__name__, expected)])
    if problem.cluster.latency_ms.any():
        remedy = "dataclasses.replace(cluster, latency_ms=0)"
        expected = f"expected none: the write-up's format has no place for them; {remedy}"
        raise NotApplicable(
            "save_case", [("latency_ms", float(problem.cluster.latency_ms.max()), expected)]
        )
    parts = (
        (_MODEL, problem.model),
        (_WORKLOAD, problem.workload),
        (_COSTS, problem.costs),
        (_RULES, problem),
    )
    config = [
        (column, getattr(part, field)) for names, part in parts for field, column in names.items()
    ]
    pool: list[list[Any]] = []
    previous = None
    for gpu in problem.cluster.gpus:  # runs of equal GPUs, ids consecutive in pool order
        if gpu == previous:
            pool[-1][1] += 1
        else:
            pool.append(
                [
                    gpu.type,
                    1,
                    plain(gpu.memory_gb),
                    "" if gpu.usd_per_hour is None else plain(gpu.usd_per_hour),
                ]
            )
        previous = gpu
    labels = [f"gpu_{i}" for i in range(len(problem.cluster))]
    matrix = problem.cluster.bandwidth_matrix()
    own = np.diagonal(matrix)  # never used; what the format cannot hold becomes 0
    np.fill_diagonal(matrix, np.where(np.isfinite(own) & (own >= 0), own, 0))
    bandwidth = [[label, *map(plain, row)] for label, row in zip(labels, matrix, strict=True)]
    rates = [
        [t, *(plain(getattr(c, n)) for n in _COEFFICIENTS)]
        for t, c in problem.costs.coefficients.items()
    ]
    write_to(
        "save_case",
        folder / "config.csv",
        csv_text(["parameter", "value"], [[n, plain(v)] for n, v in config]),
    )
    priced = 4 if any(row[3] for row in pool) else 3
    header = ["gpu_type", "count", "memory_gb", "usd_per_hour"]
    write_to(
        "save_case",
        folder / "gpu_pool.csv",
        csv_text(header[:priced], [row[:priced] for row in pool]),
    )
    write_to("save_case", folder / "network_bandwidth.csv", csv_text(["", *labels], bandwidth))
    write_to(
        "save_case",
        folder / "throughput_coefficients.csv",
        csv_text(["gpu_type", *_COEFFICIENTS], rates),
    )
    write_layers(folder / "layers.csv", problem.model)
    return folder


def _find(case: str | Path) -> Path:
    bundled = data_dir() / "cases" / str(case)
    if "/" not in str(case) and "\\" not in str(case) and is_file(bundled / "config.csv"):
        return bundled
    folder = Path(str(case))
    if str(case).startswith("~"):
        folder = Path(os.path.expanduser(str(case)))
    if str(case) and is_folder(folder):
        return folder
    raise UnknownName(
        f"{shown(str(case))} is neither a bundled case nor a folder; {nearest(str(case), cases())}"
    )


def _coefficients_file(folder: Path) -> Path | None:
    own = folder / "throughput_coefficients.csv"
    return own if os.path.lexists(own) else None  # a link that dangles is named when it is read


def _read_config(folder: Path) -> dict[str, Row]:
    """The rows of config.csv by parameter name."""
    path = folder / "config.csv"
    known = [*_MODEL.values(), *_WORKLOAD.values(), *_COSTS.values(), *_RULES, *_UNUSED]
    parameters: dict[str, Row] = {}
    for row in read_rows(path, ("parameter", "value")):
        name = row.cells["parameter"]
        if name in parameters:
            raise row.error("parameter", name, f"is already in row {parameters[name].number}")
        parameters[name] = row
    for name in _REQUIRED:
        if name not in parameters:
            raise InvalidData(f"{path}: parameter {name!r} is missing; {nearest(name, parameters)}")
    for name, row in parameters.items():
        if name not in known:
            place_text = f"{path}, row {row.number}: parameter {name!r} is not used by pipelab"
            warnings.warn(f"{place_text}; {nearest(name, known)}", stacklevel=4)
    return parameters


def _part(
    make: Callable,
    columns: Mapping[str, str],
    parameters: Mapping[str, Row],
    defaults: Mapping = {},
) -> Any:
    """Make a Model, a Workload or costs; a refused value is reported at its row of config.csv."""
    values = {
        field: _value(parameters[c], field) for field, c in columns.items() if c in parameters
    }
    defaults = dict(defaults)
    first = [defaults.pop("obj")] if "obj" in defaults else []
    try:
        return make(*first, **{**defaults, **values})
    except InvalidValue as error:
        field, value, expected = error.problems[0]
        raise parameters[columns[field]].error(
            "value", value, f"{expected} ({columns[field]})"
        ) from None


def _value(row: Row, field: str) -> str:
    """The text of a parameter; of all but the model's name, text that reads as a number."""
    text = row.cells["value"]
    if field != "name" and not NUMBER.fullmatch(text):
        raise row.error("value", text, f"expected a number ({row.cells['parameter']})")
    return text


def _read_pool(folder: Path) -> tuple[list[Row], tuple[GPU, ...]]:
    """The rows of gpu_pool.csv, and their GPUs, ids in row order."""
    rows = read_rows(folder / "gpu_pool.csv", ("gpu_type", "count", "memory_gb"))
    gpus: list[GPU] = []
    for row in rows:
        values: dict[str, Any] = {
            "type": row.cells["gpu_type"],
            "memory_gb": number(row, "memory_gb"),
        }
        if row.cells.get("usd_per_hour"):
            values["usd_per_hour"] = number(row, "usd_per_hour")
        gpu = place(row, {"type": "gpu_type"}, partial(GPU, **values))
        gpus += [gpu] * _count(row)
    if not gpus:
        raise rows[0].error(
            "count", rows[0].cells["count"], "expected at least one GPU in the pool"
        )
    return rows, tuple(gpus)


def _count(row: Row) -> int:
    text = row.cells["count"]
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise row.error("count", text, "expected a whole number from 0 to 999999")
    return int(text)


def _flag(row: Row) -> bool:
    text = row.cells["value"].lower()
    if text not in ("true", "false"):
        raise row.error("value", row.cells["value"], "expected true or false (same_type_stages)")
    return text == "true"
