"""save_case: a problem in the write-up's CSV files."""

from pathlib import Path
from typing import Any

import numpy as np

from pipelab.errors import NotApplicable
from pipelab.hardware.linear_rates import LinearThroughput
from pipelab.io.case_config import COSTS, MODEL, RULES, WORKLOAD
from pipelab.io.cases_csv import COEFFICIENTS
from pipelab.io.csv_cells import csv_text, path_of, plain, write_to
from pipelab.io.layers_csv import write_layers
from pipelab.problem import Model, Problem


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
        The format cannot hold this cost model, this model, training, or a cluster's latencies.
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
    if problem.workload.phase == "training":
        expected = "expected 'prefill': the write-up's format has no place for a step of training; see save_placement"
        raise NotApplicable("save_case", [("workload.phase", "training", expected)])
    if problem.cluster.latency_ms.any():
        remedy = "dataclasses.replace(cluster, latency_ms=0)"
        expected = f"expected none: the write-up's format has no place for them; {remedy}"
        raise NotApplicable(
            "save_case", [("latency_ms", float(problem.cluster.latency_ms.max()), expected)]
        )
    parts = (
        (MODEL, problem.model),
        (WORKLOAD, problem.workload),
        (COSTS, problem.costs),
        (RULES, problem),
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
        [t, *(plain(getattr(c, n)) for n in COEFFICIENTS)]
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
        csv_text(["gpu_type", *COEFFICIENTS], rates),
    )
    write_layers(folder / "layers.csv", problem.model)
    return folder
