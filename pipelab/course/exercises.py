"""What an exercise is: a question with a number or a function as its answer, and what is said of one.

The notebooks' own exercises are in `n00` … `n19`, and `checks` has them all by name.
"""

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from html import escape
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Self, cast

from pipelab.display import NO_FORMULAS, DataFrame, Figure, number, table
from pipelab.errors import shown

# Sign and colour of a verdict; each colour reads on white.
_SIGNS = {
    "right": ("✓", "#00664B"),
    "partly": ("◐", "#7A5C00"),
    "not yet": ("✗", "#B34700"),
    "not attempted yet": ("○", "#555555"),
    "hint": ("→", "#555555"),
}

# Of a number that is right but for its unit: by what it is too large, and what to look at.
_SLIPS = {
    1e2: "it is 100 times the answer: a share, or per cent?",
    1e-2: "it is a hundredth of the answer: per cent, or a share?",
    1e3: "it is 1,000 times the answer: look at the units",
    1e-3: "it is a thousandth of the answer: look at the units",
    1e6: "it is a million times the answer: look at the units",
    1e-6: "it is a millionth of the answer: look at the units",
}


# What is shown below a cell


@dataclass(frozen=True)
class Verdict:
    """Something to show under a cell, in a notebook or a terminal; of a wrong function with a figure."""

    text: str
    html: str
    figure: Any = None

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display

        display(HTML(self.html), *([] if self.figure is None else [self.figure]))


@dataclass(frozen=True, repr=False)
class Guess(Verdict):
    """A question to think about; called with a prediction, it shows its answer."""

    answer: str = ""

    def __call__(self, mine: object) -> Verdict:
        """Show the answer beside one's own, or how to give one.

        Parameters
        ----------
        mine : str or number
            The reader's prediction, as it stands in the cell: it is saved with the notebook. Empty
            means none yet; then the answer stays folded.

        Returns
        -------
        Verdict
            Both, as HTML in a notebook and as text elsewhere.
        """
        said, answer = str(mine).strip(), self.answer
        if said:
            html = f"<b>Your prediction:</b> {escape(said)}<br><b>Answer:</b> {escape(answer)}"
            text = f"your prediction: {said}\nanswer: {answer}"
            return Verdict(text, f"<p class='{NO_FORMULAS}'>{html}</p>")
        todo = "Write your prediction between the quotes and run the cell."
        sign, colour = _SIGNS["not attempted yet"]
        html = (
            f"<div class='{NO_FORMULAS}'><span style='color:{colour}'><b>{sign}</b> {todo}</span>"
            "<details><summary style='cursor:pointer'><i>The answer, without a prediction</i>"
            f"</summary><p style='margin-left:1.2em'>{escape(answer)}</p></details></div>"
        )
        return Verdict(todo, html)


def guess(question: str, answer: object) -> Guess:
    """Ask a question before its answer is shown; call the result with a prediction.

    Parameters
    ----------
    question : str
        What the reader is to predict.
    answer : object
        Shown as text.

    Returns
    -------
    Guess
        Shows the question. Called with the reader's prediction, it shows both answers.

    Examples
    --------
    >>> stages = guess("How many stages?", 1)
    >>> stages
    How many stages?
    >>> stages("two")
    your prediction: two
    answer: 1
    """
    html = f"<p class='{NO_FORMULAS}'><b>Predict:</b> {escape(question)}</p>"
    return Guess(question, html, answer=str(answer))


def verdict(kind: str, text: str, figure: Any = None, below: "DataFrame | None" = None) -> Verdict:
    """Give a sentence the sign and colour of its kind, such as "right" or "not yet", and a table below it."""
    sign, colour = _SIGNS[kind]
    html = f"<p class='{NO_FORMULAS}' style='color:{colour}'><b>{sign}</b> {escape(text)}</p>"
    if below is None:
        return Verdict(text, html, figure)
    rows = below.to_string(index=False, na_rep="–", float_format="{:,.4g}".format)
    return Verdict(f"{text}\n{rows}", html + table(below), figure)


