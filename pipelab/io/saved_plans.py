"""What a saved plan holds besides its stages: the conditions of its rate, and whether a problem meets them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelab.errors import InvalidData, InvalidValue, shown
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import is_real
from pipelab.io.csv_cells import plain
from pipelab.placement import Placement
from pipelab.problem import Problem

# Fields of a problem that a plan repeats: its rules.
RULES = ("batch_split", "link_units", "max_gpus_per_stage", "same_type_stages")
RATE, SHARES = "throughput_tokens_per_s", "sequences_per_gpu"
# Of a whole plan, by its attribute in an evaluation; earlier files have the rate as `RATE`.
PLAN = {
    "rate_tokens_per_s": "rate",
    "attainable_tokens_per_s": "attainable",
    "in_flight": "in_flight",
}
_RULES = {name: name for name in ("batch_split", "link_units")}
_WORKLOAD = {name: name for name in ("sequence_length", "batch_size", "phase", "output_tokens")}
_WRITTEN = "output_tokens"  # read in the phase "mixed" alone
_GIVEN = "in_flight_given"  # empty where it was chosen with the placement
_WORKLOAD |= {_GIVEN: "in_flight"}
_BEFORE = "microbatches_in_flight"  # of earlier files: the number that memory was counted for

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


def rates_of(evaluation: Evaluation) -> dict[str, float | int]:
    """Rate and attainable rate, and with how many in flight; no number where links have no time."""
    found = {name: getattr(evaluation, field) for name, field in PLAN.items()}
    return {name: value for name, value in found.items() if value is not None}


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
    if problem.workload.in_flight is None:
        problem = problem.with_in_flight(_counted_for(saved))
    evaluation = evaluate(problem, placement)
    own = rates_of(evaluation) | {RATE: evaluation.rate}
    for cells in saved.whole:
        for name in own:
            _compare(saved, "the plan", name, cells.get("plan_" + name, ""), [own[name]])
    for i, (cells, report) in enumerate(zip(saved.stages, evaluation.stages, strict=True), 1):
        _compare(saved, f"stage {i}", RATE, cells.get(RATE, ""), [report.throughput])
        _compare(saved, f"stage {i}", SHARES, cells.get(SHARES, ""), report.batch)


def _counted_for(saved: Saved) -> int | None:
    """Of an earlier file the microbatches that memory was counted for; others say it as a condition."""
    cell = saved.whole[0].get(_BEFORE)
    if cell is None:
        return None
    number = _number(cell)
    if number is None or not number.is_integer() or not 1 <= number <= 1e9:
        raise InvalidData(
            f"{saved.path}: {_BEFORE} {shown(cell)}: expected a whole number of at least 1"
        )
    return int(number)


def _refuse_other_conditions(saved: Saved, problem: Problem) -> None:
    own, other = conditions(problem), {}
    read = [n for n in (*_RULES, *_WORKLOAD) if n != _WRITTEN or problem.workload.written]
    for cells in saved.whole:
        for name in read:
            if name in cells and _text(cells[name]) != _text(own[name]):
                other[name] = cells[name]
        before, given = cells.get(_BEFORE), own[_GIVEN]
        if before is not None and given is not None and _text(before) != _text(given):
            other[_GIVEN] = before
    if not other:
        return
    theirs = ", ".join(f"{name} = {shown(value)}" for name, value in other.items())
    ours = ", ".join(f"{name} = {own[name]!r}" for name in other)
    message = f"{saved.path}: this plan was made with {theirs}; the problem has {ours}"
    raise InvalidData(f"{message}. Give it the plan's: {_replacing(other, own)}")


def _text(value: Any) -> str:
    """As `plain`, nothing as empty, and so that numbers which are none are different from all others."""
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else plain(value)


def _replacing(other: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """The call that sets what differs."""

    def arguments(fields: Mapping[str, str]) -> list[str]:
        # In CSV numbers are text, too, and nothing is an empty cell.
        text = {
            name: "None"
            if other[name] in ("", None)
            else repr(other[name])
            if isinstance(own[name], str)
            else str(other[name])
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
