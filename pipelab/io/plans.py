"""Plans as JSON: a placement or a deployment with all that is needed to carry it out, and a placement back.

A plan that is loaded for a problem is compared with it: first the conditions under which it was made, then
every rate and every GPU's share of the batch.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelab.deployment_and_flow import DeploymentPlan, Replicas
from pipelab.engine.answers import Result, placement_in
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.methods.trade_offs import TradeOff
from pipelab.engine.runs_on import as_engine_fills
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidData, InvalidPlacement, InvalidValue, UnknownName, nearest, shown
from pipelab.evaluation import evaluate
from pipelab.fields import instance, is_real
from pipelab.files.csv_rows import plain
from pipelab.files.reading_and_writing import path_of, read_json, write_to
from pipelab.hardware.engine_rules import rules_of
from pipelab.io.chrome_traces import chrome_trace
from pipelab.io.torch_csv import to_csv
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem
from pipelab.requests import for_phase
from pipelab.schedules import Schedule
from pipelab.writeup.cases_csv import load_case

_FIELDS = ("first_layer", "last_layer", "gpus")
_RATE, _SHARES = "throughput_tokens_per_s", "sequences_per_gpu"
# Rates of a whole plan, by their attribute in an evaluation; nothing in flight if links have no time.
_PLAN = {
    "rate_tokens_per_s": "rate",
    "attainable_tokens_per_s": "attainable",
    "in_flight": "in_flight",
    "seconds_per_token": "seconds_per_token",
}
# The conditions of a plan, by the field of the problem and of its workload that each comes from.
_RULES = {name: name for name in ("batch_split", "max_gpus_per_stage", "same_type_stages")}
_UNITS = "link_units"
_WORKLOAD = {name: name for name in ("sequence_length", "batch_size", "phase", "output_tokens")}
_WORKLOAD |= {"in_flight_given": "in_flight"}  # null if it was chosen with the placement

_OF_EACH_PIPELINE = ("batch_size", "in_flight_given")  # in a deployment


def save(x: Result | Deployment | TradeOff | Schedule | Timeline, path: str | Path) -> Path:
    """Write a result's plan, a deployment, a trade-off, a schedule or a timeline, replacing the file whole.

    Parameters
    ----------
    x : Result, Deployment, TradeOff, Schedule or Timeline
        A result or a deployment is written as its plan (JSON), a trade-off with the plan of every
        point (JSON), a schedule as CSV as torch writes it, a timeline as a Chrome trace (JSON).
    path : str or Path
        Of a plan, it ends in `.json`. Pipelines, stages and layers are counted from 1.

    Returns
    -------
    Path
        Where it was written.

    Raises
    ------
    InvalidValue
        `x` cannot be saved, has no placement, or the suffix does not fit.
    InvalidPlacement
        A pipeline of a deployment is not valid for its problem.
    InvalidData
        Nothing can be written there.

    Examples
    --------
    >>> import pipelab as pl, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "plan.json"
    >>> pl.save(pl.solve(pl.load_case("tiny")), path) == path
    True
    """
    if isinstance(x, Schedule):
        text = to_csv(x)
    elif isinstance(x, Timeline):
        text = json.dumps(chrome_trace(x), allow_nan=False)
    elif isinstance(x, Result):
        return save_placement(x.problem, x, path)
    elif isinstance(x, Deployment):
        if not x.pipelines:
            expected = f"expected a deployment with a pipeline. {x.sentence}"
            raise InvalidValue("save", [("x", x.status, expected)])
        return write_document(path, _document(x.problem, x))
    elif isinstance(x, TradeOff):
        plans = [_document(x.problem, point) for point in x.points]
        head = {"problem": x.problem.name, "against": x.against, "complete": x.complete}
        return write_document(path, head | {"points": plans})
    else:
        expected = (
            "expected a Result, a Deployment, a TradeOff, a Schedule or a Timeline; "
            "tables: x.to_frame().to_csv(path)"
        )
        raise InvalidValue("save", [("x", type(x).__name__, expected)])
    return write_to("save", path, text)


def _document(problem: Problem, plan: Result | Deployment) -> dict[str, Any]:
    """Return what a file says of a plan, once it is known to be valid."""
    if isinstance(plan, Result):
        return document_of(problem, plan)
    evaluate(problem, plan)
    engine = {"runs_on": plan.runs_on} if plan.runs_on else {}
    return plan.to_dict() | {"conditions": _conditions(problem)} | engine


def save_placement(problem: Problem, plan: Placement | Result, path: str | Path) -> Path:
    """Write a valid plan, and all that is needed to carry it out, as JSON, replacing the file whole.

    Raises
    ------
    InvalidPlacement
        The placement is not valid for this problem.
    InvalidValue
        There is no placement, or the path does not end in `.json`.
    InvalidData
        Nothing can be written there.
    """
    return write_document(path, document_of(problem, plan))


def write_document(path: str | Path, document: Mapping[str, Any]) -> Path:
    """Write what a plan's file holds as JSON, replacing the file whole."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return write_to("save", json_path("save", path), text)


