"""A placement as a file for other programs, back again, and as vLLM's settings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from pipelab.engine.in_flight_result import InFlightResult
from pipelab.errors import InvalidData, InvalidValue, nearest, shown
from pipelab.evaluation import Evaluation, evaluate, tally
from pipelab.fields import instance
from pipelab.io.csv_cells import csv_text, path_of, plain, read_rows, write_to
from pipelab.io.saved_plans import (
    RATE,
    SHARES,
    Saved,
    conditions,
    in_flight_needed,
    refuse_other_problem,
)
from pipelab.io.solution_json import read_solution, solution
from pipelab.io.whole_files import read_text
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem
from pipelab.solving import Result, placement_in

_SUFFIXES = (".json", ".csv")
_LAYOUTS = ("pipelab", "write-up")
_FIELDS = ("first_layer", "last_layer", "gpus")


def save_placement(
    problem: Problem,
    placement: Placement | Result | InFlightResult,
    path: str | Path,
    *,
    layout: str = "pipelab",
) -> Path:
    """Write a valid placement, and all that is needed to carry it out, as JSON or CSV, replacing the file whole.

    Parameters
    ----------
    problem : Problem
        Whose rules and rates count.
    placement : Placement or Result
        Of a result, JSON also holds status and bound.
    path : str or Path
        Ends in `.json` (everything, links included) or `.csv` (one row per stage). Layers are
        counted from 1; units are in the names of the columns.
    layout : {"pipelab", "write-up"}
        "pipelab": of every stage its layers, its GPUs, the share of the batch and the memory of
        each, and how many GPUs cut a layer among them; and the rules, the workload and the
        microbatches in flight that its rates hold for. "write-up": the fields of the write-up's
        solution.json, and beside them the plan's rate and its link units (JSON; equal shares of the
        batch).

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
    _check_suffix("save_placement", path)
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
        whole = {"plan_" + RATE: plain(float(evaluation.throughput))}
        whole |= {name: plain(value) for name, value in _conditions(problem, evaluation).items()}
        rows = [_csv_row(row) | whole for row in _stage_rows(evaluation)]
        text = csv_text(list(rows[0]), [list(row.values()) for row in rows])
    else:
        text = _json(_document(problem, evaluation, result))
    write_to("save_placement", path, text)
    return path


def _json(document: dict) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _conditions(problem: Problem, evaluation: Evaluation) -> dict:
    needed = in_flight_needed(evaluation)
    return conditions(problem) | (
        {} if needed is None else {"microbatches_that_fill_the_pipeline": needed}
    )


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
        RATE: float(evaluation.throughput),
        **solved,
        "bottlenecks": list(evaluation.bottlenecks),
        "conditions": _conditions(problem, evaluation),
        "stages": _stage_rows(evaluation),
        "links": links,
    }


