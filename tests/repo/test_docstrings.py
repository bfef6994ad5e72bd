"""Every public name says what it takes, gives back and refuses: numpydoc's checks, and `raise` against `Raises`."""

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import pipelab as pl
from pipelab.engine.deployments.result import Pipeline
from pipelab.engine.methods import latency_and_cost
from pipelab.engine.schedules import defects
from pipelab.engine.timeline.placement_timelines import training_timeline
from pipelab.figures.plotting import FIGURES
from pipelab.hardware.transformer import LatentAttention

# No docstring; a summary that is missing, has no full stop, or is longer than a line; sections out
# of order; parameters left out, made up, without a type or without a word; returned or yielded
# values left out or without a word.
CODES = {"GL07", "GL08", "SS01", "SS03", "SS06", "PR01", "PR02", "PR04", "PR07"}
CODES |= {"RT01", "RT03", "YD01"}
INCOMPLETE = {  # to be emptied
    *("Certificate", "Formulation", "MixExplorer", "PipelineExplorer", "TradeOff", "WatchedSolve"),
    "plot_best_schedule",
}
DOORS = (pl, pl.course, pl.hardware, pl.writeup, pl.splits)


def _documented() -> dict[str, Any]:
    """Public classes and functions, what these return, and what they hand over to, by their places."""
    listed = [getattr(door, name) for door in DOORS for name in door.__all__]
    listed += [one for one in vars(pl.errors).values() if isinstance(one, type)]
    returned = []
    for function in filter(inspect.isfunction, listed):
        annotation = inspect.signature(function).return_annotation
        returned += [annotation, *typing.get_args(annotation)]
    returned += [drawn for kinds in FIGURES.values() for drawn in kinds.values()]
    returned += [defects, latency_and_cost.solve_for_least]
    returned += [LatentAttention, Pipeline, training_timeline]
    # What is only returned may have a docstring without sections; if it has one, it has all.
    listed += [one for one in returned if re.search(r"^\s+-{5,}$", one.__doc__ or "", re.M)]
    ours = [one for one in listed if getattr(one, "__module__", "").startswith("pipelab")]
    ours = [one for one in ours if one.__name__ not in INCOMPLETE]
    return {f"{one.__module__}.{one.__qualname__}": one for one in ours}


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class defines itself; without a docstring, that of its base counts."""
    for name, value in vars(cls).items():
        if not value.__doc__ and any(hasattr(base, name) for base in cls.__bases__):
            continue
        kinds = (property, cached_property, classmethod, staticmethod)
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, kinds)):
            yield name, value  # what the class holds, not what an instance gets


PUBLIC = _documented()
PUBLIC |= {
    f"{place}.{name}": member
    for place, one in PUBLIC.items()
    if inspect.isclass(one)
    for name, member in _members(one)
}


def _told(documented: Any, *sections: str) -> set[str]:
    """Names in these sections of a docstring."""
    document = NumpyDocString(inspect.getdoc(documented))
    entries = [entry for section in sections for entry in document[section]]
    return {name.strip() for entry in entries for name in entry.name.split(",")}


def _told_elsewhere(documented: Any) -> set[str]:
    """A class that readers do not make may tell its fields as attributes, and `**options` be told one by one."""
    known = inspect.signature(documented).parameters
    told = {name.lstrip("*") for name in _told(documented, "Parameters")}
    codes = set()
    if inspect.isclass(documented):
        inherited = "__init__" not in vars(documented)
        if inherited or known.keys() <= _told(documented, "Parameters", "Attributes"):
            codes.add("PR01")
    takes_more = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    return codes | ({"PR02"} if takes_more and told <= known.keys() else set())


@pytest.mark.parametrize("place", PUBLIC)
def test_the_docstring_is_complete(place):
    codes = {code: says for code, says in validate(place)["errors"] if code in CODES}
    if codes.keys() & {"PR01", "PR02"}:
        codes = {code: codes[code] for code in codes.keys() - _told_elsewhere(PUBLIC[place])}
    assert codes == {}


def _function(documented: Any) -> Callable | None:
    """What runs when a public name is used: a function, a property's getter, or what makes an instance."""
    if inspect.isclass(documented):
        made = vars(documented)
        documented = made.get("__post_init__") or made.get("__init__")
    inner = getattr(documented, "fget", None) or getattr(documented, "func", None) or documented
    function = inspect.unwrap(getattr(inner, "__func__", inner)) if inner else None
    written = inspect.isfunction(function) and function.__code__.co_filename != "<string>"
    return function if written else None


def _raised(function: Callable) -> set[str]:
    """Names of the errors in the `raise` statements of a function, but for what is defined inside it."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    errors, waiting = set(), list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(error, ast.Name) and isinstance(function.__globals__.get(error.id), type):
                errors.add(error.id)
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return errors


@pytest.mark.slow
def test_every_error_is_named():
    raised = {
        place: _raised(function) for place, one in PUBLIC.items() if (function := _function(one))
    }
    assert sum(map(bool, raised.values())) > 50
    missing = {}
    for place, errors in raised.items():
        entries = NumpyDocString(inspect.getdoc(PUBLIC[place]))["Raises"]
        missing[place] = errors - {e.strip() for entry in entries for e in entry.type.split(",")}
    assert {place: errors for place, errors in missing.items() if errors} == {}
