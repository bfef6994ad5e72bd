"""What a lab is: an exercise of one to two hours, whose answers earn points by how near they come to the best possible.

The reader writes a function. It is called on problems as plain numbers and lists, and each of its answers
is worth the share of the way from a baseline to the optimum. While it runs, the kit is off: see `alone`.
"""

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import islice, repeat
from math import nan
from numbers import Real
from pathlib import Path
from statistics import mean
from time import monotonic
from types import FrameType
from typing import Any, ClassVar, NamedTuple

from pipelab.course.exercises import Function, Given, Seen
from pipelab.display import DataFrame, Figure, counted, data_frame
from pipelab.errors import NotApplicable, PipelabError, shown

_KIT = str(Path(__file__).parents[1]) + os.sep
# What starts another process, in which the kit could be asked all the same.
_STARTS = {
    *("system", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve"),
    *("fork_exec", "CreateProcess"),
}
# What comes of an answer that is not what is expected: a number in place of a list, say.
_NOT_OF_ITS_KIND = TypeError, ValueError, LookupError, AttributeError, ArithmeticError
LIMIT = 60.0  # seconds for a cell of a graded notebook, so for all problems of a lab
_REACHED = 1e-3  # an answer this close to the best, as a share of the way, is there


class UsesTheKit(PipelabError):
    """A function calls pipelab where it has to do without."""


def alone(mine: Callable[..., Any], arguments: Given) -> Any:
    """Call a function with arguments of its own, and keep it from calling pipelab or starting a process.

    Python reports every call to a profiling function. This one looks at the file in which the called
    function is written, so that a solver saved under another name is found, too. A program that is
    determined to get around this can; what it is asked is new to it all the same.

    Raises
    ------
    UsesTheKit
        It was tried, even if the function has caught the first error.
    """
    before, tried = sys.getprofile(), list[str]()

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            if called.__name__ not in _STARTS:
                return
            tried.append("it starts another process")
        elif event == "call":
            if not frame.f_code.co_filename.startswith(_KIT):
                return
            tried.append(f"it uses pipelab ({_called(frame)})")
        else:
            return
        raise UsesTheKit(f"{tried[0]}; in a lab your function does without")

    given = deepcopy([*arguments])
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        answer = mine(*given)
        if isinstance(answer, Iterator):  # its code runs now, not when it is checked
            answer = [*answer]
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    if tried:
        raise UsesTheKit(f"{tried[0]}; in a lab your function does without")
    return answer


def _called(frame: FrameType) -> str:
    """Return the name that a reader knows of what is called: of a lazy import, what is imported."""
    name = frame.f_code.co_name
    if name == "__getattr__":
        return str(frame.f_locals[frame.f_code.co_varnames[frame.f_code.co_argcount - 1]])
    return Path(frame.f_code.co_filename).stem if name == "<module>" else name


def plain(answer: Any) -> Any:
    """Return an answer in lists and numbers of Python, whatever tuples, arrays and numbers it has.

    A number without a fraction becomes an int, so that 8.0 can be a count. Everything else stays.
    """
    if isinstance(answer, bool | str):
        return answer
    if hasattr(answer, "tolist"):  # an array or a number of numpy
        return plain(answer.tolist())
    if isinstance(answer, list | tuple | range):
        return [plain(each) for each in answer]
    if isinstance(answer, Real) and not isinstance(answer, int):
        number = float(answer)
        return int(number) if number.is_integer() else number
    return answer


class Try(NamedTuple):
    """One input of a lab, and what an answer to it is worth."""

    given: Given
    answer: Any
    wrong: str  # why the answer is not allowed; "" if it is
    value: float  # of the answer; meaningless where it is not allowed
    baseline: float
    best: float
    seconds: float  # that the function took

    @property
    def share(self) -> float:
        """How much of the way from the baseline to the best, from 0 to 1."""
        if self.wrong:
            return 0.0
        share = (self.value - self.baseline) / (self.best - self.baseline)
        return 1.0 if share > 1 - _REACHED else max(0.0, share)


def problems(seed: int, number: int, draw: Callable[[random.Random], Given | None]) -> Callable:
    """Random problems of a lab.

    Parameters
    ----------
    seed : int
        With the same, the same problems.
    number : int
        How many.
    draw : callable
        Makes one, or None where what was drawn is of no use.

    Returns
    -------
    callable
        Gives the problems of the notebook; called with a positive number, others in their place.
    """

    @cache
    def inputs(hidden: int = 0) -> tuple[Given, ...]:
        found = map(draw, repeat(random.Random(f"{seed}, {hidden}")))
        return tuple(islice(filter(None, found), number))

    return inputs


@dataclass(frozen=True, kw_only=True)
class Lab(Function):
    """An exercise with a function as its answer, which is measured against the best possible.

    Attributes
    ----------
    expects : str
        What a function is to return, in words that follow "expected".
    value, baseline, best : callable
        What an allowed answer to an input is worth, what a simple rule reaches, and what is possible;
        on a scale on which less or more is better.
    baseline_is, best_is : str
        What reaches the two, such as "the proven optimum".
    measure : str
        What these numbers are, such as "gap in %".
    size : callable
        Of an input, in words for a table.
    drawn : callable, optional
        Makes a figure of an input and an answer, which may not be allowed.
    """

    expects: str
    value: Callable[[Any, Any], float]
    baseline: Callable[[Any], float]
    best: Callable[[Any], float]
    baseline_is: str
    best_is: str
    measure: str
    size: Callable[[Any], str]
    drawn: "Callable[[Try], Figure] | None" = None
    call: Callable[[Callable[..., Any], Any], Any] = alone
    worth: ClassVar[int] = 12

    def tries(self, mine: Callable[..., Any]) -> list[Try]:
        """Ask the reader's function about all inputs."""
        return [self._try(mine, given) for given in self.inputs()]

    def grade(self, mine: object) -> tuple[float, str]:
        """Give the mean share of all inputs, with a sentence about the worst one."""
        if not callable(mine):
            return 0, self.no_function(mine)
        return self._points(self.tries(mine))

    def hints(self) -> list[str]:
        """List what can be asked for before an answer; its problems are too long to be repeated."""
        return [*self.advice]

    def seen(self, mine: object) -> Seen:
        """Say the same as `grade`, with a table of all inputs and a figure of the worst."""
        if not callable(mine):
            return Seen.of(False, self.no_function(mine))
        try:
            tries = self.tries(mine)
        except NotApplicable as error:  # the best cannot be computed here
            return Seen("not attempted yet", f"cannot be checked here. {error}")
        points, says = self._points(tries)
        kind = "right" if points == 1 else "partly" if points else "not yet"
        worst = min(tries, key=lambda each: each.share)
        figure = self.drawn(worst) if self.drawn and points < 1 else None
        return Seen(kind, says, figure, self._frame(tries))

    def _try(self, mine: Callable[..., Any], given: Given) -> Try:
        answer, wrong, value, began = None, "", 0.0, monotonic()
        try:
            answer = plain(self.call(mine, given))
        except (Exception, SystemExit) as error:  # whatever a reader's function raises
            kind = type(error).__name__
            wrong = str(error) if kind == UsesTheKit.__name__ else f"yours gives {kind}: {error}"
        seconds = monotonic() - began
        if not wrong:
            try:
                wrong = self.off(given, answer) if self.off else ""
                value = 0.0 if wrong else float(self.value(given, answer))
            except _NOT_OF_ITS_KIND:
                wrong = f"expected {self.expects}; yours gives {shown(answer)}"
        return Try(given, answer, wrong, value, self.baseline(given), self.best(given), seconds)

    def _points(self, tries: list[Try]) -> tuple[float, str]:
        there = sum(each.share == 1 for each in tries)
        points = round(mean(each.share for each in tries), 2)
        if there < len(tries):
            points = min(points, 0.99)
        took = sum(each.seconds for each in tries)
        late = f" ({took:.0f} s; `pipelab grade` stops after {LIMIT:g})" if took > LIMIT else ""
        of = counted(len(tries), "input")
        all_of = f"{points:.0%} of the points{late}; the full share on {there} of {of}"
        number, worst = min(enumerate(tries), key=lambda each: each[1].share)
        if worst.share == 1:
            return 1, all_of
        if worst.wrong:
            return points, f"{all_of}. On input {number}: {worst.wrong}"
        hint = f". Hint: {self.hint(worst.given)}" if self.hint else ""
        return points, f"{all_of}. On input {number}, {self._compared(worst)}{hint}"

    def _compared(self, each: Try) -> str:
        return (
            f"{self.measure}: yours {each.value:,.5g}, the baseline {each.baseline:,.5g}, "
            f"{self.best_is} {each.best:,.5g}"
        )

    def _frame(self, tries: list[Try]) -> DataFrame:
        rows = [
            {
                "input": number,
                "of": self.size(each.given),
                "baseline": each.baseline,
                "yours": nan if each.wrong else each.value,
                self.best_is: each.best,
                "share": round(each.share, 2),
            }
            for number, each in enumerate(tries)
        ]
        return data_frame(rows)
