"""An exercise with a function as its answer: it must agree with ours on many inputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pipelab.errors import shown

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Claim(float):
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
    says: str  # what it gives there, in words
    answer: Any = None  # what it gives there; None where it raises

    @property
    def yours(self) -> str:
        """For the end of a title; empty where there is no number."""
        number = isinstance(self.answer, int | float) and len(self.says) < 24
        return f"; yours says {self.says}" if number else ""


def no_function(signature: str, mine: object) -> str:
    """Why an answer that is no function is not graded."""
    expected = f"the function itself, as `def {signature}:` makes it"
    return f"expected {expected}; yours is {shown(mine)}"


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
        Makes a figure of a `Failure`: of the smallest input on which the reader's function is
        wrong, and of what it gives there.
    """

    signature: str
    inputs: Callable[[], Sequence[Any]]
    target: Callable[[Any], Any]
    hint: Callable[[Any], str]
    rel: float = 1e-6
    apply: Callable[[Callable[..., Any], Any], Any] = lambda mine, given: mine(list(given))
    picture: "Callable[[Failure], Figure] | None" = None
    none = ""  # None means not attempted, always

    def grade(self, mine: object) -> tuple[bool, str]:
        """Whether the reader's function agrees everywhere, or the smallest input where it does not."""
        if not callable(mine):
            return False, no_function(self.signature, mine)
        return self.graded(self.smallest_failure(mine))

    def graded(self, failure: Failure | None) -> tuple[bool, str]:
        """Whether there is none, and a sentence."""
        if failure is None:
            return True, f"it agrees on all {len(self.inputs())} inputs"
        return False, f"on {failure.given} {self.off(failure)}. Hint: {self.hint(failure.given)}"

    def off(self, failure: Failure) -> str:
        """What is wrong, in words."""
        return f"yours gives {failure.says}, expected {_written(self.target(failure.given))}"

    def smallest_failure(self, mine: Callable[..., Any]) -> Failure | None:
        """The first input on which the reader's function is wrong, and what it gives there."""
        for given in self.inputs():
            wanted = self.target(given)
            try:
                answer = self.apply(mine, given)
                agrees = math.isclose(float(answer), wanted, rel_tol=self.rel)
            except Exception as error:  # whatever a reader's function raises
                return Failure(given, f"{type(error).__name__}: {error}")
            if not agrees:
                says = _written(answer) if isinstance(answer, float) else shown(answer)
                return Failure(given, says, answer)
        return None


def _written(wanted: float) -> str:
    """As readers write it, so that it can be compared with their own.

    >>> _written(True), _written(83.33333333333331), _written(12.0)
    ('True', '83.33333', '12')
    """
    return str(wanted) if isinstance(wanted, bool) else f"{wanted:.7g}"