def json_path(what: str, path: str | Path) -> Path:
    """Return the path of a plan, which ends in .json."""
    path = path_of(what, path)
    if path.suffix != ".json":
        raise InvalidValue(what, [("path", str(path), "expected a name that ends in .json")])
    return path


def document_of(problem: Problem, plan: Placement | Result) -> dict[str, Any]:
    """Return all that a plan's file holds; units are in the names.

    Rates, conditions, every stage and every link; of a result, its method, status and bound, too.
    """
    evaluation = evaluate(problem, placement_in(plan, "save_placement"))
    rates = {name: getattr(evaluation, field) for name, field in _PLAN.items()}
    conditions, cluster = _conditions(problem), problem.cluster
    if evaluation.in_flight is not None:
        conditions["microbatches_that_fill_the_pipeline"] = evaluation.in_flight_needed
    stages = [
        {
            "stage": i,
            "first_layer": report.stage.layers.start + 1,
            "last_layer": report.stage.layers.stop,
            "gpus": list(report.stage.gpus),
            "gpu_types": list(report.gpu_types),
            "machines": [cluster.gpus[g].host for g in report.stage.gpus],
            "gpu_indices": [cluster.index[g] for g in report.stage.gpus if cluster.index],
            _SHARES: [float(share) for share in report.batch],
            "gpus_per_layer": report.degree,
            _RATE: float(report.throughput),
            "memory_needed_gb": [float(need) for need in report.memory_gb],
            "memory_offered_gb": [float(offer) for offer in report.memory_limit_gb],
        }
        for i, report in enumerate(evaluation.stages, start=1)
    ]
    links = [
        {
            "link": f"{i}→{i + 1}",
            "slowest_pair_of_gpus": [link.sender, link.receiver],
            "bandwidth_gb_per_s": float(link.bandwidth_gb_per_s),
            f"throughput_{evaluation.link_unit}_per_s": float(link.throughput),
        }
        for i, link in enumerate(evaluation.links, start=1)
    ]
    document = {
        "problem": problem.name,
        "model": problem.model.name,
        "layers": problem.model.layers,
        **{name: value for name, value in rates.items() if value is not None},
        "bottlenecks": list(evaluation.bottlenecks),
        "conditions": conditions,
        "stages": stages,
        "links": links,
    }
    if isinstance(plan, Result):
        document |= {"method": plan.method, "status": plan.status, "bound_tokens_per_s": plan.bound}
        document |= plan.objective.to_dict() if plan.objective else {}
        document |= {"under_limit": plan.under_limit} if plan.under_limit else {}
        document |= {"runs_on": plan.runs_on} if plan.runs_on else {}
    return document


def _conditions(problem: Problem) -> dict[str, Any]:
    """Return the rules and the workload for which a plan has its rates and fits."""
    return {
        **{name: getattr(problem, field) for name, field in _RULES.items()},
        **{name: getattr(problem.workload, field) for name, field in _WORKLOAD.items()},
        "cost_model": type(problem.costs).__name__,
        _UNITS: problem.costs.link_units,
        "filling": problem.costs.filling,
    }


