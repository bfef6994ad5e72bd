"""What GPUs cost: per hour, and per million tokens."""

import math

import numpy as np

from pipelab.engine.classes import Classes
from pipelab.errors import InvalidValue
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem


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


def refuse_unpriced(problem: Problem, what: str) -> None:
    """Raise `InvalidValue` where a GPU has no price: known before any rate is, however early the end."""
    missing = sorted({g.type for g in problem.cluster.kinds if g.usd_per_hour is None})
    if missing:
        expected = f"expected GPU.usd_per_hour for every GPU; {', '.join(missing)} have none"
        raise InvalidValue(what, [("problem.cluster", problem.name, expected)])
