"""A fault of a program: what would have caught it, and the search for the smallest input that shows it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from pipelab.course.rust_numbers import Panic

# What must hold of any program that lays out a pipeline, and would have caught the faults.
REFUSES = "an input without an answer is refused"
COMPLETE = "an input with an answer gets one, with nothing left out"
SLOWER_TRUTH = "a slower, plainer computation agrees"
RUN = "the steps, run, end in time and hold no more than they should"
FORMULA = "a formula gives what a run gives"
PROPERTIES = (REFUSES, COMPLETE, SLOWER_TRUTH, RUN, FORMULA)


class Example(NamedTuple):
    """An input that shows a fault: what the program answers there, and what is right."""

    arguments: tuple
    answers: str
    right: str

    @property
    def written(self) -> str:
        """The arguments as text, large powers of two as powers."""
        return re.sub(r"\d{9,}", lambda found: _as_power(int(found[0])), str(self.arguments))


def _as_power(number: int) -> str:
    return f"2**{number.bit_length() - 1}" if number.bit_count() == 1 else str(number)


@dataclass(frozen=True)
class Fault:
    """What is wrong, the property that is broken, and where to look for it."""

    program: str
    name: str
    caught_by: str  # one of PROPERTIES
    inputs: Callable[[], Iterable[tuple]]  # all of them, in any order
    # what the program answers on one of them, and what is right; None where nothing is wrong
    shows: Callable[..., tuple[str, str] | None]

    def smallest(self) -> Example | None:
        """The smallest input that shows it; None where none does. Numbers and lengths of lists count as its size."""
        found = (
            (arguments, self.shows(*arguments)) for arguments in sorted(self.inputs(), key=size)
        )
        return next(
            (Example(arguments, *shown) for arguments, shown in found if shown is not None), None
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


def panicking(
    function: Callable, right: Callable[..., str]
) -> Callable[..., tuple[str, str] | None]:
    """For `Fault.shows`: the panic of a call, and what would be right there."""

    def shows(*arguments: Any) -> tuple[str, str] | None:
        panic = panics(function, *arguments)
        return (panic, right(*arguments)) if panic else None

    return shows


def sizes(split: Iterable[range]) -> list[int]:
    """Layers of every stage."""
    return [len(part) for part in split]
