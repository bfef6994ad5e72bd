"""An exercise with a function as its answer that gives an order of actions; the smallest wrong order is drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelab.course.exercises.puzzle import Failure, Puzzle
from pipelab.errors import shown


@dataclass(frozen=True)
class Orders(Puzzle):
    """A function that must give an order of actions; its `target` is a right one.

    Attributes
    ----------
    broken : callable
        What is wrong with an order, in words, given the input and the order; "" for a right one.
    """

    broken: Callable[[Any, Any], str] = lambda given, order: ""

    def smallest_failure(self, mine: Callable[..., Any]) -> Failure | None:
        """The first input on which the reader's order is wrong, what is wrong, and the order."""
        for given in self.inputs():
            order = None
            try:
                order = self.apply(mine, given)
                why = self.broken(given, order)
            except Exception as error:  # whatever a reader's function raises
                why = f"it ends in {type(error).__name__}: {error}"
            if why:
                return Failure(given, why, order)
        return None

    def off(self, failure: Failure) -> str:
        """What is wrong, in words."""
        if failure.answer is None:
            return failure.says
        return f"yours gives {_written(failure.answer)}: {failure.says}"


def _written(order: Any) -> str:
    if order and all(isinstance(row, list) for row in order):
        return "; ".join(f"rank {r}: {' '.join(map(str, row))}" for r, row in enumerate(order))
    return " ".join(map(str, order)) if isinstance(order, list) else shown(order)


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
