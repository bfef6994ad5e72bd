"""All exercises by name; what checks an answer, and what gives a hint."""

from importlib import import_module
from pathlib import Path

from pipelab.course import lab_placement, lab_pricing, lab_roofline, lab_schedule
from pipelab.course.exercises import Exercise, Given, Verdict, verdict
from pipelab.course.scored_labs import Lab
from pipelab.errors import InvalidValue, UnknownName, nearest

_NOTEBOOKS = (
    import_module(f"{__package__}.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("n[0-9][0-9].py"))
)
_LABS = (lab_schedule, lab_pricing, lab_placement, lab_roofline)
EXERCISES: dict[str, Exercise] = {
    name: exercise
    for notebook in (*_NOTEBOOKS, *_LABS)
    for name, exercise in notebook.EXERCISES.items()
}


def check(name: str, value: object) -> Verdict:
    """Compare a reader's answer with the target of an exercise, which is computed here and now.

    For a wrong one it says whether it is too high or too low, and which common mistake leads to it,
    if any.

    Parameters
    ----------
    name : str
        Of the exercise: notebook and number, such as `"05.1"`; of a lab, its file, such as
        `"lab_schedule"`.
    value : number, function, Schedule, Placement, None or ...
        The reader's; None and `...` mean not attempted yet. A function is tried on many inputs, and
        a schedule is run by the simulator.

    Returns
    -------
    Verdict
        The verdict in words, with its sign and colour in a notebook. A value of a wrong kind is a
        wrong answer. Where a function is wrong, the smallest input on which it is may be drawn
        below; of a lab, the one on which it is worth the least.

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
    if value is ... or value is None:
        says = f'exercise {name}: not attempted yet; course.hint("{name}") gives a hint'
        return verdict("not attempted yet", says)
    kind, says, figure, below = exercise.seen(value)
    return verdict(kind, f"exercise {name}: {says}", figure, below)


def hint(name: str, number: int = 1) -> Verdict:
    """Show one hint to an exercise, before any answer or after it.

    Parameters
    ----------
    name : str
        Of the exercise: notebook and number, such as `"05.1"`.
    number : int
        Which hint, from 1; each says how many there are.

    Returns
    -------
    Verdict
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


def lab_problems(name: str) -> tuple[Given, ...]:
    """Give the problems that `check` tries a lab's function on.

    Parameters
    ----------
    name : str
        Of the lab, such as `"lab_schedule"`.

    Returns
    -------
    tuple of Given
        Their fields are the function's arguments, in order: `my_function(*problem)`.

    Raises
    ------
    UnknownName
        There is no such lab.

    Examples
    --------
    >>> problem = lab_problems("lab_pricing")[0]
    >>> type(problem).__name__, problem.layers > 0
    ('Given', True)
    """
    labs = {name: exercise for name, exercise in EXERCISES.items() if isinstance(exercise, Lab)}
    if name not in labs:
        raise UnknownName(f"there is no lab {name!r}; {nearest(name, labs)}")
    return tuple(labs[name].inputs())


def group_of(name: str) -> str:
    """Say which notebook an exercise belongs to: the number of "05.1"; a lab has one of its own."""
    return name.partition(".")[0]


def exercise_of(function: str) -> str:
    """Say which exercise asks for a function of this name; "" if none does."""
    asked = ((getattr(exercise, "signature", ""), name) for name, exercise in EXERCISES.items())
    return next((name for signature, name in asked if signature.startswith(f"{function}(")), "")


def _exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        raise UnknownName(f"there is no exercise {name!r}; {nearest(name, EXERCISES)}")
    return EXERCISES[name]