def load_placement(path: str | Path, problem: Problem | None = None) -> Placement:
    """Read a placement from JSON; `pl.evaluate` says whether it is valid for a problem.

    Parameters
    ----------
    path : str or Path
        As `pl.save` writes it, or by hand: an object with "stages", of which `first_layer`,
        `last_layer` (counted from 1) and `gpus` are read.
    problem : Problem, optional
        What the plan is to be carried out for. Then all else that the file says is compared with
        it: the rules (how a batch is shared, what links count), the workload, every rate and every
        GPU's share of the batch. So what is returned has the rate that was saved. A plan of an answer for
        an engine is compared as that engine fills pipelines.

    Returns
    -------
    Placement
        First stage to last, in the order of the file.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, or a value does not fit; names stage, field
        and value. Or the plan was made for another problem than the one given; names what differs.
    InvalidPlacement
        The placement is not valid for the problem given.
    UnknownName
        The file names an engine that there is not.
    InvalidValue
        The path is not a path that ends in `.json`, or the problem is not a problem.

    Examples
    --------
    >>> import pipelab as pl, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.json"
    >>> first, second = '"first_layer": 1, "last_layer": 2', '"first_layer": 3, "last_layer": 4'
    >>> _ = path.write_text(f'{{"stages": [{{{first}, "gpus": [0, 1]}}, {{{second}, "gpus": [2]}}]}}')
    >>> print(pl.load_placement(path))
    layers 1–2 on [0, 1] → layers 3–4 on [2]
    """
    path = json_path("load_placement", path)
    if problem is not None:
        remedy = "a Problem, or nothing to have the stages alone"
        instance("load_placement", "problem", problem, Problem, remedy)
    document = _read(path, "stages")
    placement = _placement(path, document["stages"])
    if problem is not None:
        problem, _ = as_planned(path, problem)
        _refuse_other_conditions(path, document["conditions"], problem)
        try:
            computed = document_of(problem, placement)
        except InvalidPlacement as error:
            made_for = document.get("problem")
            if made_for in (None, problem.name):
                raise
            other = f"{path} was made for {shown(made_for)}, and this is {shown(problem.name)}"
            raise InvalidPlacement([other, *error.defects]) from None
        _refuse_other_rates(path, document, computed)
    return placement


def load_plan(path: str | Path, problem: Problem) -> Placement | DeploymentPlan:
    """Read a placement (`load_placement`) or the pipelines of a deployment, as `save` writes them, for a problem.

    Raises
    ------
    InvalidData
        The file cannot be read, or its plan was made for another problem.
    InvalidPlacement
        A pipeline is not valid for this problem.
    """
    document = _read(path := json_path("load_placement", path))
    if "pipelines" not in document:
        return load_placement(path, problem)
    problem, _ = as_planned(path, problem)
    shared = {k: v for k, v in document["conditions"].items() if k not in _OF_EACH_PIPELINE}
    _refuse_other_conditions(path, shared, problem)
    pipelines = []
    for number, said in enumerate(document["pipelines"], 1):
        place = f"{path}, pipeline {number}"
        try:
            one = for_phase(problem, said["phase"]) if "phase" in said else problem
            load = replace(one.workload, batch_size=said["batch_size"], in_flight=said["in_flight"])
            replicas = [_placement(place, replica["stages"]) for replica in said["replicas"]]
        except (AttributeError, KeyError, TypeError, InvalidValue) as error:
            expected = "expected batch_size, in_flight, and replicas with stages"
            raise InvalidData(f"{place}: {expected} ({error})") from None
        pipelines.append(Replicas(replicas=tuple(replicas), workload=load))
    plan = DeploymentPlan(pipelines=tuple(pipelines))
    evaluate(problem, plan)
    return plan


def as_planned(path: str | Path, problem: Problem) -> tuple[Problem, dict[str, str]]:
    """Return a problem as the engine of a saved plan runs and fills it, and what the file says of that engine.

    Both as they are where the plan was made for no engine.

    Raises
    ------
    InvalidData
        The file cannot be read.
    UnknownName
        It names an engine that there is not.
    """
    path = json_path("load_placement", path)
    engine = _read(path).get("runs_on")
    if engine is None:
        return problem, {}
    rules_of(engine, f"{path}, field 'runs_on'")
    return as_engine_fills(problem, engine), {"runs_on": engine}


def problem_of(path: str | Path, case: str | None = None, **rules: Any) -> Problem:
    """Return the problem that a saved plan was made for, as far as its file says: a case, under the plan's rules.

    `case` is its name or folder if the file does not say it, or says another; `rules` that are
    given count instead of the plan's.

    Raises
    ------
    InvalidData
        The file cannot be read, or names no case and none is given.
    """
    path = json_path("load_placement", path)
    document = _read(path)
    name = case or document.get("problem")
    if not isinstance(name, str) or not name:
        raise InvalidData(f"{path}: does not say which case it is for; give it: --case NAME")
    said = document["conditions"]
    kept = (*_RULES, _UNITS)
    plan_rules = {rule: said[rule] for rule in kept if said.get(rule) is not None}
    try:
        return load_case(name, **(plan_rules | rules))
    except UnknownName as error:
        if case is not None:
            raise
        remedy = "give --model with --gpus or --cluster as they were when it was solved, or --case"
        raise UnknownName(f"{path}: {error}; {remedy}") from None


