"""Where something stops holding: for targets that no formula gives."""

from collections.abc import Callable


def where_it_turns(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number for which something holds, by bisection."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
