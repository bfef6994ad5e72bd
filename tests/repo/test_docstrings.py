"""Every public name says what it takes, gives back and refuses: numpydoc's checks, and `raise` against `Raises`."""

import ast
import inspect
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import pipelab as pl
from pipelab.fields import given

# No docstring; a summary that is missing, has no full stop, or is longer than a line; sections out
# of order; parameters left out, made up, without a type or without a word; returned or yielded
# values left out or without a word.
CODES = {
    "GL08",
    "SS01",
    "SS03",
    "SS06",
    "GL07",
    "PR01",
    "PR02",
    "PR04",
    "PR07",
    "RT01",
    "RT03",
    "YD01",
}

# Types that public functions return, and what a public function hands over to: read as public names are.
RETURNED = {
    "Comparison": "pipelab.engine.comparison",
    "DeploymentEvaluation": "pipelab.evaluation",
    "EngineSettings": "pipelab.io.serving.engine_settings",
    "Evaluation": "pipelab.evaluation",
    "GPUFacts": "pipelab.hardware.known_gpus",
    "LatentAttention": "pipelab.hardware.transformer",
    "Ledger": "pipelab.course.ledger.book",
    "Pipeline": "pipelab.engine.deployments.result",
    "PlacedTimeline": "pipelab.engine.timeline.placement_timelines",
    "Score": "pipelab.engine.scoring",
    "Solving": "pipelab.engine.background",
    "Sweep": "pipelab.engine.sweeps.run",
    "TrainingTimeline": "pipelab.engine.timeline.placement_timelines",
    "defects": "pipelab.engine.schedules",
    "with_idle": "pipelab.engine.schedules",
    "solve_for_cost": "pipelab.engine.methods.cost",
    "gantt_widget": "pipelab.figures.gantts",
    "placed_gantt": "pipelab.figures.placement_timelines",
    "plot_against_measured": "pipelab.figures.predictions",
    "plot_classes": "pipelab.figures.classes",
    "plot_comparison": "pipelab.figures.methods_against_optimum",
    "plot_in_flight": "pipelab.figures.in_flight",
    "plot_placement": "pipelab.figures.placements",
    "plot_progress": "pipelab.figures.progress",
    "plot_sweep": "pipelab.figures.sweeps_and_trade_offs",
    "plot_timelines": "pipelab.figures.gantts",
    "plot_trade_off": "pipelab.figures.sweeps_and_trade_offs",
    "solve_for_latency": "pipelab.engine.methods.latency",
    "training_timeline": "pipelab.engine.timeline.placement_timelines",
    "training_gantt": "pipelab.figures.training_step",
}

DOORS = (pl, pl.course, pl.hardware, pl.writeup)
ERRORS = [name for name in vars(pl.errors) if isinstance(vars(pl.errors)[name], type)]
ERRORS = [name for name in ERRORS if vars(pl.errors)[name].__module__ == "pipelab.errors"]


# Functions that raise what no argument of a caller can bring about: a mistake in pipelab itself.
NEVER = {given}

# Errors that a direct callee may raise and that do not leave the public name, with the reason.
_A_METHODS_ANSWER = "a method's answer is a valid placement of its own problem"
STAYS_INSIDE = {
    ("Result.evaluation", "InvalidPlacement"): _A_METHODS_ANSWER,
    ("Result.evaluation", "InvalidValue"): _A_METHODS_ANSWER,
    ("Deployment.evaluation", "InvalidPlacement"): _A_METHODS_ANSWER,
    ("Deployment.evaluation", "InvalidValue"): _A_METHODS_ANSWER,
    (
        "PlacedTimeline.in_flight_needed",
        "InvalidValue",
    ): "the promise is the slowest lane's rate, never beyond it",
    ("author_results", "InvalidValue"): "its GPUs and model are bundled",
    ("seven_gpus", "UnknownName"): "it names a model and GPUs that are bundled",
    ("score", "InvalidPlacement"): "caught: what the evaluator says is the answer",
    ("leave_out", "InvalidPlacement"): "caught: what the evaluator says is the answer",
    ("leave_out", "InvalidValue"): "caught: what the evaluator says is the answer",
}


def _members(cls: type) -> Iterator[str]:
    """Public methods and properties that a class defines itself."""
    for name, value in vars(cls).items():
        kinds = (property, cached_property, classmethod, staticmethod)
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, kinds)):
            yield name


def _public() -> list[str]:
    found = []
    listed = [name for door in DOORS for name in door.__all__]
    for name in dict.fromkeys([*listed, *ERRORS, *pl.splits.__all__, *RETURNED]):
        if inspect.ismodule(_named(name)):
            continue
        found.append(name)
        if inspect.isclass(_named(name)):
            found += [f"{name}.{member}" for member in _members(_named(name))]
    return found


def _named(name: str) -> Any:
    """A public name or a returned type."""
    if name in RETURNED:
        return getattr(import_module(RETURNED[name]), name)
    for module in (*DOORS, pl.splits):
        if name in module.__all__:
            return getattr(module, name)
    return getattr(pl.errors, name)


