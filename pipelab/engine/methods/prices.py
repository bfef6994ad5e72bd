"""Prices in whole units, so that a solver compares them exactly."""

import numpy as np

from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.formulations.aggregated.usage import COARSE_UNITS, price_step

__all__ = ["MOST_PRICE_UNITS", "whole_prices"]

# Prices are split in two places (`formulations.aggregated.usage`); each stays below what a solver
# tells apart.
MOST_PRICE_UNITS = COARSE_UNITS * 20_000


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
    if (micro == 0).any() or (np.abs(micro - exact) > 1e-3).any():
        return None
    units = tuple((micro // np.gcd.reduce(micro)).tolist())
    return units if price_step(rates, units) * COARSE_UNITS <= MOST_PRICE_UNITS else None
