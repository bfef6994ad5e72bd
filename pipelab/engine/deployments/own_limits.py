"""Prices that keep one pipeline to the GPUs there are: a better bound where classes are small.

`Pricing` leaves out that a pipeline has no more than N_a GPUs of a class. With any v_a ≥ 0 in addition,

    u · n  ≥  (u + v) · n - v · N        for every pipeline of n ≤ N GPUs,

so the least price at u + v, less v · N, is a lower bound too, and the best over several v is one.
The rate with the highest ratio to its price decides the bound. So v is raised, step by step, for the
classes of which its cheapest pipeline has too many, until it has not or nothing is gained.
"""

from collections.abc import Sequence

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.pricing import Pricing

_STEPS = 40
_FIRST_STEP = 0.05  # of the price, as what is to be gained
_LAST_STEP = 1e-3


class OwnLimits:
    """The prices v of each offer, kept from round to round."""

    def __init__(self, pricings: Sequence[Pricing], counts: np.ndarray) -> None:
        self.pricings, self.counts = pricings, counts
        self.prices = [np.zeros(len(counts)) for _ in pricings]

    def raise_least(self, cost: np.ndarray, least: list[np.ndarray], deadline: Deadline) -> None:
        """Raise the least prices `least` of each offer's rates in place, as far as the limits allow.

        Raises
        ------
        Ended
            The deadline was first.
        """
        if not any(own.size for own in least):
            return
        for i in range(len(self.pricings)):
            self._keep(i, cost, least, deadline)
        step = _FIRST_STEP
        for _ in range(_STEPS):
            i, which = self._decides(least)
            pricing, v = self.pricings[i], self.prices[i]
            (stages,) = pricing.pipelines(cost + v, [which], deadline)
            used = np.array(pricing.without_limits([row for _, row in stages], cost + v))
            over = np.where((used > self.counts) | (v > 0), used - self.counts, 0)
            if not (over > 0).any() or step < _LAST_STEP:
                return
            before = least[i][which]
            self.prices[i] = np.maximum(0.0, v + step * before / float(over @ over) * over)
            self._keep(i, cost, least, deadline)
            if least[i][which] <= before * (1 + step / 10):
                step /= 2

    def _keep(self, i: int, cost: np.ndarray, least: list[np.ndarray], deadline: Deadline) -> None:
        v = self.prices[i]
        if v.any():
            found = self.pricings[i].least(cost + v, deadline) - float(v @ self.counts)
            np.maximum(least[i], found, out=least[i])

    def _decides(self, least: list[np.ndarray]) -> tuple[int, int]:
        """The offer and the rate with the highest ratio to its price."""
        ratios = [p.asked[1] / own for p, own in zip(self.pricings, least, strict=True)]
        i = max(range(len(ratios)), key=lambda j: ratios[j].max(initial=0.0))
        return i, int(ratios[i].argmax())
