"""Exercises of notebook 11: how to divide identical GPUs, and what no deployment can beat."""

import random
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pipelab.course.exercises.puzzle import Failure, Puzzle
from pipelab.display import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_INPUTS = 200


class Identical(NamedTuple):
    """The best rate of a pipeline of 1, 2, … identical GPUs, and how many GPUs there are."""

    rates: tuple[int, ...]
    gpus: int

    def __repr__(self) -> str:
        return f"rates={list(self.rates)}, gpus={self.gpus}"


class Priced(NamedTuple):
    """Pipelines (GPUs of each type, rate), a price for each type, and how many GPUs there are."""

    pipelines: tuple[tuple[tuple[int, ...], int], ...]
    prices: tuple[int, ...]
    gpus: tuple[int, ...]

    def __repr__(self) -> str:
        lists = [(list(mix), rate) for mix, rate in self.pipelines]
        return f"pipelines={lists}, prices={list(self.prices)}, gpus={list(self.gpus)}"


# 11.1: identical GPUs, divided


@cache
def _identical() -> tuple[Identical, ...]:
    chance, found = random.Random(111), set[Identical]()
    while len(found) < _INPUTS:
        rates, rate = [], 0
        for _ in range(chance.randint(1, 6)):
            rate += chance.choice((0, 1, 2, 4, 5, 9))  # a pipeline need not use every GPU
            rates.append(rate)
        found.add(Identical(tuple(rates), chance.randint(2, 14)))
    return tuple(sorted(found, key=lambda given: (given.gpus, len(given.rates), given)))


def _sums(given: Identical) -> list[int]:
    """The best sum of rates for 0, 1, 2, … GPUs."""
    best = [0]
    while len(best) <= given.gpus:
        ways = zip(given.rates, best[::-1], strict=False)
        best.append(max(best[-1], *(rate + rest for rate, rest in ways)))
    return best


def _best_sum(given: Identical) -> int:
    return _sums(given)[-1]


def _draw_identical(failure: Failure) -> "Figure":
    from pipelab.course.figures.lines import plot_lines

    given: Identical = failure.given
    numbers, best = list(range(given.gpus + 1)), _sums(given)
    alone = [0, *given.rates, *[given.rates[-1]] * given.gpus][: given.gpus + 1]
    text = f"{counted(given.gpus, 'GPU')}: {best[-1]} with several pipelines, {alone[-1]} with one"
    lines = {"several pipelines": best, "one pipeline": alone}
    at = (given.gpus, best[-1])
    return plot_lines(numbers, lines, text + failure.yours, ("GPUs", "rate"), at)


def _look_at_identical(given: Identical) -> str:
    if given.gpus <= len(given.rates) and _best_sum(given) == given.rates[given.gpus - 1]:
        return "here one pipeline on all of them is best"
    return "take one pipeline of 1, 2, … GPUs out: what do the GPUs that are left yield at best?"


# 11.2: what no deployment can beat


@cache
def _priced() -> tuple[Priced, ...]:
    chance, found = random.Random(112), set[Priced]()
    while len(found) < _INPUTS:
        types = chance.randint(1, 3)
        mixes = {tuple(chance.randint(0, 3) for _ in range(types)) for _ in range(6)}
        listed = [(m, chance.randint(1, 4 * sum(m))) for m in sorted(mixes) if any(m)]
        prices, gpus = (tuple(chance.randint(1, 6) for _ in range(types)) for _ in range(2))
        if len(listed) > 2:
            number = chance.randint(3, len(listed))
            found.add(Priced(tuple(listed[:number]), prices, gpus))
    return tuple(sorted(found, key=lambda given: (len(given.gpus), len(given.pipelines), given)))


def _price(given: Priced, numbers: tuple[int, ...]) -> int:
    return sum(price * number for price, number in zip(given.prices, numbers, strict=True))


def _factor(given: Priced) -> float:
    """By which all prices may be multiplied so that no pipeline yields more than its GPUs cost."""
    return max(rate / _price(given, mix) for mix, rate in given.pipelines)


def _bound(given: Priced) -> float:
    return _factor(given) * _price(given, given.gpus)


def _draw_priced(failure: Failure) -> "Figure":
    from pipelab.course.figures.lines import plot_lines

    given: Priced = failure.given
    numbers = list(range(1, len(given.pipelines) + 1))
    times = _factor(given)
    lines: dict[str, list[float]] = {
        "price of its GPUs": [times * _price(given, mix) for mix, _ in given.pipelines],
        "rate": [rate for _, rate in given.pipelines],
    }
    text = f"At {times:.4g} times the prices no pipeline beats its GPUs; all GPUs cost {_bound(given):.5g}"
    return plot_lines(numbers, lines, text + failure.yours, ("pipeline", "tokens/s"))


def _look_at_priced(given: Priced) -> str:
    if _factor(given) < 1:
        return "no pipeline yields what its GPUs cost: by which factor can all prices fall?"
    if _factor(given) > 1:
        return "a pipeline yields more than its GPUs cost: by which factor must all prices rise?"
    return "the prices are right as they are: what do all GPUs cost?"


DEPLOYING: dict[str, Puzzle] = {
    "11.1": Puzzle(
        "divided(rates, gpus)",
        _identical,
        _best_sum,
        _look_at_identical,
        apply=lambda mine, given: mine(list(given.rates), given.gpus),
        picture=_draw_identical,
    ),
    "11.2": Puzzle(
        "at_most(pipelines, prices, gpus)",
        _priced,
        _bound,
        _look_at_priced,
        apply=lambda mine, x: mine(
            [(list(mix), rate) for mix, rate in x.pipelines], list(x.prices), list(x.gpus)
        ),
        picture=_draw_priced,
    ),
}
