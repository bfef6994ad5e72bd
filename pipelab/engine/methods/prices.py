"""What GPUs cost: per hour, per million tokens, and in whole units that a solver compares exactly."""

import math

import numpy as np

from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.formulations.aggregated.usage import COARSE_UNITS, price_step
from pipelab.engine.tolerances import WHOLE_PRICE
from pipelab.placement import Placement
from pipelab.problem import Problem

# Prices are split in two places (`formulations.aggregated.usage`); each stays below what a solver
# tells apart.
MOST_PRICE_UNITS = COARSE_UNITS * 20_000


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


def whole_prices(rates: StageRates) -> tuple[int, ...] | None:
    """Price of one GPU of each class in whole units of the finest price step; None where a price is missing.

    None also where prices are no whole millionths of a dollar, or their common step is so fine that
    the total holds more than 4 · 10^9 of it.
    """
    prices = [rates.classes.gpu(a).usd_per_hour for a in range(len(rates.classes))]
    if None in prices:
        return None
    exact = np.array(prices) * 1_000_000
    if (exact > 1e15).any():  # no rent, and beyond whole numbers of 64 bits further up
        return None
    micro = np.rint(exact).astype(np.int64)
    if (micro == 0).any() or (np.abs(micro - exact) > WHOLE_PRICE).any():
        return None
    units = tuple((micro // np.gcd.reduce(micro)).tolist())
    return units if price_step(rates, units) * COARSE_UNITS <= MOST_PRICE_UNITS else None
