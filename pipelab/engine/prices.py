"""What GPUs cost: per hour, and per million tokens."""

import math

import numpy as np

from pipelab.engine.classes import Classes
from pipelab.errors import InvalidValue
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem

_LEAST_PRICE = 0.0001  # $ per hour; sums are rounded to millionths
_FAR_APART = 1_000_000  # what solvers tell apart


def price_per_hour(problem: Problem, placement: Placement) -> float | None:
    """What the GPUs of a placement cost per hour in $; None where one of them has no price."""
    prices = [problem.cluster.gpus[g].usd_per_hour for g in placement.gpus]
    known = [price for price in prices if price is not None]
    return round(math.fsum(known), 6) if len(known) == len(prices) else None


def usd_per_million_tokens(usd_per_hour: float, throughput: float) -> float:
    """Price of a million tokens at so many tokens/s.

    >>> round(usd_per_million_tokens(3.6, 1000), 9)
    1.0
    """
    return usd_per_hour / (3600 * throughput) * 1_000_000


def prices_of(classes: Classes) -> np.ndarray:
    """Price of one GPU of each class in $ per hour; shape (A,)."""
    return np.array([given(classes.gpu(a).usd_per_hour) for a in range(len(classes))])


def comparable(problem: Problem) -> bool:
    """Whether every GPU has a price, and a solver can add up any of them."""
    prices = [gpu.usd_per_hour or 0.0 for gpu in problem.cluster.kinds]
    return min(prices) >= _LEAST_PRICE and max(prices) <= min(prices) * _FAR_APART


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
        f"expected prices of at least {_LEAST_PRICE} $ per hour, none more than {_FAR_APART:,} times another; "
        f"these are from {prices[0]:g} to {prices[-1]:g}"
    )
    raise InvalidValue(what, [("problem.cluster", problem.name, expected)])
