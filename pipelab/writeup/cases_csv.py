"""CSV in, `Problem` out: the write-up's three files per case, and the bundled cases.

`config.csv` (parameter, value), `gpu_pool.csv` (gpu_type, count, memory_gb) and
`network_bandwidth.csv` (a labelled square matrix, row = sender). Two more are optional:
`throughput_coefficients.csv` replaces the bundled coefficients, `layers.csv` (layer,
weight_factor, work_factor) says how layers differ; and gpu_pool.csv may have columns for
prices, nodes and machines. `notebooks/data.md` gives unit and source of every column.
"""

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.errors import InvalidValue, NotApplicable, UnknownName, nearest, shown
from pipelab.files import case_tables, csv_rows
from pipelab.files.bundled_folders import data_dir
from pipelab.files.reading_and_writing import path_of, refused, write_to
from pipelab.problem import Model, Problem, Workload
from pipelab.reproductions import reproduction
from pipelab.writeup.linear_rates import Coefficients, LinearThroughput, with_link_units

_OWN_RATES = "For another type, put a throughput_coefficients.csv beside this file"
# The columns of gpu_pool.csv that are fields of a GPU.
_POOL = ("memory_gb", "usd_per_hour", "node", "node_gb_per_s", "machine")
# The parameter of config.csv for each field.
_MODEL = {
    "name": "model_name",
    "layers": "num_decoder_layers",
    "d_model": "d_model",
    "d_hidden": "d_hidden",
    "layer_weight_gb": "layer_weight_memory_gb",
    "bytes_per_element": "bytes_per_element",
}
_WORKLOAD = {name: name for name in ("sequence_length", "batch_size")}
_RULES = {name: name for name in ("max_gpus_per_stage", "batch_split")}
_SAME = "same_type_stages"
_UNITS = "link_units"
_COSTS = {
    "efficiency": "stage_efficiency",
    "activation_overhead": "activation_overhead",
    _UNITS: _UNITS,
}
_REQUIRED = (*_WORKLOAD, "num_decoder_layers", "d_model", "d_hidden", "layer_weight_memory_gb")
# The write-up's files carry these too; no stage or link depends on them; see `author_settings`.
_UNUSED = ("vocab_size", "num_attention_heads", "time_limit_seconds", "optimality_gap")
_KNOWN = (*_MODEL.values(), *_WORKLOAD, *_COSTS.values(), *_RULES, _SAME, *_UNUSED)


def cases() -> tuple[str, ...]:
    """Return the names of the bundled cases, smallest first.

    Returns
    -------
    tuple of str
        What `load_case` takes.
    """
    folders = (data_dir() / "cases").iterdir()
    pools = {f.name: case_tables.read_pool(f) for f in folders if (f / "gpu_pool.csv").is_file()}
    sized = [(sum(one.count for _, one in rows), name) for name, rows in pools.items()]
    return tuple(name for _, name in sorted(sized))


