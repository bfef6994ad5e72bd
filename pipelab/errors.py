"""The errors that pipelab raises, one class per sort of mistake, all under `PipelabError`.

A message says what was expected, what arrived and what to do. Text that helps in
several places (the nearest known name, a list of defects) is made here.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class PipelabError(Exception):
    """Every error that pipelab raises on purpose.

    Parameters
    ----------
    message : str, optional
        What was expected, what arrived and what to do, which becomes one line. Characters that cannot
        be printed are escaped, and of more than 2,000 the first 1,400 and the last 400 are kept.
    """

    def __init__(self, message: str = "") -> None:
        message = " ".join(line.strip() for line in message.splitlines())
        message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
        cut = f"{message[:1400]} … {message[-400:]}"
        super().__init__(message if len(message) <= 2000 else cut)


class InvalidValue(PipelabError, ValueError):
    """A value given in code does not fit.

    Parameters
    ----------
    what : str
        The function or class that was called.
    problems : iterable of (field, value, expected)
        One entry per offending field: its name, what arrived, and what was expected, in words.

    Attributes
    ----------
    what : str
        As given.
    problems : tuple of (field, value, expected)
        As given, so that a reader of files can add row and column.
    """

    def __init__(self, what: str, problems: Iterable[tuple[str, object, str]]) -> None:
        self.what = what
        self.problems = tuple(problems)
        lines = [
            f"{field} = {shown(value)}: {expected}" for field, value, expected in self.problems
        ]
        super().__init__(f"{what}: " + "; ".join(lines))


class NotApplicable(InvalidValue):
    """A method has no answer for this kind of problem; the message says which methods have.

    Parameters
    ----------
    what : str
        The method or function that was called.
    problems : iterable of (field, value, expected)
        As for `InvalidValue`.
    """


class MissingPackage(PipelabError, ImportError):
    """Something needs a package of an extra that is not installed; the message has the command.

    Parameters
    ----------
    what : str
        What was called.
    package : str
        Which package is missing.

    Examples
    --------
    >>> print(MissingPackage("pl.explore_mix", "ipywidgets"))
    pl.explore_mix needs ipywidgets, which is not installed; pip install "pipelab[lab]"
    """

    def __init__(self, what: str, package: str) -> None:
        remedy = 'pip install "pipelab[lab]"'
        super().__init__(f"{what} needs {package}, which is not installed; {remedy}")


@contextmanager
def needed_by(what: str, package: str) -> Iterator[None]:
    """Around the import of a package that only an extra installs: an error names the extra.

    Parameters
    ----------
    what : str
        Who needs it.
    package : str
        As pip knows it.

    Raises
    ------
    MissingPackage
        It is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackage(what, package) from error


class InvalidData(PipelabError, ValueError):
    """A file cannot be read or written.

    Parameters
    ----------
    message : str, optional
        Names file, row and column where there are any.
    """


class InvalidPlacement(PipelabError, ValueError):
    """A placement breaks a rule of its problem.

    Parameters
    ----------
    defects : iterable of str
        Every rule that is broken, in the order in which they were checked.

    Attributes
    ----------
    defects : tuple of str
        The same.
    """

    def __init__(self, defects: Iterable[str]) -> None:
        self.defects = tuple(defects)
        super().__init__("this placement is not valid: " + "; ".join(self.defects))


class InvalidSchedule(PipelabError, ValueError):
    """A pipeline schedule cannot be run.

    Parameters
    ----------
    defects : iterable of str
        Every missing, duplicate or impossible action; if there is none, the edges of the deadlock.
    what : str, optional
        What cannot be run, for the message, which names the first five defects.

    Attributes
    ----------
    defects : tuple of str
        All of them.
    """

    def __init__(self, defects: Iterable[str], what: str = "this schedule") -> None:
        self.defects = tuple(defects)
        shown = "; ".join(self.defects[:5])
        more = f"; and {len(self.defects) - 5} more" if len(self.defects) > 5 else ""
        super().__init__(f"{what} cannot be run: {shown}{more}")


class UnknownName(PipelabError, LookupError):
    """A case, method, GPU type or option that does not exist.

    Parameters
    ----------
    message : str, optional
        What was asked for and what is known, the nearest name first.
    """

    # LookupError's children print their message in quotes; this one is a sentence.
    __str__ = Exception.__str__


class TooLarge(PipelabError):
    """A model, a schedule or a list would be too large to make.

    Parameters
    ----------
    message : str, optional
        What was counted, what is allowed and what would help.
    """


class SweepFailed(PipelabError):
    """Every point of a sweep failed in the same way.

    Parameters
    ----------
    message : str
        The reason, and what to do.
    sweep : Sweep
        All its rows.

    Attributes
    ----------
    sweep : Sweep
        As given.
    """

    def __init__(self, message: str, sweep: Any) -> None:
        self.sweep = sweep
        super().__init__(message)


class SweepInterrupted(KeyboardInterrupt):
    """A sweep was interrupted; the message says how it goes on.

    Not a `PipelabError`: code that catches those still wants Ctrl-C to end the program.

    Parameters
    ----------
    message : str
        How many rows there are and where they are kept.
    sweep : Sweep
        The rows so far.

    Attributes
    ----------
    sweep : Sweep
        As given.
    """

    def __init__(self, message: str, sweep: Any) -> None:
        self.sweep = sweep
        super().__init__(message)


# np.float64(0.5) is 0.5 to a reader, and np.True_ is True.
_NUMPYS = re.compile(r"\bnp\.(?:(?=True_|False_)|(?:float|int|uint)\w*\()(True|False|[^()]*)[_)]")


def shown(value: Any) -> str:
    """Write a value as code, long ones without their middle; some cannot be written at all."""
    try:
        text = repr(value)
    except Exception:  # a whole number of more than 4,300 digits, say
        text = f"<{type(value).__name__}>"
    if not isinstance(value, str):
        text = _NUMPYS.sub(r"\1", text)
    return text if len(text) <= 200 else f"{text[:120]} … {text[-40:]}"


_MOST_NAMED = 40  # of more names, the nearest half of as many are listed


def nearest(name: Any, known: Any) -> str:
    """Say what is known, with the nearest name first.

    >>> nearest("tinny", ["small", "tiny"])
    "did you mean 'tiny'? Known: small, tiny"
    """
    known = [str(k) for k in known]
    lowered = {k.lower(): k for k in known}
    wanted = (name if isinstance(name, str) else shown(name)).lower()[:100]
    close = get_close_matches(wanted, list(lowered), n=1, cutoff=0.6)
    starts = [low for low in lowered if low.startswith(wanted)] if wanted else []
    hint = f"did you mean {lowered[(close or starts)[0]]!r}? " if close or starts else ""
    if len(known) <= _MOST_NAMED:
        return f"{hint}Known: {', '.join(known)}"
    nearby = get_close_matches(wanted, list(lowered), n=_MOST_NAMED // 2, cutoff=0)
    return f"{hint}Known: {', '.join(lowered[low] for low in nearby)}, … ({len(known)} in all)"


def refuse_unknown(what: str, name: Any, known: Any) -> None:
    """Raise `UnknownName` unless a name is one of those that are known.

    >>> refuse_unknown("method", "jiont", ["joint", "even"])
    Traceback (most recent call last):
    pipelab.errors.UnknownName: there is no method 'jiont'; did you mean 'joint'? Known: joint, even
    """
    if not isinstance(name, str) or name not in known:
        raise UnknownName(f"there is no {what} {shown(name)}; {nearest(name, known)}")
