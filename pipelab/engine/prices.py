"""What GPUs cost: per hour, and per million tokens.

Prices add up exactly, and only the sum is rounded. A solver keeps a budget within its tolerance, so `within_budget`
asks it again wherever its answer costs more.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import TypeVar

import numpy as np

from pipelab.engine.classes import Classes
from pipelab.engine.tolerances import LAST_BITS
from pipelab.errors import InvalidValue
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem

_MOST_PRICE_RATIO = 1_000_000  # solvers tell prices apart up to it
_MOST_MONEY_UNITS = 100_000  # a solver tells one unit more or less apart
Plan = TypeVar("Plan")


def total(numbers: Mapping[float, int]) -> float:
    """Add up the prices of so many GPUs of each price, exactly, and round once.

    A price of up to 12 digits stands for that decimal or for the nearest float, whichever makes the sum less.

    >>> total({0.8: 3}), total({1 / 3: 3})
    (2.4, 1.0)
    """
    readings = Fraction, _as_written
    return min(float(sum(n * read(price) for price, n in numbers.items())) for read in readings)


@cache
def _as_written(price: float) -> Fraction:
    written = f"{price:.12g}"
    return Fraction(written) if float(written) == price else Fraction(price)


def pays(budget: float, numbers: Mapping[float, int]) -> bool:
    """Return whether a budget is enough for so many GPUs of each price.

    A budget that somebody added up in floats, in whatever order, may lack the last bits of the exact sum.

    >>> pays(1.38 + 1.05 + 1.05, {1.38: 1, 1.05: 2}), total({1.38: 1, 1.05: 2}) - (1.38 + 1.05 + 1.05) > 0
    (True, True)
    """
    return total(numbers) <= budget * (1 + LAST_BITS)


def bill(problem: Problem, placements: Iterable[Placement]) -> Counter[float] | None:
    """Count the GPUs of each price; None where one of them has no price."""
    gpus = problem.cluster.gpus
    prices = Counter(gpus[g].usd_per_hour for placement in placements for g in placement.gpus)
    return None if None in prices else Counter({given(p): n for p, n in prices.items()})


def price_per_hour(problem: Problem, *placements: Placement) -> float | None:
    """Return what the GPUs of placements cost per hour in $; None where one of them has no price."""
    numbers = bill(problem, placements)
    return None if numbers is None else total(numbers)


def row_limit(prices: Iterable[float], budget: float) -> float:
    """Return a limit for a solver's row that keeps a budget, far from any sum if all prices are multiples of a unit.

    Halfway from the most of these units that the budget allows to one more; the budget itself if a unit is too small.

    >>> row_limit([3.0, 0.75], 6.5), row_limit([3.0, 3.1415926], 6.5)
    (6.375, 6.5)
    """
    exact = [_as_written(price) for price in prices]
    scale = math.lcm(*(price.denominator for price in exact))
    unit = Fraction(math.gcd(*(int(price * scale) for price in exact)), scale)
    if budget > unit * _MOST_MONEY_UNITS:
        return budget
    return float((math.floor(Fraction(budget * (1 + LAST_BITS)) / unit) + Fraction(1, 2)) * unit)


def within_budget(
    ask: Callable[[Mapping[float, int]], Plan],
    paid: Callable[[Plan], Mapping[float, int] | None],
    budget: float,
) -> Iterator[Plan]:
    """Find answers that cost no more than a budget; the best of them is the best of all that do.

    Where an answer costs more by less than a solver's tolerance, whatever costs less has fewer GPUs of some price.
    So it is asked again for each price, with one GPU less of it.

    Parameters
    ----------
    ask : function of a mapping
        Finds the answer with at most so many GPUs of each price.
    paid : function of an answer
        The GPUs of each price that it uses; None where it uses none.
    """
    waiting: list[dict[float, int]] = [{}]
    asked: set[frozenset] = set()
    while waiting:
        most = waiting.pop()
        key = frozenset(most.items())
        if key in asked:
            continue
        asked.add(key)
        answer = ask(most)
        numbers = paid(answer)
        if numbers is None or pays(budget, numbers):
            yield answer
        else:
            waiting += [{**most, price: number - 1} for price, number in numbers.items()]


def usd_per_million_tokens(usd_per_hour: float, throughput: float) -> float:
    """Return the price of a million tokens at a rate in tokens/s.

    >>> round(usd_per_million_tokens(3.6, 1000), 9)
    1.0
    """
    return usd_per_hour / (3600 * throughput) * 1_000_000


def prices_of(classes: Classes) -> np.ndarray:
    """Return the price of one GPU of each class in $ per hour; shape (A,)."""
    return np.array([given(classes.gpu(a).usd_per_hour) for a in range(len(classes))])


def comparable(problem: Problem) -> bool:
    """Return whether every GPU has a price, and a solver can add up any of them."""
    prices = [gpu.usd_per_hour or 0.0 for gpu in problem.cluster.kinds]
    return 0 < max(prices) <= min(prices) * _MOST_PRICE_RATIO


def refuse_unpriced(problem: Problem, what: str) -> None:
    """Raise `InvalidValue` where prices cannot be compared: known before any rate is, however early the end."""
    if comparable(problem):
        return
    missing = sorted({g.type for g in problem.cluster.kinds if g.usd_per_hour is None})
    if missing:
        expected = f"expected GPU.usd_per_hour for every GPU; {', '.join(missing)} have none"
        raise InvalidValue(what, [("problem.cluster", problem.name, expected)])
    prices = sorted({given(gpu.usd_per_hour) for gpu in problem.cluster.kinds})
    expected = (
        f"expected prices of which none is more than {_MOST_PRICE_RATIO:,} times another; "
        f"these are from {prices[0]:g} to {prices[-1]:g}"
    )
    raise InvalidValue(what, [("problem.cluster", problem.name, expected)])
