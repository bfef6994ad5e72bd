"""A fault of a program: what is wrong, and the search for the smallest input that shows it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from pipelab.course.published_orders import Failure
from pipelab.course.rust_numbers import Panic


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where to look for it."""

    program: str
    name: str
    inputs: Callable[[], Iterable[tuple]]  # all of them, in any order
    shows: Callable[..., str | None]  # what happens on one of them; None where nothing is wrong

    def smallest(self) -> Failure | None:
        """The smallest input that shows it; None where none does. Numbers and lengths of lists count as its size."""
        found = (
            (arguments, self.shows(*arguments)) for arguments in sorted(self.inputs(), key=size)
        )
        return next(
            (Failure(arguments, what) for arguments, what in found if what is not None), None
        )


def size(value: Any) -> int:
    """The sum of all numbers in it and of the lengths of its lists."""
    return len(value) + sum(map(size, value)) if isinstance(value, list | tuple) else value


def lists(length: int, values: Iterable[int]) -> list[list[int]]:
    """Every list of this length."""
    return [list(each) for each in product(values, repeat=length)]


def panics(function: Callable, *arguments: Any) -> str | None:
    """The panic that this call ends with; None if it answers."""
    try:
        function(*arguments)
    except Panic as panic:
        return f"panic: {panic}"
    return None


def sizes(split: Iterable[range]) -> list[int]:
    """Layers of every stage."""
    return [len(part) for part in split]
