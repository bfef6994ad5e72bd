"""What a saved plan holds besides its stages: the conditions of its rate, and whether a problem meets them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelab.engine.in_flight_result import enough_in_flight
from pipelab.errors import InvalidData, InvalidValue, shown
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import is_real
from pipelab.io.csv_cells import plain
from pipelab.placement import Placement
from pipelab.problem import Problem

# Fields of a problem that a plan repeats: its rules.
RULES = ("batch_split", "link_units", "max_gpus_per_stage", "same_type_stages")
RATE, SHARES = "throughput_tokens_per_s", "sequences_per_gpu"
_RULES = {name: name for name in ("batch_split", "link_units")}
_WORKLOAD = {name: name for name in ("sequence_length", "batch_size", "phase", "output_tokens")}
_WORKLOAD |= {"microbatches_in_flight": "in_flight"}

_SUFFIXES = (".json", ".csv")


class Saved(NamedTuple):
    """A plan as its file has it.

    Attributes
    ----------
    path : Path
    stages : list of mappings
        What the file says of each stage, by the names of `save_placement`; whatever is absent is
        not compared.
    whole : list of mappings
        What it says of the whole plan: of JSON one mapping, of CSV every row.
    digits : float
        How far its rates are rounded, as a share.
    """

    path: Path
    stages: Sequence[Mapping[str, Any]]
    whole: Sequence[Mapping[str, Any]]
    digits: float = 1e-9


def conditions(problem: Problem) -> dict[str, Any]:
    """Under which rules, and for which workload, a placement has its rate and fits."""
    return {
        **{name: getattr(problem, field) for name, field in _RULES.items()},
        "max_gpus_per_stage": problem.max_gpus_per_stage,
        "same_type_stages": problem.same_type_stages,
        **{name: getattr(problem.workload, field) for name, field in _WORKLOAD.items()},
        "cost_model": type(problem.costs).__name__,
    }


def in_flight_needed(evaluation: Evaluation) -> int | None:
    """Microbatches in flight that fill the pipeline; None where links count transfers, which take no known time."""
    return (
        None
        if evaluation.links and evaluation.link_unit != "tokens"
        else enough_in_flight(evaluation)
    )


def refuse_other_problem(saved: Saved, placement: Placement, problem: Problem) -> None:
    """Compare a plan with the problem it is loaded for: first its conditions, then its rates and shares.

    Raises
    ------
    InvalidData
        Something differs; the message has both values, and the call that gives the problem the
        plan's conditions.
    InvalidPlacement
        The placement is not valid for this problem.
    """
    _refuse_other_conditions(saved, problem)
    evaluation = evaluate(problem, placement)
    for cells in saved.whole:
        _compare(saved, "the plan", RATE, cells.get("plan_" + RATE, ""), [evaluation.throughput])
    for i, (cells, report) in enumerate(zip(saved.stages, evaluation.stages, strict=True), 1):
        _compare(saved, f"stage {i}", RATE, cells.get(RATE, ""), [report.throughput])
        _compare(saved, f"stage {i}", SHARES, cells.get(SHARES, ""), report.batch)


def _refuse_other_conditions(saved: Saved, problem: Problem) -> None:
    own, other = conditions(problem), {}
    for cells in saved.whole:
        for name in (*_RULES, *_WORKLOAD):
            if name in cells and _text(cells[name]) != _text(own[name]):
                other[name] = cells[name]
    if not other:
        return
    theirs = ", ".join(f"{name} = {shown(value)}" for name, value in other.items())
    ours = ", ".join(f"{name} = {own[name]!r}" for name in other)
    message = f"{saved.path}: this plan was made with {theirs}; the problem has {ours}"
    raise InvalidData(f"{message}. Give it the plan's: {_replacing(other, own)}")


def _text(value: Any) -> str:
    """As `plain`, and so that numbers which are none are different from all others."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else plain(value)


def _replacing(other: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The call that sets what differs."""

    def arguments(fields: Mapping[str, str]) -> list[str]:
        # In CSV numbers are text, too.
        text = {
            name: str(other[name]) if isinstance(own[name], int) else repr(other[name])
            for name in other
        }
        return [f"{field}={text[name][:40]}" for name, field in fields.items() if name in other]

    workload = ", ".join(arguments(_WORKLOAD))
    parts = arguments(_RULES) + (
        [f"workload=dataclasses.replace(problem.workload, {workload})"] if workload else []
    )
    return f"dataclasses.replace(problem, {', '.join(parts)})"


def _compare(saved: Saved, where: str, field: str, cell: Any, own: Sequence[float]) -> None:
    """A number, or one for each GPU, as the file has it, against the problem's; nothing where the file has none."""
    if cell in ("", None):
        return
    cells = cell.split() if isinstance(cell, str) else cell if isinstance(cell, list) else [cell]
    numbers = [_number(c) for c in cells]
    expected = " ".join(plain(float(value)) for value in own)
    found = f"{saved.path}, {where}: {field} {shown(cell)}"
    if len(numbers) != len(own) or None in numbers:
        raise InvalidData(
            f"{found}: expected {len(own)} number{'s' if len(own) > 1 else ''}, for this problem {expected}"
        )
    if any(
        not math.isclose(n or 0.0, o, rel_tol=saved.digits)
        for n, o in zip(numbers, own, strict=True)
    ):
        remedy = "the cluster, model or cost model differs from the plan's. Omit problem= to read only the stages"
        raise InvalidData(f"{found}, but for this problem {expected}: {remedy}")


def _number(cell: Any) -> float | None:
    if isinstance(cell, str):
        try:
            cell = float(cell)
        except ValueError:
            return None
    return float(cell) if is_real(cell) else None


def check_suffix(what: str, path: Path) -> None:
    """Refuse a file that is neither JSON nor CSV by its name."""
    if path.suffix not in _SUFFIXES:
        raise InvalidValue(
            what, [("path", str(path), f"expected a name that ends in {' or '.join(_SUFFIXES)}")]
        )
