"""Every public name says what it takes, gives back and refuses: numpydoc's checks, and `raise` against `Raises`."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import pipelab as pl

# No docstring; a summary that is missing, has no full stop, or is longer than a line; sections out
# of order; parameters left out, made up, without a type or without a word; returned or yielded
# values left out or without a word.
CODES = {"GL07", "GL08", "SS01", "SS03", "SS06", "PR01", "PR02", "PR04", "PR07"}
CODES |= {"RT01", "RT03", "YD01"}

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
    "solve_for_cost": "pipelab.engine.methods.cost",
    "placed_gantt": "pipelab.figures.placement_timelines",
    "plot_against_measured": "pipelab.figures.predictions",
    "plot_classes": "pipelab.figures.classes",
    "plot_in_flight": "pipelab.figures.in_flight",
    "plot_placement": "pipelab.figures.placements",
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


def _members(cls: type) -> Iterator[str]:
    """Public methods and properties that a class defines itself; without a docstring, that of its base counts."""
    for name, value in vars(cls).items():
        if not value.__doc__ and any(hasattr(base, name) for base in cls.__bases__):
            continue
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
    if not codes.keys() & {"PR01", "PR02"}:
        return codes
    known = inspect.signature(found).parameters
    told = {name.lstrip("*") for name in _told(found, "Parameters")}
    if inspect.isclass(found):
        inherited = "__init__" not in vars(found) or getattr(found, "_is_protocol", False)
        if inherited or known.keys() <= _told(found, "Parameters", "Attributes"):
            codes.pop("PR01", None)
    takes_more = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    if takes_more and told <= known.keys():
        codes.pop("PR02", None)
    return codes


@pytest.mark.parametrize("name", _public())
def test_the_docstring_is_complete(name):
    home = _named(name.partition(".")[0]).__module__  # `pipelab.engine.solving` is a module, too
    found = validate(f"{home}.{name}")["errors"]
    codes = {code: says for code, says in found if code in CODES}
    assert _without_what_is_told_elsewhere(_object(name), codes) == {}


def _function(name: str) -> Callable | None:
    """What runs when a public name is used: a function, a property's getter, or what makes an instance."""
    found = _object(name)
    if inspect.isclass(found):
        found = vars(found).get("__post_init__") or vars(found).get("__init__")
    found = getattr(found, "fget", None) or getattr(found, "func", None) or found
    found = inspect.unwrap(getattr(found, "__func__", found)) if found else None
    return found if inspect.isfunction(found) and found.__code__.co_filename != "<string>" else None


def _raised(function: Callable) -> set[str]:
    """Names of the errors in the `raise` statements of a function, but for what is defined inside it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    found, waiting = set(), list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(error, ast.Name) and isinstance(function.__globals__.get(error.id), type):
                found.add(error.id)
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.slow
def test_every_error_is_named():
    named = {name: _raised(function) for name in _public() if (function := _function(name))}
    missing = {}
    for name, raised in named.items():
        entries = NumpyDocString(inspect.getdoc(_object(name)))["Raises"]
        missing[name] = raised - {e.strip() for entry in entries for e in entry.type.split(",")}
    assert sum(map(bool, named.values())) > 50
    assert {name: errors for name, errors in missing.items() if errors} == {}
