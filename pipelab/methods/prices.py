"""Prices in whole units, so that a solver compares them exactly."""

import numpy as np

from pipelab.formulations.aggregated.rates import StageRates

__all__ = ["MOST_PRICE_UNITS", "whole_prices"]

MOST_PRICE_UNITS = 200_000


def whole_prices(rates: StageRates) -> tuple[int, ...] | None:
    """Price of one GPU of each class in whole units of the finest price step; None where a price is missing.

    None also where prices are so fine (below a millionth of a dollar, or a common step that the
    total holds more than 200,000 times) that a solver's tolerance of 1e-6 could not tell them apart.
    """
    prices = [rates.classes.gpu(a).usd_per_hour for a in range(len(rates.classes))]
    if None in prices:
        return None
    exact = np.array(prices) * 1_000_000
    if (exact > 1e15).any():  # no rent, and beyond whole numbers of 64 bits further up
        return None
    micro = np.rint(exact).astype(np.int64)
    if (micro == 0).any() or (np.abs(micro - exact) > 1e-3).any():
        return None
    units = micro // np.gcd.reduce(micro)
    used = min(len(rates.problem.cluster), rates.problem.model.layers * rates.largest)
    return tuple(units.tolist()) if int(units.max()) * used <= MOST_PRICE_UNITS else None