def _object(name: str) -> Any:
    """A public name's object; of a member what the class holds, not what an instance gets."""
    first, _, member = name.partition(".")
    return vars(_named(first))[member] if member else _named(name)


def _told(found: Any, *sections: str) -> set[str]:
    """Names in these sections of a docstring."""
    document = NumpyDocString(inspect.getdoc(found))
    return {
        name.strip()
        for part in sections
        for entry in document[part]
        for name in entry.name.split(",")
    }


def _without_what_is_told_elsewhere(found: Any, codes: dict[str, str]) -> dict[str, str]:
    """A class that readers do not make may tell its fields as attributes, and `**options` be told one by one."""
    known = (
        inspect.signature(found).parameters
        if callable(found) and codes.keys() & {"PR01", "PR02"}
        else {}
    )
    if (
        "PR01" in codes
        and inspect.isclass(found)
        and known.keys() <= _told(found, "Parameters", "Attributes")
    ):
        del codes["PR01"]
    if inspect.isclass(found) and "__init__" not in vars(found):  # told where they are stated
        codes.pop("PR01", None)
    if getattr(found, "_is_protocol", False):  # nobody makes one
        codes.pop("PR01", None)
    takes_more = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    if (
        "PR02" in codes
        and takes_more
        and {n.lstrip("*") for n in _told(found, "Parameters")} <= known.keys()
    ):
        del codes["PR02"]
    return codes


@pytest.mark.parametrize("name", _public())
def test_the_docstring_is_complete(name):
    home = _named(name.partition(".")[0]).__module__  # `pipelab.engine.solving` is a module, too
    found = validate(f"{home}.{name}")["errors"]
    codes = {code: says for code, says in found if code in CODES}
    assert _without_what_is_told_elsewhere(_object(name), codes) == {}


def _functions(name: str) -> list[Callable]:
    """What runs when a public name is used: a function, a property's getter, or what makes an instance."""
    found = _object(name)
    if inspect.isclass(found):
        made = [vars(found).get(special) for special in ("__post_init__", "__init__")]
        return [
            one
            for one in made
            if inspect.isfunction(one) and one.__code__.co_filename != "<string>"
        ]
    if isinstance(found, property):
        return [found.fget]
    if isinstance(found, cached_property):
        return [found.func]
    return [inspect.unwrap(getattr(found, "__func__", found))]


@cache
def _definitions(file: str) -> dict[int, list[ast.stmt]]:
    """The bodies of all functions of a file, by the line on which each begins."""
    return {
        min([node.lineno, *(d.lineno for d in node.decorator_list)]): node.body
        for node in ast.walk(ast.parse(Path(file).read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


def _body(function: Callable) -> list[ast.stmt]:
    # The code object's own source: of a wrapper, `inspect` would look for what it wraps.
    code = function.__code__
    return _definitions(code.co_filename)[code.co_firstlineno]


def _own(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """Everything in these statements but what is defined inside them to be called later."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _raised(function: Callable) -> set[str]:
    """Names of the errors in the `raise` statements of a function's own body."""
    found = set()
    for node in _own(_body(function)):
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(error, ast.Name) and isinstance(function.__globals__.get(error.id), type):
                found.add(error.id)
    return found


def _called(function: Callable, cls: type | None) -> set[Callable]:
    """Functions of pipelab that the body calls by their name, or as a private method of its own class."""
    found = set()
    for node in _own(_body(function)):
        if isinstance(node, ast.Call):
            target = node.func
            if isinstance(target, ast.Name):
                found.add(function.__globals__.get(target.id))
            elif (
                cls
                and isinstance(target, ast.Attribute)
                and getattr(target.value, "id", "") == "self"
            ):
                found.add(vars(cls).get(target.attr) if target.attr.startswith("_") else None)
    return {
        one for one in found if inspect.isfunction(one) and one.__module__.startswith("pipelab.")
    } - NEVER


@cache
def _refusals(name: str) -> set[str]:
    """Errors that a public name raises itself, or in what it calls directly."""
    found, cls = set(), _named(name.partition(".")[0])
    for function in _functions(name):
        found |= _raised(function)
        for callee in _called(function, cls if inspect.isclass(cls) else None):
            found |= _raised(callee)
    return found


@pytest.mark.slow
def test_every_error_is_named():
    missing = {}
    for name in filter(_refusals, _public()):
        entries = NumpyDocString(inspect.getdoc(_object(name)))["Raises"]
        said = {error.strip() for entry in entries for error in entry.type.split(",")}
        missing[name] = {e for e in _refusals(name) - said if (name, e) not in STAYS_INSIDE}
    assert len(missing) > 100
    assert {name: errors for name, errors in missing.items() if errors} == {}


def test_no_exception_outlives_its_reason():
    assert [(name, error) for name, error in STAYS_INSIDE if error not in _refusals(name)] == []
