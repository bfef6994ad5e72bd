"""A placement back from its file, and compared with the problem that it is to be carried out for."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, nearest, shown
from pipelab.fields import instance
from pipelab.io.cases_csv import load_case
from pipelab.io.csv_cells import path_of, read_rows
from pipelab.io.saved_plans import PLAN, RATE, RULES, Saved, check_suffix, refuse_other_problem
from pipelab.io.solution_json import read_solution
from pipelab.io.whole_files import read_text
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem

_FIELDS = ("first_layer", "last_layer", "gpus")
_ONE = (
    "expected a plan of one pipeline, and this is a deployment; "
    "load one of its replicas from a file of its own"
)


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
    check_suffix("load_placement", path)
    if problem is not None:
        instance(
            "load_placement",
            "problem",
            problem,
            Problem,
            "a Problem, or nothing to have the stages alone",
        )
    saved, places = _read(path)
    stages = (_stage(cells, place) for cells, place in zip(saved.stages, places, strict=True))
    placement = Placement(tuple(stages))
    if problem is not None:
        refuse_other_problem(saved, placement, problem)
    return placement


def problem_of(path: str | Path, case: str | None = None) -> Problem:
    """The problem that a saved plan was made for, as far as its file says: a case, under the plan's rules.

    `case` is its name or folder where the file does not say it (CSV), or says another.

    Raises
    ------
    InvalidData
        The file cannot be read, or names no case and none is given.
    """
    path = path_of("load_placement", path)
    check_suffix("load_placement", path)
    said = _read(path)[0].whole[0]
    name = case or said.get("problem")
    if not isinstance(name, str) or not name:
        raise InvalidData(f"{path}: does not say which case it is for; give it: --case NAME")
    flags = {"true": True, "false": False}  # CSV holds text
    rules = {r: flags.get(str(said[r]), said[r]) for r in RULES if said.get(r) not in (None, "")}
    most = str(rules.get("max_gpus_per_stage", ""))
    if re.fullmatch("[0-9]{1,9}", most):
        rules["max_gpus_per_stage"] = int(most)
    return load_case(name, **rules)


def _read(path: Path) -> tuple[Saved, list[str]]:
    """What a file holds, and where each stage stands in it, up to the name of a field."""
    if path.suffix == ".csv":
        rows = read_rows(path, _FIELDS)
        if rows and "pipeline" in rows[0].cells:
            raise InvalidData(f"{path}, column 'pipeline': {_ONE}")
        cells: list[dict[str, Any]] = [
            {**row.cells, "gpus": row.cells["gpus"].split()} for row in rows
        ]
        return Saved(path, cells, cells), [f"{path}, row {row.number}, column" for row in rows]
    saved = _read_json(path)
    return saved, [f"{path}, stage {i}, field" for i in range(1, len(saved.stages) + 1)]


def _read_json(path: Path) -> Saved:
    text = read_text(path, "JSON")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidData(f"{path}: cannot be read as JSON ({error})") from None
    if isinstance(document, dict) and "allocations" in document and "stages" not in document:
        return read_solution(path, document)
    stages = document.get("stages") if isinstance(document, dict) else None
    if isinstance(document, dict) and stages is None and "pipelines" in document:
        raise InvalidData(f"{path}: {_ONE}")
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
    whole = under | {"plan_" + name: document.get(name) for name in (RATE, *PLAN)}
    whole |= {"problem": document.get("problem")}
    return Saved(path, stages, [whole])


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