class Seen(NamedTuple):
    """What a reader sees of an answer: its kind as in `verdict`, what is said, a figure, and a table below."""

    kind: str
    says: str
    figure: Any = None
    below: "DataFrame | None" = None

    @classmethod
    def of(cls, right: bool, says: str, figure: Any = None) -> Self:
        """Say whether an answer is right."""
        if right:
            return cls("right", f"right, {says}")
        return cls("not yet", f"not yet. {says[0].upper()}{says[1:]}", figure)


# A number


@dataclass(frozen=True, kw_only=True)
class Number:
    """An exercise with a number as its answer.

    Attributes
    ----------
    target : callable
        Computes the answer when it is asked for.
    hint : str
        For a wrong number that no mistake explains.
    unit : str
        Of the answer; "" for a plain number.
    half, mistakes : mapping of str to callable
        The sentence that leads back from a wrong way, and the number at its end; looked through in
        this order. Those in `half` earn half of the points.
    rel : float
        Relative tolerance.
    """

    target: Callable[[], float]
    hint: str
    unit: str = ""
    half: Mapping[str, Callable[[], float]] = field(default_factory=dict)
    mistakes: Mapping[str, Callable[[], float]] = field(default_factory=dict)
    rel: float = 1e-4
    worth: ClassVar[int] = 1  # points: one for ten minutes

    def grade(self, value: object) -> tuple[float, str]:
        """Give a reader's value 1, 0.5 or 0 of its points, with a sentence that says what is off."""
        try:
            mine = float(cast(Any, value))
        except OverflowError:
            return 0, "Expected a finite number, yours has too many digits"
        except (TypeError, ValueError):
            return 0, f"Expected a number, without unit and commas, yours is {shown(value)}"
        if not math.isfinite(mine):
            return 0, f"Expected a finite number, yours is {mine}"
        target = self.target()
        yours = f"{number(mine, digits=7)} {self.unit}".strip()
        if self._meets(mine, target):
            return 1, yours
        hint = self._hint(mine, target)
        points = 0.5 if hint in self.half else 0
        how = "too high" if mine > target else "too low"
        return points, f"Yours is {yours}, {how}. Hint: {hint}"

    def seen(self, value: object) -> Seen:
        """Say whether a reader's value is right, and what is off."""
        points, says = self.grade(value)
        return Seen.of(points == 1, says)

    def hints(self) -> list[str]:
        """List what can be asked for before an answer: the general hint, then those by mistake."""
        wrong = (*self.half, *self.mistakes)
        return [self.hint, *(f"of a common wrong number: {says}" for says in wrong)]

    def _meets(self, number: float, target: float) -> bool:
        if isinstance(target, int):  # what is counted is exact
            return number == target
        return math.isclose(number, target, rel_tol=self.rel)

    def _hint(self, number: float, target: float) -> str:
        for says, value in (*self.half.items(), *self.mistakes.items()):
            if self._meets(number, value()):
                return says
        for factor, says in _SLIPS.items():
            if self._meets(number, factor * target):
                return says
        near = abs(number - target) < 0.02 * abs(target)
        if near and any(number == round(target, n) for n in range(6)):
            return "it is the answer, rounded too far: give one or two digits more"
        return self.hint


# A function


class Given(SimpleNamespace):
    """The arguments of one call, by name; compared, listed and shown in their order.

    Examples
    --------
    >>> given = Given(costs=[1, 2], stages=2)
    >>> given, [*given]
    (costs=[1, 2], stages=2, [[1, 2], 2])
    """

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in vars(self).items())

    def __iter__(self) -> Any:
        return iter(vars(self).values())

    def __hash__(self) -> int:  # type: ignore[override]  # a namespace may change; this one does not
        return hash(repr(self))


def drawn(
    seed: int, number: int, draw: Callable[[random.Random], Any], size: Callable[[Any], Any]
) -> Callable[..., tuple[Any, ...]]:
    """Distinct random inputs, the smallest first, so that the first failure is the smallest.

    Parameters
    ----------
    seed : int
        With the same, the same inputs.
    number : int
        How many.
    draw : callable
        Makes one, or None where what was drawn is of no use.
    size : callable
        What inputs are sorted by; of one size, by their values.

    Returns
    -------
    callable
        Gives the inputs, which are drawn once, when they are first asked for. Called with a positive
        number, it gives as many more, which are others for each such number.
    """

    @cache
    def inputs(hidden: int = 0) -> tuple[Any, ...]:
        chance = random.Random(f"{seed}, {hidden}" if hidden else seed)
        found = {str(given): given for given in inputs()} if hidden else {}
        most = len(found) + number
        while len(found) < most:
            given = draw(chance)
            if given is not None:
                found[str(given)] = given
        return tuple(sorted(found.values(), key=lambda given: (size(given), [*given])))

    return inputs


