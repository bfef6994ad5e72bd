"""An exercise with a function as its answer: it must agree with ours on many inputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelab.errors import shown


@dataclass(frozen=True)
class Puzzle:
    """A function that a reader is asked to write.

    Attributes
    ----------
    signature : str
        As the reader is to write it, such as `"rate(cuts)"`.
    inputs : callable
        The arguments to try, the smallest first, so that the first failure is the smallest.
    target : callable
        The right answer for one of them.
    hint : callable
        What to look at, for one on which the reader's function is wrong.
    rel : float
        Relative tolerance.
    apply : callable
        Calls the reader's function with an input: with lists of its own, so that a function that
        changes its argument spoils no later input.
    picture : callable, optional
        A figure of an input, to look at where the reader's function is wrong on it.
    """

    signature: str
    inputs: Callable[[], Sequence[Any]]
    target: Callable[[Any], Any]
    hint: Callable[[Any], str]
    rel: float = 1e-6
    apply: Callable[[Callable[..., Any], Any], Any] = lambda mine, given: mine(list(given))
    picture: Callable[[Any], Any] | None = None
    none = ""  # None means not attempted, always

    def grade(self, mine: object) -> tuple[bool, str]:
        """Whether the reader's function agrees everywhere, or the smallest input where it does not."""
        if not callable(mine):
            expected = f"the function itself, as `def {self.signature}:` makes it"
            return False, f"expected {expected}; yours is {shown(mine)}"
        failure = self.smallest_failure(mine)
        if failure is None:
            return True, f"it agrees on all {len(self.inputs())} inputs"
        given, got = failure
        expected = _written(self.target(given))
        return False, f"on {given} yours gives {got}, expected {expected}. Hint: {self.hint(given)}"

    def smallest_failure(self, mine: Callable[..., Any]) -> tuple[Any, str] | None:
        """The first input on which the reader's function is wrong, and what it gives there."""
        for given in self.inputs():
            wanted = self.target(given)
            try:
                answer = self.apply(mine, given)
                agrees = math.isclose(float(answer), wanted, rel_tol=self.rel)
            except Exception as error:  # whatever a reader's function raises
                return given, f"{type(error).__name__}: {error}"
            if not agrees:
                return given, shown(answer)
        return None


def _written(wanted: float) -> str:
    return str(wanted) if isinstance(wanted, bool) else f"{wanted:.7g}"
