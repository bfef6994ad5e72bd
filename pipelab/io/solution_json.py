"""The fields of the write-up's solution.json: segments, GPU ids, and one share of the batch for all GPUs of a stage.

The plan's rates and what its links count follow: the write-up has no field for a link.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, NotApplicable, nearest, shown
from pipelab.evaluation import Evaluation, StageReport
from pipelab.io.saved_plans import PLAN, RATE, SHARES, Saved, rates_of

_SEGMENT = {"start_layer": "first_layer", "end_layer": "last_layer"}


def solution(evaluation: Evaluation) -> dict[str, Any]:
    """A placement as the write-up's joint solver prints it, with its rates and what its links count.

    Raises
    ------
    NotApplicable
        GPUs of a stage have different shares of the batch, for which the write-up has no field.
    """
    allocations = [_allocation(i, report) for i, report in enumerate(evaluation.stages, 1)]
    return {
        **rates_of(evaluation),
        "link_units": evaluation.link_unit,
        "allocations": allocations,
    }


def _allocation(index: int, report: StageReport) -> dict[str, Any]:
    if max(report.batch) > min(report.batch) * (1 + 1e-12):
        expected = "expected equal shares (batch_split='even'): solution.json has one workload_per_gpu for a stage; "
        shares = " ".join(f"{share:.6g}" for share in report.batch)
        problem = (
            f"stage {index}, sequences per GPU",
            shares,
            expected + "layout='pipelab' has one for each GPU",
        )
        raise NotApplicable("save_placement", [problem])
    layers = report.stage.layers
    return {
        "segment": {
            "start_layer": layers.start + 1,
            "end_layer": layers.stop,
            "segment_size": len(layers),
        },
        "gpu_ids": list(report.stage.gpus),
        "gpu_types": dict(Counter(report.gpu_types)),
        "num_gpus": len(report.stage.gpus),
        "throughput": float(report.throughput),
        "workload_per_gpu": float(report.batch[0]),
    }


def read_solution(path: Path, document: Mapping[str, Any]) -> Saved:
    """Such a file, by the names of `save_placement`; the author's own have neither a rate of the plan nor link_units.

    Raises
    ------
    InvalidData
        An allocation has no segment or no GPUs, or counts them wrongly.
    """
    allocations = document["allocations"]
    if not isinstance(allocations, list) or not allocations:
        raise InvalidData(f'{path}: expected "allocations" to be a list of at least one')
    stages = [_stage(path, i, allocation) for i, allocation in enumerate(allocations, 1)]
    whole = {"link_units": document["link_units"]} if "link_units" in document else {}
    said = {"plan_" + name: document[name] for name in (RATE, *PLAN) if name in document}
    if not said:
        return Saved(path, stages, [whole], digits=1e-4)  # people print a few digits
    return Saved(path, stages, [whole | said])


def _stage(path: Path, index: int, allocation: Any) -> dict[str, Any]:
    place = f"{path}, allocation {index}"
    segment = _mapping(
        place, _mapping(place, allocation, ("segment", "gpu_ids"))["segment"], tuple(_SEGMENT)
    )
    stage = {ours: segment[theirs] for theirs, ours in _SEGMENT.items()} | {
        "gpus": allocation["gpu_ids"]
    }
    gpus = stage["gpus"] if isinstance(stage["gpus"], list) else []
    counts = {"num_gpus": (allocation, len(gpus))}
    if all(isinstance(segment[name], int) for name in _SEGMENT):
        counts["segment_size"] = (segment, segment["end_layer"] - segment["start_layer"] + 1)
    for name, (cells, number) in counts.items():
        if cells.get(name, number) != number:
            raise InvalidData(
                f"{place}, field {name!r}: {shown(cells[name])}: expected {number}, as listed"
            )
    if "workload_per_gpu" in allocation:
        stage[SHARES] = [allocation["workload_per_gpu"]] * len(gpus)
    return stage | {RATE: allocation.get("throughput")}


def _mapping(place: str, value: Any, fields: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidData(f"{place}: {shown(value)}: expected an object with {', '.join(fields)}")
    for field in fields:
        if field not in value:
            raise InvalidData(f"{place}: field {field!r} is missing; {nearest(field, value)}")
    return value