def load_placement(path: str | Path, problem: Problem | None = None) -> Placement:
    """Read a placement from JSON or CSV; `pl.evaluate` says whether it is valid for a problem.

    Parameters
    ----------
    path : str or Path
        As `save_placement` writes it in either layout, or by hand: of each stage `first_layer`,
        `last_layer` (counted from 1) and `gpus` are read. In CSV, GPU ids are separated by spaces.
    problem : Problem, optional
        What the plan is to be carried out for. Then all else that the file says is compared with
        it: the rules (how a batch is shared, what links count), the workload, every rate and every
        GPU's share of the batch. So what is returned has the rate that was saved. A file that lacks
        some of this is compared by what it has: a solution.json of the write-up's author has the
        rates and shares of the stages, to four digits, and says nothing of links.

    Returns
    -------
    Placement
        First stage to last, in the order of the file.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, or a value does not fit; names stage or row, field
        and value. Or the plan was made for another problem than the one given; names what differs
        and how to set it.
    InvalidPlacement
        The placement is not valid for the problem given.
    InvalidValue
        The path is not a path with a known suffix, or the problem is not a problem.

    Examples
    --------
    >>> import pipelab as pl, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = path.write_text("first_layer,last_layer,gpus\\n1,2,0 1\\n3,4,2\\n")
    >>> print(pl.load_placement(path))
    layers 1–2 on [0, 1] → layers 3–4 on [2]
    """
    path = path_of("load_placement", path)
    _check_suffix("load_placement", path)
    if problem is not None:
        instance(
            "load_placement",
            "problem",
            problem,
            Problem,
            "a Problem, or nothing to have the stages alone",
        )
    if path.suffix == ".csv":
        rows = read_rows(path, _FIELDS)
        cells: list[dict[str, Any]] = [
            {**row.cells, "gpus": row.cells["gpus"].split()} for row in rows
        ]
        saved, places = (
            Saved(path, cells, cells),
            [f"{path}, row {row.number}, column" for row in rows],
        )
    else:
        saved = _read_json(path)
        places = [f"{path}, stage {i}, field" for i in range(1, len(saved.stages) + 1)]
    stages = (_stage(cells, place) for cells, place in zip(saved.stages, places, strict=True))
    placement = Placement(tuple(stages))
    if problem is not None:
        refuse_other_problem(saved, placement, problem)
    return placement


def _read_json(path: Path) -> Saved:
    text = read_text(path, "JSON")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidData(f"{path}: cannot be read as JSON ({error})") from None
    if isinstance(document, dict) and "allocations" in document and "stages" not in document:
        return read_solution(path, document)
    stages = document.get("stages") if isinstance(document, dict) else None
    if not isinstance(stages, list) or not stages:
        raise InvalidData(f'{path}: expected an object with "stages", a list of at least one stage')
    for i, stage in enumerate(stages, 1):
        if not isinstance(stage, dict):
            raise InvalidData(
                f"{path}, stage {i}: {shown(stage)}: expected an object with {', '.join(_FIELDS)}"
            )
        for field in _FIELDS:
            if field not in stage:
                raise InvalidData(
                    f"{path}, stage {i}: field {field!r} is missing; {nearest(field, stage)}"
                )
    under = document.get("conditions", {})
    if not isinstance(under, dict):
        raise InvalidData(
            f"{path}, field 'conditions': {shown(under)}: expected an object with names and values"
        )
    return Saved(path, stages, [under | {"plan_" + RATE: document.get(RATE)}])


def _stage(cells: Mapping, place: str) -> Stage:
    """One stage; `place` is its place in the file, up to the name of the field."""
    first, last = (_whole(cells[field], field, place, 1) for field in _FIELDS[:2])
    if last < first:
        raise InvalidData(f"{place} 'last_layer': {last}: expected at least first_layer = {first}")
    gpus = cells["gpus"]
    if not isinstance(gpus, list) or not gpus:
        raise InvalidData(f"{place} 'gpus': {gpus!r}: expected at least one GPU id")
    return Stage(range(first - 1, last), tuple(_whole(g, "gpus", place, 0) for g in gpus))


def _whole(value: object, field: str, place: str, least: int) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) < least:
        shown = "empty" if value == "" else repr(value)
        raise InvalidData(
            f"{place} {field!r}: {shown}: expected a whole number of at least {least}"
        )
    return int(text)


def _check_suffix(what: str, path: Path) -> None:
    if path.suffix not in _SUFFIXES:
        raise InvalidValue(
            what, [("path", str(path), f"expected a name that ends in {' or '.join(_SUFFIXES)}")]
        )