def _read(path: Path, *parts: str) -> dict[str, Any]:
    """Read the document in a file; it has a list of stages, or of pipelines, and conditions (possibly empty)."""
    document = read_json(path)
    names = document if isinstance(document, dict) else {}
    lists = [names.get(part) for part in parts or ("stages", "pipelines")]
    if not any(isinstance(part, list) and part for part in lists):
        expected = 'expected an object with "stages", a list of at least one stage'
        remedies = {
            "points": "trade-off; load one of its points from a file of its own",
            "pipelines": "deployment; give it to `pipelab settings` or `pipelab serve`, or load one of its "
            "replicas from a file of its own: docs/using.md",
        }
        for name in remedies.keys() & names:
            expected = f"expected a plan of one pipeline, and this is a {remedies[name]}"
        raise InvalidData(f"{path}: {expected}")
    said = document.setdefault("conditions", {})
    if not isinstance(said, dict):
        expected = "expected an object with names and values"
        raise InvalidData(f"{path}, field 'conditions': {shown(said)}: {expected}")
    return document


def _placement(place: Path | str, stages: list[Any]) -> Placement:
    """Read stages; errors name the place."""
    return Placement(tuple(_stage(place, i, stage) for i, stage in enumerate(stages, 1)))


def _stage(path: Path | str, number: int, said: Any) -> Stage:
    """Check one stage of a file."""
    place = f"{path}, stage {number}"
    if not isinstance(said, dict):
        raise InvalidData(f"{place}: {shown(said)}: expected an object with {', '.join(_FIELDS)}")
    for field in _FIELDS:
        if field not in said:
            raise InvalidData(f"{place}: field {field!r} is missing; {nearest(field, said)}")

    def whole(field: str, value: Any, least: int) -> int:
        if type(value) is not int or not least <= value < 10**9:
            expected = f"expected a whole number of at least {least}, and below 10^9"
            raise InvalidData(f"{place}, field {field!r}: {shown(value)}: {expected}")
        return value

    first, gpus = whole("first_layer", said["first_layer"], 1), said["gpus"]
    last = whole("last_layer", said["last_layer"], first)
    if not isinstance(gpus, list) or not gpus:
        raise InvalidData(f"{place}, field 'gpus': {shown(gpus)}: expected at least one GPU id")
    return Stage(range(first - 1, last), tuple(whole("gpus", gpu, 0) for gpu in gpus))


def _refuse_other_conditions(path: Path, said: Mapping[str, Any], problem: Problem) -> None:
    """Refuse a plan made under other conditions."""
    conditions = _conditions(problem)
    read = {*_WORKLOAD, "batch_split", _UNITS}
    if not problem.workload.written:  # read in the phase "mixed" alone
        read.remove("output_tokens")
    other = {
        name: said[name]
        for name in conditions
        if name in read & set(said) and said[name] != conditions[name]
    }
    if not other:
        return
    theirs = ", ".join(f"{name} = {shown(value)}" for name, value in other.items())
    ours = ", ".join(f"{name} = {conditions[name]!r}" for name in other)
    remedy = "make the problem with the plan's (fields of Problem and Workload, and load_case's link_units)"
    raise InvalidData(f"{path}: this plan was made with {theirs}; the problem has {ours}; {remedy}")


def _refuse_other_rates(path: Path, said: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse a plan whose rates or shares of the batch this problem does not have."""
    parts = [("the plan", said, ours, _PLAN)]
    for i, (theirs, mine) in enumerate(zip(said["stages"], ours["stages"], strict=True), 1):
        parts.append((f"stage {i}", theirs, mine, {_RATE: "", _SHARES: ""}))
    for where, theirs, mine, names in parts:
        for name in names:
            if theirs.get(name) is not None and name in mine:
                _compare(f"{path}, {where}: {name}", theirs[name], mine[name])


def _compare(place: str, said: Any, ours: float | list[float]) -> None:
    """Refuse a number, or one for each GPU, that differs from the problem's."""
    numbers = ours if isinstance(ours, list) else [ours]
    theirs = said if isinstance(said, list) else [said]
    expected = " ".join(plain(float(number)) for number in numbers)
    if len(theirs) != len(numbers) or not all(map(is_real, theirs)):
        count = f"{len(numbers)} number{'s' if len(numbers) > 1 else ''}"
        raise InvalidData(f"{place} {shown(said)}: expected {count}, for this problem {expected}")
    if not all(map(lambda x, y: math.isclose(x, y, rel_tol=1e-9), theirs, numbers)):
        remedy = "the cluster, model or cost model differs from the plan's. Omit problem= to read only the stages"
        raise InvalidData(f"{place} {shown(said)}, but for this problem {expected}: {remedy}")