class ClaimedValue(float):
    """What a program claims, with what it chose: for a picture of the answer that it gives."""

    chosen: Any

    @classmethod
    def of(cls, value: float, chosen: Any) -> Self:
        """A number that remembers where it is from."""
        claim = cls(value)
        claim.chosen = chosen
        return claim


class Failure(NamedTuple):
    """The smallest input on which a reader's function is wrong."""

    given: Any
    says: str  # what is wrong there, in words
    answer: Any = None  # what it gives there; None where it raises
    hinted: bool = True  # whether a hint about the input helps

    @property
    def yours(self) -> str:
        """For the end of a title; empty where there is no number."""
        said = _of_reader(self.answer)
        number = isinstance(self.answer, int | float) and len(said) < 24
        return f"; yours says {said}" if number else ""


def _call(mine: Callable[..., Any], given: Given) -> Any:
    return mine(*deepcopy([*given]))


@dataclass(frozen=True, kw_only=True)
class Function:
    """An exercise with a function as its answer, which is tried on many inputs.

    Attributes
    ----------
    signature : str
        As the reader is to write it, such as `"rate(cuts)"`.
    inputs : callable
        The arguments to try, the smallest first; called with a positive number, with others among
        them that no notebook shows.
    target : callable, optional
        The right answer for one of them, or one of several.
    off : callable, optional
        What is wrong with an answer, in words that follow an input, given the input and the answer;
        "" for a right one. By default an answer is a number, and right if it is the target's.
    hint : callable, optional
        What to look at, for an input on which the reader's function is wrong.
    advice : tuple of str
        Hints that belong to no input.
    picture : callable, optional
        Makes a figure of a `Failure`.
    half : callable, optional
        Whether a wrong answer to an input still earns half of the points, given both; a function has
        them if that is so of all inputs on which it is wrong. One wrong answer to all inputs earns none.
    rel : float
        Relative tolerance of numbers.
    call : callable
        Calls the reader's function with an input: with lists of its own, so that a function that
        changes its argument spoils no later input.
    """

    signature: str
    inputs: Callable[..., Sequence[Any]]
    target: Callable[[Any], Any] | None = None
    off: Callable[[Any, Any], str] | None = None
    hint: Callable[[Any], str] | None = None
    advice: tuple[str, ...] = ()
    picture: "Callable[[Failure], Figure] | None" = None
    half: Callable[[Any, Any], bool] | None = None
    rel: float = 1e-6
    call: Callable[[Callable[..., Any], Any], Any] = _call
    worth: ClassVar[int] = 3

    def grade(self, mine: object) -> tuple[float, str]:
        """Give the reader's function 1, 0.5 or 0 of its points, with the smallest input on which it is wrong."""
        if not callable(mine):
            return 0, self.no_function(mine)
        failures = list(self.failures(mine))
        if not failures:
            return 1, self.praise()
        one_answer = len({repr(failure.answer) for failure in failures}) == 1
        constant = one_answer and len(failures) == len(self.inputs()) > 1
        half = not constant and all(map(self._earns_half, failures))
        return 0.5 * half, self.says(failures[0])

    def seen(self, mine: object) -> Seen:
        """Say whether the reader's function is right, with a figure of the smallest input where it is not."""
        if not callable(mine):
            return Seen.of(False, self.no_function(mine))
        failure = self.smallest_failure(mine)
        if failure is None:
            return Seen.of(True, self.praise())
        return Seen.of(False, self.says(failure), self.picture(failure) if self.picture else None)

    def hints(self) -> list[str]:
        """List what can be asked for before an answer: what `hint` says, with the smallest input of each."""
        found = dict[str, str]()
        for given in self.inputs() if self.hint else ():
            says = cast(Any, self.hint)(given)
            found.setdefault(re.sub(r"\d+", "", says), f"for {given}: {says}")
        return [*self.advice, *found.values()]

    def _earns_half(self, failure: Failure) -> bool:
        try:
            return self.half is not None and self.half(failure.given, failure.answer)
        except Exception:  # of an answer that is none of its kind
            return False

    def no_function(self, mine: object) -> str:
        """Say that a function was expected."""
        expected = f"the function itself, as `def {self.signature}:` makes it"
        return f"expected {expected}; yours is {shown(mine)}"

    def praise(self) -> str:
        """Say that the function is right."""
        does = "agrees" if self.target else "keeps the rule"
        return f"it {does} on all {len(self.inputs())} inputs"

    def says(self, failure: Failure) -> str:
        """Say what is wrong, and what to look at."""
        hint = f". Hint: {self.hint(failure.given)}" if self.hint and failure.hinted else ""
        return f"on {failure.given} {failure.says}{hint}"

    def smallest_failure(self, mine: Callable[..., Any]) -> Failure | None:
        """The first input on which the reader's function is wrong, and what it gives there."""
        return next(self.failures(mine), None)

    def failures(self, mine: Callable[..., Any]) -> Iterator[Failure]:
        """All inputs on which the reader's function is wrong, one by one."""
        for given in self.inputs():
            answer, hinted = None, True
            try:
                answer = self.call(mine, given)
                says = (self.off or self._off)(given, answer)
            except (Exception, SystemExit) as error:  # whatever a reader's function raises
                says, answer = f"yours gives {type(error).__name__}: {error}", None
                says += "" if self.off else f", expected {self._expected(given)}"
                # these are about the code itself
                hinted = not isinstance(error, TypeError | NameError | AttributeError)
            if says:
                yield Failure(given, says, answer, hinted)

    def _off(self, given: Any, answer: Any) -> str:
        if math.isclose(float(answer), cast(Any, self.target)(given), rel_tol=self.rel):
            return ""
        return f"yours gives {_of_reader(answer)}, expected {self._expected(given)}"

    def _expected(self, given: Any) -> str:
        """The right answer as readers write it, so that it can be compared with their own."""
        wanted = cast(Any, self.target)(given)
        return str(wanted) if isinstance(wanted, bool) else f"{wanted:.7g}"


