"""All exercises by name; what checks an answer, and what gives a hint."""

from pipelab.course import (
    n00,
    n01,
    n02,
    n03,
    n04,
    n05,
    n06,
    n07,
    n08,
    n09,
    n10,
    n11,
    n12,
    n13,
    n14,
    n15,
    n17,
)
from pipelab.course.exercises import Answer, Exercise, Function, verdict
from pipelab.errors import InvalidValue, UnknownName, nearest

_NOTEBOOKS = (n00, n01, n02, n03, n04, n05, n06, n07, n08, n09, n10, n11, n12, n13, n14, n15, n17)
EXERCISES: dict[str, Exercise] = {
    name: exercise for notebook in _NOTEBOOKS for name, exercise in notebook.EXERCISES.items()
}


def check(name: str, value: object) -> Answer:
    """Compare a reader's answer with the target of an exercise, which is computed here and now.

    For a wrong one it says whether it is too high or too low, and which common mistake leads to it,
    if any.

    Parameters
    ----------
    name : str
        Of the exercise: notebook and number, such as `"05.1"`.
    value : number, function, Schedule, Placement, None or ...
        The reader's; `...` means not attempted yet, and so does None where no reader would arrive
        at it. A function is tried on many inputs, and a schedule is run by the simulator.

    Returns
    -------
    Answer
        The verdict in words, with its sign and colour in a notebook. A value of a wrong kind is a
        wrong answer. Where a function is wrong, the smallest input on which it is may be drawn
        below.

    Raises
    ------
    UnknownName
        There is no such exercise.

    Examples
    --------
    >>> print(check("00.1", None))
    exercise 00.1: not attempted yet; course.hint("00.1") gives a hint
    >>> print(check("00.1", 6166.8172))
    exercise 00.1: right, 6,166.817 tokens/s
    >>> print(check("00.1", 3413.3333))
    exercise 00.1: not yet. Yours is 3,413.333 tokens/s, too low. Hint: that is by memory; the
    weights asked for are speeds
    """
    exercise = _exercise(name)
    if value is ... or (value is None and not exercise.none):
        says = f'exercise {name}: not attempted yet; course.hint("{name}") gives a hint'
        return verdict("not attempted yet", says)
    figure = None
    if isinstance(exercise, Function) and callable(value):
        failure = exercise.smallest_failure(value)
        right, why = failure is None, exercise.says(failure) if failure else exercise.praise()
        figure = exercise.picture(failure) if failure and exercise.picture else None
    else:
        points, why = exercise.grade(value)
        right = points == 1
    if right:
        return verdict("right", f"exercise {name}: right, {why}")
    return verdict("not yet", f"exercise {name}: not yet. {why[0].upper()}{why[1:]}", figure)


def hint(name: str, number: int = 1) -> Answer:
    """Show one hint to an exercise, before any answer or after it.

    Parameters
    ----------
    name : str
        Of the exercise: notebook and number, such as `"05.1"`.
    number : int
        Which hint, from 1; each says how many there are.

    Returns
    -------
    Answer
        The hint.

    Raises
    ------
    UnknownName
        There is no such exercise.
    InvalidValue
        The exercise has fewer hints.

    Examples
    --------
    >>> print(hint("00.1"))
    exercise 00.1, hint 1 of 4: how fast is a GPU that takes so many milliseconds per layer? Is each
    part on its GPU, in that order?
    """
    hints = _exercise(name).hints()
    if number not in range(1, len(hints) + 1):
        raise InvalidValue("hint", [("number", number, f"expected 1 to {len(hints)}")])
    return verdict("hint", f"exercise {name}, hint {number} of {len(hints)}: {hints[number - 1]}")


def _exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        raise UnknownName(f"there is no exercise {name!r}; {nearest(name, EXERCISES)}")
    return EXERCISES[name]