def load_case(case: str | Path, *, cloud_provider: str | None = None, **options: Any) -> Problem:
    """Load a bundled case by name, or a folder in the CSV format of the write-up or of its author's repository.

    Parameters
    ----------
    case : str or Path
        `"tiny"`, …, or the path of a folder.
    cloud_provider : str, optional
        For a folder in the newest form: whose prices count in `cloud_instances_specs.csv`, beside the
        folder or above it, where gpu_pool.csv has none. By default "AWS", as in its author's scripts.
    **options
        Fields of `Problem` to set, such as `max_gpus_per_stage=2`; and `link_units="tokens"`, which
        corrects the write-up's mistake (see `LinearThroughput`).

    Returns
    -------
    Problem
        Its name is that of the folder. Units and sources of every column are in `notebooks/data.md`.
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
    parameters = case_tables.read_config(folder)
    if "min_batch_size" in parameters or "max_batch_size" in parameters:
        newest_case = reproduction("a case of the newest form")
        return _with_options(newest_case(folder, parameters, cloud_provider), options)
    if cloud_provider is not None:
        expected = "expected none: the write-up's cases have no list of prices"
        raise InvalidValue("load_case", [("cloud_provider", cloud_provider, expected)])
    return _with_options(_of_the_write_up(folder, parameters), options)


def _of_the_write_up(folder: Path, parameters: Mapping[str, csv_rows.Row]) -> Problem:
    case_tables.check_names(folder / "config.csv", parameters, _REQUIRED, _KNOWN)
    coefficients = folder / "throughput_coefficients.csv"
    # a link that dangles is named when it is read
    rates = load_coefficients(coefficients if os.path.lexists(coefficients) else None)
    costs = case_tables.part_of(partial(replace, rates), _COSTS, parameters, (_UNITS,))
    pool = case_tables.read_pool(folder)
    gpus = [gpu for row, one in pool for gpu in _gpus(row, one, costs)]
    links, index = case_tables.read_bandwidth(folder, len(gpus)), _indices(pool)
    make_cluster = partial(Cluster, tuple(gpus), links, index=index)
    cluster = csv_rows.place(pool[0][0], {"index": "index"}, make_cluster)
    model = case_tables.part_of(Model, _MODEL, parameters, name=folder.name)
    model = replace(model, **case_tables.read_layers(folder, model.layers))
    load = case_tables.part_of(Workload, _WORKLOAD, parameters)
    # the write-up mixes types where its file does not say
    same = _SAME in parameters and csv_rows.flag(parameters[_SAME], "value", f" ({_SAME})")
    make = partial(Problem, cluster, model, load, costs, name=folder.name, same_type_stages=same)
    return case_tables.part_of(make, _RULES, parameters, tuple(_RULES))


def _indices(pool: list[tuple[csv_rows.Row, case_tables.PoolRow]]) -> tuple[int | str, ...]:
    """Return what its machine calls each GPU; nothing if no row says it."""
    said = any(one.index for _, one in pool)
    names: list[str] = []
    for row, one in pool:
        if said and len(one.index.split()) != one.count:
            expected = f"expected {one.count} with spaces between, or no index in any row"
            raise row.error("index", one.index, expected)
        names += one.index.split()
    return tuple(int(name) if name.isdecimal() else name for name in names)


def _gpus(row: csv_rows.Row, one: case_tables.PoolRow, costs: LinearThroughput) -> list[GPU]:
    """Return the GPUs of one row of the pool, of a type that the cost model knows."""
    stated = {name: getattr(one, name) for name in _POOL}
    gpu = csv_rows.place(row, {"type": "gpu_type"}, partial(GPU, one.gpu_type, **stated))
    if one.gpu_type not in costs.gpu_types:
        known = nearest(one.gpu_type, costs.gpu_types)
        expected = f"is not a GPU type the cost model knows; {known}. {_OWN_RATES}"
        raise row.error("gpu_type", one.gpu_type, expected)
    return [gpu] * one.count


def _with_options(problem: Problem, options: Mapping) -> Problem:
    known = [*(f.name for f in fields(Problem)), _UNITS]
    for name in options:
        if name not in known:
            raise UnknownName(f"a problem has no option {name!r}; {nearest(name, known)}")
    made = replace(problem, **{name: v for name, v in options.items() if name != _UNITS})
    return with_link_units(made, options[_UNITS]) if _UNITS in options else made


def author_settings(case: str | Path) -> dict[str, float]:
    """Return the MIP gap and the time limit in seconds with which a case's author ran it; pipelab uses neither.

    Examples
    --------
    >>> author_settings("tiny")
    {'gap': 0.01, 'seconds': 60.0}
    """
    parameters = case_tables.read_config(_find(case))
    columns = {"gap": "optimality_gap", "seconds": "time_limit_seconds"}
    return {
        name: float(case_tables.number_of(parameters, c))
        for name, c in columns.items()
        if c in parameters
    }


def load_coefficients(path: str | Path | None = None) -> LinearThroughput:
    """Load the linear cost model with coefficients from a CSV file, by default the bundled one.

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
    The bundled coefficients are the write-up's and synthetic: `notebooks/data.md`.
    """
    bundled = data_dir() / "linear_throughput.csv"
    path = bundled if path is None else path_of("load_coefficients", path)
    return LinearThroughput(csv_rows.read_by_name(path, "gpu_type", Coefficients))


def _find(case: str | Path) -> Path:
    bundled = data_dir() / "cases" / str(case)
    if "/" not in str(case) and "\\" not in str(case) and os.path.isfile(bundled / "config.csv"):
        return bundled
    folder = Path(str(case))
    if str(case).startswith("~"):
        folder = Path(os.path.expanduser(str(case)))
    if str(case) and os.path.isdir(folder):
        return folder
    known = nearest(str(case), cases())
    raise UnknownName(f"{shown(str(case))} is neither a bundled case nor a folder; {known}")


def save_case(problem: Problem, path: str | Path) -> Path:
    """Write a problem in the write-up's CSV format, so that `load_case` gives it back.

    Every file is replaced whole. The coefficients are written beside the three files, so
    that the folder is complete. The problem's name becomes that of the folder.

    Parameters
    ----------
    problem : Problem
        With `LinearThroughput` and a `Model`.
    path : str or Path
        Of a folder; made where it is not there.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    NotApplicable
        The format cannot hold this cost model, this model, training, or a cluster's latencies.
    InvalidData
        The folder cannot be written.
    InvalidValue
        `path` is not a path.

    Notes
    -----
    The format has no place for `Workload.in_flight` and `output_tokens`; `LinearThroughput` reads neither,
    and `load_case` gives their defaults. Nodes, machines and indices of GPUs are columns that the write-up
    does not have, and are written only where GPUs have them.
    """
    folder = path_of("save_case", path)
    if not isinstance(problem.costs, LinearThroughput) or not isinstance(problem.model, Model):
        expected = "expected LinearThroughput and a Model: the write-up's format knows no others; see pl.save"
        raise NotApplicable("save_case", [("costs", type(problem.costs).__name__, expected)])
    if problem.workload.phase == "training":
        expected = "expected 'prefill': the write-up's format has no place for a step of training; see pl.save"
        raise NotApplicable("save_case", [("workload.phase", "training", expected)])
    if problem.cluster.latency_ms.any():
        remedy = "dataclasses.replace(cluster, latency_ms=0)"
        expected = f"expected none: the write-up's format has no place for them; {remedy}"
        longest = float(problem.cluster.latency_ms.max())
        raise NotApplicable("save_case", [("latency_ms", longest, expected)])

    def write(name: str, header: list[str], rows: list[list[Any]]) -> None:
        texts = [["" if cell is None else csv_rows.plain(cell) for cell in row] for row in rows]
        write_to("save_case", folder / name, csv_rows.csv_text(header, texts))

    parts = (
        (_MODEL, problem.model),
        (_WORKLOAD, problem.workload),
        (_COSTS, problem.costs),
        ({**_RULES, _SAME: _SAME}, problem),
    )
    config = [[c, getattr(part, f)] for names, part in parts for f, c in names.items()]
    write("config.csv", ["parameter", "value"], config)
    # runs of equal GPUs, ids consecutive in pool order
    rows, first = [], 0
    for gpu, run in groupby(problem.cluster.gpus):
        count = len(list(run))
        index = " ".join(map(str, problem.cluster.index[first : first + count]))
        rows.append([gpu.type, count, *(getattr(gpu, name) for name in _POOL), index])
        first += count
    header = ["gpu_type", "count", *_POOL, "index"]
    used = [c for c in range(len(header)) if any(row[c] for row in rows)]
    write("gpu_pool.csv", [header[c] for c in used], [[row[c] for c in used] for row in rows])
    labels = [f"gpu_{i}" for i in range(len(problem.cluster))]
    matrix = problem.cluster.bandwidth_matrix()
    diagonal = np.diagonal(matrix)  # never used; what the format cannot hold becomes 0
    np.fill_diagonal(matrix, np.where(np.isfinite(diagonal) & (diagonal >= 0), diagonal, 0))
    links = [[label, *row] for label, row in zip(labels, matrix.tolist(), strict=True)]
    write("network_bandwidth.csv", ["", *labels], links)
    numbers = [field.name for field in fields(Coefficients)]
    rates = problem.costs.coefficients.items()
    rows = [[name, *(getattr(one, n) for n in numbers)] for name, one in rates]
    write("throughput_coefficients.csv", ["gpu_type", *numbers], rows)
    weight, work = problem.model.weight_factors, problem.model.work_factors
    if weight is not None or work is not None:
        equal = (1.0,) * problem.model.layers
        factors = zip(weight or equal, work or equal, strict=True)
        layers = [[i, *both] for i, both in enumerate(factors, 1)]
        write("layers.csv", ["layer", "weight_factor", "work_factor"], layers)
    else:  # an old one goes
        try:
            (folder / "layers.csv").unlink(missing_ok=True)
        except OSError as error:
            raise refused(folder / "layers.csv", "write", error) from None
    return folder