@dataclass(frozen=True)
class VLLMSettings:
    """The settings of one vLLM engine for a placement; made by `pl.vllm_settings`. Prints as a shell command.

    Attributes
    ----------
    layers : tuple of int
        Decoder layers of each stage, in order.
    gpus : tuple of int
        GPU ids of the cluster in the order of vLLM's ranks: stage after stage.
    tensor_parallel_size : int
        GPUs of every stage.
    note : str
        What is not translated; empty where every stage cuts its layers as vLLM would, or has one
        GPU.
    """

    layers: tuple[int, ...]
    gpus: tuple[int, ...]
    tensor_parallel_size: int
    note: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables; GPUs are visible in rank order, counted as the PCI bus counts them."""
        return {
            "VLLM_PP_LAYER_PARTITION": ",".join(map(str, self.layers)),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus)),
        }

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of `vllm serve`."""
        sizes = {"pipeline": len(self.layers), "tensor": self.tensor_parallel_size}
        return tuple(
            part for name, size in sizes.items() for part in (f"--{name}-parallel-size", str(size))
        )

    def __str__(self) -> str:
        variables = " ".join(f"{name}={value}" for name, value in self.environment.items())
        return f"{variables} vllm serve MODEL {' '.join(self.arguments)}"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>" + (
            f"<p>{escape(self.note)}.</p>" if self.note else ""
        )


def vllm_settings(problem: Problem, placement: Placement | Result) -> VLLMSettings:
    """The same stages for vLLM: `VLLM_PP_LAYER_PARTITION`, both parallel sizes, and the order of GPUs.

    Parameters
    ----------
    problem : Problem
        Whose rules and rates count.
    placement : Placement or Result
        Of a result, its placement.

    Returns
    -------
    VLLMSettings
        Prints as a shell command.

    Raises
    ------
    InvalidPlacement
        The placement is not valid for this problem.
    InvalidValue
        There is no placement; stages have different numbers of GPUs (one vLLM engine has pipeline size
        × tensor size ranks); or heads do not come out even among a stage's GPUs.

    Notes
    -----
    Translated: the cuts between stages, how many GPUs a stage has, and which. vLLM gives rank s ·
    tensor size + i to GPU i of stage s, hence the order of `gpus`. `CUDA_VISIBLE_DEVICES` holds for
    one host whose GPUs are numbered as the problem's; over several hosts, start the workers in this
    order.

    Not translated: vLLM splits every layer over the GPUs of a stage (tensor parallel). A cost model
    in which they hold full copies and share the batch, as `LinearThroughput` has it, therefore
    predicts the throughput of a program that vLLM does not run; with `Roofline`, `note` is empty
    where every stage cuts its layers as vLLM would. Embedding and head come on top of the first and
    last stage's layers.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> print(pl.vllm_settings(tiny, pl.Placement.of([(3, (1,)), (1, (0,))])).environment["VLLM_PP_LAYER_PARTITION"])
    3,1
    """
    placement = placement_in(placement, "vllm_settings")
    degrees = [report.degree for report in evaluate(problem, placement).stages]
    stages = placement.stages
    sizes = [len(stage.gpus) for stage in stages]
    if len(set(sizes)) > 1:
        raise InvalidValue("vllm_settings", [("placement", str(placement), _odd_one(sizes))])
    heads = getattr(problem.model, "heads", sizes[0])
    if heads % sizes[0]:
        expected = f"expected stages of a number of GPUs that divides the model's {heads} heads"
        raise InvalidValue("vllm_settings", [("GPUs per stage", sizes[0], expected)])
    note = ""
    if any(degree != sizes[0] for degree in degrees):
        note = (
            f"vLLM splits every layer over the {sizes[0]} GPUs of a stage (tensor parallel); "
            "pipelab's rate holds for it only where the cost model says the same of a stage"
        )
    return VLLMSettings(
        tuple(len(stage.layers) for stage in stages), placement.gpus, sizes[0], note
    )


def _odd_one(sizes: list[int]) -> str:
    """The first stage that differs from most, and what to do."""
    usual = max(dict.fromkeys(sizes), key=sizes.count)
    odd = next(i for i, size in enumerate(sizes) if size != usual)
    return (
        f"expected as many GPUs in every stage, since one vLLM engine has one tensor-parallel size; stage {odd + 1} "
        f"has {sizes[odd]} where {sizes.count(usual)} of {len(sizes)} stages have {usual}; "
        "solve with max_gpus_per_stage=1 for a placement of that shape"
    )