def _of_reader(answer: Any) -> str:
    return f"{answer:.7g}" if isinstance(answer, float) else shown(answer)


def gives(order: Any, why: str) -> str:
    """What is wrong with an order of actions, with the order itself; "" where nothing is."""
    if not why or order is None:
        return why
    if order and isinstance(order, list) and all(isinstance(row, list) for row in order):
        said = "; ".join(f"rank {r}: {' '.join(map(str, row))}" for r, row in enumerate(order))
    else:
        said = " ".join(map(str, order)) if isinstance(order, list) else shown(order)
    return f"yours gives {said}: {why}"


def missing_or_twice(row: Any, wanted: list[str], whose: str) -> str:
    """Whether a row lists each wanted action once, in any order; "" if so."""
    if not isinstance(row, list) or not all(isinstance(action, str) for action in row):
        return f"{whose} is no list of texts such as {wanted[:2]}"
    for action in row:
        if action not in wanted:
            return f"{whose} has {shown(action)}, which it should not"
        if row.count(action) > 1:
            return f"{whose} has {action} {row.count(action)} times"
    lacks = next((action for action in wanted if action not in row), None)
    return f"{whose} lacks {lacks}" if lacks else ""


# Anything else


@dataclass(frozen=True, kw_only=True)
class Construction:
    """An exercise with something to find as its answer, of which there are many right ones.

    Attributes
    ----------
    asks : str
        What is to be found, such as "a schedule".
    grade : callable
        Gives what was found its share of the points, from 0 to 1, with a sentence that says why.
    advice : tuple of str
        Hints.
    """

    asks: str
    grade: Callable[[object], tuple[float, str]]
    advice: tuple[str, ...]
    worth: ClassVar[int] = 3

    def seen(self, found: object) -> Seen:
        """Say whether what was found is right, and why or why not."""
        points, says = self.grade(found)
        return Seen.of(points == 1, says)

    def hints(self) -> list[str]:
        """List what can be asked for before an answer."""
        return [*self.advice]


Exercise = Number | Function | Construction
