"""Answers as plain data: what a graded kernel says of a value, and the value that a checker makes of it.

The kernel runs a student's code, so nothing of it is trusted. It says text in JSON, and the checker makes numbers,
lists, placements and schedules of that, and no other objects. A function stays where it is: the kernel calls it on
the inputs of its exercise, and says what it returned.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

from pipelab.course.checks import EXERCISES
from pipelab.course.exercises import Exercise, Function
from pipelab.errors import PipelabError, shown
from pipelab.schedules import Schedule

MIME = "application/vnd.pipelab.answer+json"
LONGEST = 5_000_000  # characters of an answer
_LISTS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class _Other:
    """An answer of any other kind, as its text alone: wrong in every exercise, with a sentence that shows it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def tell(name: str, value: Callable[[], Any], hidden: int = 0) -> None:
    """Say the answer to an exercise, in the kernel in which it was found.

    Parameters
    ----------
    name : str
        Of the exercise.
    value : callable
        Gives the answer, or fails.
    hidden : int
        Which inputs a function is tried on: 0 for those of the notebook.
    """
    from IPython.display import display

    try:
        stated = json.dumps(_stated(name, value, hidden))
    except (Exception, SystemExit) as error:  # whatever a student's expression raises, or has in it
        stated = json.dumps({"failed": _said(error)})
    display({MIME: stated, "text/plain": ""}, raw=True)


def _stated(name: str, value: Callable[[], Any], hidden: int = 0) -> dict:
    answer = value()
    exercise = _exercise(name, hidden)
    if not callable(answer) or not isinstance(exercise, Function):
        return {"answer": _plain(answer)}
    return {"returned": [_tried(exercise.call, answer, x) for x in exercise.inputs()]}


def _exercise(name: str, hidden: int) -> Exercise:
    """An exercise, with inputs that its notebook does not show."""
    exercise = EXERCISES[name]
    if hidden and isinstance(exercise, Function):
        return replace(exercise, inputs=partial(exercise.inputs, hidden))
    return exercise


def _tried(call: Callable[..., Any], *given: Any) -> dict:
    try:
        return {"answer": _plain(call(*given))}
    except (Exception, SystemExit) as error:  # whatever a student's function raises
        return {"failed": _said(error)}


def _said(error: BaseException) -> list[str]:
    return [type(error).__name__, str(error)[:200]]


def _plain(value: Any) -> Any:
    """A value as what JSON has; lists of other kinds, and pipelab's own, under their names."""
    if type(value) is int and value.bit_length() > 1000:  # Python writes no number of 5,000 digits
        return {"int": hex(value)}
    if value is None or type(value) in (bool, int, float, str, list):
        return [_plain(each) for each in value] if type(value) is list else value
    if value is ...:
        return {"not attempted": True}
    if isinstance(value, Schedule):
        rows = [[str(action) for action in row] for row in value.actions]
        return {"schedule": [value.name, rows, value.microbatches, list(value.stage_rank)]}
    for kind, cls in _LISTS.items():
        if isinstance(value, cls):
            return {kind: [_plain(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(each)] for key, each in value.items()]}
    if hasattr(value, "tolist"):  # an array or a number of numpy
        return _plain(value.tolist())
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, range | Iterator):
        return {"tuple": [_plain(each) for each in value]}
    return {"other": shown(value)}


def checked(name: str, stated: str, hidden: int = 0) -> tuple[float | None, str]:
    """Check an answer in this process.

    Parameters
    ----------
    name : str
        Of the exercise.
    stated : str
        What `tell` said of it, wherever it comes from.
    hidden : int
        As for `tell`.

    Returns
    -------
    share : float or None
        Of the points, from 0 to 1, as the exercise's `grade` gives it; None where it was not attempted.
    why : str
        In a sentence.
    """
    if len(stated) > LONGEST:
        return 0.0, f"the answer is longer than {LONGEST:,} characters"
    try:
        said = json.loads(stated)
        if "failed" in said:
            return 0.0, f"its value cannot be found: {': '.join(map(str, said['failed']))}"
        exercise: Any = _exercise(name, hidden)
        if "returned" in said:
            returned = [
                (each, _value(each["answer"]) if "answer" in each else None)
                for each in said["returned"]
            ]
            if not isinstance(exercise, Function):
                return 0.0, "expected no function"
            if len(returned) < len(exercise.inputs()):
                return 0.0, "its function was not tried on all inputs"
            exercise = replace(exercise, call=lambda mine, given: mine(given))
            return exercise.grade(_played_back(returned))
        value = _value(said["answer"])
    except (KeyError, IndexError, TypeError, ValueError, RecursionError, PipelabError) as error:
        return 0.0, f"the answer cannot be read ({type(error).__name__})"
    if value is ... or value is None:
        return None, "not attempted yet"
    return exercise.grade(value)


def _played_back(returned: list[tuple[dict, Any]]) -> Callable[..., Any]:
    """A function that gives, input by input, what the student's has returned."""
    answers = iter(returned)

    def mine(*_: Any) -> Any:
        each, value = next(answers)
        if "failed" in each:
            name, text = (str(part) for part in each["failed"])
            raise type(name if name.isidentifier() else "Error", (Exception,), {})(text)
        return value

    return mine


def _value(plain: Any) -> Any:
    """The value of what `_plain` made; only of kinds that are listed here."""
    if isinstance(plain, list):
        return [_value(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, inside),) = plain.items()
    if kind in _LISTS:
        return _LISTS[kind](_value(each) for each in inside)
    if kind == "int":
        return int(inside, 16)
    if kind == "dict":
        return {_value(key): _value(each) for key, each in inside}
    if kind == "schedule":
        name, rows, microbatches, stage_rank = inside
        return Schedule.of(name, rows, microbatches=microbatches, stage_rank=stage_rank)
    return ... if kind == "not attempted" else _Other(str(inside))
