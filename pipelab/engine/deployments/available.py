"""Pipelines of a rate that keep to the GPUs there are, near the least price.

The shortest path of `Pricing` may use more GPUs of a class than there are. Stage by stage the cheapest
mixture that reaches the rate and is still free may take the place of what the path has; where that
fails, the prices of the classes that were short are raised, and the path sought again.
"""

from collections.abc import Sequence

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.pricing import Pricing
from pipelab.engine.layer_runs import runs_of

_TRIES = 8
_DEARER = 1.5

Stages = list[tuple[int, int]]  # layers, and row of the table, of each stage


def within_counts(
    pricing: Pricing, prices: np.ndarray, which: int, deadline: Deadline
) -> Stages | None:
    """A pipeline of rate number `which` of `pricing.asked`, if one is found within a few tries."""
    rate, raised = float(pricing.asked[0][which]), prices.copy()
    count = pricing.rates.classes.count
    for _ in range(_TRIES):
        (stages,) = pricing.pipelines(raised, [which], deadline)
        replaced = _replaced(pricing, stages, rate, raised)
        if replaced is not None:
            return replaced
        used = np.array(pricing.without_limits([row for _, row in stages], raised))
        raised = np.where(used > count, _DEARER * raised, raised)
    return None


def _replaced(pricing: Pricing, stages: Stages, rate: float, prices: np.ndarray) -> Stages | None:
    """The same layers, each stage on the cheapest GPUs that are still free; None where some has none."""
    rates, kind = pricing.rates, runs_of(pricing.rates.problem.model).kind
    of_row = rates.composition @ pricing.by_kind(prices)
    free = rates.problem.cluster.kind_count.copy()
    out, at = [], 0
    for layers, _ in stages:
        fits = rates.rate[:, kind[at, layers - 1]] >= rate
        fits &= (rates.composition <= free).all(axis=1)
        rows = np.flatnonzero(fits)
        if not len(rows):
            return None
        row = int(rows[of_row[rows].argmin()])
        free = free - rates.composition[row]
        out.append((layers, row))
        at += layers
    return out


def rows_of(stages: Sequence[tuple[int, int]]) -> list[int]:
    """The rows of the table alone."""
    return [row for _, row in stages]
