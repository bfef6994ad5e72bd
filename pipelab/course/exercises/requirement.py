"""An exercise with a function as its answer, of which there are many right ones: its answers must keep a rule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelab.course.exercises.puzzle import no_function
from pipelab.errors import shown


@dataclass(frozen=True)
class Requirement:
    """A function that a reader is asked to write, or to repair.

    Attributes
    ----------
    signature : str
        As the reader is to write it, such as `"cut(costs, stages)"`.
    inputs : callable
        The arguments to try, the smallest first, so that the first failure is the smallest.
    broken : callable
        What an answer breaks, in words, given the answer and the arguments; "" for a right one.
    """

    signature: str
    inputs: Callable[[], Sequence[tuple]]
    broken: Callable[..., str]
    none = ""  # None means not attempted, always

    def grade(self, mine: object) -> tuple[bool, str]:
        """Whether every answer keeps the rule, or the smallest input with one that does not."""
        if not callable(mine):
            return False, no_function(self.signature, mine)
        inputs = self.inputs()
        for given in inputs:
            # lists of its own, so that a function that changes its argument spoils no later input
            own = [list(each) if isinstance(each, list) else each for each in given]
            try:
                answer = mine(*own)
                why = self.broken(answer, *given)
            except Exception as error:  # whatever a reader's function raises
                return False, f"on {_written(given)} yours gives {type(error).__name__}: {error}"
            if why:
                return False, f"on {_written(given)} yours gives {shown(answer)}: {why}"
        return True, f"it keeps the rule on all {len(inputs)} inputs"


def _written(given: tuple) -> str:
    return ", ".join(map(str, given))
