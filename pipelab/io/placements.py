"""A placement as a file for other programs: JSON, CSV, or the fields of the write-up."""

import json
from pathlib import Path

from pipelab.errors import InvalidValue
from pipelab.evaluation import Evaluation, evaluate, tally
from pipelab.io.csv_cells import csv_text, path_of, plain, write_to
from pipelab.io.saved_plans import RATE, SHARES, check_suffix, conditions, rates_of
from pipelab.io.solution_json import solution
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result, placement_in

_LAYOUTS = ("pipelab", "write-up")


def save_placement(
    problem: Problem,
    placement: Placement | Result,
    path: str | Path,
    *,
    layout: str = "pipelab",
) -> Path:
    """Write a valid placement, and all that is needed to carry it out, as JSON or CSV, replacing the file whole.

    Parameters
    ----------
    problem : Problem
        Its rules and rates count.
    placement : Placement or Result
        Of a result, JSON also holds status and bound.
    path : str or Path
        Ends in `.json` (everything, links included) or `.csv` (one row per stage). Layers are
        counted from 1; units are in the names of the columns.
    layout : {"pipelab", "write-up"}
        "pipelab": of every stage its layers, its GPUs, the share of the batch and the memory of
        each, and how many GPUs cut a layer among them; its rate, its attainable rate and the
        microbatches in flight that yield it; the rules and the workload. "write-up": the fields of
        the write-up's solution.json, and beside them the plan's rates, the number in flight and its
        link units (JSON; equal shares of the batch).

    Returns
    -------
    Path
        Where it was written.

    Raises
    ------
    InvalidPlacement
        The placement is not valid for this problem.
    InvalidValue
        There is no placement, the file would be of another kind, or there is no such layout.
    NotApplicable
        The write-up's fields cannot hold unequal shares of the batch.
    InvalidData
        Nothing can be written there.

    Examples
    --------
    >>> import pipelab as pl, tempfile, pathlib
    >>> tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    >>> path = save_placement(tiny, pl.solve(tiny, "aggregated"), pathlib.Path(tempfile.mkdtemp()) / "plan.csv")
    >>> print(path.read_text().splitlines()[1][:50])
    1,1,4,0 1,2 × A100,8 8,1,301.784,2.817578125,80,30
    """
    path, result = (
        path_of("save_placement", path),
        placement if isinstance(placement, Result) else None,
    )
    check_suffix("save_placement", path)
    if layout not in _LAYOUTS:
        raise InvalidValue(
            "save_placement", [("layout", layout, f"expected {' or '.join(map(repr, _LAYOUTS))}")]
        )
    if layout == "write-up" and path.suffix != ".json":
        expected = "expected a name that ends in .json: the write-up's fields are nested"
        raise InvalidValue("save_placement", [("path", str(path), expected)])
    placement = placement_in(placement, "save_placement")
    evaluation = evaluate(problem, placement)
    if layout == "write-up":
        text = _json(solution(evaluation))
    elif path.suffix == ".csv":
        whole = {"plan_" + name: plain(value) for name, value in rates_of(evaluation).items()}
        whole |= {
            name: "" if value is None else plain(value)
            for name, value in _conditions(problem, evaluation).items()
        }
        rows = [_csv_row(row) | whole for row in _stage_rows(evaluation)]
        text = csv_text(list(rows[0]), [list(row.values()) for row in rows])
    else:
        text = _json(_document(problem, evaluation, result))
    write_to("save_placement", path, text)
    return path


def document_of(problem: Problem, placement: Placement) -> dict:
    """What JSON holds of a placement: conditions, and every stage and link with its rate."""
    return _document(problem, evaluate(problem, placement), None)


def _json(document: dict) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _conditions(problem: Problem, evaluation: Evaluation) -> dict:
    found = conditions(problem)
    if evaluation.in_flight is not None:
        found["microbatches_that_fill_the_pipeline"] = evaluation.in_flight_needed
    return found


def _stage_rows(evaluation: Evaluation) -> list[dict]:
    return [
        {
            "stage": i,
            "first_layer": report.stage.layers.start + 1,
            "last_layer": report.stage.layers.stop,
            "gpus": list(report.stage.gpus),
            "gpu_types": list(report.gpu_types),
            SHARES: [float(share) for share in report.batch],
            "gpus_per_layer": report.degree,
            RATE: float(report.throughput),
            "memory_needed_gb": [float(need) for need in report.memory_gb],
            "memory_offered_gb": [float(offer) for offer in report.memory_limit_gb],
        }
        for i, report in enumerate(evaluation.stages, start=1)
    ]


def _csv_row(row: dict) -> dict:
    # A table has one number per cell: the memory of the GPU that has the least to spare.
    need, offer = max(
        zip(row["memory_needed_gb"], row["memory_offered_gb"], strict=True),
        key=lambda pair: pair[0] / pair[1],
    )
    return row | {
        "gpus": " ".join(map(str, row["gpus"])),
        "gpu_types": tally(tuple(row["gpu_types"])),
        SHARES: " ".join(map(plain, row[SHARES])),
        RATE: plain(row[RATE]),
        "memory_needed_gb": plain(need),
        "memory_offered_gb": plain(offer),
    }


def _document(problem: Problem, evaluation: Evaluation, result: Result | None) -> dict:
    solved = {}
    if result is not None:
        solved = {
            "method": result.method,
            "status": result.status,
            "bound_tokens_per_s": result.bound,
        }
        solved |= result.objective.to_dict() if result.objective else {}
    links = [
        {
            "link": f"{i + 1}→{i + 2}",
            "slowest_pair_of_gpus": [link.sender, link.receiver],
            "bandwidth_gb_per_s": float(link.bandwidth_gb_per_s),
            f"throughput_{evaluation.link_unit}_per_s": float(link.throughput),
        }
        for i, link in enumerate(evaluation.links)
    ]
    return {
        "problem": problem.name,
        "model": problem.model.name,
        "layers": problem.model.layers,
        **rates_of(evaluation),
        **solved,
        "bottlenecks": list(evaluation.bottlenecks),
        "conditions": _conditions(problem, evaluation),
        "stages": _stage_rows(evaluation),
        "links": links,
    }
