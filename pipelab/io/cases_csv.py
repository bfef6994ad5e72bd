"""CSV in, `Problem` out: the write-up's three files per case, and the bundled cases.

`config.csv` (parameter, value), `gpu_pool.csv` (gpu_type, count, memory_gb) and
`network_bandwidth.csv` (a labelled square matrix, row = sender). Two more are optional:
`throughput_coefficients.csv` replaces the bundled coefficients, `layers.csv` (layer,
weight_factor, work_factor) says how layers differ; and gpu_pool.csv may have a column
usd_per_hour. `data/README.md` gives unit and source of every column.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipelab.cluster import GPU, Cluster
from pipelab.errors import InvalidValue, UnknownName, nearest, shown
from pipelab.hardware.linear_rates import Coefficients, LinearThroughput
from pipelab.io.bandwidth_csv import read_bandwidth
from pipelab.io.case_config import (
    COSTS,
    KNOWN,
    MODEL,
    REQUIRED,
    RULES,
    WORKLOAD,
    check_names,
    flag_of,
    part_of,
    read_config,
    text_of,
)
from pipelab.io.csv_cells import (
    Row,
    number,
    path_of,
    place,
    read_rows,
)
from pipelab.io.layers_csv import read_layers
from pipelab.io.paths import data_dir
from pipelab.io.whole_files import is_file, is_folder
from pipelab.problem import Model, Problem, Workload

_OWN_RATES = "For another type, put a throughput_coefficients.csv beside this file"
COEFFICIENTS = ("per_token", "per_sequence", "per_layer", "constant")


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


def load_case(case: str | Path, *, cloud_provider: str | None = None, **options: Any) -> Problem:
    """A bundled case by name, or a folder in the CSV format of the write-up or of its author's repository.

    Parameters
    ----------
    case : str or Path
        `"tiny"`, …, or the path of a folder.
    cloud_provider : str, optional
        Of a folder in the newest form: whose prices count in `cloud_instances_specs.csv`, beside the
        folder or above it, where gpu_pool.csv has none. By default "AWS", as in its author's scripts.
    **options
        Fields of `Problem` to set, such as `max_gpus_per_stage=2`.

    Returns
    -------
    Problem
        Its name is that of the folder. Units and sources of every column are in `data/README.md`.
        The bundled cases, which are the write-up's, set `link_units="transfers"` in their files,
        and every result says so. A folder in the newest form (see Notes) has `Roofline`.

    Raises
    ------
    UnknownName
        Neither a bundled case nor a folder, or no such field or provider; the message names the nearest one.
    InvalidData
        A file, column, row or value that does not fit; the message says where.
    InvalidValue
        An option that does not fit.

    Warns
    -----
    UserWarning
        `config.csv` has an unknown parameter; and once of a folder in the newest form, with all that
        is not modelled.

    Notes
    -----
    The newest form is that of gangmuk/LLM_placement_solver at 1221697: `min_batch_size` and
    `max_batch_size` instead of `batch_size`. The model is a `Transformer` of the stated dimensions
    with as many key/value heads as heads; GPUs are the known types nearest in memory. Those of one
    type that are joined, each to each, at one bandwidth are a node. A stage has GPUs of one type, as
    many as the largest node and at most 8, which may cut each layer inside a node. The batch is the
    greatest of the range. Where network_bandwidth.csv is absent, or of another size than the pool,
    links have the 400 and 200 GB/s that its author's scripts generate.

    Examples
    --------
    >>> problem = load_case("tiny", max_gpus_per_stage=2)
    >>> len(problem.cluster), problem.model.layers
    (4, 4)
    """
    folder = _find(case)
    parameters = read_config(folder)
    if "min_batch_size" in parameters or "max_batch_size" in parameters:
        from pipelab.hardware.newest_cases import newest_case

        return _with_options(newest_case(folder, parameters, cloud_provider), options)
    if cloud_provider is not None:
        expected = "expected none: the write-up's cases have no list of prices"
        raise InvalidValue("load_case", [("cloud_provider", cloud_provider, expected)])
    return _with_options(_of_the_write_up(folder, parameters), options)


def _of_the_write_up(folder: Path, parameters: Mapping[str, Row]) -> Problem:
    check_names(folder / "config.csv", parameters, REQUIRED, KNOWN)
    rows, gpus = _read_pool(folder)
    costs = part_of(
        replace, COSTS, parameters, {"obj": load_coefficients(_coefficients_file(folder))}
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
    model = part_of(Model, MODEL, parameters, {"name": folder.name})
    model = dataclasses.replace(model, **read_layers(folder, model.layers))
    workload = part_of(Workload, WORKLOAD, parameters)
    rules: dict[str, Any] = {n: parameters[n].cells["value"] for n in RULES if n in parameters}
    same = "same_type_stages"  # the write-up mixes types where its file does not say
    rules[same] = flag_of(parameters[same]) if same in parameters else False

    try:
        return Problem(cluster, model, workload, costs, name=folder.name, **rules)
    except InvalidValue as error:
        field, value, expected = error.problems[0]
        if field not in parameters:
            raise
        raise parameters[field].error("value", value, f"{expected} ({field})") from None


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
    parameters = read_config(_find(case))
    columns = {"gap": "optimality_gap", "seconds": "time_limit_seconds"}
    return {
        name: float(text_of(parameters[c], name)) for name, c in columns.items() if c in parameters
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
    for row in read_rows(path, ("gpu_type", *COEFFICIENTS)):
        name = row.cells["gpu_type"]
        if not name or name in coefficients:
            raise row.error("gpu_type", name, "expected a name that no other row has")
        values: dict[str, Any] = {c: number(row, c) for c in COEFFICIENTS}
        coefficients[name] = place(row, {}, partial(Coefficients, **values))
    return LinearThroughput(coefficients)


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


def _coefficients_file(folder: Path) -> Path | None:
    own = folder / "throughput_coefficients.csv"
    return own if os.path.lexists(own) else None  # a link that dangles is named when it is read
